"""GGUF files, dequantised once to float32 and kept in the user's cache; joining of split files.

    ~/.cache/ttabench/models/SmolLM2-135M-Instruct.Q4_1-15e22d32bf67/    model.safetensors, ...
    ~/.cache/ttabench/models/gemma3-270m-a5fd3b62230a.gguf               joined parts of a package

$TTABENCH_CACHE or $XDG_CACHE_HOME changes the cache folder.
"""

from __future__ import annotations

import io
import json
import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ttabench.core import environment
from ttabench.core.architectures import Package
from ttabench.core.digests import cached_digest, digest_path, sha256_of
from ttabench.core.errors import UserError
from ttabench.core.files import (
    PART_SUFFIX,
    concatenate_files,
    read_json_object,
    reading_file,
    remove_path,
    replace_atomically,
    write_atomically,
)
from ttabench.lm.loading.model_reader import (
    DOWNLOAD_AGAIN_HINT,
    Loaded,
    ModelSource,
    load_model_and_tokenizer as read_folder,
)

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedTokenizerFast

INSTALL_COMMAND = "pip install gguf"
COPY_FILE = "copy.json"
DIGIT_SPLITTING_PRETOKENIZERS = (
    "smollm",
    "starcoder",
    "refact",
    "command-r",
    "codeshell",
    "exaone",
    "minerva-7b",
)
"""Pre-tokenizers (`tokenizer.ggml.pre`) that separate digits before splitting as GPT-2 does.

transformers 5.23 skips the digits, so blanks and line breaks before a number get wrong tokens."""

log = logging.getLogger(__name__)


def model_cache_folder() -> Path:
    """Return the folder of cached models."""
    return environment.cache_folder() / "models"


@contextmanager
def _writing_to_cache(place: Path) -> Iterator[None]:
    """Lock a place in the cache, and remove what a killed process left there."""
    from filelock import FileLock
    from safetensors import SafetensorError

    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(place.with_name(f".{place.name}.lock")):
            for old in place.parent.glob(f".{place.name}.*{PART_SUFFIX}"):
                remove_path(old)
            yield
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or error
        fault = f"The model cache {place} cannot be written: {reason}."
        raise UserError(fault, "Set TTABENCH_CACHE to another folder.") from None


def join_parts(name: str, package: Package, parts: Sequence[Path]) -> Path:
    """Return the GGUF file joined from the parts of a package; create it if missing or changed."""
    file = model_cache_folder() / f"{name}-{package.sha256[:12]}.gguf"
    if file.is_file() and cached_digest(file, sha256_of) == package.sha256:
        return file
    with _writing_to_cache(file), replace_atomically(file) as scratch:
        log.warning("Joining the %d parts of %s once into %s ...", len(parts), name, file)
        concatenate_files(parts, scratch)
        if sha256_of(scratch) != package.sha256:
            fault = f"The parts of {name} in {parts[0].parents[2]} are damaged: wrong SHA-256."
            raise UserError(fault, f"Run: {package.install} --force-reinstall")
    return file


def load_gguf(
    source: ModelSource,
    dtype: torch.dtype | None,
    device: torch.device,
    use_all_devices: bool = False,
) -> Loaded:
    """Load a GGUF file through its dequantised copy, which is created if missing.

    Returns model, tokenizer and a description of the weights ("Q4_1, dequantised").
    """
    file = source.gguf
    assert file is not None, f"{source.name} is not a GGUF file"
    file_digest = digest_path(file)
    stem = re.sub(r"[^\w.-]", "_", file.stem, flags=re.ASCII)[:80]
    folder = model_cache_folder() / f"{stem}-{file_digest[:12]}"
    if not (folder / COPY_FILE).is_file():
        with _writing_to_cache(folder):
            if not (folder / COPY_FILE).is_file():
                model, tokenizer, weights = dequantise(source, file, folder)
                about = {"source": file.name, "source_digest": file_digest, "weights": weights}
                with environment.quiet_loading(), replace_atomically(folder, folder=True) as part:
                    model.save_pretrained(part)
                    tokenizer.save_pretrained(part)
                    write_atomically(part / COPY_FILE, json.dumps(about, indent=1) + "\n")
    copy = replace(source, place=str(folder), gguf=None, hint=f"Delete {folder}.")
    with reading_file(folder / COPY_FILE, copy.hint):
        weights = str(read_json_object(folder / COPY_FILE, copy.hint)["weights"])
    return *read_folder(copy, dtype, device, use_all_devices)[:2], weights


def dequantise(source: ModelSource, file: Path, folder: Path) -> Loaded:
    """Read a GGUF file into a float32 model on the CPU.

    Returns model, tokenizer and a description of the weights.
    """
    if find_spec("gguf") is None:
        raise UserError(f"Reading {file} requires the package gguf.", f"Run: {INSTALL_COMMAND}")
    import gguf
    import numpy as np
    import torch

    class Bounded(gguf.GGUFReader):  # type: ignore[misc]  # a package without types
        """Reader that stops at the end of the file, even if a damaged length is larger."""

        def _get(self, offset: int, dtype: Any, count: int = 1, *more: Any, **named: Any) -> Any:
            if int(offset) + np.dtype(dtype).itemsize * int(count) > len(self.data):
                raise ValueError("truncated or damaged: a value goes past its end")
            return super()._get(offset, dtype, count, *more, **named)

    with reading_file(file, DOWNLOAD_AGAIN_HINT), np.errstate(over="raise"):
        fields = Bounded(str(file)).fields
        kind, split, parts = (
            fields[name].contents() if name in fields else None
            for name in ("general.file_type", "tokenizer.ggml.pre", "split.count")
        )
        if parts and parts > 1:
            first = re.sub(r"-\d{5}(-of-\d{5})$", r"-00001\1", file.stem) + file.suffix
            hint = (
                f"Run: llama-gguf-split --merge {first} MERGED.gguf, then use --model MERGED.gguf."
            )
            raise UserError(f"{file} is one of {parts} parts of a split model.", hint)
        weights = gguf.LlamaFileType(kind).name if kind in list(gguf.LlamaFileType) else "GGUF"
    log.warning("Dequantising %s once into %s ...", file.name, folder)
    with redirect_stderr(io.StringIO()):  # a progress bar that cannot be disabled
        model, tokenizer, _ = read_folder(source, torch.float32, torch.device("cpu"))
    vars(model.config).pop("quantization_config", None)
    model.hf_quantizer = None
    weights = weights.removeprefix("MOSTLY_").removeprefix("ALL_")
    tokenizer = _fix_tokenizer(tokenizer, split, model.config.vocab_size)
    return (
        model,
        tokenizer,
        weights if weights in ("F32", "F16", "BF16", "F64") else f"{weights}, dequantised",
    )


def _fix_tokenizer(
    tokenizer: PreTrainedTokenizerFast, split: object, vocabulary: int
) -> PreTrainedTokenizerFast:
    """Correct two faults of the conversion by transformers.

    It adds an "<|endoftext|>" without an embedding to byte-level vocabularies that lack it. It also
    ignores `DIGIT_SPLITTING_PRETOKENIZERS`.
    """
    from tokenizers import Tokenizer, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    if len(tokenizer) > vocabulary:
        definition = json.loads(tokenizer.backend_tokenizer.to_str())
        definition["added_tokens"] = [
            token for token in definition["added_tokens"] if token["id"] < vocabulary
        ]
        backend, template = Tokenizer.from_str(json.dumps(definition)), tokenizer.chat_template
        roles = {
            role: token
            for role, token in tokenizer.special_tokens_map.items()
            if isinstance(token, str)
        }
        known = {
            role: token for role, token in roles.items() if backend.token_to_id(token) is not None
        }
        tokenizer = PreTrainedTokenizerFast(
            tokenizer_object=backend, chat_template=template, **known
        )
    if split in DIGIT_SPLITTING_PRETOKENIZERS:
        byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
        digits = pre_tokenizers.Digits(individual_digits=True)
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, byte_level])
    return tokenizer
