"""Commands give the CPU's figures on a second device, one that refuses what CUDA and mps refuse, see `sim`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ENDS_BADLY = "terminate called without an active exception\n"
SHARE = {
    "every method answers": ("--tasks", "streamingqa", "--verbs", ""),
    "families of tasks": ("--methods", "h2o,streamadapter", "--tasks", "superglue,metaicl,lamp,dailydialog",
                          "--verbs", ""),
    "other commands": ("--methods", "snapkv,mac", "--tasks", "", "--verbs", "ask,train"),
}  # fmt: skip
"""Of the table, which `python -m tests.devices.table` makes whole."""


def run(*words: str) -> str:
    """What a python of its own prints: the device stays in its process."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-u", *words], cwd=ROOT, env=environment, capture_output=True, text=True)
    # torch's threads of a device made in Python may outlive the interpreter, when all is printed
    assert done.returncode == 0 or done.stderr.endswith(ENDS_BADLY), done.stderr
    return done.stdout


@pytest.mark.parametrize("words", SHARE.values(), ids=SHARE)
def test_a_second_device_gives_the_figures_of_the_cpu(words: tuple[str, ...]) -> None:
    found = json.loads(run("-m", "tests.devices.table", *words))
    told = {f"{method} {what}": told for method, row in found.items() for what, told in row.items()}
    assert told
    assert {where: text for where, text in told.items() if text and not text.startswith("rounding: ")} == {}
