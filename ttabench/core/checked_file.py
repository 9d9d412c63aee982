"""Opens the small files of a user's folders: a pipe, a device or a file that is too long is refused.

json_of(Path("mine/state.json"))      the value; a ValueError says in a few words why there is none

A pipe would be waited for, a device read without end, and brackets nested without end would break the parser. Tensors
are opened in `lm/loading/safetensors_io.py`.
"""

from __future__ import annotations

import json
import stat
from itertools import chain
from pathlib import Path

from ttabench.core.types import Json

LONGEST = 256 * 2**20
"""Bytes; no record or header of this package comes near."""
DEEPEST = 100
"""Lists and objects within each other; whatever walks through a value may then call itself."""
ANY = 1 << 46
"""Bytes; whatever a disk holds, of files that are not read into memory at once."""


SMALL = 256 * 2**20
"""Bytes to which every compressed file may unpack."""
TIMES = 100
"""How many times its own size a longer one may."""


class Unreadable(ValueError):
    """Why a file is not read, in a few words."""


def plain(path: Path, most: int = LONGEST) -> Path:
    """The path of a plain file of at most so many bytes.

    Raises:
        OSError: it is not there, or cannot be looked at.
        Unreadable: it is something else, or longer.
    """
    status = path.stat()
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(21, "Is a directory", str(path))
    if not stat.S_ISREG(status.st_mode):
        raise Unreadable("it is no plain file")
    if status.st_size > most:
        raise Unreadable(f"its {status.st_size / 2**20:,.0f} MiB are too long")
    return path


def refuse_expanding(path: Path, unpacked: int, times: int = TIMES) -> None:
    """See that a compressed file does not unpack to a multiple of its size, as no data of people does."""
    if unpacked > SMALL and unpacked > times * path.stat().st_size:
        raise Unreadable(f"it unpacks to more than {times} times its size")


def read_text(path: Path, most: int = LONGEST) -> str:
    """The text of a file in UTF-8.

    Raises:
        OSError: it is not there, or cannot be read.
        Unreadable: it is no plain file, or longer than so many bytes.
        UnicodeDecodeError: it is no UTF-8.
    """
    return plain(path, most).read_text(encoding="utf-8")


def json_of(path: Path, most: int = LONGEST) -> Json:
    """The value in a JSON file.

    Raises:
        OSError: it is not there, or cannot be read.
        ValueError: it is no plain file, too long, no UTF-8, no JSON, or nested too deep.
    """
    return json_in(read_text(path, most))


def json_in(text: str) -> Json:
    """The value of a text in JSON.

    Raises:
        ValueError: it is no JSON, or nested too deep.
    """
    try:
        value = json.loads(text)
    except RecursionError:
        raise Unreadable("it is nested too deep") from None
    if _is_deeper(value, DEEPEST):
        raise Unreadable("it is nested too deep")
    return value


def _is_deeper(value: Json, most: int) -> bool:
    """Whether lists and objects stand in each other more than so many times."""
    level = [value]
    for _ in range(most):
        inside = (
            inner.values() if isinstance(inner, dict) else inner for inner in level if isinstance(inner, dict | list)
        )
        level = list(chain.from_iterable(inside))
    return any(isinstance(inner, dict | list) for inner in level)
