"""What the JSON beside a state's tensors says: what the state belongs to, and how and from which files it was made.

FOLDER/state.json      header(FOLDER)["method"]      "mac"
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ttabench.core.errors import UserError
from ttabench.core.types import Json

SCHEMA = 2
HEADER_FILE = "state.json"


def header(folder: Path) -> dict[str, Any]:
    """The header of a state.

    Raises:
        UserError: no state there, of another version, damaged, or changed after it was written.
    """
    path = folder / HEADER_FILE
    try:
        found: Any = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise UserError(f"{folder} holds no state.", "Make one with `ttabench adapt --out DIR`.") from None
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} cannot be read ({error}).", "Make it anew with `ttabench adapt`.") from None
    if not isinstance(found, dict) or found.get("schema_version") != SCHEMA:
        raise UserError(f"{path} is of another version, or corrupted.", "Make it anew with `ttabench adapt`.")
    if found.get("digest") != header_digest(found):
        raise UserError(f"{path} was changed after it was written.", "Make it anew with `ttabench adapt`.")
    return found


def header_digest(said: Mapping[str, Json]) -> str:
    """16 hexadecimal digits of what a header says, as JSON has it."""
    kept = {key: value for key, value in json.loads(json.dumps(said)).items() if key != "digest"}
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:16]
