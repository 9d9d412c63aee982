"""Saves of a training, so that a kill at any moment loses only the steps since the last one.

    OUT/adapter.safetensors, adapter.json      the newest checkpoint, for `--checkpoint OUT`
    OUT/curve.jsonl                            a line a step, and a line a validation
    OUT/training/step-00000500/                what a training goes on from: parameters, optimiser, what is carried,
                                               record and configuration; every file says the step

A save is written under another name and renamed when it is whole; older ones go afterwards. What `--checkpoint` reads
is written after that, and again when the training goes on, so a kill in between leaves nothing wrong for long.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ttabench.core import files, locks
from ttabench.core.errors import UserError
from ttabench.core.opening import json_of
from ttabench.core.types import Json
from ttabench.lm import tensors as files_of_tensors
from ttabench.lm.finite import first_not_finite

SAVES, CURVE = "training", "curve.jsonl"
TENSORS, STATE = "state.safetensors", "training.json"
MOMENTS = ("exp_avg", "exp_avg_sq")
"""Of Adam, for every parameter; and its step."""
AGAIN = "Give the same as before, another --out, or --force to start anew."


def check(out: Path, *, resume: bool) -> None:
    """Whether a training can write in a folder, which is made if it does not exist, and go on from what is there.

    Raises:
        UserError: it cannot be written; or `resume`, and it holds a checkpoint without a save to go on from.
    """
    try:
        files.probe(out)
    except OSError as error:
        raise unwritable(out, error) from None
    if (out / "state.json").exists():
        raise UserError(f"{out} holds a state that `ttabench adapt` wrote.", "Give another --out.")
    if resume and (out / "adapter.json").exists() and not saved(out):
        raise UserError(f"{out} holds a checkpoint without a save to go on from.", "Start anew with --force.")


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
        free = shutil.disk_usage(out).free
        if free < room:
            what = f"{out} has room for {free / 2**20:,.0f} MiB; saves of this training take {room / 2**20:,.0f} MiB."
            raise UserError(what, "Free some, or give another --out.")
        yield


def unwritable(out: Path, error: Exception) -> UserError:
    """The user error for a checkpoint folder in which nothing can be written."""
    return UserError(f"Checkpoint folder {out} cannot be written: {reason(error)}.", "Choose another --out.")


def reason(error: Exception) -> str:
    """What went wrong, in the system's words."""
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
    folder = out / SAVES / f"step-{step:08d}"
    if folder in saved(out):
        return  # a training has one state after a step
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with files.replacing_folder(folder) as scratch:
            files_of_tensors.write(scratch / TENSORS, tensors, {"step": str(step)})
            files.write_atomically(scratch / STATE, json.dumps({**state, "step": step}))
        tidy(out)
    except (OSError, UserError) as error:
        raise unsaved(out, step, error) from None


def unsaved(out: Path, step: int, error: Exception) -> UserError:
    """The user error for what could not be written in the middle of a training."""
    hint = "Make room; the same command goes on from the last save."
    return UserError(f"Step {step} could not be saved in {out}: {reason(error)}.", hint)


def read(out: Path) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """The newest save, on the CPU; None where there is none.

    Raises:
        UserError: it is damaged.
    """
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


def grouped(tensors: Mapping[str, Tensor], parameters: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """The tensors of a save, by what they are ("parameter", "moment", "carried") and their own names.

    Args:
        tensors: as `read` gives them.
        parameters: of the method, by name.

    Raises:
        ValueError: tensors are missing, superfluous, misshapen or not finite; names the first.
    """
    groups: dict[str, dict[str, Tensor]] = {"parameter": {}, "moment": {}, "carried": {}}
    for name, tensor in tensors.items():
        kind, _, rest = name.partition(".")
        groups[kind][rest] = tensor
    moved = {name.partition(".")[0] for name in groups["moment"]}  # what no loss depends on has no moments
    wanted = {f"{index}.{moment}": tensor for index, tensor in enumerate(parameters.values()) for moment in MOMENTS}
    wanted |= {f"{index}.step": torch.zeros(()) for index in range(len(parameters))}
    wanted = {name: tensor for name, tensor in wanted.items() if name.partition(".")[0] in moved}
    fault = files_of_tensors.unfit(groups["parameter"], parameters) or files_of_tensors.unfit(groups["moment"], wanted)
    if fault is None and (broken := first_not_finite(sorted(tensors.items()))):
        fault = f"{broken} holds values that are not finite"
    if fault is not None:
        raise ValueError(fault)
    return groups


def damaged(out: Path, error: Exception) -> UserError:
    """The user error for a save that cannot be gone on from."""
    named = isinstance(error, KeyError | TypeError | AttributeError)
    what = " ".join((f"{type(error).__name__}: {error}" if named else str(error)).split())[:200]
    return UserError(f"The training state in {out / SAVES} is damaged ({what}).", "Start anew with --force.")


def refuse_others(out: Path, stored: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Whether a stored training is the one that is wanted.

    Raises:
        UserError: naming the first difference.
    """
    for group, values in wanted.items():
        before = stored.get(group, {})
        for key in dict.fromkeys([*values, *before]):
            if values.get(key) != before.get(key):
                what = f"{out} was trained otherwise ({group}): {key} {before.get(key)}, not {values.get(key)}."
                raise UserError(what, AGAIN)


def tidy(out: Path) -> None:
    """Remove what a kill may have left beside the newest save: older ones, and one that was not whole."""
    for path in saved(out)[:-1]:
        files.remove(path)
    for folder in (out, out / SAVES):
        files.sweep(folder)


def discard(out: Path) -> None:
    """Forget a training: all of its saves, its curve and its checkpoint."""
    for path in (out / "adapter.json", out / "adapter.safetensors", out / CURVE, out / SAVES):
        files.remove(path)


def saved(out: Path) -> list[Path]:
    """Folders of whole saves, oldest first."""
    return sorted(path for path in (out / SAVES).glob("step-*") if path.is_dir())
