"""The options of a run that are kept as they are typed, each declared once, see `core.declared`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated

from ttabench.core.architectures import NANO
from ttabench.core.declared import HOW, RUN, WHAT, Declared
from ttabench.core.types import Json

DEFAULT_OUT = Path("results/scratch")
"""Where runs are stored and looked for."""


def batch_size(typed: str | int) -> int:
    """`--batch-size` (a text, or the default) as a number, 0 for auto."""
    text = str(typed)
    if text != "auto" and not (text.isdecimal() and len(text) <= 9 and int(text) > 0):
        raise ValueError(f"{text[:40]!r} is neither auto nor a whole number of at least 1.")
    return 0 if text == "auto" else int(text)


@dataclass(frozen=True, kw_only=True)
class RunFields:
    """Options of a run that its record keeps under the same names."""

    model: Annotated[
        str,
        Declared("Base LM: nano, a known name (`list models`), a folder (peft's, too), a .gguf file, or a hub id.", RUN,
                 completes="model"),
    ] = NANO  # fmt: skip
    base_checkpoint: Annotated[
        str,
        Declared("LoRA checkpoint in the base LM under any method: a folder (peft's, too), or shipped:NAME.", RUN,
                 default=False, hashed=False),
    ] = ""  # fmt: skip
    """Its digest is hashed."""
    random_weights: Annotated[bool, Declared("Build the architecture with random weights.", RUN)] = False
    keep: Annotated[
        float | None,
        Declared("Keep this share of the context, in (0, 1], by any method that has a budget.", RUN, hashed=False),
    ] = None
    """The settings that it stands for are hashed, as of `keep_tokens`."""
    keep_tokens: Annotated[
        int | None, Declared("Keep so many tokens of the context, by any method that has a budget.", RUN, hashed=False)
    ] = None
    split: Annotated[str, Declared("Split of the task.", WHAT)] = "test"
    limit: Annotated[int | None, Declared("Ask at most this many queries (all context is still read).", WHAT)] = None
    """None asks all."""
    ask_only: Annotated[bool, Declared("Read none of the task's context (with --state).", WHAT)] = False
    device: Annotated[str, Declared("auto, cpu, cuda, cuda:N, xpu or mps.", HOW, hashed=False)] = "auto"
    dtype: Annotated[str, Declared("auto, float32, bfloat16 or float16.", HOW)] = "auto"
    attention: Annotated[
        str,
        Declared("Attention of transformers: eager, sdpa, flash_attention_2 ... (default: ttabench's own).", HOW,
                 metavar="NAME"),
    ] = ""  # fmt: skip
    batch_size: Annotated[
        int,
        Declared("Queries answered together; auto: as many as fit. Halved when memory runs out.", HOW,
                 parse=batch_size, metavar="N|auto"),
    ] = 32  # fmt: skip
    """0 for as many as fit."""
    bos: Annotated[str, Declared("Whether texts begin with BOS: auto (as the tokenizer says), yes, no.", HOW)] = "auto"
    """What begins a text: "auto" what the tokenizer adds, "yes" its BOS token, "no" nothing."""
    state_of: str = "own"
    """Whose state answers, one of `config.STATES_OF` (see `runner`)."""


@dataclass(frozen=True, kw_only=True)
class StoredConfig(RunFields):
    """A run's configuration as its record stores it: options that are kept as typed, and what the others came to."""

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


SWAPPED = "Answer under the own state, another context's and none, and compare: is a gain memory?"
"""What `--swap-state` does: three runs, one for each `state_of`."""
RUN_FIELDS = tuple(each.name for each in fields(RunFields))
