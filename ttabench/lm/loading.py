"""A model and its tokenizer from a folder, a hub id or a GGUF file. What is broken is refused in one line.

The libraries fill in what a file lacks with random numbers, and say so in a log at most. Here a missing, superfluous or
misshapen tensor, or one that holds a NaN, is an error that names it. Code that comes with a model is never run.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ttabench.core import memory
from ttabench.core.environment import quiet_loading
from ttabench.core.errors import UserError
from ttabench.core.opening import json_of

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

CONFIG = "config.json"
READ = (CONFIG, "generation_config.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
        "model.safetensors.index.json")  # fmt: skip
"""Small JSON files of a model folder that transformers reads; some faults in them it passes over."""
ADAPTER = "adapter_config.json"
SIZES = ("vocab_size", "max_position_embeddings", "hidden_size", "num_hidden_layers", "num_attention_heads")
"""What a configuration must say for a model to be used here."""
DEEPEST = {"num_hidden_layers": 10_000, "n_layer": 10_000, "num_layers": 10_000}
"""More layers than any model has: a damaged number would be built layer by layer, for ever."""
TABLES = re.compile(r"(^|\.)(attn|attention)\.(bias|masked_bias)$|rotary_emb\.inv_freq$|(^|\.)position_ids$")
"""Masks and tables that older versions of transformers stored beside the weights; models make their own."""
SUFFIXES = (".json", ".safetensors", ".jinja", ".model", ".txt")
"""Of what transformers reads in a model folder; a pipe of that name would be waited for."""
AGAIN = "Download or copy it again, or give another --model."


@dataclass(frozen=True)
class Source:
    """Where a model is read from, and what the user calls it."""

    name: str
    place: str
    """Folder or hub id."""
    gguf: Path | None = None
    """The GGUF file in that folder, if it is one that is read."""
    hint: str = "Give a folder written by save_pretrained."
    """What helps if nothing can be loaded."""

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
    """Model and tokenizer, checked.

    Args:
        source: where from.
        dtype: of the weights; None keeps the checkpoint's own.
        device: where the weights go.

    Raises:
        UserError: not reachable, damaged, of another kind than a causal LM, with code of its own, with tensors that are
            missing, superfluous, misshapen or not finite, or too large for the memory.
    """
    if source.gguf is None and source.local:
        _check_folder(Path(source.place))
    try:
        with quiet_loading():
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
    if source.gguf is not None:
        # The whole path: of a bare name, transformers takes a file of that name in the current folder.
        given["gguf_file"] = str(source.gguf.resolve())
        weights = {}
        if hasattr(transformers, "GgufConfig"):
            weights["quantization_config"] = transformers.GgufConfig(dequantize=True)
    tokenizer = transformers.AutoTokenizer.from_pretrained(source.place, **given)
    model, report = transformers.AutoModelForCausalLM.from_pretrained(
        source.place,
        dtype=dtype or "auto",
        ignore_mismatched_sizes=True,  # they are in the report, and refused
        output_loading_info=True,
        **weights,
        **given,
    )
    return model, tokenizer, report


def refusal(source: Source, error: Exception) -> UserError:
    """What is told to a user whose model could not be loaded."""
    if isinstance(error, UserError):
        return error
    if memory.out_of_memory(error):
        memory.released()
        hint = "Take a smaller --model or --dtype bfloat16, or a device with more memory."
        size = memory.shown(_bytes_of(source) or memory.wanted(error))
        return UserError(f"Model {source.name!r} does not fit into memory{size and f': it takes {size}'}.", hint)
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    reason = lines[0] if lines else type(error).__name__
    if isinstance(error, KeyError | RecursionError):
        reason = f"{type(error).__name__}: {reason}"
    reason = " ".join(reason.split())[:200].rstrip(".")
    return UserError(f"Model {source.name!r} could not be loaded{source.shown}: {reason}.", source.hint)


def _bytes_of(source: Source) -> int:
    """Of the files of weights that are read; 0 where they are not here."""
    with suppress(OSError):
        return sum(file.stat().st_size for file in Path(source.place).glob("*.safetensors")) if source.local else 0
    return 0


def _check_folder(folder: Path) -> None:
    """Refuse damaged JSON, code of its own, and adapters: transformers passes over some of it, and asks about some."""
    if (folder / ADAPTER).is_file():
        what = f"{folder} holds an adapter of peft ({ADAPTER}), not a model alone."
        raise UserError(what, "Merge it into its base model (merge_and_unload), save that, and give its folder.")
    for entry in sorted(folder.iterdir()):
        if entry.suffix in SUFFIXES and not entry.is_file():
            raise UserError(f"{entry} is no file.", AGAIN)
    for name in READ:
        if not (file := folder / name).exists():
            continue
        try:
            found = json_of(file)
        except (OSError, ValueError) as error:
            reason = " ".join(str(error).split())[:120]
            raise UserError(f"{file} is damaged: {reason}.", AGAIN) from None
        if not isinstance(found, dict):
            raise UserError(f"{file} is damaged: it holds a {type(found).__name__}, not an object.", AGAIN)
        if found.get("auto_map"):
            what = f"{file} names code that the model brings (auto_map); no such code is run here."
            raise UserError(what, "If transformers knows the architecture itself, take auto_map out of the file.")
        for field, most in DEEPEST.items():
            if isinstance(depth := found.get(field), int) and depth > most:
                raise UserError(f"{file} is damaged: its {field} is {str(depth)[:12]}.", AGAIN)


def _check_tensors(source: Source, model: PreTrainedModel, report: Mapping[str, Any]) -> None:
    """Refuse weights that are not those of the model: the libraries would fill in random ones."""
    from ttabench.lm.finite import first_not_finite

    misshapen = {str(name): (tuple(found), tuple(wanted)) for name, found, wanted in report["mismatched_keys"]}
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
        found, wanted = misshapen[name]
        what = f"Tensor {name} of model {source.name!r} is {list(found)}, its config.json wants {list(wanted)}."
        raise UserError(what, AGAIN)
    if broken := first_not_finite(model.named_parameters()):
        raise UserError(f"Tensor {broken} of model {source.name!r} holds values that are not finite.", AGAIN)


def _check_kind(source: Source, model: PreTrainedModel, tokenizer: Any) -> None:
    """Refuse what the package has no use for: no decoder with positions and a head, a tokenizer in plain Python."""
    kind = f"Model {source.name!r} ({model.config.model_type})"
    hint = "Give a causal LM like Llama, GPT-2 or OPT."
    for size in SIZES:
        value = getattr(model.config, size, None)
        if not isinstance(value, int) or value < 1:
            raise UserError(f"{kind} cannot be used: its {size} is {value}.", hint)
    ends = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    if not all(isinstance(end, int) for end in (ends if isinstance(ends, list) else [ends or 0])):
        raise UserError(f"{kind} cannot be used: its eos_token_id is {ends!r}.", "Give a number, or a list of them.")
    if model.get_output_embeddings() is None:
        raise UserError(f"{kind} cannot be used: it has no head.", hint)
    if not getattr(tokenizer, "is_fast", False):
        raise UserError(f"The tokenizer of model {source.name!r} is not a fast one.", "Give one with tokenizer.json.")
