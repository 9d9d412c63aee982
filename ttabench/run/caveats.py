"""Caveats of a run, stored as its notes, each one sentence without a full stop: known before a run, or after it.

All follow from what a run stores, so a run that was killed and continued has the notes of one that was not."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from ttabench.core.architectures import NANO
from ttabench.core.types import Json, Observe, Score
from ttabench.records.run_fields import STATES_OF
from ttabench.records.samples import EpisodeCost, Sample
from ttabench.run.budget import asked, budget_caveats

if TYPE_CHECKING:
    from ttabench.lm.model import LM
    from ttabench.lm.patch import State
    from ttabench.methods.base import BaseMethod
    from ttabench.readers import Task
    from ttabench.run.plan import Plan

FEW = 10
"""Queries below which a figure says next to nothing."""
WORD = re.compile(r"[^\W\d_]+")
"""A word of letters only, so that numbers do not count."""
ENGLISH = "smollm2-135m-qa"
"""A base model that reads English and answers in a few words."""
LEAST_BYTES = 3.4
"""Bytes of words in a token below which a text is not what the tokenizer was made for. SmolLM2's has 5 of an English
word, and 2.7 of a German one; nano's 4 to 5 in its miniature world and 2 to 3 in English."""
LEAST_WORDS, MOST_WORDS = 5, 2000
"""Fewer words tell nothing; more are not looked at."""
LEAST_TOKENS = 1024
"""A smaller vocabulary is of bytes or characters, and tells nothing of any language."""
_EVICTED_NOTHING = re.compile(r"^\S+ evicted nothing(?: from ([\d,]+) of ([\d,]+) contexts)?: ")


def caveats_of_plan(plan: Plan) -> list[str]:
    """Caveats that are known before anything is loaded."""
    caveats = [str(note) for note in plan.task.notes]
    if control := STATES_OF[plan.config.state_of]:
        caveats += [control, *plan.task_record.get("others", {}).get("notes", [])]
    return [*caveats, *plan.resolved.notes()]


def caveats_before(plan: Plan, lm: LM) -> list[str]:
    """Caveats that are known once the base model is loaded."""
    caveats = caveats_of_plan(plan)
    if lm.random_weights:
        caveats.append(f"the base model has random weights and the tokenizer of {lm.tokenizer_name}")
    return [*caveats, *fertility_caveats(lm, _texts(plan.task))]


def caveats_after(
    plan: Plan, method: BaseMethod[Any], costs: Sequence[EpisodeCost], samples: Sequence[Sample]
) -> list[str]:
    """Caveats that are known once all queries are answered."""
    own = plan.config.state_of == "own"
    return [
        *_truncations(truncated(costs)),
        *label_caveats(method, costs),
        *(eviction_caveats(method, [cost.tokens_read for cost in costs]) if own else []),
        *budget_caveats(asked(plan.config.keep, plan.config.keep_tokens), costs),
        *_shorter(plan, samples),
        *count_caveats(samples),
        *answer_caveats(samples),
    ]


def state_caveats(method: BaseMethod[Any], state: State) -> list[str]:
    """Caveats of a state that was made outside a run."""
    lost = {key: int(sum(value)) for key, value in state.meta.items() if key.startswith("truncated")}
    smaller = [f"{note}; smaller pieces may fit (--pieces paragraphs)" for note in _truncations(lost)]
    return [*smaller, *eviction_caveats(method, state.meta.get("tokens_read", []))]


def _texts(task: Task) -> Iterator[str]:
    """Texts that the first reader of a task reads and is asked, cut as without a tokenizer."""
    first = next(iter(task.episodes()), None)
    for step in () if first is None else first.steps:
        if isinstance(step, Observe):
            yield step.text
        else:
            yield from (piece.text for piece in step.window)
            yield step.question_text


def bytes_a_token(lm: LM, texts: Iterable[str]) -> float | None:
    """UTF-8 bytes of words in a token, the blank in front included; None for too few words or a small vocabulary."""
    words_found = (match[0] for text in texts for match in WORD.finditer(text))
    words = [f" {word}" for word in islice(words_found, MOST_WORDS)]
    if len(words) < LEAST_WORDS or len(lm.tokenizer) < LEAST_TOKENS:
        return None
    return sum(len(word.encode()) for word in words) / sum(map(len, lm.encode_many(words)))


def fertility_caveats(lm: LM, texts: Iterable[str]) -> list[str]:
    """One sentence where the texts are not what the model was made for, else none."""
    share = None if lm.random_weights else bytes_a_token(lm, texts)
    if share is None or share >= LEAST_BYTES:
        return []
    known = f"{lm.name} hardly knows this kind of text ({share:.1f} bytes of a word in a token)"
    better = f"; use --model {ENGLISH} for English" if lm.name == NANO else ""
    return [f"{known}: its answers say little about the method{better}"]


def labels(costs: Sequence[EpisodeCost]) -> dict[str, Json]:
    """Labels of the states of all episodes: a label holds where it held once."""
    labels_by_name: dict[str, Json] = {}
    for cost in costs:
        labels_by_name |= {name: value or labels_by_name.get(name, value) for name, value in cost.labels.items()}
    return labels_by_name


def label_caveats(method: BaseMethod[Any], costs: Sequence[EpisodeCost]) -> list[str]:
    """What the labels of a method's states mean, a sentence each; those that it has no words for, in one note."""
    notes, plain = [], []
    for label, value in labels(costs).items():
        known = next((one for one in (method, *method.parts()) if label in one.label_notes), None)
        if known is None:
            plain.append(f"{label.replace('_', ' ')} {'yes' if value is True else 'no' if value is False else value}")
        elif isinstance(value, bool) and value in known.label_notes[label]:
            notes.append(f"{known.name} {known.label_notes[label][value]}")
    return [*notes, *([f"{method.name}: {', '.join(plain)}"] if plain else [])]


def eviction_caveats(method: BaseMethod[Any], read: Sequence[int | None]) -> list[str]:
    """Whether a method that evicts had no need to, by the tokens of every context that it has read."""
    counts = [count for count in read if count]
    whole = [count for count in counts if method.evicts_nothing(count)]
    if not whole:
        return []
    where = "" if len(whole) == len(counts) else f" from {len(whole)} of {len(counts)} contexts"
    reason = f"{method.name} evicted nothing{where}: {max(whole):,} tokens of context fit what it may keep"
    return [f"{reason}, so this measures full context (icl), not {method.name}"]


def kept_whole(notes: Iterable[str]) -> float:
    """The share of contexts of which a method that evicts kept everything, by the notes of its run (0.375: 3 of 8)."""
    for note in notes:
        if match := _EVICTED_NOTHING.match(note):
            some, contexts = match.groups()
            return int(some.replace(",", "")) / int(contexts.replace(",", "")) if some else 1.0
    return 0.0


def count_caveats(samples: Sequence[Sample]) -> list[str]:
    """How many queries stand behind the figures, where that is fewer than it seems, or few."""
    # a row that is asked at several places of the stream says so in its key: ROW@PLACE
    rows = {(sample.episode, sample.key.removesuffix(f"@{sample.step}")) for sample in samples}
    caveats = []
    if len(rows) < len(samples):
        asked = f"{len(samples)} answers to {len(rows)} {'row' if len(rows) == 1 else 'rows'}"
        caveats.append(f"every row is asked at several places in the stream, and n counts them all: {asked}")
    if 0 < len(rows) < FEW:
        caveats.append(f"n = {len(rows)}: figures of so few queries say little")
    return caveats


def answer_caveats(samples: Sequence[Sample]) -> list[str]:
    """Whether most generated answers say nothing, or were cut by the number of tokens they may have."""
    written = [sample for sample in samples if sample.ask.mode == "generate"]
    counts = {
        "are empty": sum(not sample.answer.prediction for sample in written),
        "were cut at max_new_tokens": sum(not sample.answer.ended for sample in written),
    }
    return [
        f"{count} of {len(written)} answers {defect}: the prompt may not suit the base model"
        for defect, count in counts.items()
        if 2 * count > len(written)
    ]


def truncated(costs: Sequence[EpisodeCost]) -> dict[str, int]:
    """Context that the methods did not read, by their own counts: summed over episodes, by the name of the count."""
    names = sorted({name for cost in costs for name in cost.truncated})
    return {name: sum(cost.truncated.get(name, 0) for cost in costs) for name in names}


def _truncations(truncated: Mapping[str, int]) -> list[str]:
    return [f"not all context was read: {name} {lost:,}" for name, lost in truncated.items() if lost]


def lengths_of(plan: Plan) -> list[int]:
    """Lengths that texts are read to in one pass, in tokens; none for most tasks."""
    return [int(length) for length in plan.task_record.get("lengths", ())]


def _shorter(plan: Plan, samples: Sequence[Sample]) -> list[str]:
    """How many texts do not reach a length."""
    wanted = lengths_of(plan)
    if not wanted:
        return []
    ends: dict[str, int] = {}
    for sample in samples:
        if isinstance(sample.ask.want, Score):
            end = sample.ask.want.position + sample.answer.tokens[0]
            ends[sample.episode] = max(ends.get(sample.episode, 0), end)
    return [
        f"{count} of {len(ends)} texts end before {length:,} tokens and count there at their own length"
        for length in wanted
        if (count := sum(end < length for end in ends.values()))
    ]
