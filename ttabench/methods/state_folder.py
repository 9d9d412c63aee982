"""The folder `ttabench adapt` writes: a state, its header, and its low-rank deltas for peft. Nothing else is touched.

    OUT/state.json          what the state belongs to, and the digests of the files written with it
    OUT/state.safetensors   its tensors
    OUT/peft/               a LoRA, where the method makes one

Which files are ours is read from `state.json`: a file under `peft` whose digest is not the one there belongs to
somebody else. Files are made aside and renamed, the header first: a killed process leaves the state of before, or one
that is refused as unfinished and that `--force` replaces.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ttabench.core.digests import digest
from ttabench.core.errors import UserError
from ttabench.core.files import unwritable
from ttabench.core.locks import LOCK_FILE, locked
from ttabench.core.types import Json
from ttabench.lm.patch import State
from ttabench.methods.state_header import HEADER_FILE
from ttabench.methods.states import TENSORS_FILE, save_state

PEFT = "peft"
SCRATCH = ".unfinished"
MEND = "Give another --out, or move it away."


class StateFolder:
    """The folder of one state.

    Args:
        path: made if it does not exist.
        force: replace an earlier state, and write beside files of others.
    """

    def __init__(self, path: Path, *, force: bool = False) -> None:
        self.path, self.force = path, force

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the folder while a state is made for it.

        Raises:
            UserError: it holds an earlier state or files of others, cannot be written, or another process holds it.
        """
        self._check()
        made = not self.path.exists()
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise unwritable(self.path, error) from None
        with locked(self.path, self._refuse_second):
            try:
                self._check()
                yield
            finally:
                if made:
                    self._leave_no_empty_folder()

    def write(self, state: State, belongs: Mapping[str, Json], lora: Callable[[Path], object] | None = None) -> Path:
        """Write the state, and with `lora`, which is given a folder, its peft folder; `held` is entered.

        Raises:
            UserError: the folder cannot be written.
        """
        scratch = self.path / SCRATCH
        try:
            _remove(scratch)
            scratch.mkdir()
            if lora is not None:
                lora(scratch / PEFT)
            save_state(scratch, state, belongs, sorted((scratch / PEFT).glob("*")))
            self._remove_own_peft()
            for name in (HEADER_FILE, TENSORS_FILE, *([PEFT] if lora is not None else [])):
                (scratch / name).replace(self.path / name)
        except OSError as error:
            raise unwritable(self.path, error) from None
        finally:
            with suppress(OSError):
                _remove(scratch)
        return self.path

    def _refuse_second(self) -> None:
        raise UserError(f"Another process writes a state in {self.path}.", "Wait for it, or give another --out.")

    def _check(self) -> None:
        """Refuse what is there, where it is not ours to replace."""
        try:
            there = {entry.name for entry in self.path.iterdir()} - {LOCK_FILE, SCRATCH}
        except FileNotFoundError:
            return
        except OSError as error:
            raise unwritable(self.path, error) from None
        header = self._header()
        if there and not self.force:
            if header is not None:
                what = f"{self.path} holds a state of {header['method']}."
                raise UserError(what, "Replace it with --force, or give another --out.")
            what = f"{self.path} holds {min(there)}, which is of no adapted state."
            raise UserError(what, "Give another --out; --force writes beside it.")
        if header is None and (foreign := there & {HEADER_FILE, TENSORS_FILE}):
            raise UserError(f"{self.path / min(foreign)} is of no adapted state and is not replaced.", MEND)
        if foreign_peft := self._foreign_peft(header or {}):
            raise UserError(f"{foreign_peft} was not written by `adapt` and is not replaced, even with --force.", MEND)

    def _header(self) -> dict[str, Any] | None:
        """What the state.json there says, None where it is none of ours."""
        path = self.path / HEADER_FILE
        try:
            header = None if path.is_symlink() else json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            return None
        ours = isinstance(header, dict) and all(isinstance(header.get(key), str) for key in ("ttabench", "method"))
        return header if ours else None

    def _foreign_peft(self, header: Mapping[str, Any]) -> Path | None:
        """The first thing under `peft` that the state there does not name with this digest."""
        folder = self.path / PEFT
        if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
            return folder
        listed = header.get("files")
        known = listed if isinstance(listed, dict) else {}
        for entry in sorted(folder.glob("*")):
            plain = entry.is_file() and not entry.is_symlink()
            if not plain or known.get(f"{PEFT}/{entry.name}") != digest(entry):
                return entry
        return None

    def _remove_own_peft(self) -> None:
        """Remove the peft folder of the state before; all in it is ours."""
        folder = self.path / PEFT
        foreign = self._foreign_peft(self._header() or {})
        if foreign is not None:  # it came while we adapted
            raise UserError(f"{foreign} was not written by `adapt` and is not replaced.", MEND)
        for entry in folder.glob("*"):
            entry.unlink()
        with suppress(FileNotFoundError):
            folder.rmdir()

    def _leave_no_empty_folder(self) -> None:
        if {entry.name for entry in self.path.iterdir()} <= {LOCK_FILE}:
            (self.path / LOCK_FILE).unlink(missing_ok=True)
            with suppress(OSError):
                self.path.rmdir()


def _remove(scratch: Path) -> None:
    """Remove what a killed process left; a link is removed, never followed."""
    if scratch.is_dir() and not scratch.is_symlink():
        shutil.rmtree(scratch)
    else:
        scratch.unlink(missing_ok=True)
