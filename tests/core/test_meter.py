"""What is measured beside wall time: processor seconds, the load of the machine, and that measuring changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.run.test_runner import METRICS, FakeTask, run, stream
from tests.tiny import tiny_llama
from ttabench.core import meter
from ttabench.core.types import Answer
from ttabench.methods.icl import InContextSettings
from ttabench.methods.icl.method import InContext
from ttabench.records.folder import RunFolder
from ttabench.run import runner
from ttabench.run.runner import RunContext


class Blind(meter.Meter):
    """Looks at no clock."""

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:  # noqa: ARG002  # a meter's argument
        yield


def test_measuring_changes_no_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lm = tiny_llama()

    def answered(name: str) -> list[tuple[str, Answer]]:
        folder = RunFolder(tmp_path, name)
        run(
            RunContext(lm=lm, method=InContext(lm, InContextSettings()), metrics=METRICS),
            FakeTask(stream()),
            folder,
        )
        return [(each.key, each.answer) for each in folder.samples]

    measured = answered("a")
    monkeypatch.setattr(runner, "Meter", Blind)
    assert answered("b") == measured
