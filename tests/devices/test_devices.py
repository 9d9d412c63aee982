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


APART = """
from tests.devices import sim
import copy, json, torch
from ttabench.contract.case import drawn, tiny_llama
from ttabench.contract.models import SETTINGS, outcomes
from ttabench.lm.loading.devices import spread
from ttabench.lm.model import LM
whole = tiny_llama()
model = copy.deepcopy(whole.model)
head = {"model.embed_tokens": "sim", "model.rotary_emb": "sim", "model.layers.0": "sim"}
spread(model, {**head, "model.layers.1": "cpu", "model.norm": "cpu", "lm_head": "cpu"})
lm = LM(model, whole.tokenizer, "apart")
print(json.dumps({"devices": [device.type for device in lm.layer_devices], **outcomes(lm)}))
"""


def test_a_model_whose_layers_lie_on_two_devices_gives_the_figures_of_one() -> None:
    found = json.loads(run("-c", APART).splitlines()[-1])
    assert found.pop("devices") == ["sim", "cpu"]
    assert found == dict.fromkeys(found, "right")


REFUSED = """
    x + torch.ones(3, 4)
    torch.ones(3, 4) + x
    torch.cat([x, torch.ones(3, 4)])
    torch.stack([x[0, 0], torch.tensor(1.0)])
    torch.zeros(()).add_(x[0, 0])
    torch.ones(3)[torch.zeros(1, dtype=torch.long, device="sim")]
    torch.nn.functional.embedding(torch.tensor([1]), x)
    torch.rand(3, device="sim", generator=torch.Generator())
    torch.zeros(3, device="sim", dtype=torch.float64)
    x.double()
    x.numpy()
"""
DONE = """
    x + torch.tensor(1.0)
    x[torch.tensor([0, 1])]
    x.cpu() + torch.ones(3, 4)
    torch.ones(3, 4).copy_(x)
    torch.rand(3, device="sim", generator=torch.Generator("sim"))
    torch.nn.Linear(4, 2).to("sim")(x).sum().backward()
"""
TRIED = """
from tests.devices import sim
import json, sys, torch
x = torch.ones(3, 4, device="sim")
for line in json.loads(sys.argv[1]):
    try:
        exec(line)
        print("done", line)
    except (RuntimeError, TypeError) as error:
        print("refused", line)
"""


def test_the_device_refuses_what_others_refuse() -> None:
    """Else the table would say nothing."""
    tried = [line.strip() for lines in (REFUSED, DONE) for line in lines.strip().splitlines()]
    ends = [("refused" if line in REFUSED else "done") + f" {line}" for line in tried]
    assert run("-c", TRIED, json.dumps(tried)).splitlines() == ends
