"""Queries on which the lines of a block disagree, with what each of them answered.

disagreeing(block, most=20)     those on which the best and the worst answer are furthest apart come first
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ttabench.records.samples import is_digest, kept_text
from ttabench.report.compare import Block
from ttabench.report.differences import worth
from ttabench.report.entries import running
from ttabench.report.figures import plain
from ttabench.report.pairing import Place, Query, cells_of
from ttabench.report.show import Cells, gold, likelihood, prediction
from ttabench.stats.metrics import known

COLUMNS = ("mode", "step", "prompt", "prediction", "answers", "logprobs", "tokens", "subtask")
LONGEST_PROMPT, LONGEST_ANSWER, LONGEST_QUESTION = 2000, 800, 120


def disagreeing(block: Block, most: int) -> dict[str, Any]:
    """The queries of a block that its methods did not answer equally well: so many at most (`shown`), how many there
    are (`count`), and which columns are not kept (`note`)."""
    if not any(entry.values for entry in block.entries):
        return {"shown": [], "count": 0, "note": "Answers are not stored with these runs, only their figures."}
    gains: dict[Query, dict[int, float]] = {}  # by the place of the line in the block; more is better
    for place, entry in enumerate(block.entries):
        for query, value in entry.values.items():
            if (gain := worth(value, block.place.metric)) is not None:
                gains.setdefault(query, {})[place] = gain
    counted = _counted(block)
    among = {query: [gain for place, gain in own.items() if place in counted] for query, own in gains.items()}
    apart = {query: max(own, default=0.0) - min(own, default=0.0) for query, own in among.items()}
    chosen = sorted((query for query in apart if apart[query] > 0), key=lambda query: (-apart[query], query))
    first = chosen[:most]
    texts = [cells_of(entry.runs, COLUMNS) for entry in block.entries] if first else []
    hidden = any(is_digest(str(cells.get("prompt", ""))) for own in texts for cells in own.values())
    note = "Scores are stored with these runs, and not the texts of prompts and answers." if hidden else ""
    shown = [_disagreement(block, query, gains[query], texts, counted) for query in first]
    return {"shown": shown, "count": len(chosen), "note": note}


def _counted(block: Block) -> set[int]:
    """Places of the lines among which a disagreement counts: methods, and ends only where there are not two others."""
    own = [entry for entry in block.entries if entry.state_of == "own" and not entry.aside]
    lines = next((lines for lines in (running(block.entries), own) if len(lines) > 1), block.entries)
    return {place for place, entry in enumerate(block.entries) if entry in lines}


def _disagreement(
    block: Block, query: Query, gains: Mapping[int, float], texts: Sequence[Mapping[Place, Cells]], counted: set[int]
) -> dict[str, Any]:
    """One query, and what every line that was asked it answered, the best first; best and worst of those that count."""
    ordered = sorted(gains, key=lambda place: -gains[place])
    kept = [texts[place].get(query[:3], {}) for place in ordered]
    first = next(filter(None, kept), {})
    seed, episode, key = query[:3]
    step = f"step {first['step']:,}" if first.get("step") else ""
    prompt = kept_text(str(first.get("prompt") or ""))
    ends = []
    among = {place: gain for place, gain in gains.items() if place in counted}
    for word, end in (("best", max(among.values())), ("worst", min(among.values()))):
        label, *more = [block.entries[place].marked for place in sorted(among) if among[place] == end]
        ends.append(f"{word} {label}{f' and {len(more)} more' if more else ''} {_figure(block, end)}")
    sides = [
        {"label": block.entries[place].marked, "prediction": prediction(cells, LONGEST_ANSWER) if cells else "",
         "nats": likelihood(cells), "gain": _figure(block, gains[place])}
        for place, cells in zip(ordered, kept, strict=True)
    ]  # fmt: skip
    return {
        "key": key, "place": ", ".join(filter(None, [str(first.get("subtask") or episode), f"seed {seed}", step])),
        "question": _end(" ".join(prompt.split()), LONGEST_QUESTION), "prompt": _end(prompt, LONGEST_PROMPT),
        "gold": gold(first)[:LONGEST_ANSWER], "ends": ", ".join(ends), "sides": sides,
    }  # fmt: skip


def _figure(block: Block, gain: float) -> str:
    """A query's term: its figure, or nats where the metric is no mean over queries (`ppl`)."""
    metric = block.place.metric
    return f"{abs(gain):,.2f} nats" if known(metric).ratio else plain(metric, abs(gain))


def _end(text: str, most: int) -> str:
    """The end of a prompt: a question stands behind what it is about."""
    return text if len(text) <= most else f"... {text[-most:]}"
