"""The small files of a model, looked at before transformers reads them: no code, no quantised weights, no lone adapter.

check("./smollm2")                           a folder
check("HuggingFaceTB/SmolLM2-135M")          a hub id: its files are in the hub's cache, or are fetched
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from ttabench.core.checked_file import ANY, object_of, reading
from ttabench.core.errors import UserError
from ttabench.core.types import Json

ADAPTER, INDEX = "adapter_config.json", "model.safetensors.index.json"
READ = ("config.json", "generation_config.json", "tokenizer_config.json", INDEX)
TOKENIZER = re.compile(r"\w*(Tokenizer|TokenizerFast|Backend)")
"""Any class of transformers may be named; that of a model would read pickles."""
LONGEST = {".json": 2**27, ".safetensors": ANY, ".jinja": 2**20, ".model": 2**27, ".txt": 2**27}
"""Bytes of what transformers reads in a model folder."""
SHARD = re.compile(r"\w[\w.-]*\.safetensors")
TABLES = re.compile(r"(^|\.)(attn|attention)\.(bias|masked_bias)$|rotary_emb\.inv_freq$|(^|\.)position_ids$")
"""Masks and tables that older versions of transformers stored beside the weights; models make their own."""
AGAIN = "Download or copy it again, or give another --model."


def check(place: str) -> None:
    """Refuse what names code, other files or quantised weights, and an adapter."""
    if small_file(place, ADAPTER) is not None:
        fault = f"{place} holds an adapter of peft ({ADAPTER}), not a model alone."
        raise UserError(fault, "Merge it into its base model (merge_and_unload), save that, and give its folder.")
    for entry in sorted(Path(place).iterdir()) if Path(place).is_dir() else ():
        if entry.suffix in LONGEST:
            with reading(entry, AGAIN, most=LONGEST[entry.suffix]):
                pass
    for name in READ:
        file = small_file(place, name)
        values = {} if file is None else object_of(file, AGAIN)
        for key, value in _fields(values):
            if value and (key == "auto_map" or (key.endswith("_implementation") and "/" in str(value))):
                fault = f"{file} names code ({key}: {value!r:.60}); no such code is run here."
                raise UserError(fault, f"If transformers knows the architecture itself, take {key} out of the file.")
            if value and key == "tokenizer_class" and not TOKENIZER.fullmatch(str(value)):
                raise UserError(f"{file} names a tokenizer that is none ({value!r:.60}).", AGAIN)
            if value and key == "quantization_config":
                fault = f"{file} says that the weights are quantised ({key}); those of GGUF files are read alone."
                raise UserError(fault, f"Give full-precision weights, or a GGUF file; if these are, take {key} out.")
        shards = values.get("weight_map") if name == INDEX and file is not None else {}
        if not isinstance(shards, dict) or not all(SHARD.fullmatch(str(shard)) for shard in shards.values()):
            hint = "Give a folder of safetensors written by save_pretrained."
            raise UserError(f"{file} names other files; only safetensors files beside it are read.", hint)


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


def _fields(value: Json) -> Iterator[tuple[str, Json]]:
    """Keys and values of an object and of all objects within it."""
    for key, inner in value.items() if isinstance(value, dict) else ():
        yield key, inner
        yield from _fields(inner)
    for inner in value if isinstance(value, list) else ():
        yield from _fields(inner)
