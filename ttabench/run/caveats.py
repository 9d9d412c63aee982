"""Caveats of a run, stored as its notes, each one sentence without a full stop: known before a run, or after it.

All follow from what a run stores, so a run that was killed and continued has the notes of one that was not."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ttabench.core.architectures import NANO
from ttabench.core.types import Json
from ttabench.records.run_fields import STATES_OF
from ttabench.records.samples import EpisodeCost, Sample

if TYPE_CHECKING:
    from ttabench.lm.model import LM
    from ttabench.lm.patch import State
    from ttabench.methods.base import BaseMethod
    from ttabench.run.plan import Plan

FEW = 10
"""Queries below which a figure says next to nothing."""
ENGLISH = "smollm2-135m-qa"
"""A base model that reads English and answers in a few words."""
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
    return caveats + (nano_caveats(lm) if plan.task.source != "mini" else [])


def caveats_after(
    plan: Plan, method: BaseMethod[Any], costs: Sequence[EpisodeCost], samples: Sequence[Sample]
) -> list[str]:
    """Caveats that are known once all queries are answered."""
    own = plan.config.state_of == "own"
    return [
        *_truncations(truncated(costs)),
        *label_caveats(method, costs),
        *(eviction_caveats(method, [cost.tokens_read for cost in costs]) if own else []),
        *count_caveats(samples),
    ]


def state_caveats(method: BaseMethod[Any], state: State) -> list[str]:
    """Caveats of a state that was made outside a run."""
    lost = {key: int(sum(value)) for key, value in state.meta.items() if key.startswith("truncated")}
    smaller = [f"{note}; smaller pieces may fit (--pieces paragraphs)" for note in _truncations(lost)]
    return [*smaller, *eviction_caveats(method, state.meta.get("tokens_read", []))]


def nano_caveats(lm: LM) -> list[str]:
    """What the base model of the package makes of texts of others."""
    told = f"nano knows its miniature world alone: its answers about other texts say little; use --model {ENGLISH}"
    return [told] if lm.name == NANO else []


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
    """Whether few queries stand behind the figures."""
    few = 0 < len(samples) < FEW
    return [f"n = {len(samples)}: figures of so few queries say little"] if few else []


def truncated(costs: Sequence[EpisodeCost]) -> dict[str, int]:
    """Context that the methods did not read, by their own counts: summed over episodes, by the name of the count."""
    names = sorted({name for cost in costs for name in cost.truncated})
    return {name: sum(cost.truncated.get(name, 0) for cost in costs) for name in names}


def _truncations(truncated: Mapping[str, int]) -> list[str]:
    return [f"not all context was read: {name} {lost:,}" for name, lost in truncated.items() if lost]
