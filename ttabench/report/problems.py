"""What `ttabench compare --strict` does not accept: comparisons that are not what they look like.

A run that is set aside, for it was asked otherwise or evicted nothing; a pair of a block without a common query; a
seed that an entry lacks and another of its block has; other rows under one seed, source and options (another version of
the data); two bases of one name; runs without the metric; damaged runs.
"""

from __future__ import annotations

from collections.abc import Iterator

from ttabench.report.compare import Block, Comparison
from ttabench.report.configuration import with_defaults


def problems(comparison: Comparison) -> list[str]:
    """One line each, without a full stop; none where all is well."""
    names = [block.place.name + block.place.metric for block in comparison.blocks]
    sentences = [f"{block.place.name}: another base of the same name in another block"
            for block, name in zip(comparison.blocks, names, strict=True) if names.count(name) > 1]  # fmt: skip
    for block in comparison.blocks:
        for unpaired in block.unpaired:
            sentences.append(
                f"{block.place.brief}: {unpaired.left} and {unpaired.right} are not paired: {unpaired.reason}"
            )
        sentences += [*_seeds(block), *_rows(block)]
    sentences += [
        f"{set_aside.block}: {set_aside.label} is set aside: {set_aside.reason}"
        for set_aside in comparison.aside
        if set_aside.kind != "cut"
    ]
    if comparison.without_metric:
        sentences.append(f"without the metric: {', '.join(comparison.without_metric)}")
    if damaged := len(comparison.damaged):
        sentences.append("1 run or file of runs is damaged" if damaged == 1 else f"{damaged} runs or files are damaged")
    return sentences


def _seeds(block: Block) -> Iterator[str]:
    every = {seed for group in block.groups for seed in group.seeds}
    for entry, group in zip(block.entries, block.groups, strict=True):
        if lacking := sorted(every - set(group.seeds)):
            yield f"{block.place.brief}: {entry.label} lacks seed {', '.join(map(str, lacking))}"


def _rows(block: Block) -> Iterator[str]:
    """Runs that should have read the same rows, and did not."""
    digests: dict[str, dict[str, str]] = {}
    for entry, group in zip(block.entries, block.groups, strict=True):
        for _, record in group.runs:
            config = with_defaults(record.config)
            same = repr((config["seed"], config.get("limit"), sorted(config["task_options"].items(), key=str)))
            if rows := config["inputs"].get("rows"):
                digests.setdefault(same, {}).setdefault(rows, f"{entry.label} with seed {config['seed']}")
    for by_rows in digests.values():
        if len(by_rows) > 1:
            yield f"{block.place.brief}: other rows, or another version of them: {', '.join(by_rows.values())}"
