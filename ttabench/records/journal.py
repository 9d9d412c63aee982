"""Findings of work that goes on, one JSON object a line; what a killed process left is read line by line.

journal = Journal(Path("partial.jsonl"))
journal.append([{"kind": "sample", "value": {...}}])     on the disk when it returns
journal.read()                                           [{"kind": "sample", "value": {...}}], 0 left out
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ttabench.core import files
from ttabench.core.checked_file import Unreadable, plain
from ttabench.core.errors import UserError
from ttabench.core.types import Json

DIGITS = 18
"""Longest whole number that a line may hold: it fits into 64 bits."""
LONGEST = 1 << 35
"""Bytes of a journal that are read into memory."""


class Journal:
    """A file of lines; every line is checked before it counts.

    Args:
        path: need not exist.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def exists(self) -> bool:
        """Whether anything was ever found."""
        return self.path.exists()

    def read(self) -> tuple[list[dict[str, Any]], int]:
        """The lines that have a kind and a value, and how many others there are: damaged or cut.

        A last line that was cut in the middle of writing is removed from the file, so that what is appended stands
        apart.
        """
        if self.path.is_symlink():
            raise UserError(f"{self.path} is a link to another file.", "Remove it, or give another --out.")
        try:
            content = plain(self.path, LONGEST).read_bytes()
            whole = content[: content.rfind(b"\n") + 1]
            if len(whole) < len(content):
                files.cut(self.path, len(whole))
        except FileNotFoundError:
            return [], 0
        except (OSError, Unreadable) as error:
            fault = f"{self.path} cannot be read: {getattr(error, 'strerror', None) or error}."
            raise UserError(fault, "Remove it, or give another --out.") from None
        parsed = [_parsed(line) for line in whole.splitlines()]
        kept = [line for line in parsed if "kind" in line and "value" in line]
        return kept, len(parsed) - len(kept) + (len(whole) < len(content))

    def append(self, lines: Iterable[Mapping[str, Json]]) -> None:
        """Keep findings, at once."""
        files.append(self.path, _text(lines))

    def replace(self, lines: Iterable[Mapping[str, Json]]) -> None:
        """Keep these findings instead of those that are there."""
        files.write_atomically(self.path, _text(lines))

    def discard(self) -> None:
        """Forget all findings."""
        try:
            if self.path.is_dir() and not self.path.is_symlink():
                raise IsADirectoryError(21, "Is a directory")
            files.remove(self.path)
        except OSError as error:
            fault = f"{self.path} cannot be removed: {error.strerror or error}."
            raise UserError(fault, "Remove it, or give another --out.") from None


def _text(lines: Iterable[Mapping[str, Json]]) -> str:
    return "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)


def _parsed(line: bytes) -> dict[str, Any]:
    """The JSON object of a line; an empty one where it is none that can be stored."""
    try:
        parsed = json.loads(line, parse_int=_integer)
        json.dumps(parsed, ensure_ascii=False).encode("utf-8")  # half a surrogate pair is no text
    except (ValueError, RecursionError):
        return {}
    return parsed if isinstance(parsed, dict) else {}


def _integer(text: str) -> int:
    if len(text) > DIGITS:
        raise ValueError(f"a whole number of {len(text)} digits")
    return int(text)
