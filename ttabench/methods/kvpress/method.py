"""Every prefill method of NVIDIA's kvpress, as a method here: `--method 'kvpress:SnapKVPress?window_size=32'`.

Devoto et al., Expected Attention and kvpress (arXiv 2510.00636), tested with kvpress 0.5.5.
Shape letters: L layers · B rows · H key/value heads · P slots kept · T tokens read · D head size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from itertools import chain
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from transformers import AutoTokenizer
from transformers.cache_utils import DynamicCache

from ttabench.core.errors import UserError
from ttabench.core.types import Ask, Observe
from ttabench.cost.formula import NoSettings
from ttabench.lm.forward.tokens import new_ids
from ttabench.lm.forward.ways import ways_of
from ttabench.lm.model import LM
from ttabench.lm.patch import Patch, Prefix, State
from ttabench.methods.base import BaseMethod
from ttabench.methods.eviction.evicted_cache import RaggedCache, stacked
from ttabench.methods.eviction.scores import tokens_of
from ttabench.methods.kvpress import KVPRESS, KvPressSettings
from ttabench.methods.kvpress import names as presses
from ttabench.methods.parts.amount import Amount
from ttabench.methods.spec import MethodSpec


class Layer(NamedTuple):
    """What a press leaves of one layer."""

    keys: Tensor
    """[H, P, D]"""
    values: Tensor
    """[H, P, D]"""
    seen: Tensor
    """bool [H, P]: which slots a head still sees."""


def removed_share(kept: int, total: int, heads: int = 1, *, counts_removed: bool = False) -> float:
    """The compression ratio at which so many of all tokens stay, in spite of rounding. `heads`: how many of them, of
    all layers, the press counts together; `counts_removed`: whether it computes how many slots go, `int(slots * r)`,
    and not how many stay, `int(slots * (1 - r))`."""
    if kept >= total:
        return 0.0
    rest = 0.5 / heads
    return (total - kept + rest) / total if counts_removed else 1.0 - (kept + rest) / total


@contextmanager
def compressing(lm: LM, *, eager: bool) -> Iterator[list[Any]]:
    """A model as presses expect it, and on the way out as it was before.

    Attention is told `cache_position`, which transformers has not passed since 5.4. Presses add `rotary_emb` and
    `masked_key_indices` to it, replace the decoder's `forward`, and choose another attention for a while; all of that
    is taken away again. A press that asks for the model's tokenizer gets this one.

    Yields:
        A list that holds on the way out, for every layer, the (heads, slots) a press hides, or None.
    """
    masked: list[Any] = []
    modules = [block.self_attn for block in lm.decoder.layers]  # type: ignore[union-attr]
    attention, forward = str(lm.model.config._attn_implementation), vars(lm.decoder).get("forward")
    before = [set(vars(module)) | set(module._modules) for module in modules]  # kvpress itself may have left its mark
    hooks = [module.register_forward_pre_hook(_placed(lm), with_kwargs=True) for module in modules]
    for module in modules:
        vars(module)["masked_key_indices"] = None
    try:
        if eager:
            lm.model.set_attn_implementation("eager")
        with _own_tokenizer(lm):
            yield masked
        masked += [indices and tuple(indices)[1:] for indices in (vars(m)["masked_key_indices"] for m in modules)]
    finally:
        if str(lm.model.config._attn_implementation) != attention:
            lm.model.set_attn_implementation(attention)
        vars(lm.decoder).pop("forward", None)
        if forward is not None:
            vars(lm.decoder)["forward"] = forward
        for module, hook, own in zip(modules, hooks, before, strict=True):
            hook.remove()
            module.masked_key_indices = None
            for name in {"masked_key_indices", "rotary_emb"} - own:
                if hasattr(module, name):
                    delattr(module, name)


def _placed(lm: LM) -> Callable[..., tuple[Any, dict[str, Any]]]:
    """A hook that tells attention at which positions its tokens stand."""

    def place(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        hidden_BTD, cache = kwargs["hidden_states"], kwargs["past_key_values"]
        past = cache.get_seq_length(module.layer_idx)
        behind = past + hidden_BTD.shape[1]
        if behind > lm.max_positions:
            fault = f"A context of {behind} tokens exceeds the {lm.max_positions} positions of {lm.name}"
            again = f"; the press reads {behind - past} of them a second time" if past else ""
            hint = "Read less (--task-set documents=N) or give a --model with more positions."
            raise UserError(f"{fault}{again}.", hint)
        return args, {"cache_position": torch.arange(past, behind, device=hidden_BTD.device), **kwargs}

    return place


@contextmanager
def _own_tokenizer(lm: LM) -> Iterator[None]:
    """While presses load the tokenizer of the model's name, they get this model's; with a chat template if one is
    used."""
    tokenizer = copy(lm.tokenizer)
    if lm.chat is None:
        tokenizer.chat_template = None
    loads = vars(AutoTokenizer)["from_pretrained"]
    AutoTokenizer.from_pretrained = lambda *_, **__: tokenizer
    try:
        yield
    finally:
        AutoTokenizer.from_pretrained = loads


def layers_left(cache: DynamicCache, hidden: Sequence[tuple[Tensor, Tensor] | None], tokens: int) -> list[Layer]:
    """What is left of a text of so many tokens; what a press read behind it is left out."""
    layers = []
    for layer, hidden_HP in zip(cache.layers, hidden, strict=True):
        keys, values = layer.keys[0, :, :tokens], layer.values[0, :, :tokens]
        seen = torch.ones(keys.shape[:2], dtype=torch.bool, device=keys.device)
        if hidden_HP is not None:
            heads, slots = (part.to(keys.device) for part in hidden_HP)
            seen[heads, slots] = False
        layers.append(Layer(keys, values, seen))
    return layers


def are_even(layers: Sequence[Layer]) -> bool:
    """Whether all heads of all layers keep the same number of slots, and none is hidden."""
    return len({layer.seen.shape for layer in layers}) == 1 and all(bool(layer.seen.all()) for layer in layers)


def ragged(layers: Sequence[Layer], following: int) -> RaggedCache:
    """What is left of a text, with the position of the one that follows. Of layers that were cut it is not known
    which slots stayed: they are said to be the last ones."""
    device = layers[0].keys.device
    keys, values = (torch.cat([part[layer.seen].to(device) for part, layer in zip(parts, layers, strict=True)])
                    for parts in ([layer.keys for layer in layers], [layer.values for layer in layers]))  # fmt: skip
    places = [layer.seen.nonzero()[:, 1].to(device) + following - layer.seen.shape[1] for layer in layers]
    counts = torch.stack([layer.seen.sum(-1, dtype=torch.int32).to(device) for layer in layers])
    return RaggedCache(
        keys=keys,
        values=values,
        index=torch.cat(places).int(),
        counts=counts[:, None],
        next=torch.tensor([following], device=device),
    )


MOVING = {"KeyRerotationPress"}
"""Presses that move what stays up to positions 0, 1, ...; the text that follows goes on behind it, as in kvpress."""
EAGER = {"ObservedAttentionPress", "KVComposePress"}
"""Presses that read attention weights, which only eager attention hands out, all T x T of them."""
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
    """The cache of the context after a press. State: keys, values [L, B, H, P, D] and next, mask where rows are
    padded; a `RaggedCache` where a press keeps more of one layer or head than of another."""

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
        self.growth = "constant" if isinstance(self.budget, int) else "linear"
        if not all(hasattr(block, "self_attn") for block in getattr(lm.decoder, "layers", [None])):
            fault = f"kvpress supports Llama, Mistral, Phi-3, Qwen and Gemma models; it does not support {lm.name}"
            raise UserError(f"{fault} ({lm.config.model_type}).", "Use --method snapkv, h2o or window.")

    @torch.no_grad()
    def adapt(self, state: State, chunks: Sequence[Sequence[Observe]]) -> State:
        """Read all pieces of a row as one text and compress it."""
        if not chunks:
            return state
        if state.tensors:
            done = f"{self.name} has compressed {max(state.meta['tokens_read'])} tokens and cannot read more."
            raise UserError(done, "Let it read everything at once, or use --method snapkv or window.")
        rows = [list(chain(*pieces)) for pieces in new_ids(self.lm, state, chunks)]
        texts = [[*self.lm.start_ids, *ids] for ids in rows]
        left = [self._compressed(ids) for ids in texts]
        moved = self.wanted.name in MOVING
        following = [row[0].keys.shape[1] if moved else len(ids) for row, ids in zip(left, texts, strict=True)]
        if all(map(are_even, left)):
            tensors = _padded(left, torch.tensor(following, device=self.lm.device))
        else:
            tensors = stacked([ragged(*row) for row in zip(left, following, strict=True)]).tensors()
        whole = [
            int(layer.seen.sum(-1).min()) == len(ids) for row, ids in zip(left, texts, strict=True) for layer in row
        ]
        labels = {"cache_reduced": not all(whole), "needs_eager": self.eager}
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
        return Patch(prefix=RaggedCache(**held).prefix() if "counts" in held else _prefix(**held))

    def _compressed(self, ids: list[int]) -> list[Layer]:
        """What a press leaves of every layer."""
        total = len(ids)
        first, behind = torch.zeros(1), torch.full((1,), total + ASKED)
        if not all(bool(near(0, 0, behind, first)) for near in ways_of(self.lm).local.values()):
            fault = f"Layers of {self.lm.name} see no further than a window, which {total} tokens are near"
            raise UserError(
                f"{fault}; kvpress does not say where the slots that stay stood.", "Read less, or use snapkv."
            )
        press = presses.build(self.wanted, self.known)  # a new one for every text: presses remember
        if self.budget is not None:
            press.compression_ratio = self._ratio(total)
        cache = DynamicCache()
        try:
            with compressing(self.lm, eager=self.eager) as hidden, press(self.lm.model):
                ids_BT = torch.tensor([ids], device=self.lm.device)
                self.lm.decoder(input_ids=ids_BT, past_key_values=cache, use_cache=True)
        except Exception as error:  # whatever a press of another package raises, it refuses this text
            for cause in (error, error.__context__):  # some stumble as they clean up
                if isinstance(cause, UserError | torch.OutOfMemoryError):
                    raise cause from None
            reason = " ".join(str(error).split()) or type(error).__name__
            fault = f"{self.wanted.name} cannot compress these {total} tokens ({reason[:200].rstrip('.')})."
            raise UserError(
                fault, "Give it other arguments (?key=value), more text, or choose another press."
            ) from error
        return layers_left(cache, hidden, total)

    def _ratio(self, total: int) -> float:
        """The compression ratio at which the budget of a text of so many tokens stays."""
        assert self.budget is not None
        kept, name = int(tokens_of(self.budget, torch.tensor([total]))), self.wanted.name
        heads = self.lm.layers * self.lm.kv_heads if name in presses.OVER_ALL else 1
        return removed_share(kept, total, heads, counts_removed=presses.OVER_ALL.get(name, False))


def _prefix(keys: Tensor, values: Tensor, next: Tensor, mask: Tensor | None = None) -> Prefix:  # noqa: A002  # so they are stored
    """Rows of which every layer and head kept the same number of slots."""
    return Prefix(tuple(keys.unbind(0)), tuple(values.unbind(0)), next, mask, holds_bos=True)


def _padded(rows: Sequence[Sequence[Layer]], next_B: Tensor) -> dict[str, Tensor]:
    """Such rows as one state; shorter ones are padded in front."""
    slots = [row[0].keys.shape[1] for row in rows]
    gaps = torch.tensor([max(slots) - slot for slot in slots], device=next_B.device)

    def joined(name: str) -> Tensor:
        by_row = [torch.stack([getattr(layer, name).to(next_B.device) for layer in row]) for row in rows]
        return torch.stack([pad(row, (0, 0, max(slots) - row.shape[2], 0)) for row in by_row], dim=1)

    tensors = {"keys": joined("keys"), "values": joined("values"), "next": next_B}
    if gaps.any():
        tensors["mask"] = torch.arange(max(slots), device=next_B.device) >= gaps[:, None]
    return tensors


def spec_of(text: str) -> MethodSpec:
    """The method of a press as it was typed."""
    wanted = presses.parse(text)
    known = presses.known_presses()
    presses.check_passes(wanted, known)
    spec = replace(KVPRESS, name=f"kvpress:{text}")
    if not presses.takes_a_budget(presses.build(wanted, known)):
        spec = replace(spec, Settings=NoSettings, presets={}, keep=None)
    elif given := [press for press in wanted.all() if "compression_ratio" in press.arguments]:
        ratio = given[0].arguments["compression_ratio"]
        fault = f"{given[0].name} takes no compression_ratio here (got {ratio}): --set budget says how much is kept."
        raise UserError(fault, "Leave it out and give the share to keep, e.g. --set budget=0.5.")
    made = type("KvPress", (KvPress,), {"wanted": wanted, "known": known})
    spec = replace(spec, where=made)
    setattr(made, "spec", spec)  # noqa: B010  # type() gives a plain type
    return spec
