"""A profile as one value: which methods on which base model, what is measured at which lengths, and its identity.

    job = Job(model="nano", chosen=(Chosen(method="icl"),), lengths=(1024, 4096))
    identity(job.config(), environment.hardware())  ->  "9b0c4e0d2a51"

The identity covers what differs from the defaults and the machine, since seconds belong to a machine: the same command
on the same machine goes on with or returns what is stored. It travels to the processes that measure as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields
from typing import Literal, TypeAlias

from ttabench.core.architectures import ARCHITECTURES, NANO
from ttabench.core.errors import UnknownName, UserError
from ttabench.core.identity import changed
from ttabench.core.identity import identity as identity_of
from ttabench.core.typed import assignments
from ttabench.core.types import Json
from ttabench.lm.loading.hub import digest_of
from ttabench.methods import registry
from ttabench.methods.settings import defaults, describe_settings
from ttabench.methods.spec import MethodSpec
from ttabench.profiling.load import Load
from ttabench.profiling.method_names import STREAM, method_names
from ttabench.readers import cards
from ttabench.run.config import check_loading
from ttabench.run.plan import setting_digests
from ttabench.run.request import RunRequest
from ttabench.run.resolve import ResolvedMethod, resolve_method

Emit: TypeAlias = Callable[[str, Json], None]
"""Called with the kind of a line that a process writes, and its value."""

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
    """Everything that decides what a profile measures.

    Raises:
        UserError: a model, task, device or number format that is not known, limits below 0.
    """

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
        assert self.chosen, "a profile of no method"
        assert self.lengths, "a profile of no length"

    def request(self, chosen: Chosen) -> RunRequest:
        """The request of one method."""
        return RunRequest(
            method=chosen.typed or chosen.method, task=self.task, model=self.model,
            preset=chosen.preset, settings=chosen.settings,
            checkpoint=chosen.checkpoint, device=self.device, dtype=self.dtype, random_weights=self.random_weights,
        )  # fmt: skip

    def adapters(self) -> dict[str, ResolvedMethod]:
        """The resolved methods, by name.

        Raises:
            UserError: an unknown preset or setting; a checkpoint that is missing or of another method.
        """
        return {chosen.method: resolve_method(self.request(chosen)) for chosen in self.chosen}

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

    def to_json(self) -> str:
        """As text, for another process."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> Job:
        """The job that `to_json` wrote."""
        content = json.loads(text)
        load = Load(**content.pop("load"))
        chosen = tuple(Chosen(**{**one, "settings": tuple(one["settings"])}) for one in content.pop("chosen"))
        return Job(**{**content, "load": load, "chosen": chosen, "lengths": tuple(content["lengths"])})


def identity(
    config: Mapping[str, Json], machine: Mapping[str, Json], known: Mapping[str, Mapping[str, Json]] | None = None
) -> str:
    """12 hexadecimal digits of what differs from the defaults in a configuration, on a machine.

    Args:
        config: see `Job.config`.
        machine: see `environment.hardware`; processor, cores, threads and accelerator count.
        known: defaults of settings by method, see `Job.defaults`; a setting without one always counts.
    """
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
    """Names, separated by commas; empty for all there are."""
    preset: str = ""
    settings: tuple[str, ...] = ()
    """key=value for every method that has the key, or method.key=value."""
    checkpoint: str = ""


def choose(typed: Typed) -> tuple[Chosen, ...]:
    """The typed options, shared out among the methods.

    Raises:
        UnknownName: a method or a setting that none of them has.
        UserError: a preset or a checkpoint that none of them takes; a name that is missing.
    """
    specs: dict[str, MethodSpec] = {}
    words: dict[str, str] = {}
    for word in method_names(typed.methods, registry.methods()):
        spec = registry.find(word)
        if spec.name in specs:
            raise UserError(f"{words[spec.name]} and {word} are both called {spec.name}.", "Profile them apart.")
        specs[spec.name], words[spec.name] = spec, word
    settings = _shared_out(specs, typed.settings)
    presets = {name: typed.preset for name, spec in specs.items() if typed.preset in spec.presets}
    if typed.preset and not presets:
        raise UnknownName(
            "preset", typed.preset, sorted({preset for spec in specs.values() for preset in spec.presets})
        )
    takers = [name for name, spec in specs.items() if spec.trainable]
    if typed.checkpoint not in ("", "none") and len(takers) != 1:
        fault = f"--checkpoint {typed.checkpoint} belongs to one trained method, not {len(takers)}."
        raise UserError(fault, "Name one with --methods.")
    stream = {name: STREAM for name, spec in specs.items() if STREAM in spec.presets and not typed.preset}
    return tuple(
        Chosen(
            method=name,
            typed=words[name] if words[name] != name else "",
            preset=presets.get(name, stream.get(name, "")),
            settings=tuple(settings[name]),
            checkpoint=typed.checkpoint if name in takers else "",
        )
        for name in specs
    )


def _shared_out(specs: Mapping[str, MethodSpec], settings: Sequence[str]) -> dict[str, list[str]]:
    """`key=value` to every method with that setting, `method.key=value` to that one."""
    known = {name: {key for key, _, _ in describe_settings(spec)} for name, spec in specs.items()}
    by_method: dict[str, list[str]] = {name: [] for name in specs}
    for key, value in assignments(settings).items():
        method, dot, inner = key.partition(".")
        if dot and method not in known:
            raise UnknownName("method in --set", method, list(specs))
        takers = [method] if dot else [name for name in specs if key in known[name]]
        if not takers:
            raise UnknownName("setting of these methods", key, sorted(set().union(*known.values())))
        for name in takers:
            by_method[name].append(f"{inner if dot else key}={value}")
    return by_method
