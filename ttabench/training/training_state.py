"""Saves of a training, so that a kill at any moment loses only the steps since the last one.

    OUT/adapter.safetensors, adapter.json      the newest checkpoint, for `--checkpoint OUT`
    OUT/curve.jsonl                            a line a step, and a line a validation
    OUT/training/step-00000500/                what a training goes on from: parameters, optimiser, what is carried,
                                               record and configuration; every file says the step

A save is written under another name and renamed when it is whole; older ones go afterwards. What `--checkpoint` reads
is written after that, and again when the training goes on, so a kill in between leaves nothing wrong for long. A list
says that these names are ours (`core/owned`): what else has one of them is never replaced, and what else lies in the
folders stays.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from torch import Tensor

from ttabench.core import files, locks
from ttabench.core.checked_file import json_of
from ttabench.core.errors import UserError
from ttabench.core.owned import LIST_FILE, claim, refuse_foreign
from ttabench.core.types import Json
from ttabench.lm.loading import safetensors_io as files_of_tensors
from ttabench.methods.checkpoint_header import HEADER, header
from ttabench.methods.checkpoints import WEIGHTS

SAVES, CURVE = "training", "curve.jsonl"
TENSORS, STATE = "state.safetensors", "training.json"
NAMES = (HEADER, WEIGHTS, CURVE, SAVES)
"""Files that a training writes in its folder."""
STEP = re.compile(r"step-\d{8,}")
"""Folder of a save."""
AGAIN = "Give the same as before, another --out, or --force to start anew."
NEWER = ("model", "begins")
"""What a training says of its data that earlier versions did not say; their saves are taken at their word."""


def check(out: Path, *, resume: bool) -> None:
    """Whether a training can write in a folder, which is made if it does not exist, and go on from what is there.

    Raises:
        UserError: it cannot be written, unless `resume` and it may be finished; something that is not ours is in the
            way; or `resume`, and it holds a checkpoint without a save to go on from.
    """
    if (out / "state.json").exists():
        raise UserError(f"{out} holds a state that `ttabench adapt` wrote.", "Give another --out.")
    refuse_foreign(out, NAMES, "train", _known(out))
    if resume and (out / HEADER).exists() and not saved(out):
        raise UserError(f"{out} holds a checkpoint without a save to go on from.", "Start anew with --force.")
    try:
        files.probe(out)
    except OSError as error:
        if not (resume and (out / HEADER).exists()):
            raise unwritable(out, error) from None


def _known(out: Path) -> tuple[str, ...]:
    """Names that are ours where a version that kept no list has trained: its header says so."""
    try:
        header(out)
    except UserError:
        return ()
    return () if os.path.lexists(out / LIST_FILE) else NAMES


@contextmanager
def locked(out: Path, room: int) -> Iterator[None]:
    """Hold the folder of a checkpoint while training writes there.

    Args:
        out: made if it does not exist.
        room: bytes that saves will take.

    Raises:
        UserError: the folder cannot be written, the disk is too full, or another process trains into it.
    """

    def busy() -> None:
        raise UserError(f"Another process is training into {out}.", "Wait for it, or give another --out.")

    check(out, resume=False)
    with locks.locked(out, busy):
        claim(out, NAMES, "train", _known(out))
        free = shutil.disk_usage(out).free
        if free < room:
            fault = f"{out} has room for {free / 2**20:,.0f} MiB; saves of this training take {room / 2**20:,.0f} MiB."
            raise UserError(fault, "Free some, or give another --out.")
        yield


def unwritable(out: Path, error: Exception) -> UserError:
    """The user error for a checkpoint folder in which nothing can be written."""
    return UserError(f"Checkpoint folder {out} cannot be written: {reason(error)}.", "Choose another --out.")


def reason(error: Exception) -> str:
    """The fault, in the system's words."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def write(out: Path, step: int, tensors: Mapping[str, Tensor], state: Mapping[str, Json]) -> None:
    """Store one save and drop those before it.

    Args:
        out: the checkpoint's folder.
        step: optimiser steps done.
        tensors: parameters, moments and whatever is carried.
        state: the rest, JSON values.

    Raises:
        UserError: the disk is full or cannot be written; the save before this one stays.
    """
    folder = out / SAVES / _name(step)
    if folder in saved(out):
        return  # a training has one state after a step
    try:
        _remove(folder)
        folder.parent.mkdir(parents=True, exist_ok=True)
        with files.replacing_folder(folder) as scratch:
            files_of_tensors.write(scratch / TENSORS, tensors, {"step": str(step)})
            files.write_atomically(scratch / STATE, json.dumps({**state, "step": step}))
        tidy(out)
    except (OSError, UserError) as error:
        raise unsaved(out, step, error) from None


def finished(out: Path) -> int | None:
    """The step of a save whose checkpoint is there, too; None where a kill came between them, or there is none."""
    try:
        step = header(out).step
    except UserError:
        return None
    same = step is not None and (out / WEIGHTS).exists() and [path.name for path in saved(out)] == [_name(step)]
    return step if same else None


def _name(step: int) -> str:
    return f"step-{step:08d}"


def unsaved(out: Path, step: int, error: Exception) -> UserError:
    """The user error for what could not be written in the middle of a training."""
    hint = "Make room; the same command goes on from the last save."
    return UserError(f"Step {step} could not be saved in {out}: {reason(error)}.", hint)


def read(out: Path) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """The newest save, on the CPU; None where there is none."""
    folders = saved(out)
    if not folders:
        return None
    folder = folders[-1]
    try:
        state = json_of(folder / STATE)
        tensors, metadata = files_of_tensors.read(folder / TENSORS)
        steps = {str(state["step"]), metadata.get("step"), str(int(folder.name[5:]))}
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise UserError(f"The training state in {folder} is damaged: {error}.", "Start anew with --force.") from None
    if len(steps) > 1:
        raise UserError(f"The files in {folder} are of different steps.", "Start anew with --force.")
    return tensors, state


def damaged(out: Path, error: Exception) -> UserError:
    """The user error for a save that cannot be gone on from."""
    named = isinstance(error, KeyError | TypeError | AttributeError)
    fault = " ".join((f"{type(error).__name__}: {error}" if named else str(error)).split())[:200]
    return UserError(f"The training state in {out / SAVES} is damaged ({fault}).", "Start anew with --force.")


def refuse_others(out: Path, stored: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Whether a stored training is the one that is wanted."""
    for group, values in wanted.items():
        before = {**{key: values[key] for key in NEWER if key in values}, **stored.get(group, {})}
        for key in dict.fromkeys([*values, *before]):
            if values.get(key) != before.get(key):
                fault = f"{out} was trained otherwise ({group}): {key} {before.get(key)}, not {values.get(key)}."
                raise UserError(fault, AGAIN)


def tidy(out: Path) -> None:
    """Remove what a kill may have left beside the newest save: older ones, and one that was not whole."""
    newest = saved(out)[-1:]
    for path in (out / SAVES).glob("step-*"):
        if path not in newest:
            _remove(path)
    for folder in (out, out / SAVES):
        files.sweep(folder)


def refuse_in_the_way(out: Path, steps: range) -> None:
    """Whether nothing of somebody else's lies where saves after these steps will be written."""
    for path in sorted((out / SAVES).glob("step-*/*")):
        ours = path.name in (STATE, TENSORS) or path.name.endswith(files.PART)
        if not ours and STEP.fullmatch(path.parent.name) and int(path.parent.name[5:]) in steps:
            fault = f"{path} was not written by `ttabench train`, and a save will be in its folder."
            raise UserError(fault, "Give another --out, or move it away.")


def discard(out: Path) -> None:
    """Forget a training: all of its saves, its curve and its checkpoint."""
    for path in (out / HEADER, out / WEIGHTS, out / CURVE):
        files.remove(path)
    for path in (out / SAVES).glob("step-*"):
        _remove(path)
    _remove_empty(out / SAVES)


def saved(out: Path) -> list[Path]:
    """Folders of whole saves, oldest first."""
    return sorted(
        path for path in (out / SAVES).glob("step-*") if STEP.fullmatch(path.name) and (path / STATE).exists()
    )


def _remove(save: Path) -> None:
    """Remove the files of a save, and its folder where nothing else lies in it."""
    if STEP.fullmatch(save.name) and save.is_dir() and not save.is_symlink():
        for name in (STATE, TENSORS):
            files.remove(save / name)
        _remove_empty(save)


def _remove_empty(folder: Path) -> None:
    with suppress(OSError):
        folder.rmdir()
