"""Digests of files' contents, 16 hexadecimal digits: they identify a file wherever it lies.

Those of large files are remembered in the user's cache, by path, size, inode and times: where one of them differs the
file is read again, and so is one that changed a moment ago. A cache that is damaged or cannot be written costs time.

And names for what is computed: a hash of all that decides it, in which a choice that is the default does not stand. So
a new setting with a default leaves every name as it was. A default that comes to mean something else would not be seen:
give such a setting a new name, or raise `SCHEMA`, which renames everything.
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
MAX_BYTES_BY_SUFFIX = {
    ".json": 2**27,
    ".safetensors": MAX_STREAMED_BYTES,
    ".jinja": 2**20,
    ".model": 2**27,
    ".txt": 2**27,
}
"""Bytes of what is read in a folder of a model or checkpoint, by suffix: a longer file would be digested for hours."""
MIN_CACHED_DIGEST_BYTES = 64 * 2**20
"""Bytes; a longer file counts by a digest of its own, which is remembered."""
SETTLED_SECONDS = 2.0
"""Seconds; the clocks of some file systems tick so slowly."""


def digest_path(path: Path) -> str:
    """16 hexadecimal digits that change when the file, or any file below the folder but a lock or list, changes."""
    if not path.exists():
        raise UserError(f"{path} does not exist.", "Check the spelling, or give the full path.")
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
                with safe_open(
                    file, "numpy"
                ):  # refuses a length that its header does not say, before reading all
                    pass
            hasher.update(f"{file.relative_to(path)}\0{size}\0".encode("utf-8", "surrogateescape"))
            hasher.update(
                file.read_bytes()
                if size <= MIN_CACHED_DIGEST_BYTES
                else cached_digest(file, sha256_of).encode()
            )
    return hasher.hexdigest()[:16]


def refuse_changed_files(now: Mapping[str, str], planned: Mapping[str, str]) -> None:
    """Refuse files whose digests, by name, are not those that were planned with: results would be stored under another
    id than their own."""
    if changed := [name for name, value in now.items() if planned.get(name, "") != value]:
        fault = f"Files changed while they were being loaded: {', '.join(changed)}."
        raise UserError(fault, "Repeat the command once nothing writes to them.")


def sha256_of(file: Path) -> str:
    """The SHA-256 of what a file holds, 64 hexadecimal digits."""
    with file.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


class FileCache:
    """What was computed of files, by path, size, inode and times, in a file of that name in the user's cache."""

    def __init__(self, name: str) -> None:
        self._added: dict[str, Json] = {}
        self._path: Path | None = None
        with suppress(RuntimeError):  # nobody says where the home folder is
            self._path = cache_folder() / f"{name}.json"
        self._entries = self._load()

    def _load(self) -> dict[str, Json]:
        with suppress(OSError, UserError):
            return read_json_object(self._path) if self._path is not None else {}
        return {}

    def get_or_compute(self, file: Path, compute: Callable[[Path], T]) -> T:
        """What `compute` gives of a file, or gave while the file was what it is now; JSON values."""
        try:
            status, place = file.stat(), str(file.absolute())
        except OSError:
            return compute(file)  # which says what is wrong
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
        """Write what is new beside what others have written by now."""
        if self._added and self._path is not None:
            with suppress(OSError, UserError):
                self._path.parent.mkdir(parents=True, exist_ok=True)
                write_atomically(self._path, json.dumps(self._load() | self._added) + "\n")


def cached_digest(file: Path, compute: Callable[[Path], str]) -> str:
    """What `compute` gives of a file, or gave while the file was what it is now."""
    memory = FileCache("digests")
    value = memory.get_or_compute(file.resolve(), compute)
    memory.save()
    return value


HASH_SCHEMA = 2
"""Of what is hashed; part of every name. 1 was a hash of everything, defaults included."""
HASH_DIGITS = 12


def non_default_values(values: Mapping[str, Json], defaults: Mapping[str, Json]) -> dict[str, Json]:
    """The values that are not the defaults, and those that have none. As JSON a tuple is a list; 1, 1.0 and true are
    three values."""
    default_texts = {key: canonical_json(value) for key, value in defaults.items()}
    return {
        key: value
        for key, value in values.items()
        if canonical_json(value) != default_texts.get(key)
    }


def canonical_json(value: Json) -> str:
    """JSON of one form for one value: sorted keys, no spaces."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def short_hash(text: str) -> str:
    """12 hexadecimal digits of the SHA-256 of a text."""
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:HASH_DIGITS]


def hash_values(what: Mapping[str, Json]) -> str:
    """12 hexadecimal digits that follow from JSON values and from `SCHEMA`."""
    return short_hash(canonical_json({"schema": HASH_SCHEMA, **what}))
