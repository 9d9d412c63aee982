"""Cartridges: a small KV cache or a LoRA, trained to reproduce the base model with the context.

The cache is initialised with the keys and values of the first tokens of the context. Eyuboglu et
al., "Cartridges: Lightweight and general-purpose long context representations via self-study",
arXiv 2506.06266. The base model writes the training texts itself, given a document and seeds of
several kinds.

Shape letters: N parameters of the student · P slots · H heads · D head size.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain, cycle, islice
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

from ttabench.core.errors import UserError
from ttabench.core.files import read_json_object
from ttabench.lm.forward.patching import encode_patch
from ttabench.lm.inference.answering import generate
from ttabench.lm.inference.scoring import ScoringItem
from ttabench.lm.loading import safetensors_io
from ttabench.lm.model import LM
from ttabench.lm.patch import Patch, Prefix, State
from ttabench.methods.checkpoints import COPY_AGAIN_HINT, PEFT_CONFIG_FILE, read_peft_tensors
from ttabench.methods.distill import CARTRIDGE, CartridgeSettings, SelfStudySettings
from ttabench.methods.distill.method import SEPARATOR, SelfDistillation


def from_peft(lm: LM, settings: CartridgeSettings, folder: Path) -> State:
    """Read a peft CARTRIDGE as a state, with an unknown number of tokens read.

    Raises UserError if the target is not a cache, or if the adapter has another type, or another
    size than the base model and the settings.
    """
    if settings.target != "cache":
        fault = f"{folder} is a peft adapter, which target={settings.target} cannot read."
        raise UserError(fault, "Use --set target=cache, or --method lora for a LoRA.")
    kind = read_json_object(folder / PEFT_CONFIG_FILE, COPY_AGAIN_HINT).get("peft_type")
    if kind != "CARTRIDGE":
        raise UserError(
            f"{folder} is a peft adapter of type {kind}, not a CARTRIDGE.", "Use --method lora."
        )
    stored = read_peft_tensors(folder, lm)
    size = settings.slots, lm.layers, 2, lm.kv_heads, lm.head_dim
    expected = {
        "prompt_embeddings": torch.empty(settings.slots, math.prod(size[1:]), device="meta")
    }
    if mismatch := safetensors_io.describe_mismatch(stored, expected):
        fault = (
            f"The cartridge {folder} does not fit {lm.name} and slots={settings.slots}: {mismatch}."
        )
        raise UserError(
            fault, "Use the base model that it was trained on, and set its length (--set slots=N)."
        )
    parts_PLKHD = stored["prompt_embeddings"].float().view(size)
    weights_1N = parts_PLKHD.permute(1, 2, 3, 0, 4).reshape(1, -1)
    return State(1, {"weights": weights_1N}, {"tokens_read": [0]})


StudySettingsT = TypeVar("StudySettingsT", bound=SelfStudySettings)


class SelfStudy(SelfDistillation[StudySettingsT]):
    """Base class of students that learn from texts which the base model writes on each document."""

    def __init__(self, lm: LM, settings: StudySettingsT) -> None:
        super().__init__(lm, settings)
        # without context, the separator between the context and a document has no meaning
        self.student_reads_prompt = bool(settings.seeds)

    def openings(self) -> list[list[int]]:
        """Return the seeds, or the separator if there are none."""
        seeds = self.settings.seeds
        return [
            self.lm.encode(SEPARATOR + seed, is_continuation=True) for seed in seeds
        ] or super().openings()

    def items(
        self, before: Patch, group: Sequence[list[int]], tokens_read: int
    ) -> list[ScoringItem]:
        """Return the texts that the base model writes for each seed after each document alone."""
        s, lm = self.settings, self.lm
        if not s.seeds:
            return super().items(before, group, tokens_read)
        seeds = [ids for ids in self.openings() for _ in range(s.questions)]
        generator = torch.Generator(lm.device).manual_seed(s.seed * 1_000_003 + tokens_read)

        def pick(logits_BV: Tensor) -> Tensor:
            return torch.multinomial(logits_BV.float().softmax(-1), 1, generator=generator)[:, 0]

        items = list[ScoringItem]()
        for text in group:
            teacher = replace(before, tokens_BT=torch.tensor([text], device=lm.device))
            written = generate(lm, teacher, seeds, max_new_tokens=s.length, select_token=pick)
            items += [
                (seed, written_ids)
                for seed, written_ids in zip(seeds, written, strict=True)
                if written_ids
            ]
        return items


class Cartridge(SelfStudy[CartridgeSettings]):
    """Cartridge: self-distillation into keys and values, or into a LoRA."""

    spec = CARTRIDGE
    from_peft = staticmethod(from_peft)

    def __init__(self, lm: LM, settings: CartridgeSettings) -> None:
        if settings.target == "cache":
            self.required_capabilities = ("keys", "shape", "gradients")
        super().__init__(lm, settings)
        if settings.target == "deltas":
            return
        self.student_reads_prompt = True
        size = torch.Size((1, lm.kv_heads, settings.slots, lm.head_dim))
        self.layout = {
            f"{kind}.{layer}": size for layer in range(lm.layers) for kind in ("keys", "values")
        }
        if settings.slots <= len(lm.start_ids):
            fault = f"slots={settings.slots} must exceed the {len(lm.start_ids)} start tokens."
            raise UserError(fault, "Use a larger --set slots=N.")

    @torch.no_grad()
    def start(self, texts: Sequence[list[int]]) -> Tensor:
        """Return keys and values of the first context tokens; a shorter context is repeated."""
        if self.settings.target == "deltas":
            return super().start(texts)
        text_slots = self.settings.slots - len(self.lm.start_ids)
        context_ids = list(chain(*texts)) or [self.lm.eos_id]
        tokens_1T = torch.tensor([[*islice(cycle(context_ids), text_slots)]], device=self.lm.device)
        prefix = encode_patch(self.lm, Patch(tokens_BT=tokens_1T)).prefix
        assert prefix is not None, "reading tokens gives a prefix"
        pairs = zip(prefix.keys_LBHPD, prefix.values_LBHPD, strict=True)
        return torch.cat([tensor.float().flatten() for tensor in chain(*pairs)])

    def student_patch(self, parts: Mapping[str, Tensor]) -> Patch:
        """Return the cache as a prefix of as many tokens as it has slots."""
        if self.settings.target == "deltas":
            return super().student_patch(parts)
        keys, values = (
            tuple(self._cast_part(parts[f"{kind}.{layer}"]) for layer in range(self.lm.layers))
            for kind in ("keys", "values")
        )
        next_B = torch.full((1,), self.settings.slots, device=keys[0].device)
        return Patch(prefix=Prefix(keys, values, next_B, holds_bos=True))

    def _cast_part(self, part_BHPD: Tensor) -> Tensor:
        """Cast to the dtype of the base model, without a gradient for the first slot (BOS)."""
        trained_BHPD = part_BHPD[:, :, 1:]
        return torch.cat([part_BHPD[:, :, :1].detach(), trained_BHPD], dim=2).to(self.lm.dtype)
