"""What the first lines say of the rest: what is set aside or left out of the order, and where errors are too small."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ttabench.report import figures
from ttabench.report.blocks import CEILING
from ttabench.report.cautions import lone
from ttabench.report.compare import Comparison
from ttabench.report.field import Field
from ttabench.report.phrases import MANY, listed
from ttabench.report.setting_aside import Aside
from ttabench.report.submissions import file_called


def aside_sentences(comparison: Comparison) -> Iterator[str]:
    """Lines that are set aside, a sentence a reason."""
    alike: dict[tuple[str, str], list[Aside]] = {}
    for set_aside in comparison.aside:
        alike.setdefault((set_aside.kind, set_aside.reason), []).append(set_aside)
    for (kind, reason), own in alike.items():
        labels = list(dict.fromkeys(line.label for line in own))
        blocks = list(dict.fromkeys(line.block for line in own))
        where = f" on {listed(blocks, 'blocks')}" if len(comparison.blocks) > 1 else ""
        names = listed(labels, "lines")
        if kind == "limit":
            limit = reason.removeprefix("--limit ")
            names = listed([label.replace(f" limit={limit}", "") for label in labels], "lines")
            yield f"Set aside ({reason}): {names}{where}."
        elif kind == "cut":
            ceiling = ", so it is no ceiling" if labels == [CEILING] else ""
            yield f"Set aside: {names} {reason}{where}{ceiling}."
        else:
            yield f"Set aside: {names} {reason}{where}; that is full context, whatever the name."


def theirs_sentences(comparison: Comparison) -> Iterator[str]:
    """Which lines are of others, a sentence a submission."""
    files: dict[str, list[str]] = {}
    for entry in comparison.entries:
        if entry.theirs:
            files.setdefault(entry.theirs, []).append(entry.label)
    for name, labels in files.items():
        own = [label.removesuffix(f" (theirs: {name})") for label in dict.fromkeys(labels)]
        yield f"Made by others, from {file_called(name)}: {listed(own, 'lines')}."


def left_out(comparison: Comparison) -> Iterator[str]:
    """Lines that were not run in all blocks that count, and blocks that do not count."""
    standing = comparison.standing
    if standing is None or len(comparison.blocks) == 1:
        return
    if standing.left_out:
        field = Field(comparison, comparison.blocks)
        lines = [f"{label} ({_figures(comparison, label, places)})" for label, places in standing.left_out.items()]
        text = "; ".join(lines[:MANY]) + (f"; and {len(lines) - MANY} more" if len(lines) > MANY else "")
        which = f"all of these {field.noun}" if len(standing.blocks) > 1 else f"this {field.noun.removesuffix('s')}"
        yield f"Not in this order (not run in {which}): {text}."
    rest = [block.place.brief for place, block in enumerate(comparison.blocks) if place not in standing.blocks]
    if rest:
        yield f"Not counted{' in this order' if standing.second else ''}: {listed(rest, 'blocks')}."


def _figures(comparison: Comparison, label: str, places: Sequence[int]) -> str:
    """The values of a line in the blocks that have it."""
    parts = []
    for place in places[:MANY]:
        block = comparison.blocks[place]
        entry = block.named(label)
        parts.append(f"{figures.plain(block.place.metric, entry.value if entry else None)} on {block.place.brief}")
    return ", ".join(parts) + (f" and {len(places) - MANY} more" if len(places) > MANY else "")


def cautions(comparison: Comparison) -> Iterator[str]:
    """Where what varies is there once."""
    weak = [block for block in comparison.blocks if block.tested and lone(block)]
    if weak:
        unit = weak[0].groups[0].record.unit
        where = f" on {listed([block.place.brief for block in weak], 'blocks')}" if len(comparison.blocks) > 1 else ""
        sentence = f"There is one {unit} only{where}, so errors are too small: they are over its questions"
        yield f"{sentence}, and another {unit} may differ by more. Run more seeds."
