"""Suites that run in seconds, and methods that kill the process that makes them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.fuzz.test_kill_and_resume import folder_contents

DIES = '''\
"""Kills its process at the first document: once (`kind=once`), or always."""
import multiprocessing, os, signal, time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from ttabench.methods.base import Method
from ttabench.methods.spec import MethodSpec
from ttabench.lm.patch import Patch

@dataclass(frozen=True, kw_only=True)
class Settings:
    kind: Literal["once", "always", "fault", "slow"] = "once"

class Dies(Method[Settings]):
    spec = MethodSpec(name="dies", Settings=Settings)

    def adapt(self, state, pieces):
        mark, self.lock = Path("died"), multiprocessing.get_context("spawn").Lock()
        if self.settings.kind == "slow":
            time.sleep(0.3)
        if self.settings.kind == "fault":
            raise RuntimeError("nothing\\nworks")
        if self.settings.kind == "always" or (self.settings.kind == "once" and not mark.exists()):
            mark.write_text("")
            os.kill(os.getpid(), signal.SIGKILL)
        return state

    def patch(self, state, asks):
        return Patch()
'''


@pytest.fixture
def dies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file with such a method, in the current folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "dies.py").write_text(DIES, encoding="utf-8")
    return Path("dies.py")


@pytest.fixture
def suite(tiny_base: Path, tmp_path: Path) -> Callable[..., Path]:
    """A suite on the tiny base: these methods, these seeds."""

    def write(*methods: Any, seeds: tuple[int, ...] = (0,), **more: Any) -> Path:
        task = {
            "task": "streamingqa",
            "source": "mini",
            "task_set": {"documents": 1, "max_new_tokens": 2},
        }
        content = {
            "methods": list(methods),
            "tasks": [task],
            "models": [str(tiny_base)],
            "seeds": list(seeds),
            **more,
        }
        (tmp_path / "suite.yaml").write_text(json.dumps(content), encoding="utf-8")
        return tmp_path / "suite.yaml"

    return write


def records(out: Path) -> dict[str, Any]:
    """Files in the folders of runs, without the times of clocks and the folder that they went on in."""
    files = folder_contents(out)
    return {name: value for name, value in files.items() if not name.startswith(".")}
