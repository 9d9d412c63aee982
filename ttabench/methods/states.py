"""An adapted state on disk: `state.safetensors` with the tensors, `state.json` with what they belong to.

ttabench adapt --method mac --context notes.txt --out mine/     writes it
ttabench eval --method mac --state mine/                        starts from it
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from ttabench.core.digests import digest
from ttabench.core.errors import UserError
from ttabench.core.files import unwritable, write_atomically
from ttabench.core.memory import out_of_memory
from ttabench.core.types import Json
from ttabench.core.version import __version__
from ttabench.lm.loading import safetensors_io
from ttabench.lm.loading.finite import first_not_finite
from ttabench.lm.patch import State
from ttabench.methods.state_header import HEADER_FILE, SCHEMA, header_digest
from ttabench.methods.state_header import header as header_of

TENSORS_FILE = "state.safetensors"


def save_state(folder: Path, state: State, belongs: Mapping[str, Json], also: Sequence[Path] = ()) -> Path:
    """Write a state and what it belongs to: `method`, `settings`, `model`, `fingerprint`, `checkpoint` (a digest).

    `also` are files below the folder that were written for the state; the header names their digests, too.

    Raises:
        UserError: the folder cannot be written, or a tensor is not finite.
    """
    if broken := first_not_finite(state.tensors.items()):
        fault = f"Tensor {broken} of the state is not finite (NaN or infinity)."
        raise UserError(fault, "Check its settings and checkpoint, the weights, or try --dtype float32.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        safetensors_io.write(folder / TENSORS_FILE, state.tensors)
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
    header["digest"] = header_digest(header)
    write_atomically(folder / HEADER_FILE, json.dumps(header, indent=1, ensure_ascii=False) + "\n")
    return folder


def load_state(folder: Path, belongs: Mapping[str, Json], device: str = "cpu") -> State:
    """Read a state that belongs to the same method, base model, settings and checkpoint.

    Raises:
        UserError: missing, corrupted, not finite, or belonging to something else, which the message names.
    """
    header = header_of(folder)
    for field in ("method", "origin", "fingerprint", "checkpoint", "settings", "start"):
        if header.get(field) != belongs.get(field):
            mend = "Make it anew with `ttabench adapt`, or evaluate with what it was made with."
            if field == "method" and isinstance(header.get(field), str):
                mend = f"Give --method {header[field]}, or make it anew with `ttabench adapt`."
            raise UserError(f"The state in {folder} is of another {_difference(field, header, belongs)}.", mend)
    try:
        tensors, _ = safetensors_io.read(folder / TENSORS_FILE, device)
    except (OSError, ValueError) as error:
        raise UserError(f"{folder / TENSORS_FILE} cannot be read ({error}).", "Make it anew.") from None
    state = State(rows=int(header["rows"]), tensors=tensors, meta=header["meta"])
    if header["files"].get(TENSORS_FILE) != digest(folder / TENSORS_FILE):
        raise UserError(f"{HEADER_FILE} and {TENSORS_FILE} in {folder} do not belong together.", "Make the state anew.")
    if broken := first_not_finite(tensors.items()):
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


def _difference(field: str, header: Mapping[str, Json], belongs: Mapping[str, Json]) -> str:
    """What a state was made with, and what is given; of settings only those that differ."""
    made, given = header.get(field), belongs.get(field)
    if field == "settings" and isinstance(made, Mapping) and isinstance(given, Mapping):
        names = [
            name
            for name in sorted({*made, *given})
            if name not in made or name not in given or made[name] != given[name]
        ]
        made, given = ({name: side.get(name) for name in names} for side in (made, given))
        return f"{_NAMES[field]}: {_settings(made)} rather than {_settings(given)}"
    if field == "fingerprint":
        made, given = (f"{side.get('model')} ({str(side.get(field))[:8]})" for side in (header, belongs))
    return f"{_NAMES[field]}: {made or 'none'} rather than {given or 'none'}"


def _settings(values: Mapping[str, Json]) -> str:
    """`budget=64, sinks=4`."""
    return ", ".join(f"{name}={value}" for name, value in values.items())


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
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        fault = f"The state in {folder} does not fit {method} ({reason})."
        raise UserError(fault, "Make it anew with `ttabench adapt`.") from error
