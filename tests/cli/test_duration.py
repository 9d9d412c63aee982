"""How long an evaluation should take: what is measured of the machine, what is kept of it, and what is said."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Command
from ttabench import cost
from ttabench.cli.duration import expected
from ttabench.core.progress import in_words
from ttabench.methods.registry import cost_of
from ttabench.profiling import matmul_rates
from ttabench.profiling.matmul_rates import ROWS, WIDTHS, Rates, rates_of
from ttabench.run.plan import Plan, make_plan
from ttabench.run.request import RunRequest

PRODUCTS = Rates(table=((1e9,) * len(WIDTHS),) * len(ROWS), call_seconds=1e-30, element_seconds=1e-30)
"""A machine on which only products of matrices take time, whatever their size."""


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """A machine whose rates are known, with a cache of its own; every measurement is noted."""
    asked: list[tuple[str, str]] = []

    def measured(device: str, dtype: str) -> Rates:
        asked.append((device, dtype))
        return PRODUCTS

    monkeypatch.setattr(matmul_rates, "folder", lambda: tmp_path / "rates")
    monkeypatch.setattr(matmul_rates, "measured", measured)
    return asked


def test_times_are_said_to_two_units_at_most() -> None:
    assert [in_words(seconds) for seconds in (0.2, 58, 5000)] == ["1 second", "1 minute", "1 hour 20 minutes"]


def test_rates_between_the_sizes_measured() -> None:
    found = PRODUCTS.model_copy(update={"table": ((1.0, 2.0, 4.0), (10.0, 20.0, 40.0), (100.0, 200.0, 400.0))})
    sizes = ((1, 128), (32, 512), (0.1, 64), (10**6, 10**6), (32, 256), (128, 128))
    wanted = [1.0, 20.0, 1.0, 400.0, 10 * math.sqrt(2), 10 * math.sqrt(10)]
    assert [found.flops(rows, width) for rows, width in sizes] == pytest.approx(wanted)


def operations(plan: Plan) -> tuple[float, float]:
    """Of reading and asking in the whole run, on paper."""
    shape, first = cost.shape_of("nano"), next(iter(plan.task.episodes()))
    assert shape is not None
    found = cost_of(plan.request.method, plan.config.settings, shape, cost.workload(first, "auto"))
    assert found is not None
    return plan.task.n_observes / len(first.observes()) * found.adapt_flops, plan.task.n_asks * found.ask_flops


def time_of(*plans: Plan, threads: int | None = None) -> dict[str, Any]:
    time = expected(plans, threads)[1]
    assert time is not None
    return time


@pytest.mark.parametrize("task", ["streamingqa", "superglue"])
def test_an_estimate_is_operations_over_rates(task: str, machine: list[tuple[str, str]]) -> None:
    plan, other = [make_plan(RunRequest(method="icl", task=task), seed) for seed in (0, 1)]
    reading, asking = operations(plan)
    assert reading > 0 < asking
    assert time_of(plan) == {"seconds": pytest.approx((reading + asking) / 1e9), "at_least": False}
    assert time_of(plan, other)["seconds"] == pytest.approx(2 * time_of(plan)["seconds"])
    assert machine == [("auto", "auto")], "measured once, then kept"
    silent = replace(plan, config=replace(plan.config, ask_only=True))
    assert time_of(silent)["seconds"] == pytest.approx(asking / 1e9), "what is not read takes no time"


def test_rates_are_kept_by_setting_and_damaged_ones_measured_again(
    tmp_path: Path, machine: list[tuple[str, str]]
) -> None:
    settings = [("auto", "auto", None), ("auto", "auto", 3), ("cpu", "bfloat16", None)]
    for setting in [*settings, *settings]:
        assert rates_of(*setting) == PRODUCTS
    assert len(machine) == len(list((tmp_path / "rates").iterdir())) == 3
    for file in (tmp_path / "rates").iterdir():
        file.write_text(file.read_text().replace("1e-30", "0.0"))
    assert rates_of(*settings[0]) == rates_of(*settings[0]) == PRODUCTS
    assert len(machine) == 4


def test_kept_rates_are_read_without_torch(tmp_path: Path, machine: list[tuple[str, str]]) -> None:
    rates_of("auto", "auto", 1)
    code = (
        "import sys\nfrom ttabench.cli import duration\nfrom ttabench.profiling.matmul_rates import rates_of\n"
        "assert rates_of('auto', 'auto', 1).table[0][0] == 1e9\n"
        "assert not {'torch', 'transformers'} & set(sys.modules)\n"
    )
    env = {**os.environ, "TTABENCH_CACHE": str(tmp_path), "PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr


def test_a_dry_run_says_how_long(ttabench: Command, common: list[object]) -> None:
    words = ["eval", "--method", "icl", *common, "--dry-run"]
    assert "It should take" in ttabench(*words).err
    time = ttabench(*words, "--json").json()["time"]
    assert time["seconds"] > 0
    assert set(time) == {"seconds", "at_least"}
    elsewhere = ttabench(*words, "--device", "cuda:99")
    assert (elsewhere.code, "It should take" in elsewhere.err) == (0, False)
