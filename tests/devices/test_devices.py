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
    "families of tasks": (
        "--methods",
        "h2o,streamadapter",
        "--tasks",
        "superglue,metaicl,lamp,dailydialog",
        "--verbs",
        "",
    ),
    "other commands": ("--methods", "snapkv,mac", "--tasks", "", "--verbs", "ask,train"),
}
"""Of the table, which `python -m tests.devices.table` makes whole."""


def run(*words: str) -> str:
    """What a python of its own prints: the device stays in its process."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-u", *words], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    # torch's threads of a device made in Python may outlive the interpreter, when all is printed
    assert done.returncode == 0 or done.stderr.endswith(ENDS_BADLY), done.stderr
    return done.stdout


@pytest.mark.parametrize("words", SHARE.values(), ids=SHARE)
def test_a_second_device_gives_the_figures_of_the_cpu(words: tuple[str, ...]) -> None:
    found = json.loads(run("-m", "tests.devices.table", *words))
    told = {f"{method} {what}": told for method, row in found.items() for what, told in row.items()}
    assert told
    assert {
        where: text for where, text in told.items() if text and not text.startswith("rounding: ")
    } == {}


APART = """
from tests.devices import sim
import copy, json, torch
from ttabench.contract.case import random_lm, tiny_llama
from ttabench.contract.models import METHOD_SETTINGS, check_methods
from accelerate import dispatch_model
from ttabench.lm.model import LM
whole = tiny_llama()
model = copy.deepcopy(whole.model)
head = {"model.embed_tokens": "sim", "model.rotary_emb": "sim", "model.layers.0": "sim"}
parts = {**head, "model.layers.1": "cpu", "model.norm": "cpu", "lm_head": "cpu"}
dispatch_model(model, parts, main_device="cpu", force_hooks=True)
lm = LM(model, whole.tokenizer, "apart")
print(json.dumps({"devices": [device.type for device in lm.layer_devices], **check_methods(lm)}))
"""


def test_a_model_whose_layers_lie_on_two_devices_gives_the_figures_of_one() -> None:
    found = json.loads(run("-c", APART).splitlines()[-1])
    assert found.pop("devices") == ["sim", "cpu"]
    assert found == dict.fromkeys(found, "right")
