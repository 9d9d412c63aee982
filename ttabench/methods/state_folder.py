"""The folder `ttabench adapt` writes: a state, its header, and its low-rank deltas for peft. Nothing else is touched.

    OUT/state.json          what the state belongs to, and the digests of the files written with it
    OUT/state.safetensors   its tensors
    OUT/peft/               a LoRA, where the method makes one

Which files are ours is read from `state.json`: a file under `peft` whose digest is not the one there belongs to
somebody else. All files are made aside, in a folder that is renamed once it is whole; from then on the state is there,
and whoever holds the folder next puts the files into their places, should a process be killed in between. The header
names what was asked for, so the same command finds its state instead of making it twice.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ttabench.core.checked_file import json_of
from ttabench.core.digests import digest
from ttabench.core.errors import UserError
from ttabench.core.files import PART, moved, remove, replacing_folder, sweep, unwritable
from ttabench.core.locks import LOCK_FILE, locked
from ttabench.core.types import Json
from ttabench.lm.patch import State
from ttabench.methods.state_header import HEADER_FILE, is_whole
from ttabench.methods.states import TENSORS_FILE, save_state

PEFT = "peft"
WHOLE = ".whole.ttabench"
"""Folder of a state that is made and not in its place."""
MEND = "Give another --out, or move it away."


class StateFolder:
    """The folder of one state.

    Args:
        path: made if it does not exist.
        force: replace an earlier state, and write beside files of others.
        asked: names what the state is to be made of, and by what; a state of that name is not made again.
    """

    def __init__(self, path: Path, *, force: bool = False, asked: str = "") -> None:
        self.path, self.force, self.asked = path, force, asked

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the folder while a state is made for it.

        Raises:
            UserError: it holds another state or files of others, cannot be written, or another process holds it.
        """
        if not (self.path / WHOLE).exists():
            self._check()
        made = not self.path.exists()
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise unwritable(self.path, error) from None
        with locked(self.path, self._refuse_second):
            try:
                self._settle()
                self._check()
                yield
            finally:
                if made:
                    self._leave_no_empty_folder()

    def write(
        self, state: State, belongs: Mapping[str, Json], lora: Callable[[Path], object] | None = None
    ) -> dict[str, Any]:
        """Write the state, and with `lora`, which is given a folder, its peft folder; `held` is entered.

        Returns:
            its header, see `states`.
        """
        try:
            with replacing_folder(self.path / WHOLE) as scratch:
                if lora is not None:
                    lora(scratch / PEFT)
                save_state(scratch, state, {**belongs, "asked": self.asked}, sorted((scratch / PEFT).glob("*")))
        except OSError as error:
            raise unwritable(self.path, error) from None
        self._settle()
        return self._header() or {}

    def _settle(self) -> None:
        """Put a state that is made into its place; what was not made to its end is removed.

        Raises:
            UserError: somebody else's file is in the way, or the folder cannot be written.
        """
        made = self.path / WHOLE
        try:
            sweep(self.path)
            if made.is_symlink() or not made.is_dir():
                remove(made)
                return
            self._refuse_foreign()
            if (made / HEADER_FILE).exists():  # else the one of before was replaced already
                self._remove_own_peft()
            for name in (HEADER_FILE, TENSORS_FILE, PEFT):
                if (made / name).exists():
                    moved(made / name, self.path / name)
            remove(made)
        except OSError as error:
            raise unwritable(self.path, error) from None

    def _refuse_second(self) -> None:
        raise UserError(f"Another process writes a state in {self.path}.", "Wait for it, or give another --out.")

    def _check(self) -> None:
        """Refuse what is there, where it is not ours to replace."""
        try:
            there = {entry.name for entry in self.path.iterdir()} - {LOCK_FILE, WHOLE}
            there = {name for name in there if not name.endswith(PART)}
        except FileNotFoundError:
            return
        except OSError as error:
            raise unwritable(self.path, error) from None
        header = self._header()
        if there and not self.force and self.stored() is None:
            if header is not None:
                fault = f"{self.path} holds a state of {header['method']}."
                raise UserError(fault, "Replace it with --force, or give another --out.")
            fault = f"{self.path} holds {min(there)}, which is of no adapted state."
            raise UserError(fault, "Give another --out; --force writes beside it.")
        self._refuse_foreign()

    def _refuse_foreign(self) -> None:
        """Refuse to replace files that are not ours."""
        header = self._header()
        for name in (HEADER_FILE, TENSORS_FILE):
            if header is None and os.path.lexists(self.path / name):
                raise UserError(f"{self.path / name} is of no adapted state and is not replaced.", MEND)
        if foreign := self._foreign_peft(header or {}):
            raise UserError(f"{foreign} was not written by `adapt` and is not replaced, even with --force.", MEND)

    def stored(self) -> dict[str, Any] | None:
        """The header of the state that is there, if it is what is asked for, whole, and not to be replaced."""
        header = None if self.force or not self.asked else self._header()
        files = header.get("files") if header is not None else None
        if header is None or header.get("asked") != self.asked or not isinstance(files, dict):
            return None
        paths = {self.path / name: file_digest for name, file_digest in files.items()}
        same = all(path.is_file() and digest(path) == file_digest for path, file_digest in paths.items())
        return header if same and is_whole(header) else None

    def _header(self) -> dict[str, Any] | None:
        """Content of the state.json there, None where it is none of ours."""
        path = self.path / HEADER_FILE
        try:
            header = None if path.is_symlink() else json_of(path)
        except (OSError, ValueError):
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
        for entry in folder.glob("*"):
            remove(entry)
        with suppress(FileNotFoundError):
            folder.rmdir()

    def _leave_no_empty_folder(self) -> None:
        if {entry.name for entry in self.path.iterdir()} <= {LOCK_FILE}:
            remove(self.path / LOCK_FILE)
            with suppress(OSError):
                self.path.rmdir()
