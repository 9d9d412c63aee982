"""Reading of a model and its tokenizer from a folder, hub id or GGUF file, with checks.

The libraries replace missing tensors by random numbers. Here a missing, extra, misshapen or
non-finite tensor is an error that names it. Code that comes with a model is never run.
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
"""Model, tokenizer and description of the weights ("Q4_1, dequantised"; may be empty)."""
INDEX_FILE = "model.safetensors.index.json"
CHECKED_FILES = ("config.json", "generation_config.json", "tokenizer_config.json", INDEX_FILE)
TOKENIZER_CLASS_PATTERN = re.compile(r"\w*(Tokenizer|TokenizerFast|Backend)")
"""Tokenizer classes of transformers. A class that comes with a model could read pickles."""
SHARD_PATTERN = re.compile(r"\w[\w.-]*\.safetensors")
IGNORED_TENSOR_PATTERN = re.compile(
    r"(^|\.)(attn|attention)\.(bias|masked_bias)$|rotary_emb\.inv_freq$|(^|\.)position_ids$"
)
"""Masks and tables stored by old versions of transformers; models create their own."""
MAX_CONFIG_SIZES = {"vocab_size": 2**63, "hidden_size": 2**63, "num_hidden_layers": 10_000}
"""Required sizes of a configuration and their maxima."""
DOWNLOAD_AGAIN_HINT = "Download or copy it again, or use another --model."


@dataclass(frozen=True)
class ModelSource:
    """Source of a model, and its name for the user."""

    name: str
    place: str
    """Folder or hub id."""
    gguf: Path | None = None
    """GGUF file, if it is one. Other files of the folder are then ignored."""
    hint: str = "Use a folder written by save_pretrained."
    """Hint if nothing can be loaded."""
    revision: str = ""
    """Commit on the hub; empty for the newest."""


def check_model_files(place: str) -> None:
    """Raise a UserError for references to code or other files, quantised weights, or adapters."""
    if find_small_file(place, "adapter_config.json") is not None:
        fault = f"{place} contains an adapter of peft, not a full model."
        hint = "Merge it into its base model (merge_and_unload), save that, and use its folder."
        raise UserError(fault, hint)
    for entry in sorted(Path(place).iterdir()) if Path(place).is_dir() else ():
        if entry.suffix in MAX_BYTES_BY_SUFFIX:
            with reading_file(
                entry, DOWNLOAD_AGAIN_HINT, max_bytes=MAX_BYTES_BY_SUFFIX[entry.suffix]
            ):
                pass
    for name in CHECKED_FILES:
        file = find_small_file(place, name)
        if file is None:
            continue
        values = read_json_object(file, DOWNLOAD_AGAIN_HINT)
        for key, value in _nested_items(values):
            if value and (
                key == "auto_map" or (key.endswith("_implementation") and "/" in str(value))
            ):
                fault = f"{file} refers to code ({key}: {value!r:.60}), which is never run."
                hint = f"If transformers supports the architecture, remove {key} from the file."
                raise UserError(fault, hint)
            if (
                value
                and key == "tokenizer_class"
                and not TOKENIZER_CLASS_PATTERN.fullmatch(str(value))
            ):
                raise UserError(
                    f"{file} names an unknown tokenizer class ({value!r:.60}).", DOWNLOAD_AGAIN_HINT
                )
            if value and key == "quantization_config":
                fault = (
                    f"{file} declares quantised weights ({key}), which only GGUF files may have."
                )
                hint = f"Use full-precision weights or a GGUF file; if they are, remove {key}."
                raise UserError(fault, hint)
        shards = values.get("weight_map") if name == INDEX_FILE else {}
        if not isinstance(shards, dict) or not all(
            SHARD_PATTERN.fullmatch(str(shard)) for shard in shards.values()
        ):
            fault = f"{file} refers to other files than safetensors in its folder."
            raise UserError(fault, "Use a folder of safetensors written by save_pretrained.")


def find_small_file(place: str, name: str) -> Path | None:
    """Return the path of a model file; None if missing."""
    if Path(place).is_dir():
        return Path(place, name) if Path(place, name).exists() else None
    from transformers.utils import cached_file

    quiet = {
        f"_raise_exceptions_for_{what}": False
        for what in ("missing_entries", "connection_errors", "gated_repo")
    }
    try:
        path = cached_file(place, name, **quiet)
    except Exception:  # loading the model reports errors of hub or name
        return None
    return None if path is None else Path(path)


def _nested_items(value: Json) -> Iterator[tuple[str, Json]]:
    """Yield the keys and values of an object and of all nested objects."""
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
    """Load and check model and tokenizer. `use_all_devices`: split over accelerators if needed."""
    try:
        with quiet_loading():
            check_model_files(source.place)
            model, tokenizer, report = _load_from_files(source, dtype, device, use_all_devices)
        _check_tensors(source, model, report)
        if not tokenizer("a", add_special_tokens=False)["input_ids"]:
            fault = f"{source.place} has no tokenizer (tokenizer.json)."
            raise UserError(fault, "Add it: tokenizer.save_pretrained(FOLDER).")
        if model.get_output_embeddings() is None or not getattr(tokenizer, "is_fast", False):
            name = f"Model {source.name!r} ({model.config.model_type})"
            hint = "Use a causal LM such as Llama, Qwen or Gemma, with tokenizer.json."
            raise UserError(f"{name} has no head or no fast tokenizer.", hint)
    except Exception as error:  # libraries raise various errors on damaged files
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
        # The full path: transformers looks for a bare name in the current folder.
        options["gguf_file"] = str(source.gguf.resolve())
        weights = {}
        if hasattr(transformers, "GgufConfig"):
            weights["quantization_config"] = transformers.GgufConfig(dequantize=True)
    if max_memory := max_memory_per_device(device) if use_all_devices else None:
        weights |= {"device_map": "sequential", "max_memory": max_memory}
    tokenizer = transformers.AutoTokenizer.from_pretrained(source.place, **options)
    config = transformers.AutoConfig.from_pretrained(source.place, **options)
    for size, most in MAX_CONFIG_SIZES.items():
        value = getattr(config.get_text_config(decoder=True), size, None)
        if not isinstance(value, int) or not 0 < value <= most:
            raise ValueError(f"its {size} is {value!r:.30}")
    config._experts_implementation = None  # always the default, without kernels
    model, report = transformers.AutoModelForCausalLM.from_pretrained(
        source.place,
        config=config,
        dtype=dtype or "auto",
        attn_implementation="eager",  # reference for `lm.forward.capability_probe`
        ignore_mismatched_sizes=True,  # they are reported and refused
        output_loading_info=True,
        **weights,
        **options,
    )
    if max_memory and {"cpu", "disk"} & set(map(str, model.hf_device_map.values())):
        raise MemoryError("the weights are larger than all accelerators together")
    return model if max_memory else model.to(device), tokenizer, report


def loading_error(source: ModelSource, error: Exception) -> UserError:
    """Create the user error for a model that could not be loaded."""
    if isinstance(error, UserError):
        return error
    if environment.is_out_of_memory(error):
        environment.lift_memory_limit()
        hint = "Use a smaller --model, --dtype bfloat16, or a device with more memory."
        return UserError(f"Model {source.name!r} does not fit into memory.", hint)
    place = str(source.gguf or source.place)
    shown = "" if place == source.name else f" from {place}"
    return UserError(
        f"Model {source.name!r} could not be loaded{shown}: {error_reason(error)}.", source.hint
    )


def _check_tensors(source: ModelSource, model: PreTrainedModel, report: Mapping[str, Any]) -> None:
    """Raise a UserError for missing, extra, misshapen or non-finite tensors."""
    from ttabench.lm.loading.safetensors_io import first_non_finite_tensor

    shapes = {
        str(name): f"{list(stored)}; its config.json requires {list(expected)}"
        for name, stored, expected in report["mismatched_keys"]
    }
    unknown = sorted(
        name for name in report["unexpected_keys"] if not IGNORED_TENSOR_PATTERN.search(name)
    )
    faults = [
        f"lacks the tensor {name}" for name in sorted(set(report["missing_keys"]) - set(shapes))
    ]
    faults += [f"has the tensor {name}, which its architecture does not use" for name in unknown]
    faults += [f"has a tensor {name} of shape {shape}" for name, shape in sorted(shapes.items())]
    if not faults and (broken := first_non_finite_tensor(model.named_parameters())):
        faults = [f"has a tensor {broken} with values that are not finite"]
    if faults:
        raise UserError(f"Model {source.name!r} {faults[0]}.", DOWNLOAD_AGAIN_HINT)
