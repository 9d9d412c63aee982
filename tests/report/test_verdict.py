"""The verdict never claims more than the tests, adjusted within their families, allow."""

from __future__ import annotations

import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.conftest import Command
from tests.report.test_compare import compare, stored
from ttabench.records.schema import load_record, save_record
from ttabench.report.compare import recovered_in_group
from ttabench.report.differences import choose_pairs, rank_rows
from ttabench.report.method_rows import baseline_row, pareto_optimal
from ttabench.report.verdict import make_verdict
from ttabench.stats.clusters import Observation
from ttabench.stats.estimate import SIGNIFICANCE_LEVEL, difference, holm


def right(recovered_in_group: float, n: int = 60) -> dict[str, float]:
    """Answers of which the first are right."""
    return {f"q{place:03}": float(place < recovered_in_group * n) for place in range(n)}


def made(
    folder: Path, task: str, shares: dict[str, float], sizes: dict[str, int] | None = None
) -> list[Path]:
    """A run a method, with these shares of right answers."""
    folders = []
    for method, part in shares.items():
        path = stored(folder, f"{task}-{method}", right(part), method=method, task=task)
        record = load_record(path)
        kept = {"none": 0, "icl": 4096, **(sizes or {})}.get(method, 1024)
        save_record(record.model_copy(update={"cost": {**record.cost, "state_bytes": kept}}), path)
        folders.append(path)
    return folders


def test_leader_over_several_groups(tmp_path: Path) -> None:
    shares = {"none": 0.0, "icl": 1.0, "mac": 0.8, "snapkv": 0.3}
    folders = [
        run for task in ("one", "two") for run in made(tmp_path, task, shares, {"snapkv": 4096})
    ]
    folders += made(tmp_path, "three", {**shares, "snapkv": 0.78})
    verdict = make_verdict(compare(folders))
    assert (verdict.leader, verdict.leads) == ("mac", True)
    assert verdict.recovered == pytest.approx(0.8)
    assert all(number in verdict.sentences[0] for number in ("80.0", "33.9", "46.1"))


def test_one_method_between_the_baselines(tmp_path: Path) -> None:
    found = compare(made(tmp_path, "t", {"none": 0.0, "icl": 1.0, "mac": 0.5}))
    verdict = make_verdict(found)
    assert (verdict.leader, verdict.leads) == ("mac", False), "there is no other method"
    assert verdict.recovered == pytest.approx(0.5)
    (sentence,) = verdict.sentences
    assert all(number in sentence for number in ("50.0", "100.0", "50 %", "25 %"))
    (group,) = found.groups
    assert recovered_in_group(group, group.method_rows[2]) == pytest.approx(0.5)
    baselines = [baseline_row(group.method_rows, name) for name in ("none", "icl")]
    assert [recovered_in_group(group, row) for row in baselines if row] == [None, None]
    assert [row.label for row in pareto_optimal(group.method_rows)] == ["none", "icl", "mac"]


def test_controls_are_not_on_the_front_and_keep_nobody_off_it(tmp_path: Path) -> None:
    runs = made(tmp_path, "t", {"none": 0.0, "icl": 1.0, "mac": 0.5})
    for state, part in (("other", 0.9), ("none", 0.7)):
        run = stored(
            tmp_path, f"t-mac-{state}", right(part), method="mac", task="t", state_of=state
        )
        record = load_record(run)
        save_record(record.model_copy(update={"cost": {**record.cost, "state_bytes": 0}}), run)
        runs.append(run)
    (group,) = compare(runs).groups
    assert len(group.method_rows) == 5
    assert [method_row.label for method_row in pareto_optimal(group.method_rows)] == [
        "none",
        "icl",
        "mac",
    ]


def test_no_share_where_the_full_context_is_not_above_the_no_context(tmp_path: Path) -> None:
    found = compare(made(tmp_path, "t", {"none": 0.5, "icl": 0.52, "mac": 0.6}))
    assert [
        recovered_in_group(found.groups[0], method_row) for method_row in found.method_rows
    ] == [None, None, None]
    for part in (0.52, 0.5):
        folders = made(tmp_path, str(part), {"none": 0.5, "icl": part, "mac": 0.6})
        verdict = make_verdict(compare(folders))
        assert verdict.recovered is None
        assert all(name in verdict.sentences[0] for name in ("none", "icl"))


def test_an_untrained_method_is_called_so(ttabench: Command, tmp_path: Path) -> None:
    """`camels+mac` with one checkpoint of two, and `mac` with none: no parameters count as trained."""
    digests = {"mac": "", "camels": "a", "camels+mac": "a", "camels+lora": "a+b", "rag": ""}
    for method, digest in digests.items():
        run = stored(tmp_path, method, right(0.5), method=method, inputs={"checkpoint": digest})
        record = load_record(run)
        parameters = 0 if method == "rag" else 7
        save_record(
            record.model_copy(update={"method": {**record.method, "parameters": parameters}}), run
        )
    lacking = {"mac", "camels+mac"}
    found = ttabench("compare", "--out", tmp_path, "--json").json()
    assert {row["method"] for row in found["runs"] if row["untrained"]} == lacking
    assert {row["method"] for row in found["runs"] if row["trained_parameters"]} == {
        "camels",
        "camels+lora",
    }
    assert any(all(name in note for name in lacking) for note in found["notes"])
    for form in ("table", "markdown", "csv"):
        assert ttabench("compare", "--out", tmp_path, "--format", form).out.count("ntrained") >= 1
    assert ttabench("list", "runs", "--out", tmp_path).out.count("untrained") == len(lacking)


def test_chance_is_never_called_a_win(tmp_path: Path) -> None:
    draw = random.Random(3)
    folders = []
    for method in ("none", "icl", "mac", "snapkv", "h2o", "window"):
        values = {f"q{place}": float(draw.random() < 0.5) for place in range(40)}
        folders.append(stored(tmp_path, method, values, method=method))
    found = compare(folders, all_pairs=True)
    assert len(found.differences) == 15
    assert all(
        each.p_holm is not None and each.p is not None and each.p_holm >= each.p
        for each in found.differences
    )
    assert not any(each.is_significant for each in found.differences)
    verdict = make_verdict(found)
    assert not verdict.leads
    assert verdict.recovered is None


def test_many_lines_show_few_pairs_and_all_on_demand(tmp_path: Path) -> None:
    shares = {"none": 0.0, "icl": 1.0, "mac": 0.5, "snapkv": 0.7, "h2o": 0.6, "window": 0.4}
    folders = made(tmp_path, "t", shares)
    pairs = {(each.left, each.right) for each in compare(folders).differences}
    against_ceiling = {
        ("icl", "none"),
        *((name, "icl") for name in ("mac", "snapkv", "h2o", "window")),
    }
    against_floor = {(name, "none") for name in ("mac", "snapkv", "h2o", "window")}
    assert pairs == against_ceiling | against_floor | {
        ("snapkv", name) for name in ("mac", "h2o", "window")
    }
    assert len(compare(folders, all_pairs=True).differences) == 15


def test_choosing_the_pairs_by_what_was_found_raises_no_false_alarm() -> None:
    """Twelve equal methods: the best against each is no fair choice; still one table in twenty has a difference."""
    draw = random.Random(5)
    tables, alarms, naive = 250, 0, 0
    for _ in range(tables):
        answers = [[draw.gauss(0, 1) for _ in range(30)] for _ in range(12)]
        method_rows: list[Any] = [
            SimpleNamespace(
                label=str(i),
                method=["none", "icl"][i] if i < 2 else str(i),
                metric="f1",
                oriented_value=sum(own),
                costs={},
                state_of="own",
                exclusion_reason="",
                submission="",
                configuration_key=i,
            )
            for i, own in enumerate(answers)
        ]
        sides = [
            [Observation(str(i), (value, 1.0)) for i, value in enumerate(own)] for own in answers
        ]
        apart = [
            difference(sides[a], sides[b])
            for a, b in choose_pairs(method_rows, rank_rows([method_rows]))
        ]
        found = [each.p if each else None for each in apart]
        alarms += any(p is not None and p < SIGNIFICANCE_LEVEL for p in holm(found, family=66))
        naive += any(p is not None and p < SIGNIFICANCE_LEVEL for p in holm(found))
    assert alarms <= SIGNIFICANCE_LEVEL * tables
    assert naive > alarms
