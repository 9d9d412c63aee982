"""What `ttabench compare` adds where it is asked: --flips, --diff and --strict.

flips_tables    which queries changed between the two of a pair: question, right answer, and what each side answered
differing       in what the runs differ: settings, task options, data, versions
problems        what --strict does not accept: comparisons that are not what they look like
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ttabench.core.types import Json
from ttabench.records.schema import RunRecord
from ttabench.report.blocks import told
from ttabench.report.cautions import same_as
from ttabench.report.compare import Block, Comparison
from ttabench.report.configuration import with_defaults
from ttabench.report.differences import Difference, worth
from ttabench.report.figures import plain
from ttabench.report.pairing import Place, seed_of, texts_of
from ttabench.terminal.table import Cell, Table

MOST = 5
"""Queries of a pair that a screen shows each way, the largest changes first; machines get all."""
LONGEST = 60
Texts = Mapping[Place, tuple[str, tuple[str, ...], str]]
PLAIN = ("verb", "seed", "method", "task")
"""Fields that labels and blocks show already."""
BY_SEED = ("rows", "others")
"""Inputs that every seed has its own of."""
MOST_LABELS = 4


def flips_tables(comparison: Comparison, *, every: bool = False) -> list[Table]:
    """One table a pair that is shown and has any; all queries if `every`."""
    tables = []
    for block in comparison.blocks:
        texts = [texts_of(group.runs) if values else {}
                 for group, values in zip(block.groups, block.values, strict=True)]  # fmt: skip
        for apart in block.differences:
            data = sorted(_changed(block, apart, texts), key=lambda row: -float(row["gain"] or 0.0))
            tables += [_flips(block, apart, data, every)] if data else []
    return tables


def _changed(block: Block, apart: Difference, texts: Sequence[Texts]) -> Iterator[dict[str, Cell]]:
    place_of = {entry.label: place for place, entry in enumerate(block.entries)}
    left, right = place_of[apart.left], place_of[apart.right]
    ours, theirs = block.values[left], block.values[right]
    for query in sorted(ours.keys() & theirs.keys()):
        one, other = (worth(values[query], apart.metric) for values in (ours, theirs))
        if one is None or other is None or one == other:
            continue
        (prompt, answers, answer), (_, _, others) = (texts[side].get(query[:3], ("", (), "")) for side in (left, right))
        yield {
            "block": apart.block, "left": apart.left, "right": apart.right, "seed": query[0], "episode": query[1],
            "key": query[2], "prompt": prompt, "answer": answers[0] if answers else "", "left_answer": answer,
            "right_answer": others, "left_value": abs(one), "right_value": abs(other), "gain": one - other,
        }  # fmt: skip


def _flips(block: Block, apart: Difference, data: list[dict[str, Cell]], every: bool) -> Table:
    some = data if every or len(data) <= 2 * MOST else [*data[:MOST], *data[-MOST:]]
    rows = tuple(
        (str(row["key"]), *(_short(row[name]) for name in ("prompt", "answer", "left_answer", "right_answer")),
         " / ".join(plain(apart.metric, float(row[name] or 0.0)) for name in ("left_value", "right_value")))
        for row in some
    )  # fmt: skip
    count = "1 query" if len(data) == 1 else f"{len(data):,} queries"
    remarks = [f"The {MOST} largest changes each way; all with --format csv, json or parquet."] * (
        len(some) < len(data)
    )
    remarks += ["Texts are not kept."] * (not any(row["prompt"] for row in data))
    return Table(
        title=f"{block.place.brief}: {apart.left} − {apart.right}: {count} changed",
        columns=("query", "question", "right answer", apart.left, apart.right, f"#{apart.metric}"),
        rows=rows, data=tuple(data), caption=" ".join(remarks),
    )  # fmt: skip


def _short(text: Cell) -> str:
    """The end of a question, the beginning of an answer is what tells; one line."""
    line = " ".join(str(text or "").split())
    return line if len(line) <= LONGEST else f"...{line[-LONGEST:]}"


def differing(comparison: Comparison) -> Table:
    """One line a value: `task_options.documents | 16 | none, icl`; of each setting among the runs that have it."""
    values: dict[str, dict[str, list[tuple[str, str]]]] = {}
    for label, record in _runs(comparison):
        for key, value in _flat(record):
            values.setdefault(key, {}).setdefault(told(value), []).append((label, record.id))
    rows, data = [], []
    for key in sorted(key for key, alike in values.items() if len(alike) > 1):
        for place, (value, having) in enumerate(values[key].items()):
            labels = list(dict.fromkeys(label for label, _ in having))
            more = f" and {len(labels) - MOST_LABELS} more" if len(labels) > MOST_LABELS else ""
            rows.append((key if place == 0 else "", value or "-", ", ".join(labels[:MOST_LABELS]) + more))
            data.append({"setting": key, "value": value, "runs": " ".join(run for _, run in having)})
    caption = "" if rows else "The runs differ in method, task and seed alone."
    return Table(title="settings that differ", columns=("setting", "value", "of"), rows=tuple(rows), data=tuple(data),
                 caption=caption)  # fmt: skip


def _runs(comparison: Comparison) -> Iterator[tuple[str, RunRecord]]:
    several = len(comparison.blocks) > 1
    for block in comparison.blocks:
        for entry, group in zip(block.entries, block.groups, strict=True):
            label = f"{entry.label} on {block.place.brief}" if several else entry.label
            yield from ((label, record) for _, record in group.runs)


def _flat(record: RunRecord) -> Iterator[tuple[str, Json]]:
    for key, value in with_defaults(record.config).items():
        if not isinstance(value, dict):
            if key not in PLAIN:
                yield key, value
            continue
        for inner, item in value.items():
            by_seed = f" of seed {seed_of(record)}" if key == "inputs" and inner in BY_SEED else ""
            yield f"{key}.{inner}{by_seed}", item
    yield from ((f"versions.{name}", version) for name, version in record.versions.items())
    yield from (
        (f"hardware.{key}", record.hardware[key]) for key in ("cpu", "gpu", "threads") if key in record.hardware
    )


def problems(comparison: Comparison) -> list[str]:
    """One line each, without a full stop; none where all is well.

    A run that is set aside, but for a window that cut the context; answers that are those of full context, or of no
    context, to the last bit; a pair of a block without a common query; a seed that an entry lacks and another of its
    block has; other rows under one seed, source and options; two bases of one name; runs without the metric; damage.
    """
    names = [block.place.name + block.place.metric for block in comparison.blocks]
    sentences = [f"{block.place.name}: another base of the same name in another block"
                 for block, name in zip(comparison.blocks, names, strict=True) if names.count(name) > 1]  # fmt: skip
    for block in comparison.blocks:
        own = [f"{one.left} and {one.right} are not paired: {one.reason}" for one in block.unpaired]
        own += [*_seeds(block), *_rows(block), *(f"{label} has the answers of {end}" for label, end in same_as(block))]
        sentences += [f"{block.place.brief}: {sentence}" for sentence in own]
    sentences += [
        f"{one.block}: {one.label} is set aside: {one.reason}" for one in comparison.aside if one.kind != "cut"
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
            yield f"{entry.label} lacks seed {', '.join(map(str, lacking))}"


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
            yield f"other rows, or another version of them: {', '.join(by_rows.values())}"
