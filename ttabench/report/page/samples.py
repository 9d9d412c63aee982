"""Queries on which the lines of a block disagree, with what each of them answered.

disagreeing(block, most=20)     those on which the best and the worst answer are furthest apart come first
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ttabench.records.sample_files import has_samples, read_samples
from ttabench.records.scores import is_digest, kept_text, name_of
from ttabench.report.blocks import Group
from ttabench.report.compare import Block
from ttabench.report.differences import worth
from ttabench.report.entries import running
from ttabench.report.figures import plain
from ttabench.report.pairing import Place, Query
from ttabench.report.samples import likelihood
from ttabench.stats.metrics import METRICS

COLUMNS = ("episode", "key", "mode", "step", "prompt", "prediction", "answers", "logprobs", "tokens", "subtask")
LONGEST_PROMPT, LONGEST_ANSWER, LONGEST_QUESTION = 2000, 800, 120
"""Characters that are shown."""
Cells = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Side:
    """The answer of one line."""

    label: str
    prediction: str
    gain: str
    """The query's term of the metric: its figure, or nats where the metric is none of queries."""
    nats: str
    """Log-likelihood; empty where none is kept."""


@dataclass(frozen=True, kw_only=True)
class Disagreement:
    """One query, and what every line that was asked it answered, the best first."""

    key: str
    place: str
    """Its reader or sub-task, seed and step."""
    question: str
    """The end of the prompt in one line, by which a reader knows the query while it is closed."""
    prompt: str
    gold: str
    sides: tuple[Side, ...]
    ends: str
    """Best and worst of the lines whose disagreement counts: `best icl and 4 more 100.0, worst lora 0.0`."""


@dataclass(frozen=True, kw_only=True)
class Disagreements:
    """Of a block."""

    shown: tuple[Disagreement, ...]
    count: int
    """How many there are, shown or not."""
    note: str
    """Columns that are not kept; empty where all are."""


def disagreeing(block: Block, most: int) -> Disagreements:
    """The queries of a block that its methods did not answer equally well.

    Args:
        block: its lines.
        most: how many are shown.

    Raises:
        UserError: samples that cannot be read.
    """
    if not any(block.values):
        return Disagreements(shown=(), count=0, note="Answers are not stored with these runs, only their figures.")
    gains, counted = _gains(block), _counted(block)
    apart = {}
    for query, own in gains.items():
        among = [gain for place, gain in own.items() if place in counted]
        apart[query] = max(among, default=0.0) - min(among, default=0.0)
    chosen = sorted((query for query in apart if apart[query] > 0), key=lambda query: (-apart[query], query))
    first = chosen[:most] if most else []
    texts = [_texts(group, first) for group in block.groups] if first else []
    disagreements = tuple(_disagreement(block, query, gains[query], texts, counted) for query in first)
    hidden = any(is_digest(str(cells.get("prompt", ""))) for own in texts for cells in own.values())
    note = "Scores are stored with these runs, and not the texts of prompts and answers." if hidden else ""
    return Disagreements(shown=disagreements, count=len(chosen), note=note)


def _counted(block: Block) -> set[int]:
    """Places of the lines among which a disagreement counts: methods under their own state, and floor and ceiling only
    where there are not two others."""
    methods = running(block.entries)
    own = [entry for entry in block.entries if entry.state_of == "own" and not entry.aside]
    lines = next((lines for lines in (methods, own) if len(lines) > 1), block.entries)
    return {place for place, entry in enumerate(block.entries) if any(entry is line for line in lines)}


def _gains(block: Block) -> dict[Query, dict[int, float]]:
    """Terms of the metric by query, and by the place of the line in the block; more is better."""
    gains: dict[Query, dict[int, float]] = {}
    for place, values in enumerate(block.values):
        for query, value in values.items():
            gain = worth(value, block.place.metric)
            if gain is not None:
                gains.setdefault(query, {})[place] = gain
    return gains


def _texts(group: Group, queries: Sequence[Query]) -> dict[Place, Cells]:
    """Samples of a group that are of these queries."""
    wanted = {query[:3] for query in queries}
    texts: dict[Place, Cells] = {}
    for folder, record in group.runs:
        seed = int(record.config.get("seed", 0))
        if not has_samples(folder) or all(place[0] != seed for place in wanted):
            continue
        columns = read_samples(folder, COLUMNS, record)
        for number, (episode, key) in enumerate(zip(columns["episode"], columns["key"], strict=True)):
            place = (seed, name_of(episode), name_of(key))
            if place in wanted:
                texts[place] = {name: cells[number] for name, cells in columns.items()}
    return texts


def _disagreement(
    block: Block, query: Query, gains: Mapping[int, float], texts: Sequence[Mapping[Place, Cells]], counted: set[int]
) -> Disagreement:
    ordered = sorted(gains, key=lambda place: -gains[place])
    kept = [texts[place].get(query[:3], {}) for place in ordered]
    first = next(filter(None, kept), {})
    seed, episode, key = query[:3]
    where = [
        str(first.get("subtask") or episode),
        f"seed {seed}",
        *([f"step {first['step']:,}"] if first.get("step") else []),
    ]
    sides = tuple(
        Side(label=block.entries[place].marked, prediction=_prediction(cells), nats=likelihood(cells),
             gain=_figure(block, gains[place]))
        for place, cells in zip(ordered, kept, strict=True)
    )  # fmt: skip
    gold = " | ".join(filter(None, (kept_text(str(answer)) for answer in first.get("answers") or ())))
    prompt = kept_text(str(first.get("prompt") or ""))
    among = {place: gain for place, gain in gains.items() if place in counted}
    return Disagreement(key=key, place=", ".join(where), question=_end(" ".join(prompt.split()), LONGEST_QUESTION),
                        prompt=_end(prompt, LONGEST_PROMPT), gold=gold[:LONGEST_ANSWER], sides=sides,
                        ends=_ends(block, among))  # fmt: skip


def _ends(block: Block, gains: Mapping[int, float]) -> str:
    """The lines that answered best and worst: of several the first, and how many more."""
    clauses = []
    for word, end in (("best", max(gains.values())), ("worst", min(gains.values()))):
        first, *more = [block.entries[place].marked for place in sorted(gains) if gains[place] == end]
        clauses.append(f"{word} {first}{f' and {len(more)} more' if more else ''} {_figure(block, end)}")
    return ", ".join(clauses)


def _figure(block: Block, gain: float) -> str:
    """A query's term: its figure, or nats where the metric is no mean over queries (`ppl`)."""
    metric = block.place.metric
    ratio = metric in METRICS and METRICS[metric].ratio is not None
    return f"{abs(gain):,.2f} nats" if ratio else plain(metric, abs(gain))


def _prediction(cells: Cells) -> str:
    text = str(cells.get("prediction") or "")
    if is_digest(text):
        return ""
    if not text:
        return "" if cells.get("mode") == "score" else "(nothing)"
    return text if len(text) <= LONGEST_ANSWER else f"{text[:LONGEST_ANSWER]} ..."


def _end(text: str, most: int) -> str:
    """The end of a prompt: a question stands behind what it is about."""
    return text if len(text) <= most else f"... {text[-most:]}"
