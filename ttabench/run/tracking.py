"""Experiment trackers: trackio, wandb and mlflow, for `--log`.

with open_tracker("trackio", "mac on streamingqa", config) as log_metrics:
    log_metrics({"step": 1, "loss": 2.3})
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import TypeAlias

from ttabench.core.errors import UserError, require_known
from ttabench.core.plugins import plugin_errors_as_user_errors
from ttabench.core.types import Json
from ttabench.records.local_paths import remove_paths
from ttabench.records.schema import RunRecord

LogMetrics: TypeAlias = Callable[[Mapping[str, float]], None]
"""Logs figures by name. The figure `step` is their position."""
TRACKERS = ("trackio", "wandb", "mlflow")
PROJECT = "ttabench"
WANDB_PRIVACY = {"WANDB_CONSOLE": "off", "WANDB_DISABLE_CODE": "true", "WANDB_DISABLE_GIT": "true"}
"""Environment variables with which wandb uploads no terminal output and no code."""


def log_nothing(metrics: Mapping[str, float]) -> None:
    """Log nothing, without a tracker."""


@contextmanager
def open_tracker(tracker: str, name: str, config: Mapping[str, Json]) -> Iterator[LogMetrics]:
    """Open a run of a tracker, and finish it at the end of the block; "" for no tracker.

    Args:
        name: name of the run in the tracker.
        config: configuration of the run; paths are shortened to their last part.

    Raises:
        UserError: the tracker is unknown, not installed, or does not open the run.
    """
    if not tracker:
        yield log_nothing
        return
    require_known("tracker", tracker, TRACKERS)
    try:
        module = import_module(tracker)
    except ModuleNotFoundError:
        raise UserError(
            f"--log {tracker} needs a package that is not installed.",
            f"Install it: pip install 'ttabench[{tracker}]'.",
        ) from None
    public = remove_paths({"config": config})["config"]
    with plugin_errors_as_user_errors(tracker):
        if tracker == "mlflow":
            module.set_experiment(PROJECT)
            module.start_run(run_name=name)
            module.log_params(public)
        else:
            for variable, value in WANDB_PRIVACY.items():
                os.environ.setdefault(variable, value)
            module.init(project=PROJECT, name=name, config=public)

    def log_metrics(metrics: Mapping[str, float]) -> None:
        with plugin_errors_as_user_errors(tracker):
            if tracker == "mlflow":
                figures = {key: value for key, value in metrics.items() if key != "step"}
                module.log_metrics(figures, step=int(metrics.get("step", 0)))
            else:
                module.log(dict(metrics))

    try:
        yield log_metrics
    finally:
        with plugin_errors_as_user_errors(tracker):
            (module.end_run if tracker == "mlflow" else module.finish)()


def final_figures(record: RunRecord) -> dict[str, float]:
    """Return scores and costs of a run by name; those by step and sub-task are left out."""
    scores = {
        name: value
        for row in record.rows
        if row.step is None and row.subtask is None
        for name, value in ((row.metric, row.value), (f"{row.metric}_stderr", row.stderr))
    }
    return {name: value for name, value in {**scores, **record.cost}.items() if value is not None}
