"""Weights in the names of the released code, chentong0/generative-adapter, as a generative_adapter's own."""

from __future__ import annotations

import re
from collections.abc import Mapping

import torch
from torch import Tensor

from ttabench.methods.generative_adapter.networks import GenerativeAdapterNetworks

PARTS = {
    "fastlora_hidden_state_norm": "norm",
    "fastlora_A3": "values",
    "fastlora_A2": "keys",
    "fastlora_A1": "queries",
    "fastlora_B": "outputs",
}
"""Our names of what the released code calls so."""
KEY = re.compile(
    r"(?:base_model\.model\.)?(?P<map>.+)\.(?P<part>fastlora_\w+)(?:\.default)?\.weight"
)


@torch.no_grad()
def take(networks: GenerativeAdapterNetworks, tensors: Mapping[str, Tensor]) -> None:
    """Fill all generators."""
    own = dict(networks.named_parameters())
    for key, tensor in tensors.items():
        if (matched := KEY.fullmatch(key)) is not None and matched["part"] in PARTS:
            place = networks.names.index(matched["map"].replace(".base_layer.", "."))
            own.pop(f"generators.{place}.{PARTS[matched['part']]}").copy_(tensor)
    assert not own, f"not filled: {sorted(own)}"
