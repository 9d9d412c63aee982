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
from ttabench.core.digests import digest_path
from ttabench.core.environment import is_out_of_memory
from ttabench.core.errors import UserError
from ttabench.core.files import MissingFile, error_reason, read_json_object
from ttabench.core.types import Json

if TYPE_CHECKING:
    from ttabench.lm.patch import State

STATE_SCHEMA_VERSION = 2
STATE_FILES = HEADER_FILE, TENSORS_FILE, PEFT_FOLDER = "state.json", "state.safetensors", "peft"
STAGING_FOLDER = f".state{files.PART_SUFFIX}"
"""Folder of files that are whole and about to move to their places."""
REMAKE_HINT = "Make it anew with `ttabench adapt`."
FILES_READ_KEY, FILES_READ_FIELDS = "read", ("file", "digest", "pieces")
"""Where a header says which files the state has read, and what of each."""
SETTING_PREFIX = "setting "
"""Begins the names of inputs that settings name by a path or on the hub: their digests count, not their names."""
IDENTITY_FIELDS = {
    "method": "method",
    "origin": "version of the method",
    "fingerprint": "base model",
    "checkpoint": "checkpoint",
    "settings": "setting",
    "start": "beginning of texts (--bos, --chat-template)",
    "inputs": "file",
}
"""Fields of a header in which a state and its use must agree, and their names."""


def read_header(folder: Path) -> dict[str, Any]:
    """The header of a state."""
    path = folder / HEADER_FILE
    try:
        content = read_json_object(path, REMAKE_HINT)
    except MissingFile:
        raise UserError(
            f"{folder} holds no state.", "Make one with `ttabench adapt --out DIR`."
        ) from None
    if content.get("schema_version") != STATE_SCHEMA_VERSION:
        raise UserError(f"{path} is of another version, or corrupted.", REMAKE_HINT)
    if content.get("digest") != header_digest(content):
        raise UserError(f"{path} was changed after it was written.", REMAKE_HINT)
    return content


def header_digest(content: Mapping[str, Json]) -> str:
    """16 hexadecimal digits of what a header says, as JSON has it."""
    kept = {key: value for key, value in json.loads(json.dumps(content)).items() if key != "digest"}
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:16]


def load_state(
    folder: Path,
    identity: Mapping[str, Any],
    device: str = "cpu",
    deprecated_settings: Mapping[str, Json] | None = None,
) -> State:
    """Read a state that belongs to the same method, base model, settings and checkpoint. `deprecated_settings`: settings that one
    of an earlier version may have beside those of now, see `MethodSpec.deprecated_settings`."""
    from ttabench.lm.loading import safetensors_io
    from ttabench.lm.patch import State

    content = read_header(folder)
    stored_identity, given_identity = (
        _comparable_identity(content, identity, deprecated_settings or {}),
        _comparable_identity(identity, identity, deprecated_settings or {}),
    )
    if field := next(
        (
            field
            for field in IDENTITY_FIELDS
            if stored_identity.get(field) != given_identity.get(field)
        ),
        "",
    ):
        fault = f"The state in {folder} is of another {IDENTITY_FIELDS[field]}: {_describe_difference(field, stored_identity, given_identity)}."
        raise UserError(fault, "Make it anew with `ttabench adapt`, or use what it was made with.")
    tensors, _ = safetensors_io.read_tensors(folder / TENSORS_FILE, device, REMAKE_HINT)
    if content["files"].get(TENSORS_FILE) != digest_path(folder / TENSORS_FILE):
        raise UserError(
            f"{HEADER_FILE} and {TENSORS_FILE} in {folder} do not belong together.", REMAKE_HINT
        )
    return State(rows=int(content["rows"]), tensors=tensors, meta=content["meta"])


def _comparable_identity(
    side: Mapping[str, Any], identity: Mapping[str, Any], deprecated_settings: Mapping[str, Json]
) -> dict[str, Mapping[str, Any]]:
    """What a state was made with, or is used with, in the form in which both are compared."""
    inputs = identity.get("inputs", {})
    by_content = {
        name.removeprefix(SETTING_PREFIX) for name in inputs if name.startswith(SETTING_PREFIX)
    }
    settings = {
        key: value
        for key, value in {**deprecated_settings, **side.get("settings", {})}.items()
        if key not in by_content
    }
    # headers of earlier versions have no inputs: of those the fingerprint says which base it is
    before = {name: value for name, value in inputs.items() if not name.startswith(SETTING_PREFIX)}
    return {**side, "settings": settings, "inputs": side.get("inputs", before)}


def _describe_difference(
    field: str, content: Mapping[str, Json], identity: Mapping[str, Json]
) -> str:
    """What a state was made with, and what is given; of settings only those that differ."""
    key = "model" if field == "fingerprint" else field
    stored_identity, given_identity = content.get(key), identity.get(key)
    if isinstance(stored_identity, dict) and isinstance(given_identity, dict):
        names = [
            name
            for name in sorted({*stored_identity, *given_identity})
            if stored_identity.get(name) != given_identity.get(name)
        ]
        stored_identity, given_identity = (
            ", ".join(f"{name}={side.get(name)}" for name in names)
            for side in (stored_identity, given_identity)
        )
    return f"{stored_identity or 'none'} rather than {given_identity or 'none'}"


@contextmanager
def reporting_misfit(folder: Path | None, method: str) -> Iterator[None]:
    """Work on what was read from a folder, if it was: where it does not fit its method, that is said in one line. A
    state says what it belongs to, and only its method knows which tensors it needs."""
    try:
        yield
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        if folder is None or is_out_of_memory(error):
            raise
        raise UserError(
            f"The state in {folder} does not fit {method} ({error_reason(error)}).", REMAKE_HINT
        ) from error


def check_writable(folder: Path, names: Sequence[str]) -> None:
    """Whether files of these names can be written in a folder, which is made if it does not exist: the list
    `.ttabench.json` says that they are ours, and what else has one of these names is never replaced."""
    listed = folder / files.INDEX_FILE
    try:
        ours = not listed.is_symlink() and read_json_object(listed) == {"files": list(names)}
    except UserError:
        ours = False
    if other := next(
        (
            name
            for name in (*names, files.INDEX_FILE)
            if not ours and os.path.lexists(folder / name)
        ),
        "",
    ):
        fault = f"{folder / other} was not written by this version of ttabench and is not replaced, even with --force."
        raise UserError(fault, "Give another --out, or move it away.")
    files.make_writable_folder(folder, folder)


@contextmanager
def claim_folder(folder: Path, names: Sequence[str], busy: str) -> Iterator[None]:
    """Hold a folder while files of these names are written there, see `check_writable`; `busy`: what another process does
    that holds it."""
    check_writable(folder, names)

    def refuse() -> None:
        raise UserError(f"Another process {busy} {folder}.", "Wait for it, or give another --out.")

    with files.hold_lock(folder, refuse):
        files.remove_partial_files(folder)
        files.write_atomically(folder / files.INDEX_FILE, json.dumps({"files": list(names)}) + "\n")
        yield


@contextmanager
def state_writer(folder: Path, *, force: bool) -> Iterator[Callable[..., dict[str, Any]]]:
    """Claim a folder for a state, and hold it until the state is made and written by the function that this yields:
    `_write_state` without its first argument. `force`: replace an earlier state."""
    with claim_folder(folder, STATE_FILES, "writes a state in"):
        if (folder / HEADER_FILE).exists() and not force:
            raise UserError(
                f"{folder} holds a state already.",
                "Replace it with --force, or choose another --out.",
            )
        yield partial(_write_state, folder)


def save_state(
    folder: Path, state: State, identity: Mapping[str, Json], *, force: bool = False
) -> Path:
    """Claim a folder and write a state into it, see `state_writer`."""
    with state_writer(folder, force=force) as write:
        write(state, identity)
    return folder


def _write_state(
    folder: Path,
    state: State,
    identity: Mapping[str, Json],
    for_peft: Callable[[Path], object] | None = None,
) -> dict[str, Any]:
    """Write a state with what it belongs to (`IDENTITY_FIELDS`), and with `for_peft`, which takes a folder, what peft loads of
    it. All files are made aside first; the header moves first, whose digests do not fit what a kill leaves.
    Returns the header, which names the digests of all files."""
    from ttabench.lm.loading import safetensors_io

    if broken := safetensors_io.first_non_finite_tensor(state.tensors.items()):
        fault = f"Tensor {broken} of the state is not finite (NaN or infinity)."
        raise UserError(
            fault, "Check its settings and checkpoint, the weights, or try --dtype float32."
        )
    staged = folder / STAGING_FOLDER
    try:
        with files.replace_atomically(staged, folder=True) as scratch:
            if for_peft is not None:
                for_peft(scratch / PEFT_FOLDER)
            safetensors_io.write_tensors(scratch / TENSORS_FILE, state.tensors)
            written = (scratch / TENSORS_FILE, *sorted((scratch / PEFT_FOLDER).glob("*")))
            content = {
                "schema_version": STATE_SCHEMA_VERSION,
                "ttabench": __version__,
                **identity,
                "rows": state.rows,
                "bytes": state.nbytes,
                "meta": dict(state.meta),
                "files": {str(file.relative_to(scratch)): digest_path(file) for file in written},
            }
            content["digest"] = header_digest(content)
            files.write_atomically(
                scratch / HEADER_FILE, json.dumps(content, indent=1, ensure_ascii=False) + "\n"
            )
        files.remove_path(folder / PEFT_FOLDER)
        for name in STATE_FILES:
            if (staged / name).exists():
                files.move_path(staged / name, folder / name)
        files.remove_path(staged)
    except OSError as error:
        raise files.unwritable_error(folder, error) from None
    return read_header(folder)
