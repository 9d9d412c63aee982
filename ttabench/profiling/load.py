"""What is read and asked in a profile, and which methods are meant: alike for those measured and those on paper."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ttabench.core.errors import UnknownName, UserError
from ttabench.core.typed import assignments

MEASURED = ("none", "rag", "mac", "window", "ccm", "generative_adapter", "snapkv", "streamadapter", "h2o", "icl")
"""What is measured where no methods are named, in this order: floor and ceiling, four systems, four baselines."""
STREAM = "stream"
"""Preset of methods that can read without end; a profile takes it where nobody asks for another."""


@dataclass(frozen=True, kw_only=True)
class Load:
    """Sizes and repetitions."""

    piece_tokens: int = 256
    prompt_tokens: int = 32
    generate: int = 128
    """Tokens written after the prompt; the end of a text does not stop them."""
    repeat: int = 5
    row_seconds: float = 10.0
    """Reading and answering are repeated no further once a row took this long."""


def method_names(text: str, default: Iterable[str], everything: Iterable[str] | None = None) -> list[str]:
    """Names separated by commas, each once; those of `default` for no text, of `everything`, if given, for "all"."""
    if text == "all" and everything is not None:
        return list(everything)
    words = [part.strip() for part in text.split(",")] if text else list(default)
    if not all(words):
        raise UserError(f"--methods {text!r} misses a name beside a comma.", "Write them like icl,snapkv.")
    return list(dict.fromkeys(words))


def presets_of(typed: str, presets: Mapping[str, Collection[str]]) -> dict[str, str]:
    """The typed preset, else that of streams, for every method that has it."""
    found = {name: typed or STREAM for name, own in presets.items() if (typed or STREAM) in own}
    if typed and not found:
        raise UnknownName("preset", typed, sorted({preset for own in presets.values() for preset in own}))
    return found


def shared_out(settings: Sequence[str], keys: Mapping[str, Collection[str]]) -> dict[str, dict[str, str]]:
    """`key=value` for every method that has the key, `method.key=value` for that one."""
    by_method: dict[str, dict[str, str]] = {name: {} for name in keys}
    for key, value in assignments(settings).items():
        method, dot, inner = key.partition(".")
        if dot and method not in keys:
            raise UnknownName("method in --set", method, list(keys))
        takers = [method] if dot else [name for name, own in keys.items() if key in own]
        if not takers:
            raise UnknownName("setting of these methods", key, sorted(set().union(*keys.values())))
        for name in takers:
            by_method[name][inner if dot else key] = value
    return by_method
