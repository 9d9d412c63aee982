"""The small files of a model that transformers reads, checked before it does: no code, nothing outside, no damage.

    check("./smollm2")                           a folder
    check("HuggingFaceTB/SmolLM2-135M")          a hub id: its files are in the hub's cache, or are fetched

A configuration may name code of its own (`auto_map`), a kernel that is fetched and executed (`attn_implementation:
org/kernel`), any class of transformers in place of a tokenizer, and files elsewhere; an index of weights may name
pickles, and files of other folders. All of that is refused: what is read is JSON and safetensors beside config.json.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from ttabench.core.checked_file import json_of
from ttabench.core.errors import UserError
from ttabench.core.types import Json
from ttabench.lm.loading.safetensors_io import formats

CONFIG = "config.json"
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
ADAPTER = "adapter_config.json"
READ = (
    CONFIG,
    "generation_config.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    INDEX,
)
"""Small JSON files of a model that transformers reads; some faults in them it passes over."""
SUFFIXES = (".json", ".safetensors", ".jinja", ".model", ".txt")
"""Of what transformers reads in a model folder; a pipe of that name would be waited for."""
DEEPEST = {"num_hidden_layers": 10_000, "n_layer": 10_000, "num_layers": 10_000}
"""More layers than any model has: a damaged number would be built layer by layer, for ever."""
ELSEWHERE = ("configuration_files", "fast_tokenizer_files", "transformers_weights", "vocab", "merges", "gguf_file")
"""Names of other files to read in place of the usual ones; `save_pretrained` writes none of them."""
TOKENIZER = re.compile(r"\w*(Tokenizer|TokenizerFast|Backend)")
"""Any class of transformers may be named; that of a model would read pickles."""
SHARD = re.compile(r"\w[\w.-]*\.safetensors")
FLOATS = ("F64", "F32", "F16", "BF16")
TABLES = re.compile(r"(^|\.)(attn|attention)\.(bias|masked_bias)$|rotary_emb\.inv_freq$|(^|\.)position_ids$")
"""Masks and tables that older versions of transformers stored beside the weights; models make their own."""
AGAIN = "Download or copy it again, or give another --model."


def check(place: str) -> None:
    """Refuse what is damaged, names code or other files, or is an adapter; transformers passes over some of it.

    Args:
        place: folder or hub id of a model.

    Raises:
        UserError: naming the file and what is in it.
    """
    if small_file(place, ADAPTER) is not None:
        fault = f"{place} holds an adapter of peft ({ADAPTER}), not a model alone."
        raise UserError(fault, "Merge it into its base model (merge_and_unload), save that, and give its folder.")
    for entry in sorted(Path(place).iterdir()) if Path(place).is_dir() else ():
        if entry.suffix in SUFFIXES and not entry.is_file():
            raise UserError(f"{entry} is no file.", AGAIN)
    for name in READ:
        if (file := small_file(place, name)) is not None:
            _check_values(file, _object(file))


def check_formats(place: str) -> None:
    """Refuse weights that are no floating-point numbers: whole numbers are quantised, or of something else.

    Raises:
        UserError: naming the first tensor.
        OSError, ValueError: a file of weights cannot be read.
    """
    index = small_file(place, INDEX) if small_file(place, WEIGHTS) is None else None
    names = [WEIGHTS] if index is None else sorted(set(_object(index)["weight_map"].values()))
    for file in (small_file(place, name) for name in names):
        for tensor, form in formats(file).items() if file is not None else ():
            if form not in FLOATS and not TABLES.search(tensor):
                hint = f"Give its weights as {', '.join(FLOATS)}, or as a GGUF file."
                raise UserError(f"Tensor {tensor} of {file} is stored as {form}.", hint)


def small_file(place: str, name: str) -> Path | None:
    """Where a file of the model is, None where it has none."""
    if Path(place).is_dir():
        return Path(place, name) if Path(place, name).exists() else None
    from transformers.utils import cached_file

    quiet = {f"_raise_exceptions_for_{what}": False for what in ("missing_entries", "connection_errors", "gated_repo")}
    try:
        path = cached_file(place, name, **quiet)
    except (OSError, ValueError):  # whoever loads the model says what is wrong with the hub, or the name
        return None
    return None if path is None else Path(path)


def _object(file: Path) -> dict[str, Json]:
    try:
        values = json_of(file)
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())[:120]
        raise UserError(f"{file} is damaged: {reason}.", AGAIN) from None
    if not isinstance(values, dict):
        raise UserError(f"{file} is damaged: it holds a {type(values).__name__}, not an object.", AGAIN)
    return values


def _check_values(file: Path, values: Mapping[str, Json]) -> None:
    for key, value in _fields(values):
        if key == "auto_map" and value:
            fault = f"{file} names code that the model brings (auto_map); no such code is run here."
            raise UserError(fault, "If transformers knows the architecture itself, take auto_map out of the file.")
        if key.endswith("_implementation") and any("/" in text for text in _texts(value)):
            fault = f"{file} names code that is fetched ({key}: {value!r:.60}); no such code is run here."
            raise UserError(fault, f"Take {key} out of the file.")
        if key == "quantization_config" and value:
            fault = f"{file} says that the weights are quantised ({key}); those of GGUF files are read alone."
            raise UserError(fault, f"Give its full-precision weights, or a GGUF file; if these are, take {key} out.")
        if key == "tokenizer_class" and value is not None and not TOKENIZER.fullmatch(str(value)):
            raise UserError(f"{file} names no tokenizer ({key}: {value!r:.60}).", f"Take {key} out of the file.")
    for key in ELSEWHERE:
        if any(isinstance(text, str) for text in _texts(values.get(key))):
            fault = f"{file} names other files to read ({key}: {values[key]!r:.60}); only those beside it are read."
            raise UserError(fault, f"Take {key} out of the file.")
    for field, most in DEEPEST.items():
        if isinstance(depth := values.get(field), int) and depth > most:
            raise UserError(f"{file} is damaged: its {field} is {str(depth)[:12]}.", AGAIN)
    if file.name == INDEX:
        _check_index(file, values)


def _check_index(file: Path, values: Mapping[str, Json]) -> None:
    shards = values.get("weight_map")
    if not isinstance(shards, dict):
        raise UserError(f"{file} is damaged: it has no weight_map.", AGAIN)
    for name in shards.values():
        if not isinstance(name, str) or not SHARD.fullmatch(name):
            fault = f"{file} names {name!r:.60}; only safetensors files beside it are read."
            raise UserError(fault, "Give a folder of safetensors written by save_pretrained.")


def _fields(value: Json) -> Iterator[tuple[str, Json]]:
    """Keys and values of an object and of all objects within it."""
    for key, inner in value.items() if isinstance(value, dict) else ():
        yield key, inner
        yield from _fields(inner)
    for inner in value if isinstance(value, list) else ():
        yield from _fields(inner)


def _texts(value: Json) -> Iterator[str]:
    """Every text in a value."""
    if isinstance(value, str):
        yield value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _texts(inner)
