"""Run options that are stored as typed, each declared once (see `core.declared`), and the run id.

RunConfig(method="mac", task="streamingqa", seed=1).identity()  ->  "3f0c2a9b71de"
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator

from ttabench.core.amounts import parse_context_length
from ttabench.core.architectures import NANO
from ttabench.core.declared import (
    EXECUTION_GROUP,
    QUERY_GROUP,
    RUN_GROUP,
    OptionInfo,
    option_fields,
)
from ttabench.core.digests import hash_values, non_default_values
from ttabench.core.errors import UnknownName, UserError, require_known
from ttabench.core.types import Json

DEFAULT_OUT = Path("results/scratch")
"""Default folder of runs."""
DEVICES = ("auto", "cpu", "cuda", "xpu", "mps")
DEVICE_NUMBER_PATTERNS = {
    "cpu": r"(:0)?",
    "mps": r"(:0)?",
    "cuda": r"(:\d{1,3})?",
    "xpu": r"(:\d{1,3})?",
}
"""Device numbers allowed after each device type."""
BITS = 8, 4, 2
"""Values of `--bits`."""
MIN_CONTEXT_TOKENS = 64
"""Limit for `--max-context`. The probe of a model needs 50 positions."""
MAX_BOOST = 10**6
MAX_QUERIES = 10**9
"""Limit for the queries of a run, and of a batch."""
DTYPES = ("auto", "float32", "bfloat16", "float16", "fastest")
BOS_CHOICES = ("auto", "yes", "no")
ANSWERING_STATES = {
    "own": "",
    "other": "answered with a swapped state; the run with the own state has the cost of reading",
    "none": "answered with an empty state; the run with the own state has the cost of reading",
}
"""The state that answers (see `run.runner`), with its note in the record."""


def parse_batch_size(typed: str | int) -> int:
    """Parse `--batch-size` (a text, or the default); 0 stands for auto."""
    text = str(typed)
    if text != "auto" and not (text.isdecimal() and len(text) <= 9 and int(text) > 0):
        raise ValueError(f"{text[:40]!r} must be auto or a whole number of at least 1.")
    return 0 if text == "auto" else int(text)


@dataclass(frozen=True, kw_only=True)
class RunFields:
    """Options of a run that its record keeps under the same names."""

    model: Annotated[
        str,
        OptionInfo(
            "Base model: a name (see `ttabench list models`), a folder, a .gguf file, a hub id, or "
            "openai:URL#NAME.",
            RUN_GROUP,
        ),
    ] = NANO
    base_checkpoint: Annotated[
        str,
        OptionInfo(
            "LoRA to add to the base model: a folder (ttabench or peft), or shipped:NAME.",
            RUN_GROUP,
            default=False,
            in_run_id=False,
        ),
    ] = ""
    """The run id contains its digest."""
    random_weights: Annotated[
        bool, OptionInfo("Use random weights, to measure cost only.", RUN_GROUP)
    ] = False
    keep: Annotated[
        float | None,
        OptionInfo(
            "Memory budget as a share of the context, above 0 and at most 1.",
            RUN_GROUP,
            in_run_id=False,
        ),
    ] = None
    """The run id contains the settings derived from it; likewise for `keep_tokens`."""
    keep_tokens: Annotated[
        int | None, OptionInfo("Memory budget in tokens of context.", RUN_GROUP, in_run_id=False)
    ] = None
    bits: Annotated[
        int | None,
        OptionInfo(
            "Bits of the numbers in keys and values of the state: 8, 4 or 2. "
            "(default: not quantised)",
            RUN_GROUP,
        ),
    ] = None
    """See `methods.quantised`."""
    split: Annotated[str, OptionInfo("Split of the task.", QUERY_GROUP)] = "test"
    limit: Annotated[
        int | None,
        OptionInfo("Maximum number of queries. The full context is always read.", QUERY_GROUP),
    ] = None
    """`None` for all queries."""
    ask_only: Annotated[
        bool, OptionInfo("Do not read the task's context; answer from --state.", QUERY_GROUP)
    ] = False
    device: Annotated[
        str,
        OptionInfo(
            "Device: auto, cpu, cuda, cuda:N, xpu or mps.", EXECUTION_GROUP, in_run_id=False
        ),
    ] = "auto"
    dtype: Annotated[
        str,
        OptionInfo(
            "Data type: auto, float32, bfloat16, float16, or fastest (measured).", EXECUTION_GROUP
        ),
    ] = "auto"
    batch_size: Annotated[
        int,
        OptionInfo(
            "Queries per batch, or auto for the largest batch that fits. Halved when memory runs out.",
            EXECUTION_GROUP,
            parse=parse_batch_size,
            metavar="N|auto",
        ),
    ] = 32
    """0 for the largest size that fits into memory."""
    batch_contexts: Annotated[
        int,
        OptionInfo(
            "Contexts per batch, for methods that support batching and are not query-aware.",
            EXECUTION_GROUP,
        ),
    ] = 1
    bos: Annotated[
        str,
        OptionInfo(
            "Start texts with BOS: auto (the tokenizer's default), yes or no.", EXECUTION_GROUP
        ),
    ] = "auto"
    """Start of a text: "auto" for the tokenizer's default, "yes" for its BOS token, "no" for
    nothing."""
    max_context: Annotated[
        Annotated[int, BeforeValidator(parse_context_length)] | None,
        OptionInfo(
            "Longest text in tokens, such as 64k. Fixes rotary frequencies that depend on it. "
            "(default: the tokens for which they do not change)",
            EXECUTION_GROUP,
            kind=int,
            parse=parse_context_length,
            metavar="N",
        ),
    ] = None
    """See `lm.positions`."""
    thinking: Annotated[
        bool,
        OptionInfo(
            "Enable thinking in chat templates that support it.", EXECUTION_GROUP, in_run_id=False
        ),
    ] = False
    """`inputs` records the chat-template arguments."""
    boost: Annotated[
        float,
        OptionInfo(
            "Factor for low-rank weight changes, in the quarter of layers where they are largest.",
            EXECUTION_GROUP,
        ),
    ] = 1.0
    """See `lm.patch.boosted`."""
    state_of: str = "own"
    """The state that answers, one of `run_fields.ANSWERING_STATES` (see `runner`)."""

    def __post_init__(self) -> None:
        """Check the values; availability of the device is checked when it is used."""
        kind = self.device.partition(":")[0]
        if kind not in DEVICES or not re.fullmatch(
            kind + DEVICE_NUMBER_PATTERNS.get(kind, ""), self.device
        ):
            raise UnknownName("device", self.device, list(DEVICES))
        require_known("dtype", self.dtype, DTYPES)
        require_known("value of --bos", self.bos, BOS_CHOICES)
        if self.batch_contexts < 1:
            raise UserError(
                f"--batch-contexts must be at least 1, got {self.batch_contexts}.",
                "Remove it for 1.",
            )
        if self.max_context is not None and self.max_context < MIN_CONTEXT_TOKENS:
            fault = f"--max-context must be at least {MIN_CONTEXT_TOKENS}, got {self.max_context}."
            raise UserError(fault, "Remove it, or use a greater number.")
        if self.bits not in (None, *BITS):
            fault = f"--bits must be 8, 4 or 2, got {self.bits}."
            raise UserError(fault, "Remove it to keep the number format of the model.")
        if not 0 < self.boost <= MAX_BOOST:
            fault = f"--boost must be above 0 and at most {MAX_BOOST:,}, got {self.boost:g}."
            raise UserError(fault, "Remove it for 1.")


SEED_LIMIT = 2**32
"""Seeds must be below this number (a limit of numpy)."""
UNHASHED_FIELDS = (
    "checkpoint",
    "state",
    "preset",
    *(name for name, option in option_fields(RunFields).items() if not option.info.in_run_id),
)
"""Record fields that are not part of the run id.

Digests in `inputs` replace paths, and settings replace the preset.
"""


@dataclass(frozen=True, kw_only=True)
class RunConfig(RunFields):
    """Resolved configuration of a run. Its hash is the run id.

    It has the options as typed, and the values that others resolved to. Two commands with the same
    run id are the same run: the second returns the stored result of the first. The id hashes only
    values that differ from the defaults of the method, of the dataset reader and of the request. So
    a new setting with a default leaves every existing id unchanged. The record keeps all values.
    Files are identified by their content, not by their path.
    """

    verb: str = "eval"
    method: str
    task: str = ""
    source: str = "mini"
    seed: int = 0
    preset: str = ""
    settings: Mapping[str, Json] = field(default_factory=dict)
    task_options: Mapping[str, Json] = field(default_factory=dict)
    """All settings of the task's protocol, and the arguments of its generator."""
    checkpoint: str = ""
    state: str = ""
    chat_template: bool = False
    """True if context and question are formatted with the tokenizer's chat template."""
    inputs: Mapping[str, str] = field(default_factory=dict)
    """Digests of inputs ("rows" of the task, "card", "checkpoint", "state", "model"), see
    `digest`, and of code by others ("method", "reader", "metric NAME")."""
    defaults: Mapping[str, Mapping[str, Json]] = field(
        default_factory=dict, compare=False, repr=False
    )
    """Defaults of `settings` and `task_options`. Settings without a default are always hashed.
    Not stored in the record."""

    def __post_init__(self) -> None:
        if self.limit is not None and not 1 <= self.limit <= MAX_QUERIES:
            fault = f"--limit must be from 1 to {MAX_QUERIES:,}, got {self.limit:.9g}."
            raise UserError(fault, "Remove it to use all queries.")
        if not 0 <= self.batch_size <= MAX_QUERIES:
            fault = f"--batch-size must be from 1 to {MAX_QUERIES:,}, got {self.batch_size:.9g}."
            raise UserError(fault, "Use a number, or auto.")
        if not 0 <= self.seed < SEED_LIMIT:
            raise UserError(
                f"Seed {self.seed} is out of range.", f"Use a number from 0 to {SEED_LIMIT - 1}."
            )

    @property
    def base(self) -> str:
        """Name of the base model in tables, including random weights."""
        name = base_model_name(self.model, self.base_checkpoint)
        return f"{name} (random weights)" if self.random_weights else name

    def to_json(self) -> dict[str, Json]:
        """Convert the configuration to JSON values, with every field except `defaults`."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        del values["defaults"]
        return {
            key: dict(value) if isinstance(value, Mapping) else value
            for key, value in values.items()
        }

    def non_default_values(self) -> dict[str, Json]:
        """Select the values that the run id hashes: part of the identity and different from the
        default."""
        in_run_id = {
            key: value for key, value in self.to_json().items() if key not in UNHASHED_FIELDS
        }
        if "rows" in self.inputs and self.source not in ("mini", "hub"):
            in_run_id["source"] = "files"
        if "model" in self.inputs and self.model != NANO:
            in_run_id["model"] = "folder"
        for name, values in self.defaults.items():
            in_run_id[name] = non_default_values(in_run_id[name], values)
        defaults = _default_values(type(self))  # type: ignore[arg-type]  # a class can be hashed
        return non_default_values(in_run_id, defaults)

    def identity(self) -> str:
        """Compute the run id, which is also its folder name: 12 hexadecimal digits."""
        return hash_values(self.non_default_values())


def base_model_name(model: str, base_checkpoint: str) -> str:
    """Join the names of a model and its base checkpoint: smollm2-135m-qa."""
    return (
        f"{model}-{base_checkpoint.rpartition(':')[2].rstrip('/').rpartition('/')[2]}"
        if base_checkpoint
        else model
    )


SWAP_STATE_HELP = (
    "Control: answer with the own state, the state of another context, and an empty state."
)
"""Help of `--swap-state`: three runs, one for each `state_of`."""
RUN_FIELDS = tuple(each.name for each in fields(RunFields))


@cache
def _default_values(cls: type[RunConfig]) -> dict[str, Json]:
    return cls(method="").to_json()
