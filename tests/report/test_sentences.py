"""Leaders, baselines, tests of states and notes of a verdict, on records made for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.report.test_compare import compare, stored
from tests.report.test_verdict import made, right
from ttabench.records.schema import load_record, save_record
from ttabench.report.compare import Comparison
from ttabench.report.comparison_tables import comparison_data, comparison_tables
from ttabench.report.memory import MemoryOutcome, memory_tests
from ttabench.report.method_rows import baseline_row
from ttabench.report.verdict import make_verdict


def changed(folder: Path, **cost: float) -> Path:
    """The run with these costs beside its own."""
    record = load_record(folder)
    save_record(record.model_copy(update={"cost": {**record.cost, **cost}}), folder)
    return folder


def noted(folder: Path, note: str) -> Path:
    """The run with a note."""
    save_record(load_record(folder).model_copy(update={"notes": (note,)}), folder)
    return folder


def labels(found: Comparison) -> list[str]:
    return [method_row.label for method_row in found.method_rows]


def first_workflow(folder: Path) -> list[Path]:
    """none, icl and mac, each with --limit 8 and in full."""
    shares = {"none": 0.0, "icl": 0.9, "mac": 0.6}
    few = [
        stored(folder, f"few-{method}", right(0.9, 8), method=method, task="t", limit=8)
        for method in shares
    ]
    return [*few, *made(folder, "t", shares)]


def test_runs_with_a_limit_do_not_replace_the_baselines(tmp_path: Path) -> None:
    found = compare(first_workflow(tmp_path))
    assert labels(found) == ["none", "icl", "mac"]
    assert (found.groups[0].method_rows[0], found.groups[0].method_rows[1]) == (
        baseline_row(found.method_rows, "none"),
        baseline_row(found.method_rows, "icl"),
    )
    verdict = make_verdict(found)
    assert verdict.leader == "mac"
    assert all(number in verdict.sentences[0] for number in ("60.0", "30.0 points"))
    assert any("--limit 8" in note and "mac limit=8" in note for note in verdict.notes)


def test_a_cut_context_is_no_baseline_and_never_leads(tmp_path: Path) -> None:
    none, icl, mac, h2o = made(tmp_path, "t", {"none": 0.0, "icl": 0.9, "mac": 0.7, "h2o": 0.6})
    assert make_verdict(compare([none, icl, mac, h2o])).recovered is not None
    found = compare([none, changed(icl, truncated_tokens=6000, tokens_read=10000), mac, h2o])
    verdict = make_verdict(found)
    assert baseline_row(found.method_rows, "icl") is None
    assert verdict.recovered is None
    assert not any("icl" in sentence for sentence in verdict.sentences)
    assert any("40 %" in note and "icl" in note for note in verdict.notes)
    table = comparison_tables(found)[0]
    assert "icl (cut)" in [row[0] for row in table.rows]
    changed(mac, truncated_tokens=1, tokens_read=10000)
    verdict = make_verdict(compare([none, icl, mac, h2o]))
    assert verdict.leader == "h2o"
    assert any("99.9 %" in note and "mac" in note for note in verdict.notes)


def test_full_context_below_a_method_is_noted(tmp_path: Path) -> None:
    def notes_with(folders: list[Path], *words: str) -> list[str]:
        notes = make_verdict(compare(folders)).notes
        return [note for note in notes if all(word in note for word in words)]

    shares = {"none": 0.0, "icl": 0.3, "h2o": 0.9, "window": 0.6, "mac": 0.2}
    assert len(notes_with(made(tmp_path, "t", shares), "full-context", "60.0", "h2o (90.0)")) == 1
    near = made(tmp_path, "near", {"none": 0.0, "icl": 0.85, "h2o": 0.9, "mac": 0.2})
    assert not notes_with(near, "full-context"), "three questions are chance"
    runs = made(tmp_path, "cut", {"none": 0.0, "icl": 0.3, "h2o": 0.9})
    changed(runs[1], truncated_tokens=6000, tokens_read=10000)
    assert not notes_with(runs, "full-context"), "a cut context is no baseline"


def test_lines_are_ranked_on_groups_that_they_share(tmp_path: Path) -> None:
    """The one line that stands in every block is best in none of them."""
    folders = []
    for count, shares in (
        (4, {"mac": 0.9, "h2o": 0.5, "window": 0.1}),
        (8, {"mac": 0.8, "h2o": 0.5, "window": 0.1}),
        (32, {"window": 0.1, "templora": 0.05}),
    ):
        for method, part in shares.items():
            folders.append(
                stored(
                    tmp_path,
                    f"{count}-{method}",
                    right(part),
                    method=method,
                    task_options={"documents": count},
                )
            )
    for chosen, rows in ((folders, "3 of 4"), (folders[:6], "3 of 3")):
        verdict = make_verdict(compare(chosen))
        assert (verdict.leader, verdict.leads) == ("mac", True)
        assert all(word in verdict.sentences[0] for word in ("85.0", "35.0", "2 ", rows))


def test_lost_groups_count_in_the_share(tmp_path: Path) -> None:
    folders = made(tmp_path, "one", {"none": 0.0, "icl": 1.0, "mac": 0.9})
    folders += made(tmp_path, "two", {"none": 0.5, "icl": 1.0, "mac": 0.1})
    found = make_verdict(compare(folders))
    assert found.recovered == pytest.approx(1 / 3), "(0.9 - 0.4) / (1.0 + 0.5)"


def swapped(folder: Path, own: float, other: float, none: float) -> Comparison:
    runs = [
        stored(folder, state, right(part), method="templora", state_of=state)
        for state, part in (("own", own), ("other", other), ("none", none))
    ]
    return compare(runs)


@pytest.mark.parametrize(
    ("own", "other", "none", "outcome"),
    [
        (0.78, 0.75, 1.0, MemoryOutcome.WORSE),
        (0.9, 0.3, 0.1, MemoryOutcome.REMEMBERS),
        (0.6, 0.6, 0.1, MemoryOutcome.PARTLY),
        (0.6, 0.1, 0.6, MemoryOutcome.PARTLY),
        (0.5, 0.5, 0.48, MemoryOutcome.NOT_SIGNIFICANT),
    ],
)
def test_memory_of_the_context(
    tmp_path: Path, own: float, other: float, none: float, outcome: MemoryOutcome
) -> None:
    found = swapped(tmp_path, own, other, none)
    (test,) = memory_tests(found)
    assert test.outcome is outcome
    assert set(labels(found)) == {test.own, test.swapped, test.empty}
    (table,) = (table for table in comparison_tables(found) if "memory" in table.columns)
    assert table.rows[0][-1] == outcome.value
    assert [
        row["memory"]
        for table in comparison_data(found)
        if table.title == "memory"
        for row in table.data
    ] == [outcome.value]


def test_without_samples_nothing_leads(tmp_path: Path) -> None:
    folders = made(tmp_path, "t", {"none": 0.0, "icl": 1.0, "mac": 0.5, "h2o": 0.9})
    for folder in folders:
        (folder / "samples.parquet").unlink()
    verdict = make_verdict(compare(folders))
    assert (verdict.leader, verdict.leads, verdict.recovered) == ("h2o", False, None)
    assert not any("p <" in sentence for sentence in verdict.sentences)


@pytest.mark.parametrize(("another", "leads"), [(0.0, True), (0.88, False)])
def test_whose_own_state_is_not_above_swapped_does_not_lead(
    tmp_path: Path, another: float, leads: bool
) -> None:
    folders = made(tmp_path, "t", {"none": 0.0, "h2o": 0.3, "templora": 0.9})
    folders.append(
        stored(tmp_path, "other", right(another), method="templora", task="t", state_of="other")
    )
    verdict = make_verdict(compare(folders))
    assert (verdict.leader, verdict.leads) == ("templora", leads)
    assert "60.0 points" in verdict.sentences[0]


def test_of_several_lines_of_icl_none_is_the_full_context(tmp_path: Path) -> None:
    folders = [
        stored(tmp_path, dtype, right(0.9), method="icl", dtype=dtype)
        for dtype in ("float32", "bfloat16")
    ]
    found = compare([*folders, stored(tmp_path, "mac", right(0.6), method="mac", dtype="float32")])
    assert baseline_row(found.method_rows, "icl") is None
    assert any("icl" in note for note in make_verdict(found).notes)
