"""Promises about what is read: it arrives, rows and cuts do not matter, states are values of a stated size."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

from ttabench.contract.case import PROMPTS, TEXTS, Case, answers, asks, logits, observes, read
from ttabench.contract.keeping import Broken, equal, furthest, near
from ttabench.core.errors import UserError
from ttabench.methods.base import BaseMethod

ARRIVES = 1e-3
"""Logits move by more where something was read."""
GULLS = tuple(f"Gull {number} sails." for number in range(10, 26))
"""Short pieces of one length: all of them fit where full context stops."""
ALIKE = 1.25
"""How much more some pieces may add than others to a state that grows with what is read: it may be pooled in groups."""


def reading_arrives(case: Case) -> None:
    """A guard of the other promises."""
    method, questions = case.method(), asks(*PROMPTS)
    moved = furthest(logits(method, method.begin(1), questions), logits(method, read(method, *TEXTS), questions))
    if (moved > ARRIVES) != (method.growth != "none"):
        raise Broken(f"growth is {method.growth!r}, and logits move by up to {moved:.2g}")


def rows_apart(case: Case) -> None:
    """Readers of one batch do not meet, whatever the lengths of what they read; with `one_reader` none begins."""
    method, questions = case.method(), asks(*PROMPTS)
    if method.one_reader:
        _refused(method)
        return
    first = [TEXTS[0], TEXTS[1] + " And green ones, too, of all sizes.", TEXTS[2]]
    second = ["It is a harbour.", TEXTS[3], "There are terns, gulls and one old lighthouse."]
    state, chunks = method.begin(len(first)), [observes(*first), observes(*second)]
    for part in [chunks] if method.reads == "once" else [[chunk] for chunk in chunks]:
        state = method.adapt(state, part)
    together = logits(method, state, questions)
    for row, pieces in enumerate(zip(first, second, strict=True)):
        alone = logits(method, read(method, *pieces), [questions[row]])
        near(f"logits of row {row} in a batch and alone", [together[row]], alone)


def _refused(method: BaseMethod[Any]) -> None:
    try:
        method.begin(2)
    except UserError:
        return
    raise Broken("one_reader is true, and a state of two rows begins")


def cut_anywhere(case: Case) -> None:
    """With `reads="pieces"`; else what stands between two questions comes in one call, see `Session`."""
    method, questions = case.method(), asks(*PROMPTS)
    if method.reads != "pieces":
        return
    at_once = method.adapt(method.begin(1), [[piece] for piece in observes(*TEXTS)])
    one_by_one = read(method, *TEXTS)
    if at_once.meta != one_by_one.meta:
        raise Broken("meta of a state read at once and piece by piece differ")
    if at_once.nbytes != one_by_one.nbytes:
        raise Broken(f"a state has {at_once.nbytes:,} bytes read at once, {one_by_one.nbytes:,} piece by piece")
    near("logits of states read at once and piece by piece", logits(method, at_once, questions),
          logits(method, one_by_one, questions))  # fmt: skip


def values(case: Case) -> None:
    """A state that was kept can be gone back to."""
    method = case.method()
    state = read(method, TEXTS[0])
    kept, meta = {name: tensor.clone() for name, tensor in state.tensors.items()}, json.dumps(state.meta)
    if method.reads != "once":
        answers(method, method.adapt(state, [observes(TEXTS[1])]), asks(*PROMPTS))
    answers(method, state, asks(*PROMPTS))
    if json.dumps(state.meta) != meta:
        raise Broken("meta of a state changed")
    equal("tensors of a state before and after", list(state.tensors.values()), list(kept.values()))


def bytes_follow_growth(case: Case) -> None:
    """Pieces of one length: the state stays empty, stays as it is, or every four of them add as much, to a quarter."""
    method = case.method()
    linear = method.growth == "linear"
    texts, counts = (GULLS, (4, 8, 12, 16)) if linear else (TEXTS, (1, 2, 3, 4))
    sizes = [read(method, *texts[:count]).nbytes for count in counts]
    steps = [after - before for before, after in pairwise(sizes)]
    kept = {
        "none": not any(sizes),
        "constant": sizes[0] > 0 and not any(steps),
        "linear": 0 < max(steps) <= ALIKE * min(steps),
    }
    if not kept[method.growth]:
        read_in = ", ".join(map(str, counts))
        raise Broken(f"growth is {method.growth!r}, and {read_in} equal pieces leave {sizes} bytes")


def repeatable(case: Case) -> None:
    """On one machine, with the same threads."""
    first, second = (logits(method, read(method, *TEXTS), asks(*PROMPTS)) for method in (case.method(), case.method()))
    equal("logits of two runs", first, second)
