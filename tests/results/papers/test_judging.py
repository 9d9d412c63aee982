"""Tests of the verdicts on the papers' claims."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from papers.claims import by_claim, by_setting, theirs, verdict_of_settings, verdict_of_trainings
from papers.judging import (
    ClaimResult,
    Verdict,
    combine_verdicts,
    evaluate_claims,
    load_stored_runs,
    matches_run,
    near_baseline,
    suite_settings,
    verdict_of,
)

from tests.records.test_records import sample, store_samples
from tests.report.test_compare import stored as store
from tests.report.test_verdict import right
from ttabench.records.schema import load_record, save_record
from ttabench.report.differences import Difference


def make_difference(
    value: float, low: float | None, high: float | None, p: float | None = None, metric: str = "f1"
) -> Difference:
    return Difference(
        left="a",
        right="b",
        task="t",
        group="x",
        metric=metric,
        value=value,
        ci_low=low,
        ci_high=high,
        p=p,
        n=10,
        unit="query",
        units=10,
    )


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        (make_difference(0.2, 0.1, 0.3), "reproduced"),
        (make_difference(-0.2, -0.3, -0.1), "contradicted"),
        (make_difference(0.2, -0.1, 0.5), "undecided"),
        (make_difference(-0.2, -0.3, -0.1, metric="ppl"), "reproduced"),
        (make_difference(1.0, None, None, p=0.002), "reproduced"),
        (make_difference(1.0, None, None, p=0.25), "undecided"),
        (make_difference(0.0, None, None, p=1.0), "undecided"),
    ],
)
def test_verdict_of_a_difference(found: Difference, verdict: str) -> None:
    assert verdict_of(found) == verdict


@pytest.mark.parametrize(
    ("is_rival_better", "reported", "verdict"),
    [
        (True, [10.0], "reproduced"),
        (True, [], "reproduced"),
        (True, [-5.0], "other size"),
        (True, [3.9, 3.0], "other size"),
        (True, [101.0], "other size"),
        (True, [3.9, 101.0], "reproduced"),
        (False, [10.0], "weak rival"),
        (None, [10.0], "weak rival"),
    ],
)
def test_a_rival_better_than_no_context_and_a_size_like_the_papers(
    is_rival_better: bool | None, reported: list[float], verdict: str
) -> None:
    found = make_difference(0.2, 0.1, 0.3)
    assert verdict_of(found, is_rival_better=is_rival_better, reported=reported) == verdict


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        (make_difference(0.0, -0.02, 0.02), "reproduced"),
        (make_difference(-0.01, -0.032, 0.012), "reproduced"),  # the 90 % interval lies within
        (make_difference(0.0, -0.04, 0.04), "undecided"),
        (make_difference(-0.05, -0.06, -0.02), "undecided"),
        (make_difference(-0.05, -0.06, -0.04), "contradicted"),
        (make_difference(0.0, None, None, p=1.0), "reproduced"),
        (make_difference(0.5, None, None, p=0.01), "undecided"),
    ],
)
def test_equivalence_needs_two_one_sided_tests(found: Difference, verdict: str) -> None:
    assert verdict_of(found, margin=3) == verdict


@pytest.mark.parametrize(
    ("control", "verdict"),
    [
        (make_difference(0.2, 0.1, 0.3), "reproduced"),
        (make_difference(0.2, -0.1, 0.5), "no memory"),
        (None, "no control"),
    ],
)
def test_memory_needs_an_own_state_better_than_the_swapped_one(
    control: Difference | None, verdict: str
) -> None:
    better = make_difference(0.2, 0.1, 0.3)
    assert verdict_of(better, control, memory=True) == verdict
    assert verdict_of(better, control) == "reproduced"
    assert verdict_of(make_difference(-0.2, -0.3, -0.1), control, memory=True) == "contradicted"


@pytest.mark.parametrize(
    ("places", "decided", "near"),
    [
        ((0.05, 0.0), True, "no context"),
        ((0.05, 0.0), False, ""),
        ((-0.5, 0.05), True, ""),
        ((0.95, 1.0), False, "full context"),
        ((0.95, 0.97), True, "full context"),
        ((0.95, 0.5), True, ""),
    ],
)
def test_results_near_the_same_baseline_are_not_evaluated(
    places: tuple[float, float], decided: bool, near: str
) -> None:
    assert near_baseline(places, decided=decided) == (f"both near {near}" if near else "")


@pytest.mark.parametrize(
    ("verdicts", "verdict"),
    [
        (["reproduced", "reproduced"], "reproduced"),
        (["reproduced", "cannot tell", "no runs"], "reproduced"),
        (["reproduced", "undecided"], "mixed"),
        (["cannot tell", "no runs"], "cannot tell"),
    ],
)
def test_verdicts_of_several_settings_are_combined(verdicts: list[Verdict], verdict: str) -> None:
    assert combine_verdicts(verdicts) == verdict


def rows(folder: Path, table: str = "table1") -> list[ClaimResult]:
    found = evaluate_claims("mac", table, load_stored_runs([folder]))
    return [row for row in found if row.scale is not None]


def run(folder: Path, method: str, share: float, **more: Any) -> Path:
    own = {"method": method, "task": "streamingqa", "source": "mini", **more}
    return store(folder, f"{method}{len(list(folder.iterdir()))}", right(share), **own)


def test_a_claim_is_evaluated_by_its_paired_difference(tmp_path: Path) -> None:
    run(tmp_path, "uniform", 0.2)
    run(tmp_path, "salient_spans", 0.8)
    (row,) = rows(tmp_path)
    assert (row.claim.left, row.claim.right, row.verdict, row.scale) == (
        "salient-spans",
        "uniform",
        "no control",
        "nano",
    )
    assert row.found.value == pytest.approx(0.6)
    assert theirs([row]) == "0.9 to 5.4: distilgpt2, gpt2-large, gpt2-xl, llama-2-7b"
    missing = [
        each
        for each in evaluate_claims("mac", "table1", load_stored_runs([tmp_path]))
        if each.scale is None
    ]
    assert {each.verdict for each in missing} == {"no runs"}


@pytest.mark.parametrize(("other", "verdict"), [(0.2, "other size"), (0.8, "no memory")])
def test_the_swapped_state_is_the_control(tmp_path: Path, other: float, verdict: str) -> None:
    run(tmp_path, "none", 0.0)
    run(tmp_path, "icl", 1.0)
    run(tmp_path, "uniform", 0.2)
    run(tmp_path, "salient_spans", 0.8)
    run(tmp_path, "salient_spans", other, state_of="other")
    (row,) = rows(tmp_path)
    gain = pytest.approx(0.8 - other)
    assert (row.verdict, row.control.value, row.memory_share) == (verdict, gain, gain)


@pytest.mark.parametrize(
    ("uniform", "salient", "verdict"),
    [(0.8, 0.2, "contradicted"), (0.5, 0.52, "undecided"), (0.01, 0.05, "cannot tell")],
)
def test_the_opposite_order_contradicts_and_equal_results_are_undecided(
    tmp_path: Path, uniform: float, salient: float, verdict: str
) -> None:
    run(tmp_path, "uniform", uniform)
    run(tmp_path, "salient_spans", salient)
    run(tmp_path, "none", 0.0)
    run(tmp_path, "icl", 1.0)
    found = [row for row in rows(tmp_path) if row.claim.left == "salient-spans"]
    assert [row.verdict for row in found] == [verdict]


def test_an_excluded_run_is_not_evaluated(tmp_path: Path) -> None:
    run(tmp_path, "uniform", 0.2)
    cut = run(tmp_path, "salient_spans", 0.8)
    record = load_record(cut)
    cost = {**record.cost, "truncated_tokens": 64, "tokens_read": 100}
    save_record(record.model_copy(update={"cost": cost}), cut)
    (row,) = rows(tmp_path)
    assert (row.verdict, row.found) == ("cannot tell", None)
    assert row.reason == "salient-spans read 36 % of the context"


def trained(folder: Path, share: float, seed: int, **more: Any) -> None:
    """A run of `uniform` as if it had an adapter of this training seed."""
    data = {"task": "streamingqa", "source": "mini", "split": "train", "digest": f"of seed {seed}"}
    config = {"steps": 100, "lr": 1e-3, "data": data, "seed": seed, **more}
    path = run(folder, "uniform", share, settings={"seed": seed, **more}, checkpoint=f"seed{seed}")
    record = load_record(path)
    save_record(
        record.model_copy(update={"method": {**record.method, "training": {"config": config}}}),
        path,
    )


def test_every_training_of_a_recipe_is_evaluated(tmp_path: Path) -> None:
    for seed, share in ((2, 0.9), (0, 0.2), (1, 0.9)):
        trained(tmp_path, share, seed)
    run(tmp_path, "salient_spans", 0.8)
    run(tmp_path, "salient_spans", 0.1, state_of="other")
    found = rows(tmp_path)
    assert [row.verdict for row in found] == ["weak rival", "contradicted", "contradicted"]
    (setting,) = by_setting(found)
    assert (verdict_of_trainings(setting), len(setting)) == ("mixed", 3)
    (claim,) = by_claim(found)
    assert verdict_of_settings(claim) == "mixed"
    trained(tmp_path, 0.9, 2, lr=1e-2)
    (row,) = rows(tmp_path)
    assert row.verdict == "cannot tell"
    assert "uniform has 4 configurations" in row.reason


def test_an_adapter_of_another_task_does_not_match(tmp_path: Path) -> None:
    run(tmp_path, "uniform", 0.2)
    mac = run(tmp_path, "mac", 0.9, settings={"hierarchy": None, "bank_cap": None})
    for trained, expected in (("streamingqa", 1), ("squad_seq", 0)):
        record = load_record(mac)
        training = {"training": {"config": {"data": {"task": trained}}}}
        save_record(record.model_copy(update={"method": training}), mac)
        settings_of_run = suite_settings(load_record(mac))
        assert matches_run({"method": "mac", "trained_on": "own"}, settings_of_run) == bool(
            expected
        )
        assert matches_run({"method": "mac", "trained_on": trained}, settings_of_run)
        assert sum(row.claim.left == "mac" for row in rows(tmp_path)) == expected


def test_bytes_are_exact_and_need_no_interval(tmp_path: Path) -> None:
    for method, kept, more in (("icl", 4096, {}), ("generative_adapter", 1024, {})):
        own = {
            "method": method,
            "task": "msc",
            "source": "mini",
            "task_options": {"ask": "questions"},
            **more,
        }
        folder = store(tmp_path, method, right(0.5), **own)
        record = load_record(folder)
        save_record(
            record.model_copy(update={"cost": {**record.cost, "state_bytes": kept}}), folder
        )
    found = evaluate_claims("generative_adapter", "table1", load_stored_runs([tmp_path]))
    (row,) = [row for row in found if row.claim.cost]
    assert (row.verdict, row.costs and [cost.value for cost in row.costs]) == (
        "reproduced",
        [1024, 4096],
    )
    assert theirs([row]) == "32 against 128 million numbers"


HERE, THERE = {"cpu": "A", "threads": 1}, {"cpu": "B", "threads": 2}


def timed(
    folder: Path, mac: list[float], camels: list[float], *, elsewhere: bool = False
) -> list[ClaimResult]:
    """MAC's figure 2 of runs that took so many seconds, a draw each."""
    for method, draws in (("mac", mac), ("camels", camels)):
        for seed, seconds in enumerate(draws):
            more: dict[str, Any] = (
                {"settings": {"hierarchy": None, "bank_cap": None}} if method == "mac" else {}
            )
            path = run(folder, method, 0.5, seed=seed, **more)
            record = load_record(path)
            training = {"training": {"config": {"data": {"task": "streamingqa"}}}}
            changes = {
                "cost": {**record.cost, "adapt_seconds": seconds},
                "method": training,
                "hardware": THERE if elsewhere and method == "mac" else HERE,
            }
            save_record(record.model_copy(update=changes), path)
    return rows(folder, "figure2")


@pytest.mark.parametrize(
    ("mac", "camels", "elsewhere", "verdict"),
    [
        ([0.1, 0.2], [1.0, 0.5], False, "reproduced"),
        ([0.1, 0.3], [1.0, 0.5], False, "undecided"),
        ([1.0, 2.0], [0.5, 0.5], False, "contradicted"),
        ([0.1], [1.0], False, "cannot tell"),
        ([0.1, 0.2], [1.0, 0.5], True, "cannot tell"),
    ],
)
def test_times_must_differ_by_a_factor_in_every_draw(
    tmp_path: Path, mac: list[float], camels: list[float], elsewhere: bool, verdict: str
) -> None:
    (row,) = timed(tmp_path, mac, camels, elsewhere=elsewhere)
    assert (row.verdict, theirs([row])) == (verdict, "2.5 against 28.6 minutes")
    assert row.group_name.endswith("A, 1 thread") != elsewhere


def test_only_queries_of_the_step_are_used(tmp_path: Path) -> None:
    for method, values in (("none", {1: 0.0, 16: 0.0}), ("ccm", {1: 0.0, 16: 1.0})):
        folder = store(
            tmp_path,
            method,
            {"x": 0.5},
            method=method,
            task="metaicl",
            source="mini",
            settings={"update": "concat"} if method == "ccm" else {},
        )
        own = [
            {**sample(f"q{index}@{step}", value=value).to_row(), "step": step}
            for step, value in values.items()
            for index in range(12)
        ]
        store_samples(folder, own)
        record = load_record(folder)
        more = [
            record.rows[0].model_copy(update={"step": step, "value": value})
            for step, value in values.items()
        ]
        save_record(record.model_copy(update={"rows": (*record.rows, *more)}), folder)
    (row,) = [
        row for row in evaluate_claims("ccm", "table23", load_stored_runs([tmp_path])) if row.scale
    ]
    assert (row.place.name, row.found.n, row.found.value, row.verdict) == (
        "t=16",
        12,
        1.0,
        "no control",
    )
