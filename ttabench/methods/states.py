"""An adapted state on disk: `state.safetensors` with the tensors, `state.json` with what they belong to.

ttabench adapt --method mac --context notes.txt --out mine/     writes it
ttabench eval --method mac --state mine/                        starts from it
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ttabench.core.digests import digest
from ttabench.core.errors import UserError
from ttabench.core.files import unwritable, write_atomically
from ttabench.core.memory import out_of_memory
from ttabench.core.opening import json_of
from ttabench.core.types import Json
from ttabench.core.version import __version__
from ttabench.lm import tensors
from ttabench.lm.finite import first_not_finite
from ttabench.lm.patch import State

SCHEMA = 2
TENSORS_FILE = "state.safetensors"
HEADER_FILE = "state.json"


def save_state(folder: Path, state: State, belongs: Mapping[str, Json], also: Sequence[Path] = ()) -> Path:
    """Write a state and what it belongs to: `method`, `settings`, `model`, `fingerprint`, `checkpoint` (a digest).

    `also` are files below the folder that were written for the state; the header names their digests, too.

    Raises:
        UserError: the folder cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tensors.write(folder / TENSORS_FILE, state.tensors)
    except OSError as error:
        raise unwritable(folder, error) from None
    header = {
        "schema_version": SCHEMA,
        "ttabench": __version__,
        **belongs,
        "rows": state.rows,
        "bytes": state.nbytes,
        "meta": dict(state.meta),
        "files": {str(file.relative_to(folder)): digest(file) for file in (folder / TENSORS_FILE, *also)},
    }
    header["digest"] = _digest(header)
    write_atomically(folder / HEADER_FILE, json.dumps(header, indent=1, ensure_ascii=False) + "\n")
    return folder


def load_state(folder: Path, belongs: Mapping[str, Json], device: str = "cpu") -> State:
    """Read a state that belongs to the same method, base model, settings and checkpoint.

    Raises:
        UserError: missing, corrupted, not finite, or belonging to something else, which the message names.
    """
    header = _header(folder)
    for field in ("method", "origin", "fingerprint", "checkpoint", "settings", "start"):
        if header.get(field) != belongs.get(field):
            raise UserError(
                f"The state in {folder} is of another {_NAMES[field]}: {_shown(header, field)}"
                f" rather than {_shown(belongs, field)}.",
                "Make it anew with `ttabench adapt`, or evaluate with what it was made with.",
            )
    try:
        found, _ = tensors.read(folder / TENSORS_FILE, device)
    except (OSError, ValueError) as error:
        raise UserError(f"{folder / TENSORS_FILE} cannot be read ({error}).", "Make it anew.") from None
    state = State(rows=int(header["rows"]), tensors=found, meta=header["meta"])
    if header["files"].get(TENSORS_FILE) != digest(folder / TENSORS_FILE):
        raise UserError(f"{HEADER_FILE} and {TENSORS_FILE} in {folder} do not belong together.", "Make the state anew.")
    if broken := first_not_finite(found.items()):
        raise UserError(f"Tensor {broken} of the state in {folder} holds values that are not finite.", "Make it anew.")
    return state


_NAMES = {
    "origin": "version of the method",
    "method": "method",
    "fingerprint": "base model",
    "checkpoint": "checkpoint",
    "settings": "setting",
    "start": "beginning of texts (--bos, --chat-template)",
}


def _shown(owner: Mapping[str, Json], field: str) -> str:
    if field == "fingerprint":
        return f"{owner.get('model')} ({str(owner.get(field))[:8]})"
    return str(owner.get(field) or "none")


def _header(folder: Path) -> dict[str, Any]:
    path = folder / HEADER_FILE
    try:
        header: Any = json_of(path)
    except FileNotFoundError:
        raise UserError(f"{folder} holds no state.", "Make one with `ttabench adapt --out DIR`.") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read ({error}).", "Make it anew with `ttabench adapt`.") from None
    if not isinstance(header, dict) or header.get("schema_version") != SCHEMA:
        raise UserError(f"{path} is of another version, or corrupted.", "Make it anew with `ttabench adapt`.")
    if not is_whole(header) or not _typed(header):
        raise UserError(f"{path} was changed after it was written.", "Make it anew with `ttabench adapt`.")
    return header


def _typed(header: Mapping[str, Json]) -> bool:
    """Whether the values of a header are what they are read as."""
    rows, meta, files = (header.get(key) for key in ("rows", "meta", "files"))
    if not isinstance(rows, int) or rows < 1 or not isinstance(meta, dict) or not isinstance(files, dict):
        return False
    of_rows = [value for key, value in meta.items() if key == "tokens_read" or key.startswith("truncated")]
    return isinstance(meta.get("labels", {}), dict) and all(
        isinstance(value, list) and len(value) == rows and all(type(each) in (int, float) for each in value)
        for value in of_rows
    )


@contextmanager
def fitting(folder: Path | None, method: str) -> Iterator[None]:
    """Work on what was read from a folder, if it was: where it does not fit its method, that is said in one line.

    A state says what it belongs to, and only its method knows which tensors it needs.

    Raises:
        UserError: naming what the method stumbled over.
    """
    try:
        yield
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        if folder is None or out_of_memory(error):
            raise
        told = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        what = f"The state in {folder} does not fit {method} ({told})."
        raise UserError(what, "Make it anew with `ttabench adapt`.") from error


def is_whole(header: Mapping[str, Json]) -> bool:
    """Whether a header is of this version and says what it said when it was written."""
    return header.get("schema_version") == SCHEMA and header.get("digest") == _digest(header)


def _digest(header: Mapping[str, Json]) -> str:
    """16 hexadecimal digits of what a header says, as JSON has it."""
    said = {key: value for key, value in json.loads(json.dumps(header)).items() if key != "digest"}
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:16]
