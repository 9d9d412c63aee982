"""Charts of how questions look at the right piece of context: found among the first k, and attention by age."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.records.test_records import sample, store_samples
from tests.report.test_compare import stored
from ttabench.records.samples import Looked
from ttabench.report.compare import Comparison, compare
from ttabench.report.page.build import page
from ttabench.report.page.charts import found_and_attended, found_within, looks_of, share_by_age
from ttabench.report.pictures import styles

MAC = [Looked(gold_share=0.9, gold_rank=1, gold_age=0, kept_pieces=8),
       Looked(gold_share=0.4, gold_rank=2, gold_age=2, kept_pieces=8),
       Looked(gold_share=0.2, gold_rank=3, gold_age=3, kept_pieces=8),
       Looked(kept_pieces=8)]  # fmt: skip
RAG = [Looked(gold_share=0.5 * (age < 3), gold_rank=1 + age, gold_age=age, kept_pieces=8) for age in range(4)]
NONE = [Looked()] * 4


def compared(folder: Path, lines: dict[str, list[Looked]]) -> Comparison:
    for method, looks in lines.items():
        path = stored(folder, method, {f"q{number}": 1.0 for number in range(len(looks))}, method=method)
        rows = [replace(sample(f"q{number}"), looked=look).flat() for number, look in enumerate(looks)]
        store_samples(path, rows)
    return compare(sorted(folder.iterdir()))


def test_what_is_drawn(tmp_path: Path) -> None:
    (block,) = compared(tmp_path, {"mac": MAC, "rag": RAG, "icl": NONE}).blocks
    looks = {look.entry.method: look for look in looks_of(block)}
    assert set(looks) == {"mac", "rag"}, "full context tells nothing"
    assert [found_within(looks["mac"], first) for first in (1, 2, 4, 8)] == [0.25, 0.5, 0.75, 0.75], "one was dropped"
    assert share_by_age(looks["mac"]) == {0: (0.9, 1), 2: (pytest.approx(0.3), 2)}
    assert share_by_age(looks["rag"]) == {}


def test_the_charts_say_model_and_n_and_retrieval_has_no_attention(tmp_path: Path) -> None:
    found = compared(tmp_path, {"mac": MAC, "rag": RAG, "icl": NONE})
    (block,) = found.blocks
    first, second = found_and_attended(block, styles(["mac", "rag", "icl"]))
    for chart in (first, second):
        assert "Base nano, n = 4 questions" in chart.caption
    assert {row["label"] for row in _rows(first.spec)} == {"mac", "rag"}
    assert {row["label"] for row in _rows(second.spec)} == {"mac"}
    assert "how often the right piece is found" in page(found)


def _rows(spec: dict[str, object]) -> list[dict[str, object]]:
    (rows,) = spec["datasets"].values()  # type: ignore[attr-defined]
    return rows  # type: ignore[no-any-return]
