"""Saves of a training, so that a kill at any moment loses only the steps since the last save.

    OUT/adapter.safetensors, adapter.json      newest checkpoint, for `--checkpoint OUT`
    OUT/curve.jsonl                            a line per step, and a line per validation
    OUT/training.safetensors                   state to resume from: parameters, optimiser, and
                                               in the metadata record and configuration

A save replaces the previous one only when it is complete. The checkpoint is written after it, and
again when the training resumes. The list `.ttabench.json` marks these files as ttabench's: other
files with these names are never replaced, and other files in the folder stay.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ttabench.core import files
from ttabench.core.errors import UserError
from ttabench.core.files import read_text, reading_file
from ttabench.core.types import Json
from ttabench.lm.loading import safetensors_io
from ttabench.methods import checkpoints
from ttabench.methods.checkpoints import CHECKPOINT_FILES, HEADER_FILE, read_header
from ttabench.methods.states import check_writable, claim_folder
from ttabench.methods.trainable import Trainable
from ttabench.records.folder import parse_strict
from ttabench.training.config import TrainConfig, TrainRecord

CURVE, SAVE = CHECKPOINT_FILES[2:]
RESTART_HINT = "Use --force to start again."


def check_folder(out: Path, *, resume: bool) -> None:
    """Check that a training can write to a folder (made if missing) and resume from its content."""
    check_writable(out, CHECKPOINT_FILES)
    if resume and (out / HEADER_FILE).exists() and not (out / SAVE).exists():
        raise UserError(f"{out} has a checkpoint but no save to resume from.", RESTART_HINT)


def lock_folder(out: Path, *, resume: bool) -> AbstractContextManager[None]:
    """Lock the folder of a checkpoint while training writes to it; it is made if missing."""
    check_folder(out, resume=resume)
    return claim_folder(out, CHECKPOINT_FILES, "is training into")


def save_state(
    out: Path,
    method: Trainable[Any],
    optimiser: torch.optim.Optimizer,
    record: TrainRecord,
    config: TrainConfig,
    best: Mapping[str, Tensor],
) -> None:
    """Store the state to resume from, if saves are on, then the checkpoint."""
    if config.save_every:
        tensors = {
            f"parameter.{name}": parameter.data
            for name, parameter in method.modules().named_parameters()
        }
        tensors |= {f"method.{name}": each for name, each in method.training_tensors().items()}
        for index, moments in optimiser.state_dict()["state"].items():
            tensors |= {f"moment.{index}.{name}": value for name, value in moments.items()}
        tensors |= {
            f"best.{name}": value for name, value in best.items() if record.best() != record.steps
        }
        state = {"record": asdict(record), "belongs": _training_identity(method, config)}
        try:
            safetensors_io.write_tensors(out / SAVE, tensors, {"state": json.dumps(state)})
        except OSError as error:
            raise files.unwritable_error(out, error) from None
    write_checkpoint(out, method, record, config, best)


def write_checkpoint(
    out: Path,
    method: Trainable[Any],
    record: TrainRecord,
    config: TrainConfig,
    best: Mapping[str, Tensor],
) -> None:
    """Store the checkpoint that `--checkpoint` reads: of the best parameters if there are any, else
    of the current ones.
    """
    summary, step = record.summary(config), record.steps
    last = clone_parameters(method) if best else {}
    copy_parameters(method, best)
    checkpoints.save(method, out, summary, config.stored, step=step, stands_on=config.stands_on)
    copy_parameters(method, last)


def clone_parameters(method: Trainable[Any]) -> dict[str, Tensor]:
    """Return copies of the parameters, by name."""
    return {name: each.detach().clone() for name, each in method.modules().named_parameters()}


def copy_parameters(method: Trainable[Any], values: Mapping[str, Tensor]) -> None:
    """Copy values into parameters, by name."""
    with torch.no_grad():
        for name, parameter in method.modules().named_parameters():
            if name in values:
                parameter.copy_(values[name])


def load_saved(
    out: Path, method: Trainable[Any], config: TrainConfig, optimiser: torch.optim.Optimizer
) -> tuple[TrainRecord, Mapping[str, Tensor]] | None:
    """Restore the save, if there is one, into the method and the optimiser.

    A checkpoint of another save is written again. Returns the record, and the best parameters so
    far if they are kept.
    """
    if not (out / SAVE).exists():
        return None
    tensors, metadata = safetensors_io.read_tensors(out / SAVE, hint=RESTART_HINT)
    with reading_file(out / SAVE, RESTART_HINT):
        state = json.loads(metadata["state"])
        _refuse_mismatch(out, state["belongs"], _training_identity(method, config))
        record = parse_strict(TrainRecord, state["record"])
        if record.steps != len(record.losses):
            raise ValueError(f"its record has {len(record.losses)} losses for {record.steps} steps")
        best = _restore(method, optimiser, tensors)
    if config.best and record.best() == record.steps:
        best = clone_parameters(method)
    # after a kill the checkpoint may be that of the previous save
    stored = read_header(out) if (out / HEADER_FILE).exists() else None
    if stored is None or (stored.step, stored.training["config"]["stored"]) != (
        record.steps,
        config.stored,
    ):
        write_checkpoint(out, method, record, config, best)
    return record, best


def _restore(
    method: Trainable[Any], optimiser: torch.optim.Optimizer, tensors: Mapping[str, Tensor]
) -> Mapping[str, Tensor]:
    """Fill a method and its optimiser from the tensors of a save; returns its best parameters."""
    groups: dict[str, dict[str, Tensor]] = defaultdict(dict)
    for name, tensor in tensors.items():
        kind, _, rest = name.partition(".")
        groups[kind][rest] = tensor
    parameters = dict(method.modules().named_parameters())
    for kind in ("parameter", "best"):
        if (groups[kind] or kind != "best") and (
            fault := safetensors_io.describe_mismatch(groups[kind], parameters)
        ):
            raise ValueError(fault)
    own = method.training_tensors()
    if fault := safetensors_io.describe_mismatch(groups["method"], own):
        raise ValueError(fault)
    for name, tensor in own.items():
        tensor.copy_(groups["method"][name])
    shapes = [parameter.shape for parameter in parameters.values()]
    # parameters without a gradient have no moments
    moments: dict[int, dict[str, Tensor]] = defaultdict(dict)
    for name, tensor in groups["moment"].items():
        index, _, kind = name.partition(".")
        if tensor.shape != (() if kind == "step" else shapes[int(index)]):
            raise ValueError(f"moment.{name} has the shape {tuple(tensor.shape)}")
        moments[int(index)][kind] = tensor
    copy_parameters(method, groups["parameter"])
    optimiser.load_state_dict({**optimiser.state_dict(), "state": moments})
    return groups["best"]


def _training_identity(method: Trainable[Any], config: TrainConfig) -> dict[str, dict[str, Json]]:
    """Return the values that a resumed training must share with the saved one, as JSON returns
    them.
    """
    identity = {
        "method": {"method": method.name},
        "settings": asdict(method.settings),
        "recipe": config.recipe(),
        "data": dict(config.data),
        "base": {"base": method.lm.fingerprint, "stands_on": dict(config.stands_on)},
        "frequencies": {"max-context": method.lm.frequencies} if method.lm.frequencies else {},
    }
    return dict(json.loads(json.dumps(identity)))


def _refuse_mismatch(out: Path, stored: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    for group, values in expected.items():
        before = stored.get(group, {})
        for key in {**values, **before}:
            if values.get(key) != before.get(key):
                fault = f"{out} was trained with another {key} ({group}): "
                fault += f"{before.get(key)}, not {values.get(key)}."
                raise UserError(
                    fault, "Use the same as before, another --out, or --force to start again."
                )


class Curve:
    """File `curve.jsonl` with a line per step and per validation; lines of steps after the record's
    are removed.
    """

    def __init__(self, config: TrainConfig, record: TrainRecord) -> None:
        self.path = None if config.out is None else config.out / CURVE
        if self.path is None:
            return
        lines = read_text(self.path).splitlines(keepends=True) if self.path.exists() else []
        with reading_file(self.path, RESTART_HINT, max_bytes=None):
            kept = [
                line
                for line in lines
                if line.endswith("\n") and json.loads(line)["step"] <= record.steps
            ]
        files.write_atomically(self.path, "".join(kept))

    def add(self, step: int, line: Mapping[str, Json]) -> None:
        """Append one line."""
        if self.path is not None:
            files.append_text(self.path, json.dumps({"step": step, **line}) + "\n")


def discard(out: Path) -> None:
    """Delete a training: its save, its curve and its checkpoint."""
    for name in CHECKPOINT_FILES:
        files.remove_path(out / name)
