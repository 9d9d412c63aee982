"""How long an evaluation should take: what is measured of the machine, what is kept of it, and what is said."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from tests.conftest import Command
from ttabench import cost
from ttabench.cli.duration import CALLS_A_LAYER, ELEMENTS, Estimate, Paper, estimate
from ttabench.core.progress import in_words
from ttabench.methods.registry import cost_of
from ttabench.profiling import matmul_rates
from ttabench.profiling.matmul_rates import ROWS, WIDTHS, Rates, Setting, rates_of
from ttabench.run.plan import Plan, make_plan
from ttabench.run.request import RunRequest

PRODUCTS = Rates(table=((1e9,) * len(WIDTHS),) * len(ROWS), call_seconds=1e-30, element_seconds=1e-30)
"""A machine on which only products of matrices take time, whatever their size."""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(matmul_rates, "folder", lambda: tmp_path / "rates")
    return tmp_path / "rates"


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> list[Setting]:
    """A machine whose rates are known; every measurement is noted."""
    asked: list[Setting] = []

    def measured(setting: Setting) -> Rates:
        asked.append(setting)
        return PRODUCTS

    monkeypatch.setattr(matmul_rates, "measured", measured)
    monkeypatch.setattr(matmul_rates, "load_average", lambda: 0.0)
    return asked


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.2, "1 second"), (3.4, "3 seconds"), (9.6, "10 seconds"), (33, "30 seconds"), (58, "1 minute"),
        (170, "3 minutes"), (3599, "1 hour"), (5000, "1 hour 20 minutes"), (86000, "1 day"), (190000, "2 days 5 hours"),
    ],
)  # fmt: skip
def test_times_are_said_to_two_units_at_most(seconds: float, words: str) -> None:
    assert in_words(seconds) == words


def test_what_is_said() -> None:
    about = Estimate(seconds=170, at_least=False, busy=False)
    assert about.sentence() == "It should take about 3 minutes on this machine."
    assert replace(about, at_least=True).sentence() == "It should take at least 3 minutes on this machine."
    assert "busy" in replace(about, busy=True).sentence()


def test_rates_between_the_sizes_measured() -> None:
    found = replace(PRODUCTS, table=((1.0, 2.0, 4.0), (10.0, 20.0, 40.0), (100.0, 200.0, 400.0)))
    assert [found.flops(rows, width) for rows, width in ((1, 128), (32, 512), (512, 1024))] == (
        pytest.approx([1.0, 20.0, 400.0])
    )
    assert found.flops(0.1, 64) == 1.0
    assert found.flops(10**6, 10**6) == 400.0
    assert found.flops(32, 256) == pytest.approx(10 * math.sqrt(2))
    assert found.flops(128, 128) == pytest.approx(10 * math.sqrt(10))


def paper(plan: Plan) -> tuple[Paper, float, float]:
    """Cost on paper of a plan's first episode; operations of reading and asking in the whole run."""
    shape, first = cost.shape_of("nano"), next(iter(plan.task.episodes()))
    work = cost.workload(first, "auto")
    assert shape is not None
    found = cost_of(plan.request.method, plan.config.settings, shape, work)
    assert found is not None
    episodes = plan.task.n_observes / len(first.observes())
    return Paper(shape, work, found), episodes * found.adapt_flops, plan.task.n_asks * found.ask_flops


def seconds_of(plans: list[Plan], known: Paper, setting: Setting | None = None) -> Estimate:
    found = estimate(plans, next(iter(plans[0].task.episodes())), known, setting or Setting())
    assert found is not None
    return found


@pytest.mark.parametrize("task", ["streamingqa", "superglue", "metaicl"])
def test_an_estimate_is_operations_over_rates(task: str, cache: Path, machine: list[Setting]) -> None:
    plans = [make_plan(RunRequest(method="icl", task=task), seed) for seed in (0, 1)]
    known, reading, asking = paper(plans[0])
    assert reading > 0
    assert asking > 0
    found = seconds_of(plans[:1], known)
    assert found == Estimate(seconds=pytest.approx((reading + asking) / 1e9), at_least=False, busy=False)
    assert seconds_of(plans, known).seconds == pytest.approx(2 * found.seconds)
    assert machine == [Setting()], "measured once, then kept"


def test_what_is_not_read_takes_no_time(cache: Path, machine: list[Setting], tmp_path: Path) -> None:
    plan = make_plan(RunRequest(method="icl", task="streamingqa"), 0)
    known, reading, asking = paper(plan)
    silent = replace(plan, config=replace(plan.config, ask_only=True))
    assert seconds_of([silent], known).seconds == pytest.approx(asking / 1e9)
    assert seconds_of([plan], known).seconds == pytest.approx((reading + asking) / 1e9)


def test_calls_and_what_stands_between_products_take_time(
    cache: Path, machine: list[Setting], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = make_plan(RunRequest(method="none", task="streamingqa"), 0)
    known, _, asking = paper(plan)
    first = next(iter(plan.task.episodes()))
    shape, whole = known.shape, asking / 1e9
    passes = plan.task.n_asks / min(32, len(first.asks())) * known.work.new_tokens
    monkeypatch.setattr(matmul_rates, "measured", lambda _: replace(PRODUCTS, call_seconds=1.0))
    found = seconds_of([plan], known, Setting(threads=1))
    assert found.seconds == pytest.approx(whole + passes * shape.layers * CALLS_A_LAYER)
    assert found.at_least
    monkeypatch.setattr(matmul_rates, "measured", lambda _: replace(PRODUCTS, element_seconds=1.0))
    found = seconds_of([plan], known, Setting(threads=2))
    elements = asking / (2 * shape.body) * shape.layers * shape.hidden * ELEMENTS
    assert found.seconds == pytest.approx(whole + elements)
    assert not found.at_least


def test_a_real_measurement_has_every_rate() -> None:
    found = matmul_rates.measured(Setting(device="cpu", dtype="float32"))
    assert [len(row) for row in found.table] == [len(WIDTHS)] * len(ROWS)
    assert all(value > 0 for row in found.table for value in row)
    assert 0 < found.element_seconds < found.call_seconds


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"key": 1}', "null"])
def test_damaged_rates_are_measured_again(cache: Path, machine: list[Setting], damage: str) -> None:
    assert rates_of(Setting()) == replace(PRODUCTS, load=0.0)
    (file,) = cache.iterdir()
    file.write_text(damage)
    assert rates_of(Setting()) == rates_of(Setting()) == replace(PRODUCTS, load=0.0)
    assert len(machine) == 2


def test_rates_that_mean_nothing_are_measured_again(cache: Path, machine: list[Setting]) -> None:
    rates_of(Setting())
    (file,) = cache.iterdir()
    content = json.loads(file.read_text())
    for change in ({"table": [[1.0]]}, {"call_seconds": 0.0}, {"element_seconds": math.nan}):
        file.write_text(json.dumps({**content, "rates": content["rates"] | change}))
        assert rates_of(Setting()).table == PRODUCTS.table
    assert len(machine) == 4


def test_other_settings_are_other_rates(cache: Path, machine: list[Setting], monkeypatch: pytest.MonkeyPatch) -> None:
    settings = [Setting(), Setting(threads=3), Setting(dtype="bfloat16"), Setting(device="cpu")]
    for setting in [*settings, *settings]:
        rates_of(setting)
    assert machine == settings
    monkeypatch.setattr(matmul_rates, "cpu_name", lambda: "another processor")
    rates_of(Setting())
    assert len(machine) == 5


def test_what_was_measured_on_a_busy_machine_is_measured_again_on_an_idle_one(
    cache: Path, machine: list[Setting], monkeypatch: pytest.MonkeyPatch
) -> None:
    busy = 10.0 * (matmul_rates.os.cpu_count() or 1)
    for load, counted in ((busy, 1), (busy, 1), (0.7 * busy, 1), (0.4 * busy, 2), (0.0, 3), (0.0, 3), (busy, 3)):
        monkeypatch.setattr(matmul_rates, "load_average", lambda load=load: load)
        rates_of(Setting())
        assert len(machine) == counted
    assert not rates_of(Setting()).busy


def test_a_cache_that_cannot_be_written_costs_a_measurement_each_time(cache: Path, machine: list[Setting]) -> None:
    cache.write_text("a file where a folder should be")
    assert rates_of(Setting()).table == rates_of(Setting()).table == PRODUCTS.table
    assert len(machine) == 2


def test_where_rates_are_kept(tmp_path: Path) -> None:
    code = "from ttabench.profiling import matmul_rates; print(matmul_rates.folder())"

    def printed(**named: str) -> str:
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True,
                              env={"HOME": str(tmp_path), "PYTHONPATH": ":".join(sys.path), **named})  # fmt: skip
        return done.stdout.strip()

    assert printed() == f"{tmp_path}/.cache/ttabench/rates"
    assert printed(XDG_CACHE_HOME="/elsewhere") == "/elsewhere/ttabench/rates"
    assert printed(XDG_CACHE_HOME="relative") == f"{tmp_path}/.cache/ttabench/rates", "as the standard has it"
    assert printed(XDG_CACHE_HOME="/elsewhere", TTABENCH_CACHE="/own") == "/own/rates"


def test_kept_rates_are_read_without_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matmul_rates, "folder", lambda: tmp_path / "rates")
    monkeypatch.setattr(matmul_rates, "measured", lambda _: PRODUCTS)
    rates_of(Setting(threads=1))
    code = (
        "import sys\nfrom ttabench.cli import duration\nfrom ttabench.profiling.matmul_rates import Setting, rates_of\n"
        "assert rates_of(Setting(threads=1)).table[0][0] == 1e9\n"
        "assert not {'torch', 'transformers'} & set(sys.modules)\n"
    )
    env = {**matmul_rates.os.environ, "TTABENCH_CACHE": str(tmp_path), "PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr


def test_where_the_device_is_not_there_nothing_is_said(ttabench: Command, common: list[object]) -> None:
    ran = ttabench("eval", "--method", "icl", *common, "--dry-run", "--device", "cuda:99")
    assert ran.code == 0
    assert "It should take" not in ran.err


def test_a_dry_run_says_how_long(ttabench: Command, common: list[object]) -> None:
    assert "It should take" in ttabench("eval", "--method", "icl", *common, "--dry-run").err
    time = ttabench("eval", "--method", "icl", *common, "--dry-run", "--json").json()["time"]
    assert time["seconds"] > 0
    assert set(time) == set(asdict(Estimate(seconds=1, at_least=True, busy=True)))
