"""What the first lines say of the rest: a control that fails, what is set aside or left out, errors that are too small;
and what --strict does not accept (`problems`)."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import TypeVar

from ttabench.records.schema import RunRecord
from ttabench.report.blocks import CEILING, FLOOR, Group
from ttabench.report.compare import Block, Comparison
from ttabench.report.configuration import with_defaults
from ttabench.report.entries import Entry, ceiling_of, ends_of, floor_of, running
from ttabench.report.finding import file_called
from ttabench.report.phrases import MANY, Field, listed, lone

NO_ANSWER = {"ask_ms", "ask_cpu_ms", "context_tokens", "gold_share", "gold_rank", "gold_age", "kept_pieces"}
"""Columns of samples that say how a query was answered, and not what the answer was; some in older runs alone."""
K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
CHECK = (
    "Check its prompt, what was cut of the context, and whether the base model can use so long a text. A method that "
    "was trained for the task, or that chooses what to read, may be better without a fault."
)


def cautions(comparison: Comparison) -> Iterator[str]:
    """Where a control fails, where what varies is there once, and what is set aside or not counted."""
    for which, blocks in _alike((end, block) for block in comparison.blocks for end in _ends(block)):
        yield f"{which}{_on(comparison, blocks)}."
    if over := [clause for block in comparison.blocks for clause in _over_ceiling(comparison, block)]:
        more = [f"{len(over) - MANY} more blocks"] * (len(over) > MANY)
        yield f"The ceiling may be broken: {'; '.join([*over[:MANY], *more])}. {CHECK}"
    for (label, end), blocks in _alike((pair, block) for block in comparison.blocks for pair in same_as(block)):
        whose, asks = ("full context", "was it applied?") if end == CEILING else (end, "its context changed no answer.")
        yield f"The answers of {label}{_on(comparison, blocks)} are those of {whose}, to the last bit: {asks}"
    if weak := [block for block in comparison.blocks if block.differences and lone(block)]:
        unit = weak[0].entries[0].record.unit
        only = f"There is one {unit} only{_on(comparison, weak)}, so errors are too small"
        yield f"{only}: they are over its questions, and another {unit} may differ by more. Run more seeds."
    for (kind, reason), lines in _alike(((one.aside, one.reason), one) for one in comparison.aside):
        limit = f" {reason[2:].replace(' ', '=')}"  # stands in labels, too
        names = listed(list(dict.fromkeys(line.label.replace(limit, "") for line in lines)), "lines")
        where = f"{names} {reason}{_on(comparison, lines)}" if kind != "limit" else f"{names}{_on(comparison, lines)}"
        ceiling = ", so it is no ceiling" * (kind == "cut" and names == CEILING)
        end = "; that is full context, whatever the name" * (kind == "whole") + ceiling
        yield f"Set aside{f' ({reason})' * (kind == 'limit')}: {where}{end}."
    if (standing := comparison.standing) and standing.left_out:
        yield f"Not in this order (not run in all of these blocks): {listed(list(standing.left_out), 'lines')}."
    rest = [block for place, block in enumerate(comparison.blocks) if standing and place not in standing.blocks]
    if rest:
        yield f"Not counted in this order: {listed([block.place.brief for block in rest], 'blocks')}."


def _alike(pairs: Iterable[tuple[K, V]]) -> list[tuple[K, list[V]]]:
    """Values by their keys, in the order of the first of each."""
    values: dict[K, list[V]] = {}
    for key, value in pairs:
        values.setdefault(key, []).append(value)
    return list(values.items())


def theirs_sentences(comparison: Comparison) -> Iterator[str]:
    """Which lines are of others, a sentence a submission."""
    theirs = (
        (one.theirs, one.label.removesuffix(f" (theirs: {one.theirs})")) for one in comparison.entries if one.theirs
    )
    for name, labels in _alike(theirs):
        yield f"Made by others, from {file_called(name)}: {listed(list(dict.fromkeys(labels)), 'lines')}."


def _on(comparison: Comparison, where: Sequence[Block | Entry]) -> str:
    """In which blocks, where there are several."""
    briefs = list(dict.fromkeys(one.place.brief for one in where))
    return f" on {listed(briefs, 'blocks')}" if len(comparison.blocks) > 1 else ""


def _ends(block: Block) -> Iterator[str]:
    """Which of several lines of `none` is the floor, and which of `icl` the ceiling, or that none is."""
    for end, which, method in (("floor", floor_of, FLOOR), ("ceiling", ceiling_of, CEILING)):
        lines, one = ends_of(block.entries, method), which(block.entries)
        if len(lines) > 1:
            names = listed([line.label for line in lines], f"lines of {method}")
            told = f"{one.label} is the {end}, for more other lines were run as it was" if one else f"none is the {end}"
            yield f"Of {names}, {told}"


def _over_ceiling(comparison: Comparison, block: Block) -> list[str]:
    """That the ceiling is worse than a line, beyond chance: by the largest difference."""
    ceiling = ceiling_of(block.entries)
    apart = [block.between(ceiling.label, entry.label) for entry in running(block.entries)] if ceiling else []
    over = min((one for one in apart if one and one.outcome == -1), key=lambda one: one.gain, default=None)
    where = _on(comparison, [block])
    return [f"{over.left} is {Field(comparison, [block]).apart(over.left, over.right)}{where}"] if over else []


def same_as(block: Block) -> Iterator[tuple[str, str]]:
    """(label, method of the control) of lines that read something and whose answers are the control's, bit by bit. Full
    context counts against none, too. A line that is marked already, for it evicted nothing, is left out."""
    own = [entry for entry in block.entries if entry.state_of == "own"]
    for entry in (
        one for one in own if one.aside != "whole" and all(run.cost.get("tokens_read") for run in one.records)
    ):
        ends = (FLOOR,) if entry.method == CEILING else (FLOOR, CEILING)
        same = [control.method for control in own if control.method in ends and control.method != entry.method
                and _same_answers(entry, control)]  # fmt: skip
        if same:
            yield entry.label, same[0]


def _same_answers(group: Group, control: Group) -> bool:
    """Whether every run of a group has the answers of the control's run with its seed, by the digests of both records;
    likelihoods are among them, which other weights or keys change."""
    known = {record.config.get("seed"): _answers(record) for record in control.records}
    answers = [(_answers(record), known.get(record.config.get("seed"))) for record in group.records]
    return all({"prediction", "logprobs"} <= ours.keys() and ours == theirs for ours, theirs in answers)


def _answers(record: RunRecord) -> dict[str, str]:
    return {name: digest for name, digest in record.sample_digests.items() if name not in NO_ANSWER}


def problems(comparison: Comparison) -> list[str]:
    """What --strict does not accept, a line each without a full stop: what is set aside, but for a window that cut the
    context, is not paired, answers like a control, lacks a seed or the metric, read other rows, or is damaged."""
    names = [block.place.name + block.place.metric for block in comparison.blocks]
    lines = [f"{block.place.name}: another base of the same name in another block"
             for block, name in zip(comparison.blocks, names, strict=True) if names.count(name) > 1]  # fmt: skip
    for block in comparison.blocks:
        own = [f"{one.left} and {one.right} are not paired: {one.reason}" for one in block.unpaired]
        every = {seed for entry in block.entries for seed in entry.seeds}
        own += [f"{entry.label} lacks seed {', '.join(map(str, lacking))}"
                for entry in block.entries if (lacking := sorted(every - {*entry.seeds}))]  # fmt: skip
        own += [*_other_rows(block), *(f"{label} has the answers of {end}" for label, end in same_as(block))]
        lines += [f"{block.place.brief}: {line}" for line in own]
    lines += [f"{one.place.brief}: {one.label} is set aside: {one.reason}"
              for one in comparison.aside if one.aside != "cut"]  # fmt: skip
    if comparison.without_metric:
        lines.append(f"without the metric: {', '.join(comparison.without_metric)}")
    if damaged := len(comparison.damaged):
        lines.append(f"damaged runs, or files of runs: {damaged}")
    return lines


def _other_rows(block: Block) -> Iterator[str]:
    """Runs that should have read the same rows, and did not."""
    digests: dict[str, dict[str, str]] = {}
    for entry in block.entries:
        for config in (with_defaults(record.config) for record in entry.records):
            same = repr((config["seed"], config.get("limit"), sorted(config["task_options"].items(), key=str)))
            if rows := config["inputs"].get("rows"):
                digests.setdefault(same, {}).setdefault(rows, f"{entry.label} with seed {config['seed']}")
    yield from (f"other rows, or another version of them: {', '.join(by_rows.values())}"
                for by_rows in digests.values() if len(by_rows) > 1)  # fmt: skip
