"""A profile as one value: which methods on which base model, what is measured at which lengths, and its identity."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields
from typing import Any, Literal

from ttabench.core.architectures import ARCHITECTURES, NANO
from ttabench.core.errors import UnknownName, UserError
from ttabench.core.identity import changed
from ttabench.core.identity import identity as identity_of
from ttabench.core.types import Json
from ttabench.lm.loading.hub import digest_of
from ttabench.methods import registry
from ttabench.methods.settings import defaults, describe_settings
from ttabench.methods.spec import MethodSpec
from ttabench.profiling.load import MEASURED, Load, method_names, presets_of, shared_out
from ttabench.readers import cards
from ttabench.records.run_fields import check_loading
from ttabench.run.plan import setting_digests
from ttabench.run.request import RunRequest
from ttabench.run.resolve import ResolvedMethod, resolve_method

Mode = Literal["latency", "throughput", "training"]


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
    time_limit: float | None = None
    """Rows that would take longer than so many seconds a pass are left out, and say so; None leaves none out."""
    memory_limit: int | None = None
    """Bytes that a process may use."""

    def __post_init__(self) -> None:
        if self.random_weights and self.model not in ARCHITECTURES:
            raise UnknownName("architecture for --random-weights", self.model, list(ARCHITECTURES))
        if self.task not in cards.names():
            raise UnknownName("task", self.task, cards.names())
        check_loading(self.device, self.dtype)

    def adapters(self) -> dict[str, ResolvedMethod]:
        """The resolved methods, by name."""
        common = {name: getattr(self, name) for name in ("task", "model", "device", "dtype", "random_weights")}
        return {name: resolve_method(RunRequest(**typed, **common)) for name, typed in self.chosen.items()}

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
                **({"origin": adapter.spec.origin} if adapter.spec.origin else {}),
                **({"inputs": inputs} if (inputs := setting_digests(adapter)) else {}),
            }
            for name, adapter in self.adapters().items()
        }
        values["model_digest"] = "" if self.random_weights or self.model == NANO else digest_of(self.model)
        return {**values, "lengths": list(self.lengths)}

    def defaults(self) -> dict[str, dict[str, Json]]:
        """Defaults of the settings of each method, by name."""
        return {name: defaults(registry.find(typed["method"])) for name, typed in self.chosen.items()}


def identity(
    config: Mapping[str, Json], machine: Mapping[str, Json], known: Mapping[str, Mapping[str, Json]] | None = None
) -> str:
    """12 hexadecimal digits of what differs from the defaults (`known`: of settings), on a machine."""
    methods = {
        name: {
            "settings": changed(each["settings"], (known or {}).get(name, {})),
            **{key: each[key] for key in ("digest", "origin", "inputs") if each.get(key)},
        }
        for name, each in config["methods"].items()
    }
    own = {field.name: field.default for field in fields(Job) if field.default is not MISSING} | {"model_digest": ""}
    load = changed(config["load"], asdict(Load()))
    differing = changed({**config, "load": load}, {**own, "load": {}})
    here = {key: machine[key] for key in ("cpu", "cores", "threads", "gpu") if key in machine}
    return identity_of({**differing, "methods": methods, "machine": here})


def choose(
    methods: str, *, preset: str = "", settings: Sequence[str] = (), checkpoint: str = ""
) -> dict[str, dict[str, Any]]:
    """What was typed for all methods (names with commas, "all", or nothing for the usual ones), shared out among them.

    A setting goes to every method that has the key; `method.key=value` goes to that one.
    """
    specs: dict[str, MethodSpec] = {}
    words: dict[str, str] = {}
    for word in method_names(methods, MEASURED, registry.methods()):
        spec = registry.find(word)
        if spec.name in specs:
            raise UserError(f"{words[spec.name]} and {word} are both called {spec.name}.", "Profile them apart.")
        specs[spec.name], words[spec.name] = spec, word
    shared = shared_out(
        settings, {name: {key for key, _, _ in describe_settings(spec)} for name, spec in specs.items()}
    )
    presets = presets_of(preset, {name: spec.presets for name, spec in specs.items()})
    takers = [name for name, spec in specs.items() if spec.trainable]
    if checkpoint not in ("", "none") and len(takers) != 1:
        fault = f"--checkpoint {checkpoint} belongs to one trained method, not {len(takers)}."
        raise UserError(fault, "Name one with --methods.")
    return {
        name: {
            "method": words[name],
            "preset": presets.get(name, ""),
            "settings": tuple(f"{key}={value}" for key, value in shared[name].items()),
            "checkpoint": checkpoint if name in takers else "",
        }
        for name in specs
    }
