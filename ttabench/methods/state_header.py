"""What the JSON beside a state's tensors says: what the state belongs to, and how and from which files it was made."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ttabench.core.checked_file import Missing, object_of
from ttabench.core.errors import UserError
from ttabench.core.types import Json

SCHEMA = 2
HEADER_FILE = "state.json"
ANEW = "Make it anew with `ttabench adapt`."
READ, READ_KEYS = "read", ("file", "digest", "pieces")
"""Where a header says which files the state has read, and what of each."""


def header(folder: Path) -> dict[str, Any]:
    """The header of a state."""
    path = folder / HEADER_FILE
    try:
        content = object_of(path, ANEW)
    except Missing:
        raise UserError(f"{folder} holds no state.", "Make one with `ttabench adapt --out DIR`.") from None
    if content.get("schema_version") != SCHEMA:
        raise UserError(f"{path} is of another version, or corrupted.", ANEW)
    if not is_whole(content):
        raise UserError(f"{path} was changed after it was written.", ANEW)
    return content


def is_whole(content: Mapping[str, Json]) -> bool:
    """Whether a header is of this version and says what it said when it was written."""
    return content.get("schema_version") == SCHEMA and content.get("digest") == header_digest(content)


def header_digest(content: Mapping[str, Json]) -> str:
    """16 hexadecimal digits of what a header says, as JSON has it."""
    kept = {key: value for key, value in json.loads(json.dumps(content)).items() if key != "digest"}
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:16]
