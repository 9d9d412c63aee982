"""Configuration of a profile: methods, base model, mode and lengths, with its identity."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

from ttabench.core.architectures import NANO
from ttabench.core.declared import parse_assignments
from ttabench.core.errors import UnknownName, UserError, require_known
from ttabench.core.types import Json
from ttabench.lm.loading.server import is_served
from ttabench.methods import registry
from ttabench.methods.spec import MethodSpec
from ttabench.readers import cards
from ttabench.run.plan import base_model_digests
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
"""Default methods in this order: none, four systems, four baselines, full context."""
SHARED_FIELDS = (
    "task",
    "model",
    "base_checkpoint",
    "random_weights",
    "device",
    "dtype",
    "max_context",
    "bits",
)
"""Fields of a `RunRequest` that all methods of a profile share."""
STREAM_PRESET = "stream"
"""Preset for unlimited streams, used by default for methods that have it."""


@dataclass(frozen=True, kw_only=True)
class Load:
    """Workload sizes and repetitions, for measured and computed costs."""

    piece_tokens: int = 256
    """Tokens per chunk."""
    prompt_tokens: int = 32
    generate: int = 128
    """Tokens generated after the prompt, even beyond the end of the text."""
    repeat: int = 5
    row_seconds: float = 10.0
    """Reading or answering is not repeated after this time, in seconds."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """Complete configuration of a profile."""

    mode: ProfileMode = "latency"
    model: str = NANO
    base_checkpoint: str = ""
    random_weights: bool = False
    task: str = "streamingqa"
    """Selects the bundled checkpoint; has no other effect."""
    device: str = "auto"
    dtype: str = "auto"
    max_context: int | None = None
    bits: int | None = None
    method_requests: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Typed `RunRequest` fields by method."""
    lengths: tuple[int, ...] = ()
    load: Load = field(default_factory=Load)
    memory_limit: int | None = None
    """Memory limit of a process in bytes."""

    def request(self, **typed: Any) -> RunRequest:
        """Return the request of a method, given by its typed fields."""
        return RunRequest(**typed, **{name: getattr(self, name) for name in SHARED_FIELDS})

    def resolve_methods(self) -> dict[str, ResolvedMethod]:
        """Resolve the methods by name."""
        return {
            name: resolve_method(self.request(**typed))
            for name, typed in self.method_requests.items()
        }

    def check(self) -> None:
        """Raise a `UserError` for an unknown task, a model on a server, or for --throughput on a
        CPU without a memory limit.

        Without a limit, the search for the largest batch would use all memory of the machine.
        """
        cards.CARDS.find(self.task)
        if is_served(self.model):
            fault = f"{self.model} runs on a server, so it cannot be profiled here."
            raise UserError(fault, "Use a benchmark of the server.")
        if self.mode == "throughput" and self.memory_limit is None:
            # imports torch, so it follows the cheap checks
            from ttabench.lm.loading.devices import find_device

            if find_device(self.device).type == "cpu":
                fault = "On a CPU --throughput would use all memory of the machine."
                raise UserError(fault, "Set a limit, such as --memory-limit 4GiB.")

    def config(self) -> dict[str, Json]:
        """Convert to JSON values, with settings and digests instead of the typed method options."""
        values = asdict(self)
        del values["method_requests"]
        for name in ("max_context", "bits", "base_checkpoint"):  # not in the id of earlier profiles
            if not values[name]:
                del values[name]
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
        digests = base_model_digests(self.request(method="none"))
        values["model_digest"] = "" if self.model == NANO else digests["model"]
        if digest := digests["base_checkpoint"]:
            values["base_checkpoint_digest"] = digest
        return {**values, "lengths": list(self.lengths)}


def choose_methods(
    methods: str, *, preset: str = "", settings: Sequence[str] = ()
) -> dict[str, dict[str, Any]]:
    """Assign typed options to methods: names, "all", or "" for the default methods."""
    words = parse_method_names(methods, DEFAULT_METHODS, registry.methods())
    specs = {spec.name: spec for spec in map(registry.find_method, words)}
    if len(specs) < len(words):
        fault = f"Two of {', '.join(words)} have the same name."
        raise UserError(fault, "Use a profile for each.")
    presets, shared = assign_settings(specs, preset, settings)
    return {
        name: {"method": word, "preset": presets.get(name, ""), "settings": shared[name]}
        for name, word in zip(specs, words, strict=True)
    }


def parse_method_names(
    text: str, default: Iterable[str], everything: Iterable[str] | None = None
) -> list[str]:
    """Split comma-separated names into unique names.

    "" returns `default`; "all" returns `everything`, if given.
    """
    if text == "all" and everything is not None:
        return list(everything)
    words = [part.strip() for part in text.split(",")] if text else list(default)
    if not all(words):
        raise UserError(f"--methods {text!r} has an empty name.", "Use the form icl,snapkv.")
    return list(dict.fromkeys(words))


def assign_settings(
    methods: Mapping[str, MethodSpec], preset: str, settings: Sequence[str]
) -> tuple[dict[str, str], dict[str, dict[str, str]]]:
    """Return (presets, settings) by method.

    The preset is the stream preset by default, for methods that have it. `key=value` applies to
    every method with that key, `method.key=value` to one method.
    """
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
        if dot:
            require_known("method in --set", method, keys)
        receivers = (
            [method] if dot else [name for name, method_keys in keys.items() if key in method_keys]
        )
        if not receivers:
            raise UnknownName("setting of these methods", key, sorted(set().union(*keys.values())))
        for name in receivers:
            shared[name][inner if dot else key] = value
    return presets, shared
