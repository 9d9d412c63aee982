"""Copies of GGUF files: dequantised once to float32 safetensors, which the user's cache keeps.

    ~/.cache/ttabench/models/SmolLM2-135M-Instruct.Q4_1-15e22d32bf67/     model.safetensors, tokenizer.json, ...
                                                                 copy.json  of which file, its quantisation, digests

$TTABENCH_CACHE or $XDG_CACHE_HOME name another cache. A copy is written aside and renamed when it is whole, under a
lock; one whose files have changed since is made anew. Where the cache cannot be written the file is read each time.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import re
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ttabench.core import environment
from ttabench.core.checked_file import json_of
from ttabench.core.digests import digest
from ttabench.core.environment import quiet_loading, versions
from ttabench.core.errors import UserError
from ttabench.core.files import PART, remove, replacing_folder, write_atomically
from ttabench.lm.loading import model_reader
from ttabench.lm.loading.gguf_files import dequantised, readable_header, weights_of
from ttabench.lm.loading.gguf_header import Header
from ttabench.lm.loading.model_reader import Source

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

SCHEMA = 1
"""Of the copies; those of another are made anew."""
COPY_FILE = "copy.json"
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Copy:
    """The contents of `copy.json`."""

    schema: int
    source: str
    source_digest: str
    weights: str
    """Quantisation for records, e.g. "Q4_1, dequantised"."""
    files: dict[str, str]
    """Digest of every other file of the folder."""
    versions: dict[str, str]


class _CannotWrite(Exception):
    """The cache cannot be written."""


def cache_folder() -> Path:
    """Where dequantised models are kept."""
    return environment.cache_folder() / "models"


def read(
    source: Source, dtype: torch.dtype | None, device: torch.device
) -> tuple[PreTrainedModel, PreTrainedTokenizerFast, str]:
    """Model, tokenizer and what its weights are, of a GGUF file; its copy is made if there is none.

    Args:
        source: with the file as `gguf`.
        dtype: of the weights; None is float32.
        device: where the weights go.

    Raises:
        UserError: see `model_reader.read`; a file that is truncated, damaged or of an architecture that transformers
            does not know; no package gguf; no room in the cache.
    """
    file = source.gguf
    assert file is not None, f"{source.name} is no GGUF file"
    source_digest = digest(file)
    stem = re.sub(r"[^\w.-]", "_", file.stem, flags=re.ASCII)[:80]
    folder = cache_folder() / f"{stem}-{source_digest[:12]}"
    copy = _stored(folder, source_digest)
    if copy is None:
        header = readable_header(file)
        try:
            copy = _made(source, header, folder, source_digest)
        except _CannotWrite as error:
            log.warning("Note: %s; dequantising %s for this run alone.", error, file.name)
            model, tokenizer = dequantised(source, header)
            return model.to(device, dtype), tokenizer, weights_of(header)
    loaded = model_reader.read(Source(source.name, str(folder), hint=f"Delete {folder}."), dtype, device)
    return *loaded, copy.weights


def _stored(folder: Path, source_digest: str) -> Copy | None:
    """The copy in the folder, if it is whole and of that file."""
    try:
        copy = Copy(**json_of(folder / COPY_FILE))
        whole = copy.schema == SCHEMA and copy.source_digest == source_digest and copy.files == _digests(folder)
    except (OSError, ValueError, TypeError, UserError):
        return None
    return copy if whole else None


def _digests(folder: Path) -> dict[str, str]:
    return {file.name: digest(file) for file in sorted(folder.iterdir()) if file.name != COPY_FILE}


def _made(source: Source, header: Header, folder: Path, source_digest: str) -> Copy:
    """Make the copy, or wait for the process that makes it.

    Raises:
        _CannotWrite: the cache cannot be written.
        UserError: no room in it; whatever `model_reader.read` raises.
    """
    with _locked(folder, source):
        if (copy := _stored(folder, source_digest)) is not None:
            return copy
        for old in (folder, *folder.parent.glob(f".{folder.name}.*{PART}")):  # damaged since; or of a killed process
            with contextlib.suppress(OSError):
                remove(old)
        _check_room(folder.parent, 4 * sum(tensor.elements for tensor in header.tensors), source)
        assert source.gguf is not None
        log.warning("Dequantising %s once into %s ...", source.gguf.name, folder)
        model, tokenizer = dequantised(source, header)
        with _writing(folder.parent, source), quiet_loading(), replacing_folder(folder) as part:
            model.save_pretrained(part)
            tokenizer.save_pretrained(part)
            copy = Copy(SCHEMA, source.gguf.name, source_digest, weights_of(header), _digests(part), versions())
            write_atomically(part / COPY_FILE, json.dumps(asdict(copy), indent=1) + "\n")
    return copy


@contextlib.contextmanager
def _locked(folder: Path, source: Source) -> Iterator[None]:
    from filelock import FileLock, Timeout

    lock = FileLock(folder.with_name(f".{folder.name}.lock"))
    with _writing(folder.parent, source):
        folder.parent.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            log.warning("Another process is dequantising %s; waiting for it.", source.name)
            lock.acquire()
    try:
        yield
    finally:
        lock.release()


@contextlib.contextmanager
def _writing(cache: Path, source: Source) -> Iterator[None]:
    """Faults of writing told apart: a full disk, which the user is told of, and a cache that cannot be written."""
    from safetensors import SafetensorError

    try:
        yield
    except (OSError, SafetensorError) as error:
        number = getattr(error, "errno", None)
        system_error = re.search(r"os error (\d+)", str(error))
        number = int(system_error.group(1)) if number is None and system_error else number
        if number in FULL:
            raise _no_room(cache, source) from None
        raise _CannotWrite(f"{cache} cannot be written ({getattr(error, 'strerror', None) or error})") from None


def _check_room(cache: Path, needed: int, source: Source) -> None:
    with contextlib.suppress(OSError):
        if shutil.disk_usage(cache).free < needed:
            raise _no_room(cache, source, f" ({needed / 2**20:,.0f} MiB)")


def _no_room(cache: Path, source: Source, size: str = "") -> UserError:
    fault = f"There is no room in {cache} for the dequantised weights of {source.name}{size}."
    return UserError(fault, "Free some, or name another folder with TTABENCH_CACHE.")
