"""A base model that stands on a checkpoint: the deltas of a trained LoRA, added to the weights before anything is read.

    lm = stood_on(load("smollm2-135m"), Path("my-lora"), "my-lora")        every method then runs on the tuned weights

A checkpoint of a method that reads nothing (`lora`) is a change of weights like any other; added to the base, it is a
base that every method may stand on. Records name it, and the base's fingerprint is that of the changed weights.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from ttabench.core.digests import digest
from ttabench.core.errors import UserError
from ttabench.lm.model import LM
from ttabench.lm.patch import LowRank
from ttabench.methods import checkpoints, registry
from ttabench.methods.checkpoint_header import header as header_of


def stood_on(lm: LM, folder: Path, name: str) -> LM:
    """The base model with a checkpoint's deltas added to its weights, in place.

    Args:
        lm: the base model that the checkpoint was trained on.
        folder: of the checkpoint.
        name: of the checkpoint, for records.

    Raises:
        UserError: no checkpoint there, one of another base, or of a method that has to read something first.
    """
    header = header_of(folder)
    if header.method != "lora":
        what = f"{folder} is a checkpoint of {header.method}: its weights depend on what was read."
        raise UserError(what, "Stand on a checkpoint of lora.")
    method = checkpoints.load(registry.find(header.method).load(), lm, folder)
    deltas = method.patch(method.begin(1), []).deltas
    with torch.no_grad():
        for map_name, delta in deltas.items():
            assert isinstance(delta, LowRank), "lora's deltas are low-rank"
            _add(lm.model.get_submodule(map_name), delta)
    lm.changed({"name": name, "digest": digest(folder), "training": header.training})
    return lm


def _add(linear: nn.Module, delta: LowRank) -> None:
    """The delta on the weight of its linear map, in that weight's layout and format."""
    weight = linear.weight
    assert isinstance(weight, nn.Parameter), "a linear map has a weight"
    change_OI = delta.b_BOR[0] @ delta.a_BRI[0]
    weight.add_((change_OI if isinstance(linear, nn.Linear) else change_OI.T).to(weight.dtype))
