"""Files a user gives to `ttabench adapt` and `ask`: cut into pieces of context, read, and found again."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ttabench.core.checked_file import Unreadable, read_text
from ttabench.core.digests import digest
from ttabench.core.errors import UnknownName, UserError
from ttabench.core.identity import identity
from ttabench.core.progress import Tick
from ttabench.core.types import Json, Observe
from ttabench.core.version import __version__
from ttabench.lm.loading.hub import digest_of
from ttabench.methods.state_header import READ, header
from ttabench.run.prompting import resolve_prompting
from ttabench.run.request import RunRequest
from ttabench.run.resolve import ResolvedMethod, named

if TYPE_CHECKING:
    from ttabench.lm.patch import State
    from ttabench.methods.session import Session

PIECES = ("file", "paragraphs", "lines")
DEFAULT_STATE = Path("state")
"""Where `adapt` writes and `ask` looks."""


@dataclass(frozen=True, kw_only=True)
class Reading:
    """Files to read and how they are cut into pieces."""

    files: tuple[Path, ...]
    pieces: str = "file"
    added: tuple[Path, ...] = ()
    """States that are put to what was read before, and then the files are read."""


def pieces_of(reading: Reading) -> list[Observe]:
    """The files' text as pieces, in order; empty pieces are left out, and with `added` there may be none.

    Raises:
        UserError: nothing to read, a file that cannot be read or is not UTF-8, or an unknown way to cut.
    """
    if not reading.files and reading.added:
        return []
    if not reading.files:
        raise UserError("There is nothing to read.", "Give --context FILE.")
    if reading.pieces not in PIECES:
        raise UnknownName("value of --pieces", reading.pieces, list(PIECES))
    separator = {"file": None, "paragraphs": "\n\n", "lines": "\n"}[reading.pieces]
    pieces = []
    for file in reading.files:
        try:
            text = read_text(file)
        except OSError as error:
            raise UserError(f"{file} cannot be read: {error.strerror}.", "Check the path.") from None
        except UnicodeDecodeError:
            raise UserError(f"{file} is not UTF-8 text.", "Save it as UTF-8.") from None
        except Unreadable as error:
            raise UserError(f"{file} cannot be read: {error}.", "Give a file of text.") from None
        parts = [part.strip() for part in (text.split(separator) if separator else [text]) if part.strip()]
        pieces += [Observe(text=part, key=f"{file.name}#{number}") for number, part in enumerate(parts)]
    if not pieces:
        raise UserError(f"{reading.files[0]} holds no text.", "Give a file with text.")
    return pieces


def asked_of(
    request: RunRequest,
    resolved: ResolvedMethod,
    pieces: Sequence[Observe],
    header: Mapping[str, Json],
    added: Sequence[Path] = (),
) -> str:
    """A name for the state that these pieces make: a hash of all that decides it, see `StateFolder`.

    `header` is what its header says of how and from which files it was made, `added` the states that were put to it.

    Raises:
        UserError: a model, checkpoint or state that is not there.
    """
    under = request.base_checkpoint and digest(named(request.base_checkpoint, request.model))
    model = "" if request.random_weights else digest_of(request.model)
    of_model = [request.model, model, under, request.random_weights, request.bos, request.dtype, request.device]
    of_method = [resolved.spec.name, resolved.spec.origin, dict(resolved.settings), resolved.checkpoint_digest]
    turns = resolve_prompting(request).chat
    before = None if request.state is None else digest(request.state)
    asked_for = {"model": of_model, "method": of_method, "turns": turns, "state": before, "version": __version__}
    asked_for |= {"added": [digest(state) for state in added]} if added else {}
    return identity({**asked_for, "pieces": [piece.text for piece in pieces], "said": dict(header)})


def read(session: Session, pieces: Sequence[Observe], tick: Tick) -> State:
    """The state of one reader who has read these pieces in order."""
    session.read(pieces)
    while session.flush_some():
        tick("read", len(pieces) - session.pending, len(pieces))
    return session.state


def told(reading: Reading, folder: Path) -> list[dict[str, Json]]:
    """The files that a state's header in `folder` names: their paths from there, digests, and how they were cut."""
    return [
        {"file": os.path.relpath(file, folder), "digest": digest(file), "pieces": reading.pieces}
        for file in reading.files
    ]


def told_after(before: Path | None, reading: Reading, folder: Path) -> list[dict[str, Json]]:
    """The same after what earlier states say; nothing where one of them says nothing.

    Raises:
        UserError: there is no such state, or it is damaged.
    """
    moved: list[dict[str, Json]] = []
    for state in earlier_states(before, reading):
        read_before = header(state).get(READ, [])
        if not read_before:
            return []
        moved += [{**file, "file": os.path.relpath(state / file["file"], folder)} for file in read_before]
    return [*moved, *told(reading, folder)]


def earlier_states(before: Path | None, reading: Reading) -> tuple[Path, ...]:
    """Folders of the states that are read on from, and put to it."""
    return (() if before is None else (before,)) + reading.added


def read_again(header: Mapping[str, Json], folder: Path) -> tuple[list[Observe], str]:
    """The pieces that the state in `folder` has read, from their files; or none, and why they are not to be had."""
    pieces: list[Observe] = []
    for file in header.get(READ, []):
        path = Path(os.path.normpath(folder / file["file"]))
        if not path.is_file():
            return [], f"{path}, which was read, is not there any more"
        if digest(path) != file["digest"]:
            return [], f"{path} has changed since it was read"
        pieces += pieces_of(Reading(files=(path,), pieces=file["pieces"]))
    return pieces, "" if pieces else f"the state in {folder} does not say which files it has read"
