"""Every one-pass method of NVIDIA's kvpress, as a method here: `--method 'kvpress:SnapKVPress?window_size=32'`.

    --method kvpress:KnormPress --set budget=256           256 tokens stay in every layer
    --method kvpress:StreamingLLMPress --set budget=0.2    a fifth of the context stays
    --method "kvpress:AdaKVPress(SnapKVPress)"             presses that wrap others, by nesting

Devoto et al., Expected Attention and kvpress (arXiv 2510.00636), tested with kvpress 0.5.5. A press compresses the
first forward of a text and no other: all pieces are read as one text, once. What stays is in the order the press left
it in, which attention does not see; the text that follows goes on at the position after all that was read. Some presses
throw nothing away and hide slots from single heads instead; they are hidden here, too, and `State.labels` says so.

Shape letters: L layers · B rows · H key/value heads · P slots kept · T tokens read · D head size.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from transformers.cache_utils import DynamicCache

from ttabench.core.errors import UserError
from ttabench.core.types import Ask, Observe
from ttabench.cost.formula import NoSettings
from ttabench.lm.forward.tokens import new_ids
from ttabench.lm.forward.ways import ways_of
from ttabench.lm.model import LM
from ttabench.lm.patch import Patch, Prefix, State
from ttabench.methods.base import BaseMethod
from ttabench.methods.eviction.scores import tokens_of
from ttabench.methods.kvpress import KVPRESS
from ttabench.methods.kvpress import names as presses
from ttabench.methods.kvpress.settings import KvPressSettings
from ttabench.methods.parts.amount import Amount
from ttabench.methods.spec import MethodSpec

MOVING = {"KeyRerotationPress"}
"""Presses that move what stays up to positions 0, 1, ...; the text that follows goes on behind it, as in kvpress."""
EAGER = {"ObservedAttentionPress"}
"""Presses that read attention weights, which only eager attention hands out, all T x T of them."""
HIDING = {"AdaKVPress", "CriticalAdaKVPress", "DMSPress", "DuoAttentionPress", "LUKVPress"}
"""Presses that hide slots from single heads and keep all of them."""

ASKED = 256
"""Tokens of prompt and answer for which there must be room in a window of the model."""
LABEL_NOTES = {
    "cache_reduced": {
        True: "removed slots from the cache",
        False: "removed no slot from the cache, so its state is as large as the full cache",
    },
    "needs_eager": {
        True: "reads attention weights, so the context was read with eager attention, whose memory grows with the"
        " square of its length",
    },
}


class KvPress(BaseMethod[Any]):
    """The cache of the context after a press. State: keys, values, next; mask and hidden where there is such."""

    spec = KVPRESS
    reads = "once"
    needs = ("hooks", "gaps", "shape")
    wanted: ClassVar[presses.Press]
    label_notes = LABEL_NOTES
    known: ClassVar[Mapping[str, type[Any]]] = {}
    """Classes of presses by name."""

    def __init__(self, lm: LM, settings: KvPressSettings | NoSettings) -> None:
        super().__init__(lm, settings)
        self.budget: Amount | None = settings.budget if isinstance(settings, KvPressSettings) else None
        names = {press.name for press in self.wanted.all()}
        self.eager = bool(names & EAGER)
        self.growth = "constant" if isinstance(self.budget, int) and not names & HIDING else "linear"
        if not all(hasattr(block, "self_attn") for block in getattr(lm.decoder, "layers", [None])):
            fault = f"kvpress supports Llama, Mistral, Phi-3, Qwen and Gemma models; it does not support {lm.name}"
            raise UserError(f"{fault} ({lm.config.model_type}).", "Use --method snapkv, h2o or window.")

    @torch.no_grad()
    def adapt(self, state: State, chunks: Sequence[Sequence[Observe]]) -> State:
        """Read all pieces of a row as one text and compress it.

        Raises:
            UserError: something was compressed before; the text does not fit the model, or the press refuses it.
        """
        if not chunks:
            return state
        if state.tensors:
            done = f"{self.name} has compressed {max(state.meta['tokens_read'])} tokens and cannot read more."
            raise UserError(done, "Let it read everything at once, or use --method snapkv or window.")
        rows = [list(chain(*pieces)) for pieces in new_ids(self.lm, state, chunks)]
        texts = [[*self.lm.start_ids, *ids] for ids in rows]
        left = [self._compressed(ids) for ids in texts]
        moved = self.wanted.name in MOVING
        following = [row["keys"].shape[2] if moved else len(ids) for row, ids in zip(left, texts, strict=True)]
        tensors = _stacked(left, torch.tensor(following, device=self.lm.device))
        reduced = any(row["keys"].shape[2] < len(ids) for row, ids in zip(left, texts, strict=True))
        labels = {"cache_reduced": reduced, "needs_eager": self.eager}
        return State(state.rows, tensors, {"tokens_read": [len(ids) for ids in rows], "labels": labels})

    def evicts_nothing(self, tokens: int) -> bool:
        """Whether the budget is as large as the text; a press without a budget is not known to keep all."""
        whole = tokens + len(self.lm.start_ids)
        return self.budget is not None and int(tokens_of(self.budget, torch.tensor([whole]))) >= whole

    def patch(self, state: State, asks: Sequence[Ask]) -> Patch:  # noqa: ARG002  # the contract's arguments
        """The compressed cache as a prefix."""
        held = state.tensors
        if not held:
            return Patch()
        hidden = tuple(held["hidden"].unbind(0)) if "hidden" in held else None
        keys, values = tuple(held["keys"].unbind(0)), tuple(held["values"].unbind(0))
        return Patch(prefix=Prefix(keys, values, held["next"], held.get("mask"), holds_bos=True, hidden_LBHP=hidden))

    def _compressed(self, ids: list[int]) -> dict[str, Tensor]:
        """The cache that a press leaves: keys and values [L, H, P, D], hidden bool [L, H, P] if slots are hidden."""
        total = len(ids)
        if total > self.lm.max_positions:
            fault = f"A context of {total} tokens exceeds the {self.lm.max_positions} positions of {self.lm.name}."
            raise UserError(fault, "Read less (--task-set documents=N) or give a --model with more positions.")
        first, behind = torch.zeros(1), torch.full((1,), total + ASKED)
        if not all(bool(near(0, 0, behind, first)) for near in ways_of(self.lm).local.values()):
            fault = f"Layers of {self.lm.name} see no further than a window, which {total} tokens are near"
            raise UserError(
                f"{fault}; kvpress does not say where the slots that stay stood.", "Read less, or use snapkv."
            )
        press = presses.build(self.wanted, self.known)  # a new one for every text: presses remember
        if self.budget is not None:
            press.compression_ratio = removed_share(int(tokens_of(self.budget, torch.tensor([total]))), total)
        cache = DynamicCache()
        modules = [block.self_attn for block in self.lm.decoder.layers]  # type: ignore[union-attr]
        try:
            with compressing(self.lm, modules, eager=self.eager) as hidden, press(self.lm.model):
                ids_BT = torch.tensor([ids], device=self.lm.device)
                self.lm.decoder(input_ids=ids_BT, past_key_values=cache, use_cache=True)
        except (UserError, torch.OutOfMemoryError):
            raise
        except Exception as error:  # whatever a press of another package raises, it refuses this text
            reason = " ".join(str(error).split()) or type(error).__name__
            fault = f"{self.wanted.name} cannot compress these {total} tokens ({reason[:200].rstrip('.')})."
            raise UserError(
                fault, "Give it other arguments (?key=value), more text, or choose another press."
            ) from error
        return self._measured(cache, hidden)

    def _measured(self, cache: DynamicCache, hidden: list[Tensor | None]) -> dict[str, Tensor]:
        slots = sorted({int(layer.keys.shape[2]) for layer in cache.layers})
        if len(slots) > 1:
            fault = f"{self.wanted.name} keeps {slots[0]} tokens in one layer and {slots[-1]} in another."
            raise UserError(fault, "Choose a press that keeps the same number of tokens in all layers.")
        joined = {name: torch.cat([getattr(layer, name) for layer in cache.layers]) for name in ("keys", "values")}
        if any(hidden_HP is not None for hidden_HP in hidden):
            blind = torch.zeros(joined["keys"].shape[:3], dtype=torch.bool, device=self.lm.device)
            for layer_HP, hidden_HP in zip(blind, hidden, strict=True):
                if hidden_HP is not None:
                    layer_HP[hidden_HP[0], hidden_HP[1]] = True
            joined["hidden"] = blind
        return joined


def removed_share(kept: int, total: int) -> float:
    """The compression ratio at which a press keeps so many of all tokens, in spite of rounding: `int(T * (1 - r))`."""
    return 0.0 if kept >= total else 1.0 - (kept + 0.5) / total


@contextmanager
def compressing(lm: LM, modules: Sequence[nn.Module], *, eager: bool) -> Iterator[list[Any]]:
    """A model as presses expect it, and on the way out as it was before.

    Attention is told `cache_position`, which transformers has not passed since 5.4; presses add `rotary_emb` and
    `masked_key_indices` to it, which are taken away again.

    Yields:
        A list that holds on the way out, for every layer, the (heads, slots) a press hides, or None.
    """
    masked: list[Any] = []
    before = str(lm.model.config._attn_implementation)
    rotating = [hasattr(module, "rotary_emb") for module in modules]
    hooks = [module.register_forward_pre_hook(_with_positions, with_kwargs=True) for module in modules]
    for module in modules:
        vars(module)["masked_key_indices"] = None
    try:
        if eager:
            lm.model.set_attn_implementation("eager")
        yield masked
        masked += [indices and tuple(indices)[1:] for indices in (vars(m)["masked_key_indices"] for m in modules)]
    finally:
        if eager:
            lm.model.set_attn_implementation(before)
        for module, hook, own in zip(modules, hooks, rotating, strict=True):
            hook.remove()
            del module.masked_key_indices
            if hasattr(module, "rotary_emb") and not own:
                del module.rotary_emb


def _with_positions(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    hidden_BTD, cache = kwargs["hidden_states"], kwargs["past_key_values"]
    past = cache.get_seq_length(module.layer_idx)
    places = torch.arange(past, past + hidden_BTD.shape[1], device=hidden_BTD.device)
    return args, {"cache_position": places, **kwargs}


def _stacked(rows: Sequence[Mapping[str, Tensor]], next_B: Tensor) -> dict[str, Tensor]:
    """Rows as one state; shorter ones are padded in front."""
    slots = [row["keys"].shape[2] for row in rows]
    gaps = [max(slots) - slot for slot in slots]
    stacked = {
        name: torch.stack([pad(row[name], (0, 0, gap, 0)) for row, gap in zip(rows, gaps, strict=True)], dim=1)
        for name in ("keys", "values")
    }
    stacked["next"] = next_B
    if any(gaps):
        stacked["mask"] = (
            torch.arange(max(slots), device=next_B.device) >= torch.tensor(gaps, device=next_B.device)[:, None]
        )
    if any("hidden" in row for row in rows):
        blind = [row["hidden"] if "hidden" in row else torch.zeros_like(row["keys"][..., 0].bool()) for row in rows]
        stacked["hidden"] = torch.stack(
            [pad(slots_of_layer, (gap, 0)) for slots_of_layer, gap in zip(blind, gaps, strict=True)], dim=1
        )
    return stacked


def spec_of(text: str) -> MethodSpec:
    """The method of a press as it was typed.

    Raises:
        UserError: whatever `names` refuses; a press that reads a text several times or evicts while decoding; a ratio
            beside a budget.
    """
    wanted = presses.parse(text)
    known = presses.known_presses()
    for press in wanted.all():
        if presses.passes_of_its_own(presses.class_of(press, known)):
            fault = f"{press.name} reads the text several times, or evicts while the answer is generated;"
            hint = "Choose another press, or use kvpress's own pipeline."
            raise UserError(f"{fault} ttabench runs only presses that read the text in one pass.", hint)
    spec = replace(KVPRESS, name=f"kvpress:{text}")
    if not presses.takes_a_budget(presses.build(wanted, known)):
        spec = replace(spec, Settings=NoSettings, presets={})
    elif given := [press for press in wanted.all() if "compression_ratio" in press.arguments]:
        ratio = given[0].arguments["compression_ratio"]
        fault = f"{given[0].name} takes no compression_ratio here (got {ratio}): --set budget says how much is kept."
        raise UserError(fault, "Leave it out and give the share to keep, e.g. --set budget=0.5.")
    made = type("KvPress", (KvPress,), {"wanted": wanted, "known": known})
    spec = replace(spec, where=made)
    setattr(made, "spec", spec)  # noqa: B010  # type() gives a plain type
    return spec
