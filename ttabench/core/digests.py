"""Digests of file contents (16 hexadecimal digits) and hashes of configurations.

Digests of large files are cached per user, by path, size, inode and times. If one of them differs,
or the file changed within the last seconds, it is read again. A damaged or unwritable cache only
costs time.

A configuration hash leaves out values equal to the default, so a new setting with a default keeps
existing hashes. If a default changes its meaning, rename the setting or raise `HASH_SCHEMA`.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TypeVar, cast

from safetensors import safe_open

from ttabench.core.environment import cache_folder
from ttabench.core.errors import UserError
from ttabench.core.files import (
    INDEX_FILE,
    LOCK_FILE,
    MAX_STREAMED_BYTES,
    read_json_object,
    reading_file,
    write_atomically,
)
from ttabench.core.types import Json

T = TypeVar("T")
MAX_BYTES_BY_SUFFIX = {".json": 2**27, ".jinja": 2**20, ".model": 2**27, ".txt": 2**27}
"""Largest accepted file of a model or checkpoint folder in bytes, by suffix."""
MIN_CACHED_DIGEST_BYTES = 64 * 2**20
"""Size in bytes above which a file enters a digest by its own, cached digest."""
SETTLED_SECONDS = 2.0
"""Minimum age of a file whose digest is cached: some file systems have coarse timestamps."""


def digest_path(path: Path) -> str:
    """Return the digest of a file, or of all files below a folder except locks and indexes."""
    if not path.exists():
        raise UserError(f"{path} does not exist.", "Fix the path, or use the full path.")
    inside = (
        file
        for file in path.rglob("*")
        if file.is_file() and file.name not in (LOCK_FILE, INDEX_FILE)
    )
    files = [path] if path.is_file() else sorted(inside)
    hasher = hashlib.sha256()
    for file in files:
        with reading_file(
            file,
            max_bytes=MAX_STREAMED_BYTES
            if file == path
            else MAX_BYTES_BY_SUFFIX.get(file.suffix, MAX_STREAMED_BYTES),
        ):
            size = file.stat().st_size
            if size > MIN_CACHED_DIGEST_BYTES and file.suffix == ".safetensors":
                # rejects a length that contradicts its header before the whole file is read
                with safe_open(file, "numpy"):
                    pass
            hasher.update(f"{file.relative_to(path)}\0{size}\0".encode("utf-8", "surrogateescape"))
            hasher.update(
                file.read_bytes()
                if size <= MIN_CACHED_DIGEST_BYTES
                else cached_digest(file, sha256_of).encode()
            )
    return hasher.hexdigest()[:16]


def refuse_changed_files(now: Mapping[str, str], planned: Mapping[str, str]) -> None:
    """Raise a UserError if a digest differs from the planned one: the run id would be wrong."""
    if changed := [name for name, value in now.items() if planned.get(name, "") != value]:
        fault = f"Files changed while they were being loaded: {', '.join(changed)}."
        raise UserError(fault, "Run the command again once no process writes to them.")


def sha256_of(file: Path) -> str:
    """Return the SHA-256 of a file, 64 hexadecimal digits."""
    with file.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


class FileCache:
    """Cache of values computed from files, in one file of the user's cache folder."""

    def __init__(self, name: str) -> None:
        self._added: dict[str, Json] = {}
        self._path: Path | None = None
        with suppress(RuntimeError):  # the home folder is unknown
            self._path = cache_folder() / f"{name}.json"
        self._entries = self._load()

    def _load(self) -> dict[str, Json]:
        with suppress(OSError, UserError):
            return read_json_object(self._path) if self._path is not None else {}
        return {}

    def get_or_compute(self, file: Path, compute: Callable[[Path], T]) -> T:
        """Return `compute(file)`, a JSON value, from the cache if the file is unchanged."""
        try:
            status, place = file.stat(), str(file.absolute())
        except OSError:
            return compute(file)  # raises the error with its reason
        version = [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]
        match self._entries.get(place):
            case [known, check, value] if known == version and check == short_hash(
                canonical_json(value)
            ):
                return cast(T, value)
        value = compute(file)
        if max(status.st_mtime, status.st_ctime) < time.time() - SETTLED_SECONDS:
            self._entries[place] = self._added[place] = [
                version,
                short_hash(canonical_json(value)),
                value,
            ]
        return value

    def save(self) -> None:
        """Write new entries. Entries that other processes wrote meanwhile are kept."""
        if self._added and self._path is not None:
            with suppress(OSError, UserError):
                self._path.parent.mkdir(parents=True, exist_ok=True)
                write_atomically(self._path, json.dumps(self._load() | self._added) + "\n")


def cached_digest(file: Path, compute: Callable[[Path], str]) -> str:
    """Return `compute(file)`, from the cache if the file is unchanged."""
    cache = FileCache("digests")
    value = cache.get_or_compute(file.resolve(), compute)
    cache.save()
    return value


HASH_SCHEMA = 2
"""Version of the hash input, part of every hash. Version 1 hashed defaults too."""
HASH_DIGITS = 12


def non_default_values(values: Mapping[str, Json], defaults: Mapping[str, Json]) -> dict[str, Json]:
    """Return the values that differ from their default or have none.

    Values are compared as JSON: a tuple equals a list; 1, 1.0 and true differ.
    """
    default_texts = {key: canonical_json(value) for key, value in defaults.items()}
    return {
        key: value
        for key, value in values.items()
        if canonical_json(value) != default_texts.get(key)
    }


def canonical_json(value: Json) -> str:
    """Serialise a value as canonical JSON: sorted keys, no spaces."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def short_hash(text: str) -> str:
    """Return the first 12 hexadecimal digits of the SHA-256 of a text."""
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:HASH_DIGITS]


def hash_values(what: Mapping[str, Json]) -> str:
    """Hash JSON values and `HASH_SCHEMA` to 12 hexadecimal digits."""
    return short_hash(canonical_json({"schema": HASH_SCHEMA, **what}))
