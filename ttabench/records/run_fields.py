"""The options of a run that are kept as they are typed, each declared once (see `core.declared`), and its identity.

RunConfig(method="mac", task="streamingqa", seed=1).identity()  ->  "3f0c2a9b71de"
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Annotated

from ttabench.core.architectures import NANO
from ttabench.core.declared import (
    EXECUTION_GROUP,
    QUERY_GROUP,
    RUN_GROUP,
    OptionInfo,
    option_fields,
)
from ttabench.core.digests import hash_values, non_default_values
from ttabench.core.errors import UnknownName, UserError
from ttabench.core.types import Json

DEFAULT_OUT = Path("results/scratch")
"""Where runs are stored and looked for."""
DEVICES = ("auto", "cpu", "cuda", "xpu", "mps")
DEVICE_NUMBER_PATTERNS = {
    "cpu": r"(:0)?",
    "mps": r"(:0)?",
    "cuda": r"(:\d{1,3})?",
    "xpu": r"(:\d{1,3})?",
}
"""Which numbers may follow the kind of a device."""
MAX_BOOST = 10**6
MAX_QUERIES = 10**9
"""Of a run, and of one batch."""
DTYPES = ("auto", "float32", "bfloat16", "float16", "fastest")
BOS_CHOICES = ("auto", "yes", "no")
ANSWERING_STATES = {
    "own": "",
    "other": "the state of another context answered; what reading cost stands in the run of the own state",
    "none": "an empty state answered; what reading cost stands in the run of the own state",
}
"""Whose state answers (see `run.runner`), and what a record says of it."""


def parse_batch_size(typed: str | int) -> int:
    """`--batch-size` (a text, or the default) as a number, 0 for auto."""
    text = str(typed)
    if text != "auto" and not (text.isdecimal() and len(text) <= 9 and int(text) > 0):
        raise ValueError(f"{text[:40]!r} is neither auto nor a whole number of at least 1.")
    return 0 if text == "auto" else int(text)


@cache
def _fastest_dtype(device: str) -> str:
    """The number format that reads fastest, told once; on an accelerator the checkpoint's own ("auto")."""
    from ttabench.lm.loading.devices import find_device, time_dtypes
    from ttabench.terminal import render

    if find_device(device).type != "cpu":
        return "auto"
    times = time_dtypes()
    name = min(times, key=times.__getitem__)
    timings = ", ".join(f"{kind} {1e3 * seconds:.1f} ms" for kind, seconds in times.items())
    render.print_note(f"--dtype fastest is {name} here (a product of matrices: {timings}).")
    return name


@dataclass(frozen=True, kw_only=True)
class RunFields:
    """Options of a run that its record keeps under the same names."""

    model: Annotated[
        str,
        OptionInfo(
            "Base LM: nano, a name (`list models`), a folder, a .gguf file, or a hub id.", RUN_GROUP
        ),
    ] = NANO
    base_checkpoint: Annotated[
        str,
        OptionInfo(
            "LoRA checkpoint in the base LM under any method: a folder (peft's, too), or shipped:NAME.",
            RUN_GROUP,
            default=False,
            in_run_id=False,
        ),
    ] = ""
    """Its digest is hashed."""
    random_weights: Annotated[
        bool, OptionInfo("Build the architecture with random weights.", RUN_GROUP)
    ] = False
    keep: Annotated[
        float | None,
        OptionInfo(
            "Keep this share of the context, in (0, 1], by any method that has a budget.",
            RUN_GROUP,
            in_run_id=False,
        ),
    ] = None
    """The settings that it stands for are hashed, as of `keep_tokens`."""
    keep_tokens: Annotated[
        int | None,
        OptionInfo(
            "Keep so many tokens of the context, by any method that has a budget.",
            RUN_GROUP,
            in_run_id=False,
        ),
    ] = None
    split: Annotated[str, OptionInfo("Split of the task.", QUERY_GROUP)] = "test"
    limit: Annotated[
        int | None,
        OptionInfo("Ask at most this many queries (all context is still read).", QUERY_GROUP),
    ] = None
    """None asks all."""
    ask_only: Annotated[
        bool, OptionInfo("Read none of the task's context (with --state).", QUERY_GROUP)
    ] = False
    device: Annotated[
        str, OptionInfo("auto, cpu, cuda, cuda:N, xpu or mps.", EXECUTION_GROUP, in_run_id=False)
    ] = "auto"
    dtype: Annotated[
        str,
        OptionInfo("auto, float32, bfloat16, float16, or fastest (by a trial).", EXECUTION_GROUP),
    ] = "auto"
    batch_size: Annotated[
        int,
        OptionInfo(
            "Queries answered together; auto: as many as fit. Halved when memory runs out.",
            EXECUTION_GROUP,
            parse=parse_batch_size,
            metavar="N|auto",
        ),
    ] = 32
    """0 for as many as fit."""
    batch_contexts: Annotated[
        int,
        OptionInfo(
            "Contexts read together, by methods that read for several readers and before the question.",
            EXECUTION_GROUP,
        ),
    ] = 1
    bos: Annotated[
        str,
        OptionInfo(
            "Whether texts begin with BOS: auto (as the tokenizer says), yes, no.", EXECUTION_GROUP
        ),
    ] = "auto"
    """What begins a text: "auto" what the tokenizer adds, "yes" its BOS token, "no" nothing."""
    thinking: Annotated[
        bool,
        OptionInfo(
            "Let a chat template that can ask for thoughts before the answer do so.",
            EXECUTION_GROUP,
            in_run_id=False,
        ),
    ] = False
    """`inputs` says what the template was given."""
    boost: Annotated[
        float,
        OptionInfo(
            "Factor of low-rank weight deltas in the quarter of layers where they are largest.",
            EXECUTION_GROUP,
        ),
    ] = 1.0
    """See `lm.patch.boosted`."""
    state_of: str = "own"
    """Whose state answers, one of `run_fields.ANSWERING_STATES` (see `runner`)."""

    def __post_init__(self) -> None:
        """Whether these words say how a model is loaded; whether the device is there is seen when it is."""
        kind = self.device.partition(":")[0]
        if kind not in DEVICES or not re.fullmatch(
            kind + DEVICE_NUMBER_PATTERNS.get(kind, ""), self.device
        ):
            raise UnknownName("device", self.device, list(DEVICES))
        if self.dtype not in DTYPES:
            raise UnknownName("dtype", self.dtype, list(DTYPES))
        if self.bos not in BOS_CHOICES:
            raise UnknownName("way to begin a text (--bos)", self.bos, list(BOS_CHOICES))
        if self.batch_contexts < 1:
            raise UserError(
                f"--batch-contexts must be at least 1, got {self.batch_contexts}.",
                "Leave it out for 1.",
            )
        if not 0 < self.boost <= MAX_BOOST:
            fault = f"--boost must be above 0 and at most {MAX_BOOST:,}, got {self.boost:g}."
            raise UserError(fault, "Leave it out for 1.")
        if self.dtype == "fastest":
            object.__setattr__(self, "dtype", _fastest_dtype(self.device))


SEED_LIMIT = 2**32
"""Seeds that numpy takes: below this number."""
UNHASHED_FIELDS = (
    "checkpoint",
    "state",
    "preset",
    *(name for name, own in option_fields(RunFields).items() if not own.info.in_run_id),
)
"""Fields of the record that the identity leaves out: digests in `inputs` stand for paths, settings for the preset."""


@dataclass(frozen=True, kw_only=True)
class RunConfig(RunFields):
    """Everything that decides what a run computes, as its record stores it: options as typed, and what others came to.

    Two commands with one identity are the same run: the second returns what the first stored. The identity is a hash of
    what differs from the defaults of the method, of the task's reader and of the request, so that a new setting with a
    default leaves every id as it was; the record keeps all of them. Files are identified by what they hold, not by
    where they lie.
    """

    verb: str = "eval"
    method: str
    task: str = ""
    source: str = "mini"
    seed: int = 0
    preset: str = ""
    settings: Mapping[str, Json] = field(default_factory=dict)
    task_options: Mapping[str, Json] = field(default_factory=dict)
    """All settings of the task's protocol, and arguments of its generator."""
    checkpoint: str = ""
    state: str = ""
    chat_template: bool = False
    """Whether context and question stand in the tokenizer's chat template."""
    inputs: Mapping[str, str] = field(default_factory=dict)
    """Digests of what is read ("rows" of the task, "card", "checkpoint", "state", "model"), see `digest`, and of code
    that others wrote ("method", "reader", "metric NAME")."""
    defaults: Mapping[str, Mapping[str, Json]] = field(
        default_factory=dict, compare=False, repr=False
    )
    """Of `settings` and `task_options`, by these names; a setting without one always counts. No part of the record."""

    def __post_init__(self) -> None:
        if self.limit is not None and not 1 <= self.limit <= MAX_QUERIES:
            fault = f"--limit must be from 1 to {MAX_QUERIES:,}, got {self.limit:.9g}."
            raise UserError(fault, "Leave it out to ask all queries.")
        if not 0 <= self.batch_size <= MAX_QUERIES:
            fault = f"--batch-size must be from 1 to {MAX_QUERIES:,}, got {self.batch_size:.9g}."
            raise UserError(fault, "Use a number, or auto.")
        if not 0 <= self.seed < SEED_LIMIT:
            raise UserError(
                f"Seed {self.seed} is out of range.", f"Give a number from 0 to {SEED_LIMIT - 1}."
            )

    @property
    def base(self) -> str:
        """The base model as tables name it: random weights are said."""
        name = base_model_name(self.model, self.base_checkpoint)
        return f"{name} (random weights)" if self.random_weights else name

    def to_json(self) -> dict[str, Json]:
        """The configuration as JSON values, every field named but `defaults`."""
        values = {
            key: dict(value) if isinstance(value, Mapping) else value
            for key, value in asdict(self).items()
        }
        del values["defaults"]
        return values

    def non_default_values(self) -> dict[str, Json]:
        """The values that the id hashes: those that differ from the defaults and are part of the identity."""
        in_run_id = {
            key: value for key, value in self.to_json().items() if key not in UNHASHED_FIELDS
        }
        if "rows" in self.inputs and self.source not in ("mini", "hub"):
            in_run_id["source"] = "files"
        if "model" in self.inputs and self.model != NANO:
            in_run_id["model"] = "folder"
        for name, values in self.defaults.items():
            in_run_id[name] = non_default_values(in_run_id[name], values)
        return non_default_values(in_run_id, type(self)(method="").to_json())

    def identity(self) -> str:
        """12 hexadecimal digits that follow from `non_default_values`: the run's id and the name of its folder."""
        return hash_values(self.non_default_values())


def base_model_name(model: str, base_checkpoint: str) -> str:
    """The name of a base model that stands on a checkpoint: smollm2-135m-qa."""
    return (
        f"{model}-{base_checkpoint.rpartition(':')[2].rstrip('/').rpartition('/')[2]}"
        if base_checkpoint
        else model
    )


SWAP_STATE_HELP = (
    "Answer under the own state, another context's and none, and compare: is a gain memory?"
)
"""What `--swap-state` does: three runs, one for each `state_of`."""
RUN_FIELDS = tuple(each.name for each in fields(RunFields))
