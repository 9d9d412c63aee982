"""Commands give equal results on a second device, which rejects what CUDA and mps reject."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.places import ROOT

ABORTED_AT_EXIT = "terminate called without an active exception\n"
"""Threads of a device made in Python may outlive the interpreter."""
SHARE = {
    "eval": ("--tasks", "streamingqa", "--commands", ""),
    "readers": (
        "--methods",
        "h2o,streamadapter",
        "--tasks",
        "superglue,metaicl,lamp,dailydialog",
        "--commands",
        "",
    ),
    "commands": ("--methods", "snapkv,mac", "--tasks", "", "--commands", "ask,train"),
}


def run(*words: str) -> str:
    """Return what a separate process prints, because the device stays registered."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-u", *words], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0 or done.stderr.endswith(ABORTED_AT_EXIT), done.stderr
    return done.stdout


@pytest.mark.parametrize("words", SHARE.values(), ids=SHARE)
def test_a_second_device_gives_the_results_of_the_cpu(words: tuple[str, ...]) -> None:
    results = json.loads(run("-m", "tools.devices", *words))
    differences = [text for row in results.values() for text in row.values()]
    assert differences
    assert [text for text in differences if text and not text.startswith("rounding: ")] == []


SPLIT_MODEL = """
from tools import sim_device
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
lm = LM(model, whole.tokenizer, "split")
print(json.dumps({"devices": [device.type for device in lm.layer_devices], **check_methods(lm)}))
"""


def test_a_model_on_two_devices_gives_the_results_of_one() -> None:
    results = json.loads(run("-c", SPLIT_MODEL).splitlines()[-1])
    assert results.pop("devices") == ["sim", "cpu"]
    assert set(results.values()) == {"right"}
