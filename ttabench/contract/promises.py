"""The promises by their sentences: each function returns where its promise is kept, and raises `Broken` where not.

for sentence, promise in PROMISES.items():
    promise(Case(find("icl"), InContextSettings(), tiny_llama))
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ttabench.contract import asking, lasting, reading
from ttabench.contract.case import Case

PROMISES: Mapping[str, Callable[[Case], None]] = {
    "its settings can be stored, and it has parameters exactly where its spec says trainable": lasting.described,
    "asking twice, and in another order, gives the same answers": asking.asked_again,
    "questions of one batch do not meet": asking.alone_or_together,
    "adapting nothing gives the base model": asking.nothing_read,
    "what is read arrives, unless the spec says that the state stays empty": reading.reading_arrives,
    "a row alone equals the row in a batch, or no batch begins where the method says one_reader": reading.rows_apart,
    "a patch has a row a question where it looks at questions, and else one that serves all": asking.patch_rows,
    "what is read together may be cut anywhere, where the method says so": reading.cut_anywhere,
    "states are values: neither reading on nor asking changes one": reading.values,
    "a stored state gives an equal patch, and can be read on": lasting.stored,
    "the bytes of the state grow as the method says: none, constant or linear": reading.bytes_follow_growth,
    "two runs with one seed are bit for bit the same": reading.repeatable,
    "what is asked later never changes what was answered before": asking.later_questions,
    "shares of kept pieces are told where the spec says so, and sum to 1": asking.pieces_looked_at,
    "nothing of a right answer reaches the state or what is generated": asking.answers_stay_out,
    "nothing is left behind after an exception: no hook, no changed weight, no gradient": lasting.cleaned_up,
    "training reaches every parameter and no weight of the base": lasting.trained,
    "a stored checkpoint gives an equal patch": lasting.checkpoint,
}
"""By what is promised, in the order in which they are checked."""
