"""A training as it is put down in a folder, and taken up from there: parameters, optimiser, what is carried, record.

    keep(out, method, optimiser, record, config)              one more save, then the checkpoint
    record = taken_up(out, method, config, optimiser)         as `keep` left them; None where there is no save
    record = finished(method, config)                         of a training that has nothing left to do

`training_state` holds the files.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ttabench.core.errors import UserError
from ttabench.core.types import Json
from ttabench.lm.loading.finite import first_not_finite
from ttabench.lm.loading.safetensors_io import unfit
from ttabench.methods import checkpoints
from ttabench.methods.checkpoint_header import header
from ttabench.methods.trainable import Trainable
from ttabench.records.typed_json import typed
from ttabench.training import training_state
from ttabench.training.config import TrainConfig, TrainRecord
from ttabench.training.muon import matrices

MOMENTS = ("exp_avg", "exp_avg_sq", "step")
"""Of Adam, for every parameter; of Muon, for its matrices, the first."""


def keep(
    out: Path, method: Trainable[Any], optimiser: torch.optim.Optimizer, record: TrainRecord, config: TrainConfig
) -> None:
    """Store what goes on from here, if that is wanted, then the checkpoint."""
    if config.save_every:
        tensors = {f"parameter.{name}": parameter.data for name, parameter in method.modules().named_parameters()}
        for index, moments in optimiser.state_dict()["state"].items():
            tensors |= {f"moment.{index}.{name}": value for name, value in moments.items()}
        tensors |= {f"carried.{name}": value for name, value in method.training_state().items()}
        state = {"record": asdict(record), "belongs": _belongs(method, config)}
        training_state.write(out, record.steps, tensors, state)
    publish(out, method, record, config)


def publish(out: Path, method: Trainable[Any], record: TrainRecord, config: TrainConfig) -> None:
    """Store the checkpoint that `--checkpoint` reads."""
    summary, step = record.summary(config), record.steps
    checkpoints.save(method, out, summary, config.dtype, step=step, stands_on=config.stands_on)


def taken_up(
    out: Path, method: Trainable[Any], config: TrainConfig, optimiser: torch.optim.Optimizer | None = None
) -> TrainRecord | None:
    """Take up the newest save in a folder, if there is one: fills the method, and the optimiser where one is given.

    Raises:
        UserError: it is damaged, or of another training.
    """
    if (saved := training_state.read(out)) is None:
        return None
    try:
        return _filled(out, method, config, optimiser, *saved)
    except (KeyError, IndexError, TypeError, ValueError, RuntimeError, AttributeError) as error:
        raise training_state.damaged(out, error) from error


def finished(method: Trainable[Any], config: TrainConfig) -> TrainRecord | None:
    """The record of this training where it is done, the method then as it ended; nothing is written.

    Raises:
        UserError: the folder holds another training, or a damaged one; its weights are stored in another number format.
    """
    out = config.out
    if out is None or not config.resume or training_state.finished(out) != config.steps:
        return None
    record = taken_up(out, method, config)
    stored = header(out).training.get("config", {}).get("dtype", config.dtype)
    if stored != config.dtype:
        fault = f"The training in {out} is finished, and its weights are stored as {stored}, not {config.dtype}."
        raise UserError(fault, training_state.AGAIN)
    method.modules().eval()
    return record


def _filled(
    out: Path, method: Trainable[Any], config: TrainConfig, optimiser: torch.optim.Optimizer | None,
    tensors: Mapping[str, Tensor], state: Mapping[str, Any],
) -> TrainRecord:  # fmt: skip
    training_state.refuse_others(out, state["belongs"], _belongs(method, config))
    parameters = dict(method.modules().named_parameters())
    groups = _grouped(tensors, parameters, _moments(method, config))
    record = typed(TrainRecord, state["record"])
    if not record.steps == len(record.losses) == state["step"]:
        raise ValueError("its record is of other steps")
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(groups["parameter"][name])
    moments: dict[int, dict[str, Tensor]] = {}
    for name, tensor in groups["moment"].items():
        index, _, kind = name.partition(".")
        moments.setdefault(int(index), {})[kind] = tensor
    if optimiser is not None:
        optimiser.load_state_dict({**optimiser.state_dict(), "state": moments})
    method.load_training_state(groups["carried"])
    return record


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
    """The tensors of a save, by what they are ("parameter", "moment", "carried") and their own names.

    Raises:
        ValueError: tensors are missing, superfluous, misshapen or not finite; names the first.
    """
    groups: dict[str, dict[str, Tensor]] = {"parameter": {}, "moment": {}, "carried": {}}
    for name, tensor in tensors.items():
        kind, _, rest = name.partition(".")
        groups[kind][rest] = tensor
    moved = {name.partition(".")[0] for name in groups["moment"]}  # what no loss depends on has no moments
    wanted = {name: tensor for name, tensor in moments.items() if name.partition(".")[0] in moved}
    fault = unfit(groups["parameter"], parameters) or unfit(groups["moment"], wanted)
    if fault is None and (broken := first_not_finite(sorted(tensors.items()))):
        fault = f"{broken} holds values that are not finite"
    if fault is not None:
        raise ValueError(fault)
    return groups


def _belongs(method: Trainable[Any], config: TrainConfig) -> dict[str, dict[str, Json]]:
    """The values that a resumed training must share with the saved one, as JSON gives them back."""
    base = {"base": method.lm.fingerprint, "stands_on": dict(config.stands_on)}
    own = {
        "method": {"method": method.name},
        "settings": asdict(method.settings),
        "recipe": config.recipe(),
        "data": dict(config.data),
        "base": base,
    }
    same: dict[str, dict[str, Json]] = json.loads(json.dumps(own))
    return same
