"""Accelerators by torch's own word: which one is there, and what cannot be told of it is absent."""

from __future__ import annotations

import pytest
import torch

from ttabench.core import environment
from ttabench.core.meter import Meter, largest_peak
from ttabench.lm.loading.devices import find_device


@pytest.fixture
def mps(monkeypatch: pytest.MonkeyPatch) -> torch.device:
    """A machine with Apple's: nothing is computed on it."""
    device = torch.device("mps")
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda **_: device)
    monkeypatch.setattr(torch.accelerator, "synchronize", lambda _: None)
    monkeypatch.setattr(torch.mps, "empty_cache", lambda: None)
    return device


def test_auto_is_the_accelerator_that_is_there(
    mps: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert environment.accelerator_kind() == mps.type
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda **_: None)
    assert find_device("auto") == torch.device("cpu")


def test_a_peak_that_a_device_does_not_count_is_absent(mps: torch.device) -> None:
    meter = Meter(mps)
    with meter.phase("adapt"):
        pass
    assert meter.peak_bytes["adapt"] is None
    assert meter.peak_bytes["ask"] == 0, "nothing was asked"
    assert (largest_peak([]), largest_peak([3, 5]), largest_peak([0, None])) == (0, 5, None)
    on_cpu = Meter("cpu")
    with on_cpu.phase("adapt"):
        pass
    assert on_cpu.peak_bytes["adapt"]
