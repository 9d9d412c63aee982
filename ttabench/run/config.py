"""The whole configuration of a run, as one value, and the identity that follows from it.

    RunConfig(method="mac", task="streamingqa", seed=1).identity()  ->  "3f0c2a9b71de"

Two commands with one identity are the same run: the second returns what the first stored. The identity is a hash of
what differs from the defaults of the method, of the task's reader and of the request, so that a new setting with a
default leaves every id as it was; the record keeps all of them. Where the results go and how they are shown (`--out`,
`--json`, `--quiet`) is no part of a run, and neither is the device; the number format is. Files are identified by what
they hold, not by where they lie: `inputs` carries their digests, that of the task's card (`readers.content`) and those
of code that is not ttabench's. A preset is its settings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from ttabench.core.architectures import NANO
from ttabench.core.declared import declared
from ttabench.core.errors import UnknownName, UserError
from ttabench.core.identity import changed, identity, same
from ttabench.core.types import Json
from ttabench.records.run_fields import RunFields, StoredConfig

DEVICES = ("auto", "cpu", "cuda", "xpu", "mps")
DTYPES = ("auto", "float32", "bfloat16", "float16")
BOS = ("auto", "yes", "no")
STATES_OF = {
    "own": "",
    "other": "the state of another context answered; what reading cost stands in the run of the own state",
    "none": "an empty state answered; what reading cost stands in the run of the own state",
}
"""Whose state answers (see `runner`), and what a record says of it."""
SEEDS = 2**32
"""Seeds that numpy takes: below this number."""
UNHASHED = (
    "checkpoint",
    "state",
    "preset",
    *(name for name, field in declared(RunFields).items() if not field.said.hashed),
)
"""Fields of the record that the identity leaves out: digests in `inputs` stand for paths, settings for the preset."""


def check_loading(device: str, dtype: str, bos: str = "auto") -> None:
    """Whether these words say how a model is loaded; whether the device is there is seen when it is."""
    if device.partition(":")[0] not in DEVICES:
        raise UnknownName("device", device, list(DEVICES))
    if dtype not in DTYPES:
        raise UnknownName("dtype", dtype, list(DTYPES))
    if bos not in BOS:
        raise UnknownName("way to begin a text (--bos)", bos, list(BOS))


@dataclass(frozen=True, kw_only=True)
class RunConfig(StoredConfig):
    """Everything that decides what a run computes."""

    defaults: Mapping[str, Mapping[str, Json]] = field(default_factory=dict, compare=False, repr=False)
    """Of `settings` and `task_options`, by these names; a setting without one always counts. No part of the record."""

    def __post_init__(self) -> None:
        if self.limit is not None and self.limit < 1:
            raise UserError(f"--limit must be at least 1, got {self.limit}.", "Leave it out to ask all queries.")
        if self.batch_size < 0:
            raise UserError(f"--batch-size must be at least 1, got {self.batch_size}.", "Give a number, or auto.")
        if not 0 <= self.seed < SEEDS:
            raise UserError(f"Seed {self.seed} is out of range.", f"Give a number from 0 to {SEEDS - 1}.")

    @property
    def base(self) -> str:
        """The base model as tables name it: random weights are said."""
        name = standing_name(self.model, self.base_checkpoint)
        return f"{name} (random weights)" if self.random_weights else name

    def to_json(self) -> dict[str, Json]:
        """The configuration as JSON values, every field named but `defaults`."""
        values = {key: dict(value) if isinstance(value, Mapping) else value for key, value in asdict(self).items()}
        del values["defaults"]
        return values

    def differing(self) -> dict[str, Json]:
        """The values that the id hashes: those that differ from the defaults and are part of the identity."""
        hashed = {key: value for key, value in self.to_json().items() if key not in UNHASHED}
        if "rows" in self.inputs and self.source not in ("mini", "hub"):
            hashed["source"] = "files"
        if "model" in self.inputs and self.model != NANO:
            hashed["model"] = "folder"
        for name, values in self.defaults.items():
            hashed[name] = changed(hashed[name], values)
        return changed(hashed, type(self)(method="").to_json())

    def other_defaults(self, stored: Mapping[str, Json]) -> list[str]:
        """Settings that a stored run of this identity had otherwise: their defaults are others now."""
        return [
            f"{key} {value} (now {now[key]})"
            for name in ("settings", "task_options")
            for now in [getattr(self, name)]
            for key, value in stored.get(name, {}).items()
            if key in now and not same(now[key], value)
        ]

    def identity(self) -> str:
        """12 hexadecimal digits that follow from `differing`: the run's id and the name of its folder."""
        return identity(self.differing())


def standing_name(model: str, base_checkpoint: str) -> str:
    """The name of a base model that stands on a checkpoint: smollm2-135m-qa."""
    return f"{model}-{base_checkpoint.rpartition(':')[2].rstrip('/').rpartition('/')[2]}" if base_checkpoint else model
