"""What the JSON beside a checkpoint's weights says: method, settings, base model, training.

FOLDER/adapter.json      header(FOLDER).method      "mac"
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from ttabench.core.errors import UserError
from ttabench.core.opening import json_of
from ttabench.core.types import Json

HEADER = "adapter.json"


@dataclass(frozen=True, kw_only=True)
class Header:
    """What `adapter.json` says."""

    method: str
    settings: dict[str, Json]
    base_name: str
    base_fingerprint: str
    version: str
    parameters: int
    training: dict[str, Json]
    step: int | None = None
    """Optimiser steps; the weights say the same."""
    stands_on: dict[str, Json] = field(default_factory=dict)
    """The checkpoint that the base model carried in training: its name and digest; empty for none."""


def header(folder: Path) -> Header:
    """The header of a checkpoint.

    Raises:
        UserError: no checkpoint there, or a damaged header.
    """
    path = folder / HEADER
    try:
        found = Header(**json_of(path))
    except OSError:
        raise UserError(
            f"{folder} holds no checkpoint ({HEADER} is missing).", "Make one with `ttabench train`."
        ) from None
    except (ValueError, TypeError):
        raise UserError(f"{path} is damaged.", "Train the method again.") from None
    texts = (found.method, found.base_name, found.base_fingerprint, found.version)
    objects = (found.settings, found.training, found.stands_on)
    step = found.step is None or isinstance(found.step, int)
    typed = all(isinstance(each, str) for each in texts) and all(isinstance(each, dict) for each in objects)
    below = [found.stands_on.get(key) for key in ("name", "digest")] if typed and found.stands_on else []
    if not (typed and step and all(isinstance(each, str) for each in below)):
        raise UserError(f"{path} is damaged.", "Train the method again.")
    return found
