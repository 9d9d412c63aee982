"""A profile as one value: which methods on which base model, what is measured at which lengths, and its identity."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

from ttabench.core.architectures import NANO
from ttabench.core.declared import assignments
from ttabench.core.errors import UnknownName, UserError
from ttabench.core.types import Json
from ttabench.cost import Formula
from ttabench.lm.loading.hub import digest_of
from ttabench.methods import registry
from ttabench.readers import cards
from ttabench.run.request import RunRequest
from ttabench.run.resolve import ResolvedMethod, resolve_method

Mode = Literal["latency", "throughput", "training"]
MEASURED = ("none", "rag", "mac", "window", "ccm", "generative_adapter", "snapkv", "streamadapter", "h2o", "icl")
"""What is measured where no methods are named, in this order: floor and ceiling, four systems, four baselines."""
STREAM = "stream"
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

    mode: Mode = "latency"
    model: str = NANO
    random_weights: bool = False
    task: str = "streamingqa"
    """Only chooses the shipped checkpoint."""
    device: str = "auto"
    dtype: str = "auto"
    chosen: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """By method, what was typed for it: fields of a `RunRequest`."""
    lengths: tuple[int, ...] = ()
    load: Load = field(default_factory=Load)
    memory_limit: int | None = None
    """Bytes that a process may use."""

    def adapters(self) -> dict[str, ResolvedMethod]:
        """The resolved methods, by name."""
        common = {name: getattr(self, name) for name in ("task", "model", "device", "dtype", "random_weights")}
        return {name: resolve_method(RunRequest(**typed, **common)) for name, typed in self.chosen.items()}

    def check(self) -> None:
        """Refuse an unknown task, and a search for the largest batch that would take all memory of the machine."""
        if self.task not in cards.names():
            raise UnknownName("task", self.task, cards.names())
        if self.mode == "throughput" and self.memory_limit is None:
            from ttabench.lm.loading.devices import find_device  # torch comes once nothing typed is refused

            if find_device(self.device).type == "cpu":
                fault = "On a CPU --throughput would take all memory of the machine."
                raise UserError(fault, "Say how much it may take with --memory-limit 4GiB.")

    def config(self) -> dict[str, Json]:
        """The configuration as JSON values: settings and digests in place of what was typed for the methods."""
        values = asdict(self)
        del values["chosen"]
        values["methods"] = {
            name: {
                "settings": dict(adapter.settings),
                "preset": adapter.preset,
                "checkpoint": adapter.checkpoint_name(),
                "digest": adapter.checkpoint_digest,
                "origin": adapter.spec.origin,
                "inputs": adapter.setting_inputs(),
            }
            for name, adapter in self.adapters().items()
        }
        values["model_digest"] = "" if self.random_weights or self.model == NANO else digest_of(self.model)
        return {**values, "lengths": list(self.lengths)}


def choose(methods: str, *, preset: str = "", settings: Sequence[str] = ()) -> dict[str, dict[str, Any]]:
    """What was typed for all methods (names, "all", or nothing for the usual ones), shared out among them."""
    words = method_names(methods, MEASURED, registry.methods())
    specs = {spec.name: spec for spec in map(registry.find, words)}
    if len(specs) < len(words):
        raise UserError(f"Two of {', '.join(words)} have the same name.", "Profile them apart.")
    presets, shared = shared_out(specs, preset, settings)
    typed = {name: tuple(f"{key}={value}" for key, value in own.items()) for name, own in shared.items()}
    return {
        name: {"method": word, "preset": presets.get(name, ""), "settings": typed[name]}
        for name, word in zip(specs, words, strict=True)
    }


def method_names(text: str, default: Iterable[str], everything: Iterable[str] | None = None) -> list[str]:
    """Names separated by commas, each once; those of `default` for no text, of `everything`, if given, for "all"."""
    if text == "all" and everything is not None:
        return list(everything)
    words = [part.strip() for part in text.split(",")] if text else list(default)
    if not all(words):
        raise UserError(f"--methods {text!r} misses a name beside a comma.", "Write them like icl,snapkv.")
    return list(dict.fromkeys(words))


def shared_out(
    methods: Mapping[str, Formula], preset: str, settings: Sequence[str]
) -> tuple[dict[str, str], dict[str, dict[str, str]]]:
    """By method: the preset, or that of streams, if it has it; and its settings, `key=value` for every method that has
    the key, `method.key=value` for that one."""
    presets = {name: preset or STREAM for name, method in methods.items() if (preset or STREAM) in method.presets}
    if preset and not presets:
        raise UnknownName("preset", preset, sorted({one for method in methods.values() for one in method.presets}))
    keys = {name: {field.name for field in fields(method.Settings)} for name, method in methods.items()}
    shared: dict[str, dict[str, str]] = {name: {} for name in methods}
    for key, value in assignments(settings).items():
        method, dot, inner = key.partition(".")
        if dot and method not in keys:
            raise UnknownName("method in --set", method, list(keys))
        takers = [method] if dot else [name for name, own in keys.items() if key in own]
        if not takers:
            raise UnknownName("setting of these methods", key, sorted(set().union(*keys.values())))
        for name in takers:
            shared[name][inner if dot else key] = value
    return presets, shared
