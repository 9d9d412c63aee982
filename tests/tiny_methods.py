"""Registered methods with their test settings, and texts to read."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from ttabench.contract.case import PROMPTS, TEXTS, make_chunks, make_episode, make_queries
from ttabench.lm.model import LM
from ttabench.methods.base import Method
from ttabench.methods.mac import MAC
from ttabench.methods.mac.method import Mac
from ttabench.methods.registry import find_method, methods

__all__ = [
    "PROMPTS",
    "TEXTS",
    "make_chunks",
    "make_episode",
    "make_queries",
    "set_nonzero_outputs",
    "tiny_mac",
    "tiny_method",
    "trainable_methods",
]
TINY_SETTINGS: dict[str, Any] = {
    name: spec.test_settings or spec.Settings() for name, spec in methods().items()
}
"""Test settings by method."""


def tiny_method(name: str, lm: LM) -> Method[Any]:
    spec = find_method(name)
    method = spec.load()(lm, TINY_SETTINGS[name])
    assert isinstance(method, Method)
    if name in ("streamadapter", "generative_adapter", "doc_to_lora"):
        set_nonzero_outputs(method)
    return method


def set_nonzero_outputs(method: Method[Any]) -> None:
    """Set outputs and gates of a method to nonzero values: before training its deltas are zero."""
    with torch.no_grad(), torch.random.fork_rng():
        torch.manual_seed(1)
        for name, parameter in method.modules().named_parameters():
            if "outputs" in name or "gate" in name or "scaler_B" in name:
                parameter.normal_(std=0.03)


def tiny_mac(lm: LM, **settings: Any) -> Mac:
    return Mac(lm, replace(MAC.test_settings, **settings))


def trainable_methods() -> list[str]:
    return [name for name in methods() if find_method(name).trainable]
