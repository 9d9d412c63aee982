"""A LoRA that peft trained, as weight deltas: the logits of `peft.PeftModel.from_pretrained(base, FOLDER)`.

    method = PeftLora(lm, settings, FOLDER)      what a checkpoint of `lora` gives, see `checkpoints.load`
    method.patch(method.begin(1), [])            Patch(deltas={"model.layers.0.self_attn.q_proj": LowRank(...)})

Linear maps (GPT-2's Conv1D, too) get low-rank deltas: scale B A. All else is a dense delta, the new parameter less the
base's: modules and biases that were trained whole, biases of B, embeddings, and DoRA (arXiv 2402.09353, equation 5),
    W' = m (W + scale B A) / ||W + scale B A||, norms over the inputs of each output.

Shape letters: R rank · I/O features in and out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from ttabench.core.errors import UserError
from ttabench.core.types import Ask, Observe
from ttabench.lm.loading import safetensors_io as files_of_tensors
from ttabench.lm.loading.finite import first_not_finite
from ttabench.lm.model import LM
from ttabench.lm.patch import Delta, Dense, LowRank, Patch, State
from ttabench.methods.base import BaseMethod
from ttabench.methods.lora import LORA
from ttabench.methods.lora.settings import LoraSettings
from ttabench.methods.peft_config import AGAIN, PeftConfig, config_of
from ttabench.methods.peft_export import WEIGHTS

PREFIX = "base_model.model."
"""Before the names of the base model's modules."""
MAGNITUDE = "lora_magnitude_vector"
"""DoRA's factor m."""


class PeftLora(BaseMethod[LoraSettings]):
    """Deltas that peft trained. State: empty.

    Args:
        lm: the base model.
        settings: as its configuration says; for records.
        folder: what peft's `save_pretrained` wrote.

    Raises:
        UserError: an adapter that is not read here, or of another base model; a missing or damaged file.
    """

    spec = LORA

    def __init__(self, lm: LM, settings: LoraSettings, folder: Path) -> None:
        super().__init__(lm, settings)
        tensors = _read(folder, str(lm.device))
        self.tensors = nn.ParameterList([nn.Parameter(tensor, requires_grad=False) for tensor in tensors.values()])
        self.deltas = deltas_of(lm, folder, tensors)

    def modules(self) -> nn.ModuleDict:
        """The tensors of the file."""
        return nn.ModuleDict({"tensors": self.tensors})

    def adapt(self, state: State, pieces: Sequence[Sequence[Observe]]) -> State:  # noqa: ARG002  # the contract's
        """Nothing: what it knows it learned before."""
        return state

    def patch(self, state: State, asks: Sequence[Ask]) -> Patch:  # noqa: ARG002  # the contract's arguments
        """The deltas."""
        return Patch(deltas=self.deltas)


def deltas_of(lm: LM, folder: Path, tensors: Mapping[str, Tensor]) -> dict[str, Delta]:
    """The deltas of an adapter, by name.

    Args:
        lm: the base model.
        folder: of the adapter, for its configuration.
        tensors: float32 by name in the base model (`model.norm.weight`), factors behind the name of their module
            (`model.layers.0.mlp.up_proj.lora_A.weight`).

    Raises:
        UserError: they are of another base model, or change one of two places that share a parameter.
    """
    config, places = config_of(folder), dict(lm.model.named_parameters(remove_duplicate=False))
    modules = sorted({name for name, factor, _ in (key.partition(".lora_") for key in tensors) if factor})
    wanted: dict[str, Tensor] = {name: places[name] for name in tensors if name in places}
    for name in modules:
        wanted |= _factors(lm, config, name)
    if odd := files_of_tensors.unfit(tensors, wanted):
        hint = f"Give the base model that it was trained on{config.base and ': '}{config.base}."
        raise UserError(f"The peft adapter {folder} does not fit {lm.name}: {odd}.", hint)
    values = {name: tensor for name, tensor in tensors.items() if name in places}  # trained whole
    low: dict[str, Delta] = {}
    for name in modules:
        module, scale = lm.model.get_submodule(name), config.scale(name)
        a_RI, b_OR = (tensors[f"{name}.{factor}"] for factor in _names(module))
        if (b_bias_O := tensors.get(f"{name}.lora_B.bias")) is not None:
            bias = f"{name}.bias"
            values[bias] = values.get(bias, places[bias].float()) + scale * b_bias_O
        if config.use_dora or isinstance(module, nn.Embedding):
            weight, magnitude_O = f"{name}.weight", tensors.get(f"{name}.{MAGNITUDE}")
            held = values.get(weight, places[weight].float())
            values[weight] = _changed(module, held, scale * (b_OR @ a_RI), magnitude_O)
        else:
            low[name] = LowRank(a_RI[None], scale * b_OR[None])
    changes = {name: value - places[name].float() for name, value in values.items()}
    dense = {name: Dense(change[None]) for name, change in changes.items() if bool(change.any())}
    for name in (*dense, *(f"{name}.weight" for name in low)):
        if sum(place is places[name] for place in places.values()) > 1:
            fault = f"The peft adapter {folder} changes {name}, which stands in two places of {lm.name} (tied weights)."
            raise UserError(fault, "Give a base model whose head is its own (tie_word_embeddings=false).")
    return {**low, **dense}


def _changed(module: nn.Module, weight: Tensor, change_OI: Tensor, magnitude_O: Tensor | None) -> Tensor:
    """A weight with its change, in the module's layout; under DoRA each output's row at the length of its magnitude."""
    sum_OI = _turned(module, weight) + change_OI
    if magnitude_O is not None:
        sum_OI = sum_OI * (magnitude_O / torch.linalg.norm(sum_OI, dim=1))[:, None]
    return _turned(module, sum_OI)


def _turned(module: nn.Module, weight: Tensor) -> Tensor:
    """A weight [O, I] in the module's layout, or back: Conv1D and embeddings hold [I, O]."""
    return weight if isinstance(module, nn.Linear) else weight.T


def _names(module: nn.Module) -> tuple[str, str]:
    """Names of the two factors of a module."""
    embeds = isinstance(module, nn.Embedding)
    return ("lora_embedding_A", "lora_embedding_B") if embeds else ("lora_A.weight", "lora_B.weight")


def _factors(lm: LM, config: PeftConfig, name: str) -> dict[str, Tensor]:
    """The tensors that an adapted module has, without data; none where the base has no such linear map or embedding."""
    module = dict(lm.model.named_modules()).get(name)
    if not isinstance(module, nn.Linear | Conv1D | nn.Embedding):
        return {}
    (features_out, features_in), rank = _turned(module, module.weight).shape, config.rank(name)
    a, b = _names(module)
    shapes: dict[str, tuple[int, ...]] = {a: (rank, features_in), b: (features_out, rank)}
    if config.lora_bias and getattr(module, "bias", None) is not None:
        shapes["lora_B.bias"] = (features_out,)
    if config.use_dora:
        shapes[MAGNITUDE] = (features_out,)
    return {f"{name}.{factor}": torch.empty(shape, device="meta") for factor, shape in shapes.items()}


def _read(folder: Path, device: str) -> dict[str, Tensor]:
    """The tensors of an adapter, float32, by name in the base model."""
    path = folder / WEIGHTS
    try:
        stored, _ = files_of_tensors.read(path, device)
    except FileNotFoundError:
        pickled = (
            "; adapter_model.bin is a pickle, which is never read here" if path.with_suffix(".bin").exists() else ""
        )
        raise UserError(f"{path} is missing{pickled}.", AGAIN) from None
    except (ValueError, OSError) as error:
        raise UserError(f"{path} is damaged: {error}.", AGAIN) from None
    if not stored:
        raise UserError(f"{path} holds no tensors.", AGAIN)
    if broken := first_not_finite(sorted(stored.items())):
        raise UserError(f"{broken} of {path} holds values that are not finite.", "Train the adapter again.")
    # What peft wraps it calls base_layer.
    return {key.removeprefix(PREFIX).replace(".base_layer.", "."): tensor.float() for key, tensor in stored.items()}
