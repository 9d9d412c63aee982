"""An adapted state on disk: `state.safetensors` with the tensors, `state.json` with what they belong to."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from ttabench.core.checked_file import object_of, reason
from ttabench.core.digests import digest
from ttabench.core.errors import UserError
from ttabench.core.files import LOCK_FILE, PART, locked, moved, remove, sweep, unwritable, write_atomically
from ttabench.core.memory import out_of_memory
from ttabench.core.types import Json
from ttabench.core.version import __version__
from ttabench.lm.loading import safetensors_io
from ttabench.lm.loading.finite import first_not_finite
from ttabench.lm.patch import State
from ttabench.methods.state_header import ANEW, HEADER_FILE, SCHEMA, header_digest, is_whole
from ttabench.methods.state_header import header as header_of

TENSORS_FILE = "state.safetensors"


def save_state(folder: Path, state: State, belongs: Mapping[str, Json], also: Sequence[Path] = ()) -> Path:
    """Write a state and what it belongs to: `method`, `settings`, `model`, `fingerprint`, `checkpoint` (a digest).

    `also` are files below the folder that were written for the state; the header names their digests, too.
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
    """Read a state that belongs to the same method, base model, settings and checkpoint."""
    header = header_of(folder)
    for field in ("method", "origin", "fingerprint", "checkpoint", "settings", "start"):
        if header.get(field) != belongs.get(field):
            mend = "Make it anew with `ttabench adapt`, or evaluate with what it was made with."
            if field == "method" and isinstance(header.get(field), str):
                mend = f"Give --method {header[field]}, or make it anew with `ttabench adapt`."
            raise UserError(f"The state in {folder} is of another {_difference(field, header, belongs)}.", mend)
    tensors, _ = safetensors_io.read(folder / TENSORS_FILE, device, ANEW)
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
    """Work on what was read from a folder, if it was: where it does not fit its method, that is said in one line. A
    state says what it belongs to, and only its method knows which tensors it needs."""
    try:
        yield
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        if folder is None or out_of_memory(error):
            raise
        raise UserError(f"The state in {folder} does not fit {method} ({reason(error)}).", ANEW) from error


PEFT = "peft"
MEND = "Give another --out, or move it away."


class StateFolder:
    """The folder of one state: its header, its tensors, and in `peft` its low-rank deltas; nothing else is touched.

    `asked`: names what the state is to be made of, and by what; a state of that name is not made again.
    """

    def __init__(self, path: Path, *, force: bool = False, asked: str = "") -> None:
        self.path, self.force, self.asked = path, force, asked

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the folder while a state is made for it."""
        self._check()
        made = not self.path.exists()
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise unwritable(self.path, error) from None

        def refuse() -> None:
            raise UserError(f"Another process writes a state in {self.path}.", "Wait for it, or give another --out.")

        with locked(self.path, refuse):
            try:
                sweep(self.path)
                self._check()
                yield
            finally:
                if made and {entry.name for entry in self.path.iterdir()} <= {LOCK_FILE}:
                    remove(self.path)

    def write(
        self, state: State, belongs: Mapping[str, Json], lora: Callable[[Path], object] | None = None
    ) -> dict[str, Any]:
        """Write the state, and with `lora`, which is given a folder, its peft folder; `held` is entered. All files
        are made aside first; the header moves first, whose digests do not fit what a kill leaves. Returns its
        header, see `save_state`."""
        try:
            scratch = Path(mkdtemp(dir=self.path, prefix=".", suffix=PART))
        except OSError as error:
            raise unwritable(self.path, error) from None
        try:
            if lora is not None:
                lora(scratch / PEFT)
            save_state(scratch, state, {**belongs, "asked": self.asked}, sorted((scratch / PEFT).glob("*")))
            self._refuse_foreign()
            remove(self.path / PEFT)
            for name in (HEADER_FILE, TENSORS_FILE, PEFT):
                if (scratch / name).exists():
                    moved(scratch / name, self.path / name)
        except OSError as error:
            raise unwritable(self.path, error) from None
        finally:
            with suppress(OSError):
                remove(scratch)
        return self._header() or {}

    def stored(self) -> dict[str, Any] | None:
        """The header of the state that is there, if it is what is asked for, whole, and not to be replaced."""
        header = None if self.force or not self.asked else self._header()
        files = header.get("files") if header is not None else None
        if header is None or header.get("asked") != self.asked or not isinstance(files, dict):
            return None
        paths = {self.path / name: file_digest for name, file_digest in files.items()}
        same = all(path.is_file() and digest(path) == file_digest for path, file_digest in paths.items())
        return header if same and is_whole(header) else None

    def _check(self) -> None:
        """Refuse what is there, where it is not ours to replace."""
        try:
            there = {entry.name for entry in self.path.iterdir() if not entry.name.endswith(PART)} - {LOCK_FILE}
        except FileNotFoundError:
            return
        except OSError as error:
            raise unwritable(self.path, error) from None
        header = self._header()
        if there and not self.force and self.stored() is None:
            if header is not None and self.asked and header.get("asked") == self.asked:
                return  # the same, cut off between its files
            if header is not None:
                fault = f"{self.path} holds a state of {header['method']}."
                raise UserError(fault, "Replace it with --force, or give another --out.")
            fault = f"{self.path} holds {min(there)}, which is of no adapted state."
            raise UserError(fault, "Give another --out; --force writes beside it.")
        self._refuse_foreign()

    def _refuse_foreign(self) -> None:
        """Refuse to replace what the header there, if there is one, does not name with its digest."""
        header = self._header()
        for name in (HEADER_FILE, TENSORS_FILE):
            if header is None and os.path.lexists(self.path / name):
                raise UserError(f"{self.path / name} is of no adapted state and is not replaced.", MEND)
        listed, folder = (header or {}).get("files"), self.path / PEFT
        known = listed if isinstance(listed, dict) else {}
        for entry in sorted(folder.glob("*")) if folder.is_dir() and not folder.is_symlink() else [folder]:
            ours = entry.is_file() and known.get(f"{PEFT}/{entry.name}") == digest(entry)
            if os.path.lexists(entry) and not ours:
                raise UserError(f"{entry} was not written by `adapt` and is not replaced, even with --force.", MEND)

    def _header(self) -> dict[str, Any] | None:
        """Content of the state.json there, None where it is none of ours."""
        path = self.path / HEADER_FILE
        try:
            header = {} if path.is_symlink() else object_of(path)
        except UserError:
            return None
        ours = all(isinstance(header.get(key), str) for key in ("ttabench", "method"))
        return header if ours else None
