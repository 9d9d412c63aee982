"""Adapted states on disk: tensors in `state.safetensors`, origin and counters in `state.json`.

Importing this module does not import torch, so that headers can be read first.
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
"""Folder in which all files of a state are written before they are moved to their final names."""
REMAKE_HINT = "Run `ttabench adapt` again."
FILES_READ_KEY, FILES_READ_FIELDS = "read", ("file", "digest", "pieces")
"""Header key that lists the files adapted to, and the fields of each entry."""
SETTING_PREFIX = "setting "
"""Prefix of the inputs that settings name by path or hub id.

Their digests are compared instead of the paths or ids.
"""
IDENTITY_FIELDS = {
    "method": "method",
    "origin": "version of the method",
    "fingerprint": "base model",
    "checkpoint": "checkpoint",
    "settings": "setting",
    "start": "beginning of texts (--bos, --chat-template)",
    "inputs": "file",
    "bits": "number of bits (--bits)",
    "frequencies": "set of rotary frequencies (--max-context)",
}
"""Header fields that must match the run that uses the state, and their names in messages."""


def read_state_header(folder: Path) -> dict[str, Any]:
    """Read the header of a state.

    Raises:
        UserError: it is missing, damaged, changed or from another version.
    """
    path = folder / HEADER_FILE
    try:
        content = read_json_object(path, REMAKE_HINT)
    except MissingFile:
        raise UserError(
            f"{folder} does not contain a state.", "Use `ttabench adapt --out DIR` to write one."
        ) from None
    if content.get("schema_version") != STATE_SCHEMA_VERSION:
        raise UserError(f"{path} has another version, or is corrupted.", REMAKE_HINT)
    if content.get("digest") != header_digest(content):
        raise UserError(f"{path} was modified after it was written.", REMAKE_HINT)
    return content


def header_digest(content: Mapping[str, Json]) -> str:
    """Return the digest of a header as JSON, 16 hexadecimal digits."""
    kept = {key: value for key, value in json.loads(json.dumps(content)).items() if key != "digest"}
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:16]


def load_state(
    folder: Path,
    identity: Mapping[str, Any],
    device: str = "cpu",
    defaults: Mapping[str, Json] | None = None,
) -> State:
    """Read a state and check that its header matches `identity` (see `IDENTITY_FIELDS`).

    Args:
        defaults: settings of the method that headers of other versions may lack, see
            `default_settings`.

    Raises:
        UserError: the state does not match, or is damaged.
    """
    from ttabench.lm.loading import safetensors_io
    from ttabench.lm.patch import State

    content = read_state_header(folder)
    stored = _comparable_identity(content, identity, defaults or {})
    given = _comparable_identity(identity, identity, defaults or {})
    for field, label in IDENTITY_FIELDS.items():
        if stored.get(field) != given.get(field):
            difference = _describe_difference(field, stored, given)
            fault = f"The state in {folder} has another {label}: {difference}."
            hint = "Run `ttabench adapt` again, or use the options of the state."
            raise UserError(fault, hint)
    tensors, _ = safetensors_io.read_tensors(folder / TENSORS_FILE, device, REMAKE_HINT)
    if content["files"].get(TENSORS_FILE) != digest_path(folder / TENSORS_FILE):
        raise UserError(
            f"{HEADER_FILE} and {TENSORS_FILE} in {folder} do not belong together.", REMAKE_HINT
        )
    return State(rows=int(content["rows"]), tensors=tensors, meta=content["meta"])


def _comparable_identity(
    header: Mapping[str, Any], expected: Mapping[str, Any], defaults: Mapping[str, Json]
) -> dict[str, Mapping[str, Any]]:
    """Return a header or an identity in the form in which both are compared.

    Settings that `expected` compares by the digests of their files are removed. Settings and inputs
    that headers of earlier versions lack are filled.
    """
    inputs = expected.get("inputs", {})
    keys_compared_by_digest = {
        name.removeprefix(SETTING_PREFIX) for name in inputs if name.startswith(SETTING_PREFIX)
    }
    settings = {
        key: value
        for key, value in {**defaults, **header.get("settings", {})}.items()
        if key not in keys_compared_by_digest
    }
    # Headers of earlier versions have no inputs. Their fingerprint identifies the base model.
    default_inputs = {
        name: value for name, value in inputs.items() if not name.startswith(SETTING_PREFIX)
    }
    return {**header, "settings": settings, "inputs": header.get("inputs", default_inputs)}


def _describe_difference(
    field: str, stored_identity: Mapping[str, Json], given_identity: Mapping[str, Json]
) -> str:
    """Describe the stored and the given value of a field. Of dictionaries, only differing items."""
    key = "model" if field == "fingerprint" else field
    stored, given = stored_identity.get(key), given_identity.get(key)
    if isinstance(stored, dict) and isinstance(given, dict):
        changed = [
            name for name in sorted({*stored, *given}) if stored.get(name) != given.get(name)
        ]
        stored, given = (
            ", ".join(f"{name}={side.get(name)}" for name in changed) for side in (stored, given)
        )
    return f"{stored or 'none'}, not {given or 'none'}"


@contextmanager
def reporting_misfit(folder: Path | None, method: str) -> Iterator[None]:
    """Convert errors of a method that uses a stored state to a UserError.

    Only the method knows which tensors it needs, so its errors are the only check. If `folder` is
    None, errors are raised unchanged.
    """
    try:
        yield
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        if folder is None or is_out_of_memory(error):
            raise
        raise UserError(
            f"The state in {folder} does not fit {method} ({error_reason(error)}).", REMAKE_HINT
        ) from error


def check_writable(folder: Path, names: Sequence[str]) -> None:
    """Create a folder if needed, and check that files of these names can be written in it.

    The index `.ttabench.json` lists the files that ttabench wrote. Other files are not replaced.

    Raises:
        UserError: a file that ttabench did not write has one of the names, or the folder is not
            writable.
    """
    index = folder / files.INDEX_FILE
    try:
        is_ours = not index.is_symlink() and read_json_object(index) == {"files": list(names)}
    except UserError:
        is_ours = False
    for name in () if is_ours else (*names, files.INDEX_FILE):
        if os.path.lexists(folder / name):
            fault = (
                f"{folder / name} was not written by this version of ttabench. It is not replaced"
            )
            raise UserError(f"{fault}, even with --force.", "Use another --out, or remove it.")
    files.make_writable_folder(folder, folder)


@contextmanager
def claim_folder(folder: Path, names: Sequence[str], busy: str) -> Iterator[None]:
    """Lock a folder while files of these names are written, see `check_writable`.

    `busy` is the verb phrase of the error if another process has the lock: "writes a state in".
    """
    check_writable(folder, names)

    def refuse() -> None:
        raise UserError(f"Another process {busy} {folder}.", "Wait for it, or use another --out.")

    with files.hold_lock(folder, refuse):
        files.remove_partial_files(folder)
        files.write_atomically(folder / files.INDEX_FILE, json.dumps({"files": list(names)}) + "\n")
        yield


@contextmanager
def state_writer(folder: Path, *, force: bool) -> Iterator[Callable[..., dict[str, Any]]]:
    """Lock a folder for a state, and yield the function that writes it.

    The function is `_write_state` without its first argument. `force` replaces an earlier state.
    """
    with claim_folder(folder, STATE_FILES, "writes a state in"):
        if (folder / HEADER_FILE).exists() and not force:
            raise UserError(
                f"{folder} already contains a state.", "Use --force, or choose another --out."
            )
        yield partial(_write_state, folder)


def save_state(
    folder: Path, state: State, identity: Mapping[str, Json], *, force: bool = False
) -> Path:
    """Lock a folder and write a state to it, see `state_writer`."""
    with state_writer(folder, force=force) as write:
        write(state, identity)
    return folder


def _write_state(
    folder: Path,
    state: State,
    identity: Mapping[str, Json],
    for_peft: Callable[[Path], object] | None = None,
) -> dict[str, Any]:
    """Write a state with its identity (`IDENTITY_FIELDS`) and return its header.

    All files are written to a staging folder, then moved, the header first. If the process is
    killed between two moves, digests in the header do not match, and the partial state is detected.

    Args:
        for_peft: callback that writes a peft adapter to a folder; None for no adapter.
    """
    from ttabench.lm.loading import safetensors_io

    if non_finite := safetensors_io.first_non_finite_tensor(state.tensors.items()):
        fault = f"Tensor {non_finite} of the state is not finite (NaN or infinity)."
        raise UserError(
            fault, "Use --dtype float32, other settings, or another checkpoint or model."
        )
    staged = folder / STAGING_FOLDER
    try:
        with files.replace_atomically(staged, folder=True) as scratch:
            if for_peft is not None:
                for_peft(scratch / PEFT_FOLDER)
            safetensors_io.write_tensors(scratch / TENSORS_FILE, state.tensors)
            staged_files = (scratch / TENSORS_FILE, *sorted((scratch / PEFT_FOLDER).glob("*")))
            content = {
                "schema_version": STATE_SCHEMA_VERSION,
                "ttabench": __version__,
                **identity,
                "rows": state.rows,
                "bytes": state.nbytes,
                "meta": dict(state.meta),
                "files": {
                    str(file.relative_to(scratch)): digest_path(file) for file in staged_files
                },
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
    return read_state_header(folder)
