"""A stand-in for kvpress with a few small presses: the same protocol, none of its code, nothing to install.

`installed(monkeypatch)` puts it where `import kvpress` finds it.
"""

# ruff: noqa: ARG002  # the protocol's arguments
from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import pytest
from torch import Tensor


@dataclass
class BasePress:
    """Compresses what every layer's cache holds after the first forward, as kvpress does."""

    def compress(
        self, module: Any, keys: Tensor, values: Tensor, weights: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        raise NotImplementedError

    def hook(self, module: Any, _args: Any, kwargs: dict[str, Any], output: Any) -> None:
        if int(kwargs["cache_position"][-1]) + 1 == kwargs["hidden_states"].shape[1]:
            layer = kwargs["past_key_values"].layers[module.layer_idx]
            layer.keys, layer.values = self.compress(module, layer.keys, layer.values, output[1])

    @contextmanager
    def __call__(self, model: Any) -> Iterator[None]:
        hooks = []
        for block in model.model.layers:
            block.self_attn.rotary_emb = model.model.rotary_emb
            hooks.append(block.self_attn.register_forward_hook(self.hook, with_kwargs=True))
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()


@dataclass
class ScorerPress(BasePress):
    compression_ratio: float = 0.0

    def kept(self, keys: Tensor) -> int:
        return max(1, int(keys.shape[2] * (1 - self.compression_ratio)))


@dataclass
class LastPress(ScorerPress):
    """Keeps the last tokens, the newest first: an order that is not the text's."""

    least: int = 0

    def __post_init__(self) -> None:
        assert self.least >= 0, "least must not be negative"

    def compress(
        self, module: Any, keys: Tensor, values: Tensor, weights: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        assert keys.shape[2] > self.least, f"at least {self.least} tokens are needed"
        count = self.kept(keys)
        return keys[:, :, -count:].flip(2), values[:, :, -count:].flip(2)


@dataclass
class AdaKVPress(BasePress):
    """Hides from head h all but the last tokens of the press it wraps, and h slots more."""

    press: ScorerPress

    @property
    def compression_ratio(self) -> float:
        return self.press.compression_ratio

    @compression_ratio.setter
    def compression_ratio(self, value: float) -> None:
        self.press.compression_ratio = value

    def compress(
        self, module: Any, keys: Tensor, values: Tensor, weights: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        hidden = keys.new_zeros(keys.shape[:3]).bool()
        removed = keys.shape[2] - self.press.kept(keys)
        for head in range(keys.shape[1] if removed else 0):
            hidden[:, head, : removed + head] = True
        module.masked_key_indices = hidden.nonzero(as_tuple=True)
        return keys, values


PRESSES = (BasePress, ScorerPress, LastPress, AdaKVPress)


def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `import kvpress` find this module's presses, whether or not the real one is there."""
    module = ModuleType("kvpress")
    for press in PRESSES:
        setattr(module, press.__name__, press)
    module.__all__ = [press.__name__ for press in PRESSES]  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "kvpress", module)
