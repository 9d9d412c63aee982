"""An adapted state on disk: `state.safetensors` with the tensors, `state.json` with what it belongs to and is made of.

Importing this imports no torch: a header is read before anything else is.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ttabench.core import __version__, files
from ttabench.core.digests import digest
from ttabench.core.environment import out_of_memory
from ttabench.core.errors import UserError
from ttabench.core.files import Missing, object_of, reason
from ttabench.core.types import Json

if TYPE_CHECKING:
    from ttabench.lm.patch import State

SCHEMA = 2
OURS = HEADER_FILE, TENSORS_FILE, PEFT = "state.json", "state.safetensors", "peft"
STAGED = f".state{files.PART}"
"""Folder of files that are whole and about to move to their places."""
ANEW = "Make it anew with `ttabench adapt`."
READ, READ_KEYS = "read", ("file", "digest", "pieces")
"""Where a header says which files the state has read, and what of each."""
SETTING = "setting "
"""Begins the names of inputs that settings name by a path or on the hub: their digests count, not their names."""
BELONGS = {
    "method": "method",
    "origin": "version of the method",
    "fingerprint": "base model",
    "checkpoint": "checkpoint",
    "settings": "setting",
    "start": "beginning of texts (--bos, --chat-template)",
    "inputs": "file",
}
"""Fields of a header in which a state and its use must agree, and their names."""


def header(folder: Path) -> dict[str, Any]:
    """The header of a state."""
    path = folder / HEADER_FILE
    try:
        content = object_of(path, ANEW)
    except Missing:
        raise UserError(f"{folder} holds no state.", "Make one with `ttabench adapt --out DIR`.") from None
    if content.get("schema_version") != SCHEMA:
        raise UserError(f"{path} is of another version, or corrupted.", ANEW)
    if content.get("digest") != header_digest(content):
        raise UserError(f"{path} was changed after it was written.", ANEW)
    return content


def header_digest(content: Mapping[str, Json]) -> str:
    """16 hexadecimal digits of what a header says, as JSON has it."""
    kept = {key: value for key, value in json.loads(json.dumps(content)).items() if key != "digest"}
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:16]


def load_state(
    folder: Path, belongs: Mapping[str, Any], device: str = "cpu", retired: Mapping[str, Json] | None = None
) -> State:
    """Read a state that belongs to the same method, base model, settings and checkpoint. `retired`: settings that one
    of an earlier version may have beside those of now, see `MethodSpec.retired`."""
    from ttabench.lm.loading import safetensors_io
    from ttabench.lm.patch import State

    content = header(folder)
    made, given = _comparable(content, belongs, retired or {}), _comparable(belongs, belongs, retired or {})
    if field := next((field for field in BELONGS if made.get(field) != given.get(field)), ""):
        fault = f"The state in {folder} is of another {BELONGS[field]}: {_difference(field, made, given)}."
        raise UserError(fault, "Make it anew with `ttabench adapt`, or use what it was made with.")
    tensors, _ = safetensors_io.read(folder / TENSORS_FILE, device, ANEW)
    if content["files"].get(TENSORS_FILE) != digest(folder / TENSORS_FILE):
        raise UserError(f"{HEADER_FILE} and {TENSORS_FILE} in {folder} do not belong together.", ANEW)
    return State(rows=int(content["rows"]), tensors=tensors, meta=content["meta"])


def _comparable(
    side: Mapping[str, Any], belongs: Mapping[str, Any], retired: Mapping[str, Json]
) -> dict[str, Mapping[str, Any]]:
    """What a state was made with, or is used with, in the form in which both are compared."""
    inputs = belongs.get("inputs", {})
    by_content = {name.removeprefix(SETTING) for name in inputs if name.startswith(SETTING)}
    settings = {key: value for key, value in {**retired, **side.get("settings", {})}.items() if key not in by_content}
    # headers of earlier versions have no inputs: of those the fingerprint says which base it is
    before = {name: value for name, value in inputs.items() if not name.startswith(SETTING)}
    return {**side, "settings": settings, "inputs": side.get("inputs", before)}


def _difference(field: str, content: Mapping[str, Json], belongs: Mapping[str, Json]) -> str:
    """What a state was made with, and what is given; of settings only those that differ."""
    key = "model" if field == "fingerprint" else field
    made, given = content.get(key), belongs.get(key)
    if isinstance(made, dict) and isinstance(given, dict):
        names = [name for name in sorted({*made, *given}) if made.get(name) != given.get(name)]
        made, given = (", ".join(f"{name}={side.get(name)}" for name in names) for side in (made, given))
    return f"{made or 'none'} rather than {given or 'none'}"


@contextmanager
def fitting(folder: Path | None, method: str) -> Iterator[None]:
    """Work on what was read from a folder, if it was: where it does not fit its method, that is said in one line. A
    state says what it belongs to, and only its method knows which tensors it needs."""
    try:
        yield
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        if folder is None or out_of_memory(error):
            raise
        raise UserError(f"The state in {folder} does not fit {method} ({reason(error)}).", ANEW) from error


def check_claim(folder: Path, names: Sequence[str]) -> None:
    """Whether files of these names can be written in a folder, which is made if it does not exist: the list
    `.ttabench.json` says that they are ours, and what else has one of these names is never replaced."""
    listed = folder / files.LIST_FILE
    try:
        ours = not listed.is_symlink() and object_of(listed) == {"files": list(names)}
    except UserError:
        ours = False
    if other := next((name for name in (*names, files.LIST_FILE) if not ours and os.path.lexists(folder / name)), ""):
        fault = f"{folder / other} was not written by this version of ttabench and is not replaced, even with --force."
        raise UserError(fault, "Give another --out, or move it away.")
    files.made(folder, folder)


@contextmanager
def claimed(folder: Path, names: Sequence[str], busy: str) -> Iterator[None]:
    """Hold a folder while files of these names are written there, see `check_claim`; `busy`: what another process does
    that holds it."""
    check_claim(folder, names)

    def refuse() -> None:
        raise UserError(f"Another process {busy} {folder}.", "Wait for it, or give another --out.")

    with files.locked(folder, refuse):
        files.sweep(folder)
        files.write_atomically(folder / files.LIST_FILE, json.dumps({"files": list(names)}) + "\n")
        yield


@contextmanager
def state_writer(folder: Path, *, force: bool) -> Iterator[Callable[..., dict[str, Any]]]:
    """Claim a folder for a state, and hold it until the state is made and written by the function that this yields:
    `_write` without its first argument. `force`: replace an earlier state."""
    with claimed(folder, OURS, "writes a state in"):
        if (folder / HEADER_FILE).exists() and not force:
            raise UserError(f"{folder} holds a state already.", "Replace it with --force, or choose another --out.")
        yield partial(_write, folder)


def save_state(folder: Path, state: State, belongs: Mapping[str, Json], *, force: bool = False) -> Path:
    """Claim a folder and write a state into it, see `state_writer`."""
    with state_writer(folder, force=force) as write:
        write(state, belongs)
    return folder


def _write(
    folder: Path, state: State, belongs: Mapping[str, Json], for_peft: Callable[[Path], object] | None = None
) -> dict[str, Any]:
    """Write a state with what it belongs to (`BELONGS`), and with `for_peft`, which takes a folder, what peft loads of
    it. All files are made aside first; the header moves first, whose digests do not fit what a kill leaves.
    Returns the header, which names the digests of all files."""
    from ttabench.lm.loading import safetensors_io

    if broken := safetensors_io.first_not_finite(state.tensors.items()):
        fault = f"Tensor {broken} of the state is not finite (NaN or infinity)."
        raise UserError(fault, "Check its settings and checkpoint, the weights, or try --dtype float32.")
    staged = folder / STAGED
    try:
        with files.replacing(staged, folder=True) as scratch:
            if for_peft is not None:
                for_peft(scratch / PEFT)
            safetensors_io.write(scratch / TENSORS_FILE, state.tensors)
            written = (scratch / TENSORS_FILE, *sorted((scratch / PEFT).glob("*")))
            content = {
                "schema_version": SCHEMA,
                "ttabench": __version__,
                **belongs,
                "rows": state.rows,
                "bytes": state.nbytes,
                "meta": dict(state.meta),
                "files": {str(file.relative_to(scratch)): digest(file) for file in written},
            }
            content["digest"] = header_digest(content)
            files.write_atomically(scratch / HEADER_FILE, json.dumps(content, indent=1, ensure_ascii=False) + "\n")
        files.remove(folder / PEFT)
        for name in OURS:
            if (staged / name).exists():
                files.moved(staged / name, folder / name)
        files.remove(staged)
    except OSError as error:
        raise files.unwritable(folder, error) from None
    return header(folder)
