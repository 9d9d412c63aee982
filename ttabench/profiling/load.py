"""What is read and asked at each length of a profile, and how often."""

from __future__ import annotations

from dataclasses import dataclass

from ttabench.core.errors import UserError


@dataclass(frozen=True, kw_only=True)
class Load:
    """Sizes and repetitions."""

    piece_tokens: int = 256
    prompt_tokens: int = 32
    generate: int = 128
    """Tokens written after the prompt; the end of a text does not stop them."""
    repeat: int = 5
    row_seconds: float = 20.0
    """A phase is repeated no further once its passes took this long."""

    def __post_init__(self) -> None:
        for name in ("piece_tokens", "prompt_tokens", "generate", "repeat"):
            if getattr(self, name) < 1:
                raise UserError(f"--{name.replace('_', '-')} is {getattr(self, name)}.", "Give 1 or more.")
        if not self.row_seconds > 0:
            raise UserError(f"--row-seconds is {self.row_seconds}.", "Give more than 0.")
