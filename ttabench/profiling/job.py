"""A profile as one value: which methods on which base model, what is measured at which lengths, and its identity."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

from ttabench.core.architectures import NANO
from ttabench.core.declared import parse_assignments
from ttabench.core.errors import UnknownName, UserError
from ttabench.core.types import Json
from ttabench.cost import Formula
from ttabench.lm.loading.hub import model_digest
from ttabench.methods import registry
from ttabench.readers import cards
from ttabench.run.request import RunRequest
from ttabench.run.resolve import ResolvedMethod, resolve_method

ProfileMode = Literal["latency", "throughput", "training"]
DEFAULT_METHODS = (
    "none",
    "rag",
    "mac",
    "window",
    "ccm",
    "generative_adapter",
    "snapkv",
    "streamadapter",
    "h2o",
    "icl",
)
"""What is measured where no methods are named, in this order: floor and ceiling, four systems, four baselines."""
STREAM_PRESET = "stream"
"""Preset of methods that can read without end; a profile takes it where nobody asks for another."""


@dataclass(frozen=True, kw_only=True)
class Load:
    """Sizes and repetitions of what is read and asked, alike for methods measured and those on paper."""

    piece_tokens: int = 256
    prompt_tokens: int = 32
    generate: int = 128
    """Tokens written after the prompt; the end of a text does not stop them."""
    repeat: int = 5
    row_seconds: float = 10.0
    """Reading, or answering, is repeated no further once it took this long."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """Everything that decides what a profile measures."""

    mode: ProfileMode = "latency"
    model: str = NANO
    random_weights: bool = False
    task: str = "streamingqa"
    """Only chooses the shipped checkpoint."""
    device: str = "auto"
    dtype: str = "auto"
    method_requests: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """By method, what was typed for it: fields of a `RunRequest`."""
    lengths: tuple[int, ...] = ()
    load: Load = field(default_factory=Load)
    memory_limit: int | None = None
    """Bytes that a process may use."""

    def resolve_methods(self) -> dict[str, ResolvedMethod]:
        """The resolved methods, by name."""
        common = {
            name: getattr(self, name)
            for name in ("task", "model", "device", "dtype", "random_weights")
        }
        return {
            name: resolve_method(RunRequest(**typed, **common))
            for name, typed in self.method_requests.items()
        }

    def check(self) -> None:
        """Refuse an unknown task, and a search for the largest batch that would take all memory of the machine."""
        if self.task not in cards.card_names():
            raise UnknownName("task", self.task, cards.card_names())
        if self.mode == "throughput" and self.memory_limit is None:
            from ttabench.lm.loading.devices import (
                find_device,  # torch comes once nothing typed is refused
            )

            if find_device(self.device).type == "cpu":
                fault = "On a CPU --throughput would take all memory of the machine."
                raise UserError(fault, "Say how much it may take with --memory-limit 4GiB.")

    def config(self) -> dict[str, Json]:
        """The configuration as JSON values: settings and digests in place of what was typed for the methods."""
        values = asdict(self)
        del values["method_requests"]
        values["methods"] = {
            name: {
                "settings": dict(adapter.settings),
                "preset": adapter.preset,
                "checkpoint": adapter.checkpoint_name(),
                "digest": adapter.checkpoint_digest,
                "origin": adapter.spec.origin,
                "inputs": adapter.setting_inputs(),
            }
            for name, adapter in self.resolve_methods().items()
        }
        values["model_digest"] = (
            "" if self.random_weights or self.model == NANO else model_digest(self.model)
        )
        return {**values, "lengths": list(self.lengths)}


def choose_methods(
    methods: str, *, preset: str = "", settings: Sequence[str] = ()
) -> dict[str, dict[str, Any]]:
    """What was typed for all methods (names, "all", or nothing for the usual ones), shared out among them."""
    words = parse_method_names(methods, DEFAULT_METHODS, registry.methods())
    specs = {spec.name: spec for spec in map(registry.find_method, words)}
    if len(specs) < len(words):
        raise UserError(f"Two of {', '.join(words)} have the same name.", "Profile them apart.")
    presets, shared = assign_settings(specs, preset, settings)
    typed = {
        name: tuple(f"{key}={value}" for key, value in method_keys.items())
        for name, method_keys in shared.items()
    }
    return {
        name: {"method": word, "preset": presets.get(name, ""), "settings": typed[name]}
        for name, word in zip(specs, words, strict=True)
    }


def parse_method_names(
    text: str, default: Iterable[str], everything: Iterable[str] | None = None
) -> list[str]:
    """Names separated by commas, each once; those of `default` for no text, of `everything`, if given, for "all"."""
    if text == "all" and everything is not None:
        return list(everything)
    words = [part.strip() for part in text.split(",")] if text else list(default)
    if not all(words):
        raise UserError(
            f"--methods {text!r} misses a name beside a comma.", "Write them like icl,snapkv."
        )
    return list(dict.fromkeys(words))


def assign_settings(
    methods: Mapping[str, Formula], preset: str, settings: Sequence[str]
) -> tuple[dict[str, str], dict[str, dict[str, str]]]:
    """By method: the preset, or that of streams, if it has it; and its settings, `key=value` for every method that has
    the key, `method.key=value` for that one."""
    presets = {
        name: preset or STREAM_PRESET
        for name, method in methods.items()
        if (preset or STREAM_PRESET) in method.presets
    }
    if preset and not presets:
        raise UnknownName(
            "preset",
            preset,
            sorted({preset_name for method in methods.values() for preset_name in method.presets}),
        )
    keys = {
        name: {field.name for field in fields(method.Settings)} for name, method in methods.items()
    }
    shared: dict[str, dict[str, str]] = {name: {} for name in methods}
    for key, value in parse_assignments(settings).items():
        method, dot, inner = key.partition(".")
        if dot and method not in keys:
            raise UnknownName("method in --set", method, list(keys))
        receivers = (
            [method] if dot else [name for name, method_keys in keys.items() if key in method_keys]
        )
        if not receivers:
            raise UnknownName("setting of these methods", key, sorted(set().union(*keys.values())))
        for name in receivers:
            shared[name][inner if dot else key] = value
    return presets, shared
