"""Which queries changed between the two of a pair: question, right answer, and what each side answered."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ttabench.report.compare import Block, Comparison
from ttabench.report.differences import Difference, worth
from ttabench.report.figures import plain
from ttabench.report.pairing import Place, texts_of
from ttabench.terminal.table import Cell, Table

MOST = 5
"""Queries of a pair that a screen shows each way, the largest changes first; machines get all."""
LONGEST = 60
Texts = Mapping[Place, tuple[str, tuple[str, ...], str]]


def flips_tables(comparison: Comparison, *, every: bool = False) -> list[Table]:
    """One table a pair that is shown and has any; all queries if `every`."""
    return [table for block in comparison.blocks for table in _of_block(block, every)]


def _of_block(block: Block, every: bool) -> Iterator[Table]:
    texts = [texts_of(group.runs) if values else {} for group, values in zip(block.groups, block.values, strict=True)]
    place = {entry.label: index for index, entry in enumerate(block.entries)}
    for apart in block.differences:
        left, right = place[apart.left], place[apart.right]
        data = list(_changed(block, apart, texts[left], texts[right]))
        if data:
            data.sort(key=lambda row: -float(row["gain"] or 0.0))
            yield _table(block, apart, data, every)


def _changed(block: Block, difference: Difference, left: Texts, right: Texts) -> Iterator[dict[str, Cell]]:
    index = {entry.label: place for place, entry in enumerate(block.entries)}
    ours, theirs = block.values[index[difference.left]], block.values[index[difference.right]]
    for query in sorted(ours.keys() & theirs.keys()):
        one, other = (worth(values[query], difference.metric) for values in (ours, theirs))
        if one is None or other is None or one == other:
            continue
        place = query[:3]
        prompt, answers, prediction = left.get(place, ("", (), ""))
        yield {
            "block": difference.block, "left": difference.left, "right": difference.right, "seed": query[0],
            "episode": query[1], "key": query[2], "prompt": prompt, "answer": answers[0] if answers else "",
            "left_answer": prediction, "right_answer": right.get(place, ("", (), ""))[2], "left_value": abs(one),
            "right_value": abs(other), "gain": one - other,
        }  # fmt: skip


def _table(block: Block, apart: Difference, data: list[dict[str, Cell]], every: bool) -> Table:
    rows_shown = data if every or len(data) <= 2 * MOST else [*data[:MOST], *data[-MOST:]]
    rows = tuple(
        (str(row["key"]), _short(row["prompt"]), _short(row["answer"]), _short(row["left_answer"]),
         _short(row["right_answer"]), f"{_value(apart, row['left_value'])} / {_value(apart, row['right_value'])}")
        for row in rows_shown
    )  # fmt: skip
    count = "1 query" if len(data) == 1 else f"{len(data):,} queries"
    title = f"{block.place.brief}: {apart.left} − {apart.right}: {count} changed"
    columns = ("query", "question", "right answer", apart.left, apart.right, f"#{apart.metric}")
    most = f"The {MOST} largest changes each way; all with --format csv, json or parquet."
    remarks = [most] * (len(rows_shown) < len(data)) + ["Texts are not kept."] * (
        not any(row["prompt"] for row in data)
    )
    caption = " ".join(remarks)
    return Table(title=title, columns=columns, rows=rows, data=tuple(data), caption=caption)


def _value(difference: Difference, value: Cell) -> str:
    return plain(difference.metric, float(value or 0.0))


def _short(text: Cell) -> str:
    """The end of a question, the beginning of an answer is what tells; one line."""
    line = " ".join(str(text or "").split())
    return line if len(line) <= LONGEST else f"...{line[-LONGEST:]}"
