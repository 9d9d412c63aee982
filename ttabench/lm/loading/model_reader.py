"""A model and its tokenizer from a folder, a hub id or a GGUF file. What is broken is refused in one line.

The libraries fill in what a file lacks with random numbers; here a missing, superfluous or misshapen tensor, or one
that holds a NaN, is an error that names it. Code that comes with a model is never run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ttabench.core import memory
from ttabench.core.checked_file import reason
from ttabench.core.environment import quiet_loading
from ttabench.core.errors import UserError
from ttabench.lm.loading.model_files import AGAIN, TABLES, check

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

SIZES = {"vocab_size": 2**63, "hidden_size": 2**63, "num_hidden_layers": 10_000}
"""Fields that a configuration must have for a model to be used here, and the most that they may be."""


@dataclass(frozen=True)
class Source:
    """Where a model is read from, and what the user calls it."""

    name: str
    place: str
    """Folder or hub id."""
    gguf: Path | None = None
    """The GGUF file that is read, if it is one; what lies in the folder then plays no part."""
    hint: str = "Give a folder written by save_pretrained."
    """Remedy if nothing can be loaded."""
    revision: str = ""
    """The commit on the hub; empty for its newest."""

    @property
    def local(self) -> bool:
        """Whether the place is a folder."""
        return Path(self.place).is_dir()

    @property
    def shown(self) -> str:
        """The place for people, if it is not what the user typed."""
        place = str(self.gguf or self.place)
        return "" if place == self.name else f" from {place}"


def read(
    source: Source, dtype: torch.dtype | None, device: torch.device
) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    """Model and tokenizer, checked."""
    try:
        with quiet_loading():
            check(source.place)
            model, tokenizer, report = _from_files(source, dtype)
            model = model.to(device)
    except Exception as error:  # on damaged files the libraries raise whatever they stumble over
        raise refusal(source, error) from error
    _check_tensors(source, model, report)
    _check_kind(source, model, tokenizer)
    return model, tokenizer


def _from_files(source: Source, dtype: torch.dtype | None) -> tuple[Any, Any, Mapping[str, Any]]:
    import transformers

    given: dict[str, Any] = {"local_files_only": source.local, "trust_remote_code": False}
    weights: dict[str, Any] = {"use_safetensors": True}
    if source.revision:
        given["revision"] = source.revision
    if source.gguf is not None:
        # The whole path: of a bare name, transformers takes a file of that name in the current folder.
        given["gguf_file"] = str(source.gguf.resolve())
        weights = {}
        if hasattr(transformers, "GgufConfig"):
            weights["quantization_config"] = transformers.GgufConfig(dequantize=True)
    tokenizer = transformers.AutoTokenizer.from_pretrained(source.place, **given)
    config = transformers.AutoConfig.from_pretrained(source.place, **given)
    for size, most in SIZES.items():
        value = getattr(config.get_text_config(decoder=True), size, None)
        if not isinstance(value, int) or not 0 < value <= most:
            raise ValueError(f"its {size} is {value!r:.30}")
    config._experts_implementation = None  # whatever it says: the usual, no kernels
    model, report = transformers.AutoModelForCausalLM.from_pretrained(
        source.place,
        config=config,
        dtype=dtype or "auto",
        attn_implementation="eager",  # the truth that `lm.forward.probe` holds our own to
        ignore_mismatched_sizes=True,  # they are in the report, and refused
        output_loading_info=True,
        **weights,
        **given,
    )
    return model, tokenizer, report


def refusal(source: Source, error: Exception) -> UserError:
    """The user error for a model that could not be loaded."""
    if isinstance(error, UserError):
        return error
    if memory.out_of_memory(error):
        memory.released()
        hint = "Take a smaller --model or --dtype bfloat16, or a device with more memory."
        return UserError(f"Model {source.name!r} does not fit into memory{memory.lacking(error)}.", hint)
    return UserError(f"Model {source.name!r} could not be loaded{source.shown}: {reason(error)}.", source.hint)


def _check_tensors(source: Source, model: PreTrainedModel, report: Mapping[str, Any]) -> None:
    """Refuse weights that are not those of the model: the libraries would fill in random ones."""
    from ttabench.lm.loading.finite import first_not_finite

    misshapen = {str(name): (tuple(stored), tuple(wanted)) for name, stored, wanted in report["mismatched_keys"]}
    wrong = {
        "lacks": set(report["missing_keys"]) - set(misshapen),
        "holds": {name for name in report["unexpected_keys"] if not TABLES.search(name)},
    }
    for how, names in wrong.items():
        if names:
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            other = "" if how == "lacks" else ", which its architecture has no place for"
            raise UserError(f"Model {source.name!r} {how} the tensor {min(names)}{more}{other}.", AGAIN)
    if misshapen:
        name = min(misshapen)
        stored, wanted = misshapen[name]
        fault = f"Tensor {name} of model {source.name!r} is {list(stored)}, its config.json wants {list(wanted)}."
        raise UserError(fault, AGAIN)
    if broken := first_not_finite(model.named_parameters()):
        raise UserError(f"Tensor {broken} of model {source.name!r} holds values that are not finite.", AGAIN)


def _check_kind(source: Source, model: PreTrainedModel, tokenizer: Any) -> None:
    """Refuse what the package has no use for: no decoder with a head, a tokenizer in plain Python."""
    kind, hint = f"Model {source.name!r} ({model.config.model_type})", "Give a causal LM like Llama, Qwen or Gemma."
    if model.get_output_embeddings() is None:
        raise UserError(f"{kind} cannot be used: it has no head.", hint)
    if not getattr(tokenizer, "is_fast", False):
        raise UserError(f"The tokenizer of model {source.name!r} is not a fast one.", "Give one with tokenizer.json.")
