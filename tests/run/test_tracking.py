"""`--log`: what trackers receive from `eval` and `train`, with modules in place of the packages."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.conftest import Command, error_line
from ttabench.run.tracking import TRACKERS, WANDB_PRIVACY

Calls = list[tuple[str, tuple[Any, ...], dict[str, Any]]]
MLFLOW_CALLS = ["set_experiment", "start_run", "log_params", "log_metrics", "end_run"]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """Calls of any tracker's functions, by name."""
    received: Calls = []
    for variable in WANDB_PRIVACY:
        monkeypatch.setenv(variable, "set")

    def function(name: str) -> Any:
        def call(*arguments: Any, **named: Any) -> None:
            print("a tracker's own words")
            received.append((name, arguments, named))

        return call

    for tracker in TRACKERS:
        module = ModuleType(tracker)
        for name in ("init", "log", "finish", *MLFLOW_CALLS):
            setattr(module, name, function(name))
        monkeypatch.setitem(sys.modules, tracker, module)
    return received


@pytest.mark.parametrize("tracker", TRACKERS)
def test_eval_logs_configuration_scores_and_costs(
    calls: Calls, ttabench: Command, common: str, tiny_base: Path, tracker: str
) -> None:
    words = f"eval --method icl {common} --limit 2 --seeds 0,1 --json --log"
    runs = ttabench(f"{words} {tracker}").json()["runs"]
    expected = MLFLOW_CALLS if tracker == "mlflow" else ["init", "log", "finish"]
    assert [name for name, _, _ in calls] == 2 * expected
    assert str(tiny_base.parent) not in str(calls)
    values = dict(zip((name for name, _, _ in calls), calls, strict=True))
    (_, (metrics,), _) = values["log_metrics" if tracker == "mlflow" else "log"]
    (row,) = (row for row in runs[1]["rows"] if row["metric"] == "f1")
    assert metrics["f1"] == row["value"]
    assert metrics["state_bytes"] == runs[1]["cost"]["state_bytes"]
    calls.clear()
    assert ttabench(f"{words} {tracker}").json()["runs"] == [
        {**run, "how": "stored"} for run in runs
    ]
    assert len(calls) == 2 * len(expected), "stored runs are logged, too"


@pytest.mark.parametrize("tracker", ["trackio", "mlflow"])
def test_train_logs_every_step(
    calls: Calls, ttabench: Command, tiny_base: Path, tmp_path: Path, tracker: str
) -> None:
    ran = ttabench(
        f"train --method lora --set rank=2 --model {tiny_base} --source mini --documents 1 --steps 3"
        f" --validate-every 3 --out {tmp_path / 'out'} --json --log {tracker}"
    )
    loss = ran.json()["loss"]
    logged = [
        {**metrics[0], **named} for name, metrics, named in calls if name in ("log", "log_metrics")
    ]
    assert [step["step"] for step in logged] == [1, 2, 3, 3]
    assert logged[2]["loss"] == pytest.approx(loss)
    assert "validation_loss" in logged[3]
    assert calls[-1][0] == ("end_run" if tracker == "mlflow" else "finish")


def test_unknown_missing_and_failing_trackers_are_refused(
    calls: Calls, ttabench: Command, common: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = f"eval --method icl {common} --limit 1 --quiet --log"
    assert "trackio" in error_line(ttabench(f"{words} trackoi"))
    monkeypatch.setitem(sys.modules, "wandb", None)
    assert "'ttabench[wandb]'" in error_line(ttabench(f"{words} wandb"))

    def fail(**_: Any) -> None:
        raise RuntimeError("no key")

    monkeypatch.setattr(sys.modules["trackio"], "init", fail)
    assert "no key" in error_line(ttabench(f"{words} trackio"))
    assert calls == []
