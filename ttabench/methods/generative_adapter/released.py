"""Weights in the names of the released code, chentong0/generative-adapter, as a generative_adapter's own."""

from __future__ import annotations

import re
from collections.abc import Mapping

import torch
from torch import Tensor

from ttabench.core.errors import UserError
from ttabench.lm.loading.safetensors_io import unfit
from ttabench.methods.generative_adapter.networks import GenerativeAdapterNetworks

PARTS = {
    "fastlora_hidden_state_norm": "norm",
    "fastlora_A3": "values",
    "fastlora_A2": "keys",
    "fastlora_A1": "queries",
    "fastlora_B": "outputs",
}
"""Our names of what the released code calls so."""
KEY = re.compile(r"(?:base_model\.model\.)?(?P<map>.+)\.(?P<part>fastlora_\w+)(?:\.default)?\.weight")


@torch.no_grad()
def take(networks: GenerativeAdapterNetworks, tensors: Mapping[str, Tensor]) -> None:
    """Fill all generators."""
    order = [name for own in networks.names for name in own]
    taken: dict[str, Tensor] = {}
    for key, tensor in tensors.items():
        matched = KEY.fullmatch(key)
        if matched is None or matched["part"] not in PARTS:
            continue
        name = matched["map"].replace(".base_layer.", ".")
        place = str(order.index(name)) if name in order else name
        taken[f"generators.{place}.{PARTS[matched['part']]}"] = tensor
    own = dict(networks.named_parameters())
    if odd := unfit(taken, own):
        raise UserError(f"These weights do not fit: {odd}.", "Give inner, rank and targets as they were trained.")
    for name, parameter in own.items():
        parameter.copy_(taken[name])
