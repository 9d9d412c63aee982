"""What the first lines praise, what they must not praise, and what they set aside; by made-up records."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.report.test_compare import compare, stored
from tests.report.test_verdict import made, right
from ttabench.records.schema import load_record, save_record
from ttabench.report.compare import Comparison
from ttabench.report.comparison_tables import comparison_tables
from ttabench.report.method_rows import baseline_row
from ttabench.report.verdict import sentences, verdict


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


def test_runs_with_a_limit_hide_neither_floor_nor_ceiling(tmp_path: Path) -> None:
    found = compare(first_workflow(tmp_path))
    assert labels(found) == ["none", "icl", "mac"]
    assert (found.groups[0].method_rows[0], found.groups[0].method_rows[1]) == (
        baseline_row(found.method_rows, "none"),
        baseline_row(found.method_rows, "icl"),
    )
    told = sentences(found)
    assert told[0].startswith("mac (60.0) is 60.0 points [")
    assert "above none (0.0), p <0.001; 30.0 points [" in told[0]
    assert "Set aside (--limit 8): none limit=8, icl limit=8 and mac limit=8." in told


def test_a_cut_ceiling_is_none_and_never_leads(tmp_path: Path) -> None:
    none, icl, mac, h2o = made(tmp_path, "t", {"none": 0.0, "icl": 0.9, "mac": 0.7, "h2o": 0.6})
    whole = compare([none, icl, mac, h2o])
    assert "recovers" in verdict(whole)
    found = compare([none, changed(icl, truncated_tokens=6000, tokens_read=10000), mac, h2o])
    told = verdict(found)
    assert baseline_row(found.method_rows, "icl") is None
    assert "recovers" not in told
    assert "icl (" not in told
    assert "Set aside (read 40 % of the context): icl." in told
    table = comparison_tables(found)[0]
    assert "icl (cut)" in [row[0] for row in table.rows]
    changed(mac, truncated_tokens=1, tokens_read=10000)
    told = verdict(compare([none, icl, mac, h2o]))
    assert told.startswith("h2o (60.0) is"), "what is cut does not lead"
    assert "Set aside (read 99.9 % of the context): mac." in told


def test_a_ceiling_below_a_method_may_be_broken(tmp_path: Path) -> None:
    found = compare(
        made(tmp_path, "t", {"none": 0.0, "icl": 0.3, "h2o": 0.9, "window": 0.6, "mac": 0.2})
    )
    (told,) = [one for one in sentences(found) if "broken" in one]
    assert told.startswith("The ceiling may be broken: icl is 60.0 points [")
    assert "below h2o (90.0), Holm p <0.001. Check its prompt, what was cut of the context" in told
    near = compare(made(tmp_path, "near", {"none": 0.0, "icl": 0.85, "h2o": 0.9, "mac": 0.2}))
    assert "broken" not in verdict(near), "three questions are chance"
    runs = made(tmp_path, "cut", {"none": 0.0, "icl": 0.3, "h2o": 0.9})
    changed(runs[1], truncated_tokens=6000, tokens_read=10000)
    assert "broken" not in verdict(compare(runs)), (
        "what was cut is no ceiling, and is said to be none"
    )


def test_lines_are_ranked_on_blocks_that_they_share(tmp_path: Path) -> None:
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
    told = sentences(compare(folders))
    assert told[0].startswith(
        "On the 2 blocks that 3 of 4 lines share, mac leads with the best mean, 85.0, 35.0 "
    )
    alike = sentences(compare(folders[:6]))
    assert alike[0].startswith("On the 2 blocks that 3 of 3 lines share, mac leads")


def test_lost_blocks_count_in_the_share(tmp_path: Path) -> None:
    folders = made(tmp_path, "one", {"none": 0.0, "icl": 1.0, "mac": 0.9})
    folders += made(tmp_path, "two", {"none": 0.5, "icl": 1.0, "mac": 0.1})
    told = verdict(compare(folders))
    assert "It recovers 33 % of the way from none to icl" in told, "(0.9 - 0.4) / (1.0 + 0.5)"


def swapped(folder: Path, own: float, other: float, none: float) -> Comparison:
    runs = [
        stored(folder, state, right(part), method="templora", state_of=state)
        for state, part in (("own", own), ("other", other), ("none", none))
    ]
    return compare(runs)


@pytest.mark.parametrize(
    ("own", "other", "none", "says"),
    [
        (0.78, 0.75, 1.0, "Its state does not help here: own is 21.7 points ["),
        (0.9, 0.3, 0.1, "Its state helps, and it holds this text: own is 80.0 points ["),
        (
            0.6,
            0.6,
            0.1,
            "Its state helps in part; that it holds this text is not shown: own is 50.0 points [",
        ),
        (
            0.6,
            0.1,
            0.6,
            "Its state helps in part; that it holds this text is not shown: own is equal to an empty one",
        ),
        (0.5, 0.5, 0.48, "Its state is not shown to help here: own is 1.7 points ["),
    ],
)
def test_whether_a_state_helps(
    tmp_path: Path, own: float, other: float, none: float, says: str
) -> None:
    found = swapped(tmp_path, own, other, none)
    told = sentences(found)[0]
    assert told.startswith("templora: own state ")
    assert says in told
    assert "state of" not in " ".join(labels(found))
    assert labels(found) == ["templora", "templora, another text's state", "templora, empty state"]


def test_no_test_is_no_praise(tmp_path: Path) -> None:
    folders = made(tmp_path, "t", {"none": 0.0, "icl": 1.0, "mac": 0.5, "h2o": 0.9})
    for folder in folders:
        (folder / "samples.parquet").unlink()
    told = verdict(compare(folders))
    first = "h2o has the best f1, 90.0, 40.0 points above mac (50.0), untested."
    assert told.startswith(first)
    assert "recovers" not in told
    assert "p <" not in told


@pytest.mark.parametrize(("another", "leads"), [(0.0, True), (0.88, False)])
def test_whose_own_state_is_not_above_anothers_does_not_lead(
    tmp_path: Path, another: float, leads: bool
) -> None:
    folders = made(tmp_path, "t", {"none": 0.0, "h2o": 0.3, "templora": 0.9})
    folders.append(
        stored(tmp_path, "other", right(another), method="templora", task="t", state_of="other")
    )
    told = sentences(compare(folders))[0]
    assert told.startswith("templora leads with the best f1, 90.0, 60.0 points [") == leads
    assert told.startswith("templora has the best f1, 90.0, 60.0 points [") != leads


def test_of_several_lines_of_icl_none_is_the_ceiling(tmp_path: Path) -> None:
    folders = [
        stored(tmp_path, dtype, right(0.9), method="icl", dtype=dtype)
        for dtype in ("float32", "bfloat16")
    ]
    found = compare([*folders, stored(tmp_path, "mac", right(0.6), method="mac", dtype="float32")])
    assert baseline_row(found.method_rows, "icl") is None
    assert "There are several lines of icl, so none of them is the ceiling." in sentences(found)
