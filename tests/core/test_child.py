"""Processes that answer requests: what sweeps and profiles start them for is tested there."""

from __future__ import annotations

import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from ttabench.core import child


@pytest.mark.skipif(sys.platform != "linux", reason="no processes are forked here")
@pytest.mark.parametrize("before", [None, "/somewhere"])
def test_processes_that_start_at_once_leave_the_environment_as_it_was(
    monkeypatch: pytest.MonkeyPatch, before: str | None
) -> None:
    monkeypatch.setenv("PYTHONSAFEPATH", "1")
    monkeypatch.delenv("PYTHONPATH", raising=False)
    if before is not None:
        monkeypatch.setenv("PYTHONPATH", before)
    monkeypatch.setattr(child.forkserver, "ensure_running", lambda: time.sleep(0.02))
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(child._context, [()] * 4))
    assert os.environ.get("PYTHONPATH") == before
