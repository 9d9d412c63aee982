"""What the first lines say of the rest: a control that fails, what is set aside or left out, errors that are too small;
and what --strict does not accept (`problems`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ttabench.records.schema import RunRecord
from ttabench.report import figures
from ttabench.report.blocks import CEILING, FLOOR, Group
from ttabench.report.compare import Block, Comparison
from ttabench.report.configuration import with_defaults
from ttabench.report.differences import Difference
from ttabench.report.entries import Entry, ceiling_of, ends_of, floor_of, running
from ttabench.report.phrases import MANY, Field, listed, lone
from ttabench.report.selecting import file_called

NO_ANSWER = {"ask_ms", "ask_cpu_ms", "context_tokens", "gold_share", "gold_rank", "gold_age", "kept_pieces"}
"""Columns of samples that say how a query was answered, and not what the answer was; some in older runs alone."""
CHECK = (
    "Check its prompt, what was cut of the context, and whether the base model can use so long a text. A method that "
    "was trained for the task, or that chooses what to read, may be better without a fault."
)


def cautions(comparison: Comparison) -> Iterator[str]:
    """Where a control fails, and where what varies is there once."""
    yield from _ends(comparison)
    yield from _ceilings(comparison)
    yield from _same(comparison)
    weak = [block for block in comparison.blocks if block.tested and lone(block)]
    if weak:
        unit = weak[0].entries[0].group.record.unit
        only = f"There is one {unit} only{_on(comparison, weak)}, so errors are too small"
        yield f"{only}: they are over its questions, and another {unit} may differ by more. Run more seeds."


def aside_sentences(comparison: Comparison) -> Iterator[str]:
    """Lines that are set aside, a sentence a reason."""
    alike: dict[tuple[str, str], list[Entry]] = {}
    for entry in comparison.aside:
        alike.setdefault((entry.aside, entry.reason), []).append(entry)
    for (kind, reason), own in alike.items():
        labels = list(dict.fromkeys(entry.label for entry in own))
        blocks = list(dict.fromkeys(entry.place.brief for entry in own))
        where = f" on {listed(blocks, 'blocks')}" if len(comparison.blocks) > 1 else ""
        if kind == "limit":
            limit = reason.removeprefix("--limit ")
            names = listed([label.replace(f" limit={limit}", "") for label in labels], "lines")
            yield f"Set aside ({reason}): {names}{where}."
        else:
            ceiling = ", so it is no ceiling" if labels == [CEILING] else ""
            end = ceiling if kind == "cut" else "; that is full context, whatever the name"
            yield f"Set aside: {listed(labels, 'lines')} {reason}{where}{end}."


def theirs_sentences(comparison: Comparison) -> Iterator[str]:
    """Which lines are of others, a sentence a submission."""
    files: dict[str, list[str]] = {}
    for entry in comparison.entries:
        if entry.group.theirs:
            files.setdefault(entry.group.theirs, []).append(
                entry.label.removesuffix(f" (theirs: {entry.group.theirs})")
            )
    for name, labels in files.items():
        yield f"Made by others, from {file_called(name)}: {listed(list(dict.fromkeys(labels)), 'lines')}."


def left_out(comparison: Comparison) -> Iterator[str]:
    """Lines that were not run in all blocks that count, and blocks that do not count."""
    standing = comparison.standing
    if standing is None or len(comparison.blocks) == 1:
        return
    if standing.left_out:
        noun = Field(comparison, comparison.blocks).noun
        lines = [f"{label} ({_figures(comparison, label, places)})" for label, places in standing.left_out.items()]
        text = "; ".join(lines[:MANY]) + (f"; and {len(lines) - MANY} more" if len(lines) > MANY else "")
        which = f"all of these {noun}" if len(standing.blocks) > 1 else f"this {noun.removesuffix('s')}"
        yield f"Not in this order (not run in {which}): {text}."
    rest = [block.place.brief for place, block in enumerate(comparison.blocks) if place not in standing.blocks]
    if rest:
        yield f"Not counted{' in this order' if standing.second else ''}: {listed(rest, 'blocks')}."


def _figures(comparison: Comparison, label: str, places: Sequence[int]) -> str:
    """The values of a line in the blocks that have it."""
    blocks = [comparison.blocks[place] for place in places[:MANY]]
    parts = [f"{figures.plain(block.place.metric, entry.value)} on {block.place.brief}"
             for block in blocks if (entry := block.named(label))]  # fmt: skip
    return ", ".join(parts) + (f" and {len(places) - MANY} more" if len(places) > MANY else "")


def _on(comparison: Comparison, blocks: Sequence[Block]) -> str:
    """In which blocks, where there are several."""
    return f" on {listed([block.place.brief for block in blocks], 'blocks')}" if len(comparison.blocks) > 1 else ""


def _ends(comparison: Comparison) -> Iterator[str]:
    """Which of several lines of `none` is the floor, and which of `icl` the ceiling, or why none is."""
    blocks: dict[tuple[str, str], list[Block]] = {}
    for block in comparison.blocks:
        for end, which, method in (("floor", floor_of, FLOOR), ("ceiling", ceiling_of, CEILING)):
            lines, chosen = ends_of(block.entries, method), which(block.entries)
            if len(lines) > 1:
                names = listed([line.label for line in lines], f"lines of {method}")
                why = (
                    (f"Of {names}, {chosen.label} is the {end}", "more of the other lines were run as it was")
                    if chosen
                    else (f"There is no {end}", f"nothing tells which of {names} the other lines go with")
                )
                blocks.setdefault(why, []).append(block)
    for (which_one, because), own in blocks.items():
        yield f"{which_one}{_on(comparison, own)}: {because}."


def over_ceiling(block: Block) -> list[Difference]:
    """Differences of the ceiling and each line that is better beyond chance, the largest first."""
    ceiling = ceiling_of(block.entries)
    apart = [block.between(ceiling.label, entry.label) for entry in running(block.entries)] if ceiling else []
    return sorted((one for one in apart if one and one.outcome == -1), key=lambda one: one.gain)


def _ceilings(comparison: Comparison) -> Iterator[str]:
    """Full context that is worse than a method, by the largest difference of each block."""
    blocks = [(block, over[0]) for block in comparison.blocks if (over := over_ceiling(block))]
    clauses = [
        f"{over.left} is {Field(comparison, [block]).apart(over.left, over.right)}{_on(comparison, [block])}"
        for block, over in blocks[:MANY]
    ]
    if blocks:
        clauses += [f"{len(blocks) - MANY} more blocks"] * (len(blocks) > MANY)
        yield f"The ceiling may be broken: {'; '.join(clauses)}. {CHECK}"


def _same(comparison: Comparison) -> Iterator[str]:
    """Lines whose answers are those of full context, or of no context."""
    alike: dict[tuple[str, str], list[Block]] = {}
    for block in comparison.blocks:
        for pair in same_as(block):
            alike.setdefault(pair, []).append(block)
    for (label, end), blocks in alike.items():
        whose, asks = ("full context", "was it applied?") if end == CEILING else (end, "its context changed no answer.")
        yield f"The answers of {label}{_on(comparison, blocks)} are those of {whose}, to the last bit: {asks}"


def same_as(block: Block) -> Iterator[tuple[str, str]]:
    """(label, method of the control) of lines that read something and whose answers are the control's, bit by bit. Full
    context counts against none, too. A line that is marked already, for it evicted nothing, is left out."""
    own = [entry for entry in block.entries if entry.state_of == "own"]
    for entry in own:
        group = entry.group
        for end in (FLOOR, CEILING)[: 1 if group.method == CEILING else 2]:
            controls = [control.group for control in own if control.method == end]
            read = all(record.cost.get("tokens_read") for _, record in group.runs)
            if group.method != end and read and entry.aside != "whole" and any(_alike(group, one) for one in controls):
                yield entry.label, end
                break


def _alike(group: Group, control: Group) -> bool:
    """Whether every run of a group has the answers of the control's run with its seed, by the digests of both records;
    likelihoods are among them, which other weights or keys change."""
    known = {record.config.get("seed"): _answers(record) for _, record in control.runs}
    answers = [(_answers(record), known.get(record.config.get("seed"))) for _, record in group.runs]
    return all({"prediction", "logprobs"} <= ours.keys() and ours == theirs for ours, theirs in answers)


def _answers(record: RunRecord) -> dict[str, str]:
    return {name: digest for name, digest in record.sample_digests.items() if name not in NO_ANSWER}


def problems(comparison: Comparison) -> list[str]:
    """What --strict does not accept, a line each without a full stop: what is set aside, but for a window that cut the
    context, is not paired, answers like a control, lacks a seed or the metric, read other rows, or is damaged."""
    names = [block.place.name + block.place.metric for block in comparison.blocks]
    sentences = [f"{block.place.name}: another base of the same name in another block"
                 for block, name in zip(comparison.blocks, names, strict=True) if names.count(name) > 1]  # fmt: skip
    for block in comparison.blocks:
        own = [f"{one.left} and {one.right} are not paired: {one.reason}" for one in block.unpaired]
        every = {seed for entry in block.entries for seed in entry.group.seeds}
        own += [f"{entry.label} lacks seed {', '.join(map(str, lacking))}"
                for entry in block.entries if (lacking := sorted(every - {*entry.group.seeds}))]  # fmt: skip
        own += [*_other_rows(block), *(f"{label} has the answers of {end}" for label, end in same_as(block))]
        sentences += [f"{block.place.brief}: {sentence}" for sentence in own]
    sentences += [
        f"{one.place.brief}: {one.label} is set aside: {one.reason}" for one in comparison.aside if one.aside != "cut"
    ]
    if comparison.without_metric:
        sentences.append(f"without the metric: {', '.join(comparison.without_metric)}")
    if damaged := len(comparison.damaged):
        sentences.append("1 run or file of runs is damaged" if damaged == 1 else f"{damaged} runs or files are damaged")
    return sentences


def _other_rows(block: Block) -> Iterator[str]:
    """Runs that should have read the same rows, and did not."""
    digests: dict[str, dict[str, str]] = {}
    for entry in block.entries:
        for _, record in entry.group.runs:
            config = with_defaults(record.config)
            same = repr((config["seed"], config.get("limit"), sorted(config["task_options"].items(), key=str)))
            if rows := config["inputs"].get("rows"):
                digests.setdefault(same, {}).setdefault(rows, f"{entry.label} with seed {config['seed']}")
    for by_rows in digests.values():
        if len(by_rows) > 1:
            yield f"other rows, or another version of them: {', '.join(by_rows.values())}"
