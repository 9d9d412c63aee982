"""Saves of a training, so that a kill at any moment loses only the steps since the last one.

    OUT/adapter.safetensors, adapter.json      the newest checkpoint, for `--checkpoint OUT`
    OUT/curve.jsonl                            a line a step, and a line a validation
    OUT/training/step-00000500/                what a training goes on from: parameters, optimiser, what is carried,
                                               record and configuration; every file says the step

A save is renamed when it is whole; older ones go afterwards. What `--checkpoint` reads is written after that, and again
when the training goes on. The list `.ttabench.json` says that these names are ours: what else has one of them is never
replaced, and what else lies in the folders stays.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ttabench.core import files
from ttabench.core.checked_file import object_of, read_text, reading
from ttabench.core.errors import UserError
from ttabench.core.files import LIST_FILE
from ttabench.core.types import Json
from ttabench.lm.loading import safetensors_io
from ttabench.lm.loading.finite import first_not_finite
from ttabench.methods import checkpoints
from ttabench.methods.checkpoint_header import HEADER, header
from ttabench.methods.checkpoints import WEIGHTS
from ttabench.methods.trainable import Trainable
from ttabench.records.folder import typed
from ttabench.training.config import TrainConfig, TrainRecord
from ttabench.training.muon import matrices

SAVES, CURVE = "training", "curve.jsonl"
TENSORS, STATE = "state.safetensors", "training.json"
NAMES = (HEADER, WEIGHTS, CURVE, SAVES)
"""Files that a training writes in its folder."""
STEP = re.compile(r"step-\d{8,}")
"""Folder of a save."""
AGAIN = "Give the same as before, another --out, or --force to start anew."
ANEW = "Start anew with --force."
MOMENTS = ("exp_avg", "exp_avg_sq", "step")
"""Of Adam, for every parameter; of Muon, for its matrices, the first."""


def check(out: Path, *, resume: bool) -> None:
    """Whether a training can write in a folder, which is made if it does not exist, and go on from what is there."""
    if (out / "state.json").exists():
        raise UserError(f"{out} holds a state that `ttabench adapt` wrote.", "Give another --out.")
    _refuse_foreign(out)
    there = resume and (out / HEADER).exists()
    if there and not saved(out):
        raise UserError(f"{out} holds a checkpoint without a save to go on from.", ANEW)
    try:
        files.made(out, out)
    except UserError:
        if not there:  # else a training that is finished is returned all the same
            raise


def owned(out: Path) -> set[str]:
    """The names in a folder that its list says are ours; all where a version that kept no list has trained."""
    path = out / LIST_FILE
    try:
        if not os.path.lexists(path):
            header(out)
            return set(NAMES)
        names = None if path.is_symlink() else object_of(path).get("files")
    except UserError:
        return set()
    return {name for name in names if isinstance(name, str)} if isinstance(names, list) else set()


def _refuse_foreign(out: Path) -> None:
    """See that nothing that is not ours has a name that a training writes."""
    ours = owned(out)
    for name in (*NAMES, *(() if ours else (LIST_FILE,))):
        if name not in ours and os.path.lexists(out / name):
            fault = f"{out / name} was not written by `ttabench train` and is not replaced, even with --force."
            raise UserError(fault, "Give another --out, or move it away.")


@contextmanager
def locked(out: Path, room: int) -> Iterator[None]:
    """Hold the folder of a checkpoint while training writes there; it is made if it does not exist."""

    def busy() -> None:
        raise UserError(f"Another process is training into {out}.", "Wait for it, or give another --out.")

    check(out, resume=False)
    with files.locked(out, busy):
        if not (out / LIST_FILE).exists() or not set(NAMES) <= owned(out):
            files.write_atomically(out / LIST_FILE, json.dumps({"files": sorted({*owned(out), *NAMES})}) + "\n")
        free = shutil.disk_usage(out).free
        if free < room:
            fault = f"{out} has room for {free / 2**20:,.0f} MiB; saves of this training take {room / 2**20:,.0f} MiB."
            raise UserError(fault, "Free some, or give another --out.")
        yield


def keep(
    out: Path, method: Trainable[Any], optimiser: torch.optim.Optimizer, record: TrainRecord, config: TrainConfig,
    best: Mapping[str, Tensor],
) -> None:  # fmt: skip
    """Store what goes on from here, if that is wanted, then the checkpoint."""
    if config.save_every:
        tensors = {f"parameter.{name}": parameter.data for name, parameter in method.modules().named_parameters()}
        for index, moments in optimiser.state_dict()["state"].items():
            tensors |= {f"moment.{index}.{name}": value for name, value in moments.items()}
        tensors |= {f"carried.{name}": value for name, value in method.training_state().items()}
        tensors |= {f"best.{name}": value for name, value in best.items() if record.best() != record.steps}
        state = {"record": asdict(record), "belongs": _belongs(method, config), "step": record.steps}
        _write(out, record.steps, tensors, json.dumps(state))
    publish(out, method, record, config, best)


def _write(out: Path, step: int, tensors: Mapping[str, Tensor], state: str) -> None:
    folder = out / SAVES / _name(step)
    try:
        if folder in saved(out):  # a training has one state after a step; a validation may have been added to it
            files.write_atomically(folder / STATE, state)
            return
        _remove(folder)
        folder.parent.mkdir(parents=True, exist_ok=True)
        with files.replacing_folder(folder) as scratch:
            safetensors_io.write(scratch / TENSORS, tensors, {"step": str(step)})
            files.write_atomically(scratch / STATE, state)
        tidy(out)
    except (OSError, UserError) as error:
        raise _unsaved(out, step, error) from None


def publish(
    out: Path, method: Trainable[Any], record: TrainRecord, config: TrainConfig, best: Mapping[str, Tensor]
) -> None:
    """Store the checkpoint that `--checkpoint` reads: of the parameters, or of the best ones if there are some."""
    summary, step = record.summary(config), record.steps
    last = {name: parameter.detach().clone() for name, parameter in method.modules().named_parameters() if best}
    fill(method, best)
    checkpoints.save(method, out, summary, config.dtype, step=step, stands_on=config.stands_on)
    fill(method, last)


def fill(method: Trainable[Any], values: Mapping[str, Tensor]) -> None:
    """Put values in the place of parameters, by name."""
    with torch.no_grad():
        for name, parameter in method.modules().named_parameters():
            if name in values:
                parameter.copy_(values[name])


def finished(method: Trainable[Any], config: TrainConfig) -> TrainRecord | None:
    """The record of this training where it is done, the method then as it ended; nothing is written."""
    out = config.out
    if out is None or not config.resume or not _published(out, config.steps):
        return None
    taken = taken_up(out, method, config)
    stored = header(out).training.get("config", {}).get("dtype", config.dtype)
    if stored != config.dtype:
        fault = f"The training in {out} is finished, and its weights are stored as {stored}, not {config.dtype}."
        raise UserError(fault, AGAIN)
    method.modules().eval()
    if taken is None:
        return None
    fill(method, taken[1])
    return taken[0]


def _published(out: Path, step: int) -> bool:
    """Whether the newest save is of this step, and its checkpoint is there, too: a kill may come between them."""
    try:
        same = header(out).step == step
    except UserError:
        return False
    return same and (out / WEIGHTS).exists() and [path.name for path in saved(out)] == [_name(step)]


def taken_up(
    out: Path, method: Trainable[Any], config: TrainConfig, optimiser: torch.optim.Optimizer | None = None
) -> tuple[TrainRecord, Mapping[str, Tensor]] | None:
    """Take up the newest save, if there is one, as `keep` left it: fills the method, and the optimiser if given;
    returns its record, and the best parameters so far where they are kept."""
    if not (folders := saved(out)):
        return None
    folder = folders[-1]
    with reading(folder, ANEW, most=None):
        state = object_of(folder / STATE, ANEW)
        tensors, metadata = safetensors_io.read(folder / TENSORS, hint=ANEW)
        if len({str(state["step"]), metadata.get("step"), str(int(folder.name[5:]))}) > 1:
            raise ValueError("its files are of different steps")
    with reading(out / SAVES, ANEW, most=None):
        _refuse_others(out, state["belongs"], _belongs(method, config))
        record = typed(TrainRecord, state["record"])
        if not record.steps == len(record.losses) == state["step"]:
            raise ValueError("its record is of other steps")
        best = _fill(method, config, optimiser, tensors)
    if config.best and record.best() == record.steps:
        best = {name: each.detach().clone() for name, each in method.modules().named_parameters()}
    return record, best


def _fill(
    method: Trainable[Any], config: TrainConfig, optimiser: torch.optim.Optimizer | None, tensors: Mapping[str, Tensor]
) -> Mapping[str, Tensor]:
    """Fill a method and its optimiser from a save; returns its best parameters."""
    parameters = dict(method.modules().named_parameters())
    groups = _grouped(tensors, parameters, _moments(method, config))
    fill(method, groups["parameter"])
    moments: dict[int, dict[str, Tensor]] = {}
    for name, tensor in groups["moment"].items():
        index, _, kind = name.partition(".")
        moments.setdefault(int(index), {})[kind] = tensor
    if optimiser is not None:
        optimiser.load_state_dict({**optimiser.state_dict(), "state": moments})
    method.load_training_state(groups["carried"])
    return groups["best"]


def _moments(method: Trainable[Any], config: TrainConfig) -> dict[str, Tensor]:
    """The tensors that an optimiser keeps of every parameter, by its place and its own name; values mean nothing."""
    turned = {id(matrix) for matrix in matrices(method.modules())} if config.optimizer == "muon" else set()
    return {
        f"{index}.{name}": torch.zeros(()) if name == "step" else parameter
        for index, parameter in enumerate(method.modules().parameters())
        for name in (MOMENTS[:1] if id(parameter) in turned else MOMENTS)
    }


def _grouped(
    tensors: Mapping[str, Tensor], parameters: Mapping[str, Tensor], moments: Mapping[str, Tensor]
) -> dict[str, dict[str, Tensor]]:
    """The tensors of a save, by what they are ("parameter", "moment", "carried", "best") and their own names."""
    groups: dict[str, dict[str, Tensor]] = {"parameter": {}, "moment": {}, "carried": {}, "best": {}}
    for name, tensor in tensors.items():
        kind, _, rest = name.partition(".")
        groups[kind][rest] = tensor
    moved = {name.partition(".")[0] for name in groups["moment"]}  # what no loss depends on has no moments
    wanted = {name: tensor for name, tensor in moments.items() if name.partition(".")[0] in moved}
    unfit = safetensors_io.unfit
    fault = unfit(groups["parameter"], parameters) or unfit(groups["moment"], wanted)
    fault = fault or (unfit(groups["best"], parameters) if groups["best"] else None)
    if fault is None and (broken := first_not_finite(sorted(tensors.items()))):
        fault = f"{broken} holds values that are not finite"
    if fault is not None:
        raise ValueError(fault)
    return groups


def _belongs(method: Trainable[Any], config: TrainConfig) -> dict[str, dict[str, Json]]:
    """The values that a resumed training must share with the saved one, as JSON gives them back."""
    own = {
        "method": {"method": method.name},
        "settings": asdict(method.settings),
        "recipe": config.recipe(),
        "data": dict(config.data),
        "base": {"base": method.lm.fingerprint, "stands_on": dict(config.stands_on)},
    }
    same: dict[str, dict[str, Json]] = json.loads(json.dumps(own))
    return same


def _refuse_others(out: Path, stored: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    for group, values in wanted.items():
        before = stored.get(group, {})
        for key in dict.fromkeys([*values, *before]):
            if values.get(key) != before.get(key):
                fault = f"{out} was trained otherwise ({group}): {key} {before.get(key)}, not {values.get(key)}."
                raise UserError(fault, AGAIN)


class Curve:
    """`curve.jsonl`: what every step and every validation gave; lines of other steps than the record's are dropped."""

    def __init__(self, config: TrainConfig, record: TrainRecord) -> None:
        self.path = None if config.out is None else config.out / CURVE
        if self.path is None:
            return
        lines = read_text(self.path).splitlines(keepends=True) if self.path.exists() else []
        again = record.steps if record.unvalidated(config) else None
        kept = [
            line for line in lines
            if (step := _step_of(line)) and step <= record.steps and not (step == again and '"validation"' in line)
        ]  # fmt: skip
        files.write_atomically(self.path, "".join(kept))

    def add(self, step: int, line: Mapping[str, Json]) -> None:
        """One more line."""
        if self.path is None:
            return
        try:
            files.append(self.path, json.dumps({"step": step, **line}) + "\n")
        except UserError as error:
            raise _unsaved(self.path.parent, step, error) from None


def _step_of(line: str) -> int | None:
    """The step of a line of the curve; None where it was cut off."""
    try:
        step = json.loads(line)["step"]
    except (ValueError, TypeError, KeyError):
        return None
    return step if isinstance(step, int) and line.endswith("\n") else None


def _unsaved(out: Path, step: int, error: Exception) -> UserError:
    """The user error for what could not be written in the middle of a training."""
    reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
    hint = "Make room; the same command goes on from the last save."
    return UserError(f"Step {step} could not be saved in {out}: {reason}.", hint)


def _name(step: int) -> str:
    return f"step-{step:08d}"


def saved(out: Path) -> list[Path]:
    """Folders of whole saves, oldest first."""
    return sorted(
        path for path in (out / SAVES).glob("step-*") if STEP.fullmatch(path.name) and (path / STATE).exists()
    )


def tidy(out: Path) -> None:
    """Remove what a kill may have left beside the newest save: older ones, and one that was not whole."""
    newest = saved(out)[-1:]
    for path in (out / SAVES).glob("step-*"):
        if path not in newest:
            _remove(path)
    for folder in (out, out / SAVES):
        files.sweep(folder)


def discard(out: Path) -> None:
    """Forget a training: all of its saves, its curve and its checkpoint."""
    for path in (out / HEADER, out / WEIGHTS, out / CURVE):
        files.remove(path)
    for path in (out / SAVES).glob("step-*"):
        _remove(path)
    with suppress(OSError):
        (out / SAVES).rmdir()


def _remove(save: Path) -> None:
    """Remove the files of a save, and its folder where nothing else lies in it."""
    if STEP.fullmatch(save.name) and save.is_dir() and not save.is_symlink():
        for name in (STATE, TENSORS):
            files.remove(save / name)
        with suppress(OSError):
            save.rmdir()
