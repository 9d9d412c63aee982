"""A profile as one value: which methods on which base model, what is measured at which lengths, and its identity."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields
from typing import Literal, TypeAlias

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
from ttabench.run.config import check_loading
from ttabench.run.plan import setting_digests
from ttabench.run.request import RunRequest
from ttabench.run.resolve import ResolvedMethod, resolve_method

Emit: TypeAlias = Callable[[str, Json], None]
"""Called with the kind of a finding of a process that measures, and its value."""
Mode = Literal["latency", "throughput", "training"]


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """One method as it is profiled: what a user typed for it."""

    method: str
    """Its name."""
    typed: str = ""
    """Its word on the command line where that is another: a file."""
    preset: str = ""
    settings: tuple[str, ...] = ()
    checkpoint: str = ""


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
    chosen: tuple[Chosen, ...] = ()
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
        if self.time_limit is not None and not self.time_limit > 0:
            raise UserError(f"--time-limit is {self.time_limit}.", "Give seconds, more than 0.")

    def adapters(self) -> dict[str, ResolvedMethod]:
        """The resolved methods, by name."""
        common = {name: getattr(self, name) for name in ("task", "model", "device", "dtype", "random_weights")}
        return {
            one.method: resolve_method(
                RunRequest(
                    method=one.typed or one.method, preset=one.preset, settings=one.settings,
                    checkpoint=one.checkpoint, **common,
                )
            )
            for one in self.chosen
        }  # fmt: skip

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
        return {one.method: defaults(registry.find(one.typed or one.method)) for one in self.chosen}


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


@dataclass(frozen=True, kw_only=True)
class Typed:
    """Methods and their settings as typed, for all methods at once."""

    methods: str = ""
    """Names, separated by commas; "all" for all there are, empty for the usual ones."""
    preset: str = ""
    settings: tuple[str, ...] = ()
    """key=value for every method that has the key, or method.key=value."""
    checkpoint: str = ""


def choose(typed: Typed) -> tuple[Chosen, ...]:
    """The typed options, shared out among the methods."""
    specs: dict[str, MethodSpec] = {}
    words: dict[str, str] = {}
    for word in method_names(typed.methods, MEASURED, registry.methods()):
        spec = registry.find(word)
        if spec.name in specs:
            raise UserError(f"{words[spec.name]} and {word} are both called {spec.name}.", "Profile them apart.")
        specs[spec.name], words[spec.name] = spec, word
    keys = {name: {key for key, _, _ in describe_settings(spec)} for name, spec in specs.items()}
    settings = shared_out(typed.settings, keys)
    presets = presets_of(typed.preset, {name: spec.presets for name, spec in specs.items()})
    takers = [name for name, spec in specs.items() if spec.trainable]
    if typed.checkpoint not in ("", "none") and len(takers) != 1:
        fault = f"--checkpoint {typed.checkpoint} belongs to one trained method, not {len(takers)}."
        raise UserError(fault, "Name one with --methods.")
    return tuple(
        Chosen(
            method=name,
            typed=words[name] if words[name] != name else "",
            preset=presets.get(name, ""),
            settings=tuple(f"{key}={value}" for key, value in settings[name].items()),
            checkpoint=typed.checkpoint if name in takers else "",
        )
        for name in specs
    )
