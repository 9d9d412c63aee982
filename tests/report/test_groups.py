"""Comparison groups: labels of their rows, and runs that are never paired."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.report.test_compare import compare, stored

VALUES = {"a": 1.0, "b": 0.0, "c": 1.0}


def test_lengths_of_one_task_are_never_paired_though_they_ask_the_same(tmp_path: Path) -> None:
    folders = [
        stored(
            tmp_path, f"{method}{count}", VALUES, method=method, task_options={"documents": count}
        )
        for count in (32, 16)
        for method in ("icl", "none")
    ]
    found = compare(folders, all_pairs=True)
    assert [group.group_key.brief for group in found.groups] == [
        "t documents=16",
        "t documents=32",
    ], "ascending"
    assert [[method_row.label for method_row in group.method_rows] for group in found.groups] == [
        ["none", "icl"]
    ] * 2
    assert [(each.left, each.right, each.n) for each in found.differences] == [
        ("icl", "none", 3)
    ] * 2


def test_what_leaves_queries_as_they_are_stays_in_the_block(tmp_path: Path) -> None:
    for reader, count in (("other", 2), ("demonstrations", 1)):
        folders = [
            stored(
                tmp_path,
                f"{reader}{ratio}",
                VALUES,
                task_options={"ratio": ratio},
                about={"task": {"reader": reader}},
            )
            for ratio in (0.0, 1.0)
        ]
        groups = compare(folders).groups
        assert len(groups) == count, "the option is of one reader"
    assert [row.label for row in groups[0].method_rows] == ["icl ratio=0.0", "icl ratio=1.0"]
    assert len(groups[0].differences) == 1


def test_labels_name_what_differs_in_the_block_alone(tmp_path: Path) -> None:
    folders = [
        stored(tmp_path, "one", VALUES, task="first", settings={"keep": 0.2, "other": "x"}),
        stored(tmp_path, "two", VALUES, task="second", settings={"keep": 0.5, "other": "x"}),
        stored(tmp_path, "three", VALUES, task="second", settings={"keep": 0.5, "other": "y"}),
    ]
    found = compare(folders)
    assert [row.label for row in found.method_rows] == ["icl", "icl other=x", "icl other=y"]
    assert [group.group_key.task for group in found.groups] == ["first", "second"]


def test_a_run_that_lies_in_two_folders_counts_once(tmp_path: Path) -> None:
    places = [tmp_path / "one", tmp_path / "two"]
    for place in places:
        place.mkdir()
        stored(place, "r1", VALUES)
        stored(place, "r2", VALUES, seed=1)
    (method_row,) = compare([place / run for place in places for run in ("r1", "r2")]).method_rows
    assert (method_row.n, method_row.ids) == (6, ("r1", "r2"))


def test_a_run_that_has_other_figures_in_another_folder_is_named(tmp_path: Path) -> None:
    for place, value in (("one", 1.0), ("two", 0.0)):
        (tmp_path / place).mkdir()
        stored(tmp_path / place, "r1", {"a": value})
    found = compare([tmp_path / "one" / "r1", tmp_path / "two" / "r1"])
    assert [method_row.value for method_row in found.method_rows] == [1.0]
    assert str(tmp_path / "two" / "r1") in found.damaged[0]


def test_an_edited_card_asks_otherwise(tmp_path: Path) -> None:
    one = [
        stored(tmp_path, f"{name}{seed}", VALUES, method=name, seed=seed, inputs={"card": "c1" * 8})
        for name in ("none", "icl")
        for seed in range(2)
    ]
    assert [(method_row.label, method_row.seeds) for method_row in compare(one).method_rows] == [
        ("none", (0, 1)),
        ("icl", (0, 1)),
    ]
    other = stored(tmp_path, "other", VALUES, seed=2, inputs={"card": "c2" * 8})
    groups = compare([*one, other]).groups
    assert [group.group_key.brief for group in groups] == ["t card=c1c1c1", "t card=c2c2c2"]


@pytest.mark.parametrize("name", ["model", "metric f1", "reader", "rows"])
def test_runs_whose_files_differ_are_never_pooled(tmp_path: Path, name: str) -> None:
    """Values are those of f=0.25 and f=0.75; their mean is that of neither."""
    folders = [
        stored(tmp_path, f"{digest}{seed}", VALUES, seed=seed, inputs={name: digest})
        for digest in ("a1" * 8, "b2" * 8)
        for seed in range(2)
    ]
    assert sorted(method_row.seeds for method_row in compare(folders).method_rows) == [
        (0, 1),
        (0, 1),
    ]


def test_runs_of_one_seed_that_differ_in_their_id_alone_stand_in_lines_of_their_own(
    tmp_path: Path,
) -> None:
    folders = [stored(tmp_path, name, VALUES, seed=0) for name in ("r1", "r2")]
    assert [method_row.ids for method_row in compare(folders).method_rows] == [("r1",), ("r2",)]
