"""What files hold, in 16 hexadecimal digits: files are identified by that, not by where they lie."""

from __future__ import annotations

import hashlib
from pathlib import Path

from ttabench.core.errors import UserError
from ttabench.core.locks import LOCK_FILE

SAMPLED_BYTES = 64 * 2**20
"""Of a longer file only the first and the last half of this many bytes are hashed, with its length."""


def digest(path: Path) -> str:
    """16 hexadecimal digits that change when the file, or any file below the folder but a lock, changes.

    Raises:
        UserError: the path does not exist or cannot be read.
    """
    if not path.exists():
        raise UserError(f"{path} does not exist.", "Check the spelling, or give the full path.")
    inside = (file for file in path.rglob("*") if file.is_file() and file.name != LOCK_FILE)
    files = [path] if path.is_file() else sorted(inside)
    whole = hashlib.sha256()
    try:
        for file in files:
            whole.update(f"{file.relative_to(path)}\0{file.stat().st_size}\0".encode("utf-8", "surrogateescape"))
            _hash_file(file, whole)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.", "Check its permissions.") from None
    return whole.hexdigest()[:16]


def _hash_file(file: Path, whole: hashlib._Hash) -> None:
    half = SAMPLED_BYTES // 2
    size = file.stat().st_size
    with file.open("rb") as handle:
        if size <= SAMPLED_BYTES:
            whole.update(handle.read())
            return
        whole.update(handle.read(half))
        handle.seek(size - half)
        whole.update(handle.read(half))
