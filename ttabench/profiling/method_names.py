"""What a measured profile and one on paper understand alike, so that the same words describe the same methods.

method_names("icl, snapkv,icl", METHODS)      ["icl", "snapkv"]
"""

from __future__ import annotations

from collections.abc import Iterable

from ttabench.core.errors import UserError

STREAM = "stream"
"""Preset of methods that can read without end; a profile takes it where nobody asks for another."""


def method_names(text: str, default: Iterable[str]) -> list[str]:
    """Names separated by commas, each once; those of `default` for no text.

    Raises:
        UserError: a name is missing beside a comma.
    """
    words = [part.strip() for part in text.split(",")] if text else list(default)
    if not all(words):
        raise UserError(f"--methods {text!r} misses a name beside a comma.", "Write them like icl,snapkv.")
    return list(dict.fromkeys(words))
