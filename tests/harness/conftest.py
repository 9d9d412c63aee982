"""Evaluations of lm-eval without its report on the machine, for which it runs pip every time."""

from __future__ import annotations

from importlib.util import find_spec

import pytest


@pytest.fixture(autouse=True)
def _no_report_on_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    if find_spec("lm_eval") is not None:
        monkeypatch.setattr("lm_eval.evaluator.add_env_info", lambda _: None)
