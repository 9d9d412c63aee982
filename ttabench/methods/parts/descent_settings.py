"""Settings of every method that takes gradient steps on a text it reads, without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ttabench.core.bounds import at_least
from ttabench.methods.parts.lora_shape import LoraShape


@dataclass(frozen=True, kw_only=True)
class DescentSettings(LoraShape):
    """What is trained on the documents, and by which optimiser."""

    restrict: Literal["none", "lora"] = "none"
    """What is trained. none: all weights of the base; lora: low-rank deltas of `rank`, `alpha` and `targets`."""
    lr: float = 1e-4
    """Learning rate: chosen on validation data."""
    optimizer: Literal["adam", "sgd"] = "adam"
    """Adam carries its moments from document to document; sgd, plain gradient descent, carries nothing."""
    beta2: float = 0.999
    """Adam's decay of squared gradients."""
    eps: float = 1e-8
    """Adam's."""
    clip: float = 750.0
    """Largest norm of the gradient."""
    max_tokens: int = 1024
    """First tokens of a document that are read."""
    dropout: bool = True
    """Whether the base's own dropout is on in a gradient step, drawn from the seed and the number of the step."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(2, max_tokens=self.max_tokens)
        at_least(0, lr=self.lr, eps=self.eps)
        if not 0 <= self.beta2 < 1:
            raise ValueError(f"beta2 must lie in [0, 1), got {self.beta2}")
        if self.clip <= 0:
            raise ValueError(f"clip must be positive, got {self.clip}")
