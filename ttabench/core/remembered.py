"""Digests of large files, remembered from call to call in the user's cache, one small file of JSON each.

    remembered(Path("model.gguf"), compute)    compute(path), or what it gave while the file was what it is now

A digest is of a path, a size, an inode and two times, of the last change of the content and of anything; where one of
them differs the file is read again, and so is one that changed within the last `SETTLED` seconds, for another change
within one tick of its clock would leave the times as they are. A cache that is missing, damaged or cannot be written
costs time and nothing else.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from ttabench.core.checked_file import json_of
from ttabench.core.environment import cache_folder
from ttabench.core.errors import UserError
from ttabench.core.files import write_atomically
from ttabench.core.types import Json

SETTLED = 2.0
"""Seconds; the clocks of some file systems tick so slowly."""
_DIGEST = re.compile(r"[0-9a-f]{64}")
_MOST_BYTES = 2**16


def remembered(file: Path, compute: Callable[[Path], str]) -> str:
    """The digest of a file: 64 hexadecimal digits.

    Args:
        file: exists.
        compute: reads the file and gives its digest.
    """
    place = file.resolve()
    seen = place.stat()
    settled = max(seen.st_mtime, seen.st_ctime) < time.time() - SETTLED
    if settled and (known := _known(_key(place, seen))):
        return known
    file_digest = compute(place)
    if settled and _key(place, place.stat()) == _key(place, seen):
        _remember(_key(place, seen), file_digest)
    return file_digest


def _key(place: Path, seen: os.stat_result) -> list[Json]:
    """The key of a file in the cache, as JSON."""
    return [os.fsencode(place).hex(), seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns, seen.st_ino]


def _entry(key: list[Json]) -> Path:
    return cache_folder() / "digests" / f"{hashlib.sha256(key[0].encode()).hexdigest()[:32]}.json"


def _known(key: list[Json]) -> str:
    """The digest that is remembered of a file; "" where none is."""
    try:
        content = json_of(_entry(key), _MOST_BYTES)
    except (OSError, ValueError, RuntimeError):  # the last where nobody says where the home folder is
        return ""
    if not isinstance(content, dict) or content.get("file") != key or not isinstance(content.get("digest"), str):
        return ""
    return str(content["digest"]) if _DIGEST.fullmatch(content["digest"]) else ""


def _remember(key: list[Json], file_digest: str) -> None:
    with suppress(OSError, RuntimeError, UserError):
        _entry(key).parent.mkdir(parents=True, exist_ok=True)
        write_atomically(_entry(key), json.dumps({"file": key, "digest": file_digest}) + "\n")
