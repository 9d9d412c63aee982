"""The verdict never claims more than the tests, adjusted within their families, allow."""

from __future__ import annotations

import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.conftest import Command
from tests.report.test_compare import compare, stored
from ttabench.report.compare import Comparison, recovered_in_group
from ttabench.report.comparison_tables import comparison_data, comparison_tables
from ttabench.report.differences import choose_pairs, rank_rows
from ttabench.report.memory import MemoryOutcome, memory_tests
from ttabench.report.method_rows import baseline_row, contenders, pareto_optimal
from ttabench.report.verdict import Verdict, make_verdict
from ttabench.stats.clusters import Observation
from ttabench.stats.estimate import SIGNIFICANCE_LEVEL, difference, holm


def right(share: float, n: int = 60) -> dict[str, float]:
    """Answers of which the first are right."""
    return {f"q{place:03}": float(place < share * n) for place in range(n)}


def made(folder: Path, task: str, shares: dict[str, float], **costs: dict[str, int]) -> list[Path]:
    """A run a method, with these shares of right answers; `costs` by method."""
    sizes = {"none": 0, "icl": 4096}
    return [
        stored(
            folder,
            f"{task}-{method}",
            right(share),
            method=method,
            task=task,
            about={"cost": {"state_bytes": sizes.get(method, 1024), **costs.get(method, {})}},
        )
        for method, share in shares.items()
    ]


def labels(found: Comparison) -> list[str]:
    return [row.label for row in found.method_rows]


def count_with(lines: tuple[str, ...], *words: str) -> int:
    """Number of lines with all of these words."""
    return sum(all(word in line for word in words) for line in lines)


BETWEEN = {"none": 0.0, "icl": 1.0, "mac": 0.5}


@pytest.mark.parametrize(
    ("groups", "leader", "leads", "recovered", "words"),
    [
        (
            [{"none": 0.0, "icl": 1.0, "mac": 0.8, "snapkv": share} for share in (0.3, 0.3, 0.78)],
            "mac",
            True,
            0.8,
            ["80.0", "33.9", "46.1"],
        ),
        ([BETWEEN], "mac", False, 0.5, ["50.0", "100.0", "50 %", "25 %"]),
        ([{"none": 0.5, "icl": 0.52, "mac": 0.6}], "mac", False, None, ["none", "icl"]),
        ([{"none": 0.5, "icl": 0.5, "mac": 0.6}], "mac", False, None, ["none", "icl"]),
        (  # (0.9 - 0.4) / (1.0 + 0.5)
            [{"none": 0.0, "icl": 1.0, "mac": 0.9}, {"none": 0.5, "icl": 1.0, "mac": 0.1}],
            "mac",
            False,
            1 / 3,
            [],
        ),
    ],
)
def test_leader_and_recovered_share(
    tmp_path: Path,
    groups: list[dict[str, float]],
    leader: str,
    leads: bool,
    recovered: float | None,
    words: list[str],
) -> None:
    runs = [run for task, shares in enumerate(groups) for run in made(tmp_path, f"t{task}", shares)]
    verdict = make_verdict(compare(runs))
    assert (verdict.leader, verdict.leads) == (leader, leads)
    assert verdict.recovered == (recovered and pytest.approx(recovered))
    assert all(word in verdict.sentences[0] for word in words)


def test_share_of_one_group_and_pareto_optimal_rows(tmp_path: Path) -> None:
    """Rows under other states are not Pareto-optimal, and keep no row from being so."""
    runs = made(tmp_path, "t", BETWEEN)
    for state, part in (("other", 0.9), ("none", 0.7)):
        runs.append(
            stored(
                tmp_path,
                state,
                right(part),
                method="mac",
                task="t",
                state_of=state,
                about={"cost": {"state_bytes": 0}},
            )
        )
    (group,) = compare(runs).groups
    shares = {row.label: recovered_in_group(group, row) for row in group.method_rows}
    assert (shares["none"], shares["icl"], shares["mac"]) == (None, None, pytest.approx(0.5))
    assert [row.label for row in pareto_optimal(group.method_rows)] == ["none", "icl", "mac"]
    (group,) = compare(made(tmp_path, "u", {"none": 0.5, "icl": 0.52, "mac": 0.6})).groups
    assert {recovered_in_group(group, row) for row in group.method_rows} == {None}


def test_an_untrained_method_is_called_so(ttabench: Command, tmp_path: Path) -> None:
    """`camels+mac` with one checkpoint of two, and `mac` with none: no parameters count as trained."""
    digests = {"mac": "", "camels": "a", "camels+mac": "a", "camels+lora": "a+b", "rag": ""}
    for method, digest in digests.items():
        parameters = {"parameters": 0 if method == "rag" else 7}
        inputs = {"checkpoint": digest}
        about = {"method": parameters}
        stored(tmp_path, method, right(0.5), method=method, inputs=inputs, about=about)
    lacking = {"mac", "camels+mac"}
    found = ttabench("compare", "--out", tmp_path, "--json").json()
    assert {row["method"] for row in found["runs"] if row["untrained"]} == lacking
    trained = {row["method"] for row in found["runs"] if row["trained_parameters"]}
    assert trained == {"camels", "camels+lora"}
    assert count_with(found["notes"], *lacking) == 1
    for form in ("table", "markdown", "csv"):
        assert ttabench("compare", "--out", tmp_path, "--format", form).out.count("ntrained") >= 1
    assert ttabench("list", "runs", "--out", tmp_path).out.count("untrained") == len(lacking)


def test_runs_with_a_limit_do_not_replace_the_baselines(tmp_path: Path) -> None:
    shares = {"none": 0.0, "icl": 0.9, "mac": 0.6}
    few = [
        stored(tmp_path, method, right(0.9, 8), method=method, task="t", limit=8)
        for method in shares
    ]
    found = compare([*few, *made(tmp_path, "t", shares)])
    verdict = make_verdict(found)
    assert labels(found) == ["none", "icl", "mac"]
    assert [row.n for row in found.method_rows] == [60] * 3
    assert (verdict.leader, verdict.recovered) == ("mac", pytest.approx(2 / 3))
    assert count_with(verdict.sentences, "60.0", "30.0 points")
    assert count_with(verdict.notes, "--limit 8", "mac limit=8")


def test_a_cut_context_is_no_baseline_and_never_leads(tmp_path: Path) -> None:
    def verdict_of(task: str, **cut: int) -> tuple[Comparison, Verdict]:
        shares = {"none": 0.0, "icl": 0.9, "mac": 0.7, "h2o": 0.6}
        costs = {
            method: {"truncated_tokens": tokens, "tokens_read": 10000}
            for method, tokens in cut.items()
        }
        found = compare(made(tmp_path, task, shares, **costs))
        return found, make_verdict(found)

    assert verdict_of("whole")[1].recovered is not None
    found, verdict = verdict_of("cut", icl=6000)
    assert baseline_row(found.method_rows, "icl") is None
    assert verdict.recovered is None
    assert not count_with(verdict.sentences, "icl")
    assert count_with(verdict.notes, "40 %", "icl")
    assert "icl (cut)" in [row[0] for row in comparison_tables(found)[0].rows]
    _, verdict = verdict_of("both", icl=6000, mac=1)
    assert verdict.leader == "h2o"
    assert count_with(verdict.notes, "99.9 %", "mac")


@pytest.mark.parametrize(
    ("shares", "cut", "count"),
    [
        ({"icl": 0.3, "h2o": 0.9, "window": 0.6, "mac": 0.2}, 0, 1),
        ({"icl": 0.85, "h2o": 0.9, "mac": 0.2}, 0, 0),  # three questions are chance
        ({"icl": 0.3, "h2o": 0.9}, 6000, 0),  # a cut context is no baseline
    ],
)
def test_full_context_below_a_method_is_noted(
    tmp_path: Path, shares: dict[str, float], cut: int, count: int
) -> None:
    costs = {"truncated_tokens": cut, "tokens_read": 10000}
    notes = make_verdict(compare(made(tmp_path, "t", {"none": 0.0, **shares}, icl=costs))).notes
    assert count_with(notes, "full-context", "60.0", "h2o (90.0)") == count
    assert count_with(notes, "full-context") == count


def test_rows_are_ranked_on_groups_that_they_share(tmp_path: Path) -> None:
    """The one row that is in every group is best in none of them."""
    folders = [
        stored(
            tmp_path,
            f"{count}-{method}",
            right(share),
            method=method,
            task_options={"documents": count},
        )
        for count, shares in (
            (4, {"mac": 0.9, "h2o": 0.5, "window": 0.1}),
            (8, {"mac": 0.8, "h2o": 0.5, "window": 0.1}),
            (32, {"window": 0.1, "templora": 0.05}),
        )
        for method, share in shares.items()
    ]
    for chosen, rows in ((folders, "3 of 4"), (folders[:6], "3 of 3")):
        verdict = make_verdict(compare(chosen))
        assert (verdict.leader, verdict.leads) == ("mac", True)
        assert count_with(verdict.sentences, "85.0", "35.0", "2 ", rows)


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
    shares = {"own": own, "other": other, "none": none}
    found = compare(
        [
            stored(tmp_path, state, right(share), method="templora", state_of=state)
            for state, share in shares.items()
        ]
    )
    (test,) = memory_tests(found)
    assert test.outcome is outcome
    assert set(labels(found)) == {test.own, test.swapped, test.empty}
    (table,) = (table for table in comparison_tables(found) if "memory" in table.columns)
    assert table.rows[0][-1] == outcome.value
    (data,) = (table.data for table in comparison_data(found) if table.title == "memory")
    assert [row["memory"] for row in data] == [outcome.value]


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


def test_without_samples_nothing_leads(tmp_path: Path) -> None:
    folders = made(tmp_path, "t", {**BETWEEN, "h2o": 0.9})
    for folder in folders:
        (folder / "samples.parquet").unlink()
    verdict = make_verdict(compare(folders))
    assert (verdict.leader, verdict.leads, verdict.recovered) == ("h2o", False, None)
    assert not count_with(verdict.sentences, "p <")


def test_of_several_rows_of_icl_none_is_the_baseline(tmp_path: Path) -> None:
    found = compare(
        [
            stored(tmp_path, f"{method}{dtype}", right(0.9), method=method, dtype=dtype)
            for method, dtype in (("icl", "float32"), ("icl", "bfloat16"), ("mac", "float32"))
        ]
    )
    assert baseline_row(found.method_rows, "icl") is None
    assert count_with(make_verdict(found).notes, "icl")


def test_a_quantised_cache_is_ranked_against_the_baseline(tmp_path: Path) -> None:
    found = compare(
        [
            stored(tmp_path, "plain", right(0.9), method="icl"),
            stored(tmp_path, "quantised", right(0.8), method="icl", bits=4),
        ]
    )
    baseline = baseline_row(found.method_rows, "icl")
    assert baseline is not None
    assert [row.label for row in contenders(found.method_rows)] == ["icl bits=4"]
    assert baseline.label != "icl bits=4"


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
    others = ("mac", "h2o", "window")
    folders = made(tmp_path, "t", {**BETWEEN, "snapkv": 0.7, "h2o": 0.6, "window": 0.4})
    pairs = {(each.left, each.right) for each in compare(folders).differences}
    against_baselines = {(row, end) for row in ("snapkv", *others) for end in ("none", "icl")}
    assert pairs == {("icl", "none"), *against_baselines, *(("snapkv", row) for row in others)}
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
                role=["none", "icl"][i] if i < 2 else "contender",
                exclusion_reason="",
                configuration_key=i,
            )
            for i, own in enumerate(answers)
        ]
        sides = [
            [Observation(str(i), (value, 1.0)) for i, value in enumerate(own)] for own in answers
        ]
        apart = [
            difference(sides[int(a.label)], sides[int(b.label)])
            for a, b in choose_pairs(method_rows, rank_rows([method_rows]))
        ]
        found = [each.p if each else None for each in apart]
        alarms += any(p is not None and p < SIGNIFICANCE_LEVEL for p in holm(found, family=66))
        naive += any(p is not None and p < SIGNIFICANCE_LEVEL for p in holm(found))
    assert alarms <= SIGNIFICANCE_LEVEL * tables
    assert naive > alarms
