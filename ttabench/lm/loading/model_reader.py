"""A model and its tokenizer from a folder, a hub id or a GGUF file. What is broken is refused in one line.

The libraries fill in what a file lacks with random numbers; here a missing, superfluous or misshapen tensor, or one
that holds a NaN, is an error that names it. Code that comes with a model is never run.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from ttabench.core import environment
from ttabench.core.digests import MAX_BYTES_BY_SUFFIX
from ttabench.core.environment import quiet_loading
from ttabench.core.errors import UserError
from ttabench.core.files import error_reason, read_json_object, reading_file
from ttabench.core.types import Json

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

Loaded: TypeAlias = "tuple[PreTrainedModel, PreTrainedTokenizerFast, str]"
"""Model, tokenizer, and its weights as a record names them ("Q4_1, dequantised"); empty if there is nothing to say."""
INDEX_FILE = "model.safetensors.index.json"
CHECKED_FILES = ("config.json", "generation_config.json", "tokenizer_config.json", INDEX_FILE)
TOKENIZER_CLASS_PATTERN = re.compile(r"\w*(Tokenizer|TokenizerFast|Backend)")
"""Any class of transformers may be named; that of a model would read pickles."""
SHARD_PATTERN = re.compile(r"\w[\w.-]*\.safetensors")
IGNORED_TENSOR_PATTERN = re.compile(
    r"(^|\.)(attn|attention)\.(bias|masked_bias)$|rotary_emb\.inv_freq$|(^|\.)position_ids$"
)
"""Masks and tables that older versions of transformers stored beside the weights; models make their own."""
MAX_CONFIG_SIZES = {"vocab_size": 2**63, "hidden_size": 2**63, "num_hidden_layers": 10_000}
"""Fields that a configuration must have for a model to be used here, and the most that they may be."""
DOWNLOAD_AGAIN_HINT = "Download or copy it again, or give another --model."


@dataclass(frozen=True)
class ModelSource:
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


def check_model_files(place: str) -> None:
    """Refuse what names code, other files or quantised weights, and an adapter."""
    if find_small_file(place, "adapter_config.json") is not None:
        fault = f"{place} holds an adapter of peft, not a model alone."
        raise UserError(
            fault,
            "Merge it into its base model (merge_and_unload), save that, and give its folder.",
        )
    for entry in sorted(Path(place).iterdir()) if Path(place).is_dir() else ():
        if entry.suffix in MAX_BYTES_BY_SUFFIX:
            with reading_file(
                entry, DOWNLOAD_AGAIN_HINT, max_bytes=MAX_BYTES_BY_SUFFIX[entry.suffix]
            ):
                pass
    for name in CHECKED_FILES:
        file = find_small_file(place, name)
        values = {} if file is None else read_json_object(file, DOWNLOAD_AGAIN_HINT)
        for key, value in _nested_items(values):
            if value and (
                key == "auto_map" or (key.endswith("_implementation") and "/" in str(value))
            ):
                fault = f"{file} names code ({key}: {value!r:.60}); no such code is run here."
                raise UserError(
                    fault,
                    f"If transformers knows the architecture itself, take {key} out of the file.",
                )
            if (
                value
                and key == "tokenizer_class"
                and not TOKENIZER_CLASS_PATTERN.fullmatch(str(value))
            ):
                raise UserError(
                    f"{file} names a tokenizer that is none ({value!r:.60}).", DOWNLOAD_AGAIN_HINT
                )
            if value and key == "quantization_config":
                fault = f"{file} says that the weights are quantised ({key}); those of GGUF files are read alone."
                raise UserError(
                    fault,
                    f"Give full-precision weights, or a GGUF file; if these are, take {key} out.",
                )
        shards = values.get("weight_map") if name == INDEX_FILE and file is not None else {}
        if not isinstance(shards, dict) or not all(
            SHARD_PATTERN.fullmatch(str(shard)) for shard in shards.values()
        ):
            fault = f"{file} names other files; only safetensors files beside it are read."
            raise UserError(fault, "Give a folder of safetensors written by save_pretrained.")


def find_small_file(place: str, name: str) -> Path | None:
    """Where a file of the model is, None where it has none."""
    if Path(place).is_dir():
        return Path(place, name) if Path(place, name).exists() else None
    from transformers.utils import cached_file

    quiet = {
        f"_raise_exceptions_for_{what}": False
        for what in ("missing_entries", "connection_errors", "gated_repo")
    }
    try:
        path = cached_file(place, name, **quiet)
    except Exception:  # whoever loads the model says what is wrong with the hub, or the name
        return None
    return None if path is None else Path(path)


def _nested_items(value: Json) -> Iterator[tuple[str, Json]]:
    """Keys and values of an object and of all objects within it."""
    for key, inner in value.items() if isinstance(value, dict) else ():
        yield key, inner
        yield from _nested_items(inner)
    for inner in value if isinstance(value, list) else ():
        yield from _nested_items(inner)


def load_model_and_tokenizer(
    source: ModelSource,
    dtype: torch.dtype | None,
    device: torch.device,
    use_all_devices: bool = False,
) -> Loaded:
    """Model and tokenizer, checked; `use_all_devices`: laid onto all accelerators of the kind where one is too small."""
    try:
        with quiet_loading():
            check_model_files(source.place)
            model, tokenizer, report = _load_from_files(source, dtype, device, use_all_devices)
        _check_tensors(source, model, report)
        if not tokenizer("a", add_special_tokens=False)["input_ids"]:
            fault = f"{source.place} has no tokenizer (tokenizer.json): texts would have no tokens."
            raise UserError(fault, "Save it there too: tokenizer.save_pretrained(FOLDER).")
        if model.get_output_embeddings() is None or not getattr(tokenizer, "is_fast", False):
            fault = f"Model {source.name!r} ({model.config.model_type}) has no head, or no fast tokenizer."
            raise UserError(
                fault, "Give a causal LM like Llama, Qwen or Gemma, with tokenizer.json."
            )
    except Exception as error:  # on damaged files the libraries raise whatever they stumble over
        raise loading_error(source, error) from error
    return model, tokenizer, ""


def _load_from_files(
    source: ModelSource, dtype: torch.dtype | None, device: torch.device, use_all_devices: bool
) -> tuple[Any, Any, Mapping[str, Any]]:
    import transformers

    from ttabench.lm.loading.devices import max_memory_per_device

    options: dict[str, Any] = {
        "local_files_only": Path(source.place).is_dir(),
        "trust_remote_code": False,
    }
    if source.revision:
        options["revision"] = source.revision
    weights: dict[str, Any] = {"use_safetensors": True}
    if source.gguf is not None:
        # The whole path: of a bare name, transformers takes a file of that name in the current folder.
        options["gguf_file"] = str(source.gguf.resolve())
        weights = {}
        if hasattr(transformers, "GgufConfig"):
            weights["quantization_config"] = transformers.GgufConfig(dequantize=True)
    if room := max_memory_per_device(device) if use_all_devices else None:
        weights |= {"device_map": "sequential", "max_memory": room}
    tokenizer = transformers.AutoTokenizer.from_pretrained(source.place, **options)
    config = transformers.AutoConfig.from_pretrained(source.place, **options)
    for size, most in MAX_CONFIG_SIZES.items():
        value = getattr(config.get_text_config(decoder=True), size, None)
        if not isinstance(value, int) or not 0 < value <= most:
            raise ValueError(f"its {size} is {value!r:.30}")
    config._experts_implementation = None  # whatever it says: the usual, no kernels
    model, report = transformers.AutoModelForCausalLM.from_pretrained(
        source.place,
        config=config,
        dtype=dtype or "auto",
        attn_implementation="eager",  # the truth that `lm.forward.capability_probe` holds our own to
        ignore_mismatched_sizes=True,  # they are in the report, and refused
        output_loading_info=True,
        **weights,
        **options,
    )
    if room and {"cpu", "disk"} & set(map(str, model.hf_device_map.values())):
        raise MemoryError("the weights are larger than all accelerators together")
    return model if room else model.to(device), tokenizer, report


def loading_error(source: ModelSource, error: Exception) -> UserError:
    """The user error for a model that could not be loaded."""
    if isinstance(error, UserError):
        return error
    if environment.is_out_of_memory(error):
        environment.lift_memory_limit()
        hint = "Take a smaller --model or --dtype bfloat16, or a device with more memory."
        return UserError(f"Model {source.name!r} does not fit into memory.", hint)
    place = str(source.gguf or source.place)
    shown = "" if place == source.name else f" from {place}"
    return UserError(
        f"Model {source.name!r} could not be loaded{shown}: {error_reason(error)}.", source.hint
    )


def _check_tensors(source: ModelSource, model: PreTrainedModel, report: Mapping[str, Any]) -> None:
    """Refuse weights that are not those of the model: the libraries would fill in random ones."""
    from ttabench.lm.loading.safetensors_io import first_non_finite_tensor

    shapes = {
        str(name): f"{list(stored)}, its config.json wants {list(expected)}"
        for name, stored, expected in report["mismatched_keys"]
    }
    unknown = sorted(
        name for name in report["unexpected_keys"] if not IGNORED_TENSOR_PATTERN.search(name)
    )
    faults = [
        f"lacks the tensor {name}" for name in sorted(set(report["missing_keys"]) - set(shapes))
    ]
    faults += [
        f"holds the tensor {name}, which its architecture has no place for" for name in unknown
    ]
    faults += [f"holds a tensor {name} that is {shape}" for name, shape in sorted(shapes.items())]
    if not faults and (broken := first_non_finite_tensor(model.named_parameters())):
        faults = [f"holds a tensor {broken} with values that are not finite"]
    if faults:
        raise UserError(f"Model {source.name!r} {faults[0]}.", DOWNLOAD_AGAIN_HINT)
