"""Every prefill method of NVIDIA's kvpress, as a method here: `--method 'kvpress:SnapKVPress?window_size=32'`.

Devoto et al., Expected Attention and kvpress (arXiv 2510.00636), tested with kvpress 0.5.5.
Shape letters: L layers · B rows · H key/value heads · P slots kept · T tokens read · D head size.
"""

from __future__ import annotations

import inspect
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib import import_module
from itertools import chain
from typing import Any, ClassVar, get_type_hints

import torch
from torch import Tensor, nn
from transformers.cache_utils import DynamicCache

from ttabench.core.declared import parse_assignments, parse_value
from ttabench.core.errors import UnknownName, UserError
from ttabench.core.types import Chunk, Query
from ttabench.lm.forward.capabilities import get_capabilities
from ttabench.lm.forward.patching import check_fits
from ttabench.lm.forward.tokens import new_chunk_ids
from ttabench.lm.model import LM
from ttabench.lm.patch import Patch, Prefix, State
from ttabench.methods.base import BaseMethod
from ttabench.methods.eviction.evicting import RaggedCache
from ttabench.methods.kvpress import KVPRESS, KvPressSettings
from ttabench.methods.parts.kept import prefix_from_tensors, prefix_tensors
from ttabench.methods.parts.settings import in_tokens
from ttabench.methods.spec import MethodSpec

INSTALL_COMMAND = (
    "pip install --no-deps kvpress==0.5.5 cachetools==5.5.2 fire==0.7.1 termcolor==3.3.0"
)
"""kvpress asks for an older transformers, so its dependencies cannot be resolved; these are what importing it takes."""
SYNTAX_HINT = (
    "Write --method 'kvpress:SnapKVPress?window_size=32', or 'kvpress:AdaKVPress(SnapKVPress)'."
)
RESERVED_TOKENS = 256
"""Tokens of prompt and answer for which there must be room in a window of the model."""


@dataclass(frozen=True, kw_only=True)
class Press:
    """A press as it was typed, with the one that it wraps."""

    name: str
    wrapped: Press | None = None
    arguments: Mapping[str, str] = field(default_factory=dict)


def parse_press(text: str) -> Press:
    """`NAME(PRESS)?KEY=VALUE&KEY=VALUE`, of which the name alone must be there."""
    typed = re.fullmatch(r"(\w+)(?:\((.*)\))?(?:\?([^()?]*))?", text)
    if typed is None or text.count("(") > 2:
        raise UserError(f"{text[:80]!r} is not the name of a press.", SYNTAX_HINT)
    name, wrapped, arguments = typed.groups()
    pairs = [part for part in (arguments or "").split("&") if part]
    inner = None if wrapped is None else parse_press(wrapped)
    return Press(name=name, wrapped=inner, arguments=parse_assignments(pairs, f"{name}?"))


def build_press(requested: Press) -> Any:
    """A new press."""
    try:
        kvpress = import_module("kvpress")
    except Exception as error:  # whatever another package does when it is imported
        raise UserError(
            f"kvpress cannot be imported ({error}).", f"Install it: {INSTALL_COMMAND}"
        ) from None
    logging.getLogger("kvpress").setLevel(
        logging.ERROR
    )  # it warns whenever a press is made: for every text here
    named = {
        name: made
        for name in kvpress.__all__
        if name not in ("BasePress", "ScorerPress")
        and issubclass(made := getattr(kvpress, name), kvpress.BasePress)
    }
    if (cls := named.get(requested.name)) is None:
        raise UnknownName("press", requested.name, sorted(named))
    if cls.__call__ is not kvpress.BasePress.__call__ or requested.name == "KeyRerotationPress":
        fault = f"{requested.name} reads in a way of its own, which does not run here."
        raise UserError(fault, "Choose another press, or use kvpress's own pipeline.")
    hints, given = get_type_hints(cls.__init__), dict[str, Any]()
    taken = [name for name in inspect.signature(cls).parameters if not name.startswith("_")]
    place = next((name for name in taken if "Press" in str(hints[name])), "")
    if requested.wrapped is not None:
        if not place:
            raise UserError(f"{requested.name} takes no press in brackets.", SYNTAX_HINT)
        given[place] = build_press(requested.wrapped)
    for key, text in requested.arguments.items():
        if key == "compression_ratio":
            fault = f"{requested.name} takes no compression_ratio here (got {text}): --set budget says how much is kept."
            raise UserError(
                fault, "Leave it out and give the share to keep, e.g. --set budget=0.5."
            )
        if key == place or key not in taken:
            raise UnknownName(
                f"argument of {requested.name}", key, [name for name in taken if name != place]
            )
        given[key] = parse_value(text, hints[key], f"{key} of {requested.name}")
    try:
        press = cls(**given)
        press.compression_ratio = (
            press.compression_ratio
        )  # presses that cannot be told what to keep refuse it
    except Exception as error:
        raise UserError(f"{requested.name}: {' '.join(str(error).split())}.", SYNTAX_HINT) from None
    return press


def removed_share(kept: int, total: int) -> float:
    """The compression ratio at which so many of all tokens stay, `int(total * (1 - ratio))`, in spite of rounding."""
    return 0.0 if kept >= total else 1.0 - (kept + 0.5) / total


@contextmanager
def press_compatible(lm: LM) -> Iterator[list[Any]]:
    """A model as presses expect it, and on the way out as it was before, whatever they set on its modules.

    Attention is told `cache_position`, which transformers has not passed since 5.4. Yields a list that holds on the way
    out, for every layer, the (heads, slots) a press hides, or None.
    """
    masked: list[Any] = []
    modules: list[nn.Module] = [block.self_attn for block in lm.decoder.layers]  # type: ignore[union-attr]
    touched = [lm.decoder, *modules]
    before = [(dict(vars(module)), dict(module._modules)) for module in touched]
    hooks = [
        module.register_forward_pre_hook(_add_cache_position, with_kwargs=True)
        for module in modules
    ]
    try:
        for module in modules:
            vars(module)["masked_key_indices"] = None
        yield masked
        masked += [
            indices and tuple(indices)[1:]
            for indices in (vars(m)["masked_key_indices"] for m in modules)
        ]
    finally:
        for hook in hooks:
            hook.remove()
        for module, (attributes, children) in zip(touched, before, strict=True):
            vars(module).clear()
            vars(module).update(attributes)
            module._modules.clear()
            module._modules.update(children)


def _add_cache_position(
    _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, dict[str, Any]]:
    """A hook that tells attention at which positions its tokens stand."""
    hidden_BTD = kwargs["hidden_states"]
    return args, {
        "cache_position": torch.arange(hidden_BTD.shape[1], device=hidden_BTD.device),
        **kwargs,
    }


class KvPress(BaseMethod[KvPressSettings]):
    """The cache of the context after a press. State: keys, values [L, 1, H, P, D] and next; a `RaggedCache` where a
    press keeps more of one layer or head than of another."""

    spec = KVPRESS
    granularity = "full"
    supports_batching = False
    required_capabilities = ("hooks", "gaps", "shape")
    requested: ClassVar[Press]

    def __init__(self, lm: LM, settings: KvPressSettings) -> None:
        super().__init__(lm, settings)
        self.growth = "constant" if isinstance(settings.budget, int) else "linear"
        if not all(hasattr(block, "self_attn") for block in getattr(lm.decoder, "layers", [None])):
            fault = f"kvpress supports Llama, Mistral, Phi-3, Qwen and Gemma models; it does not support {lm.name}"
            raise UserError(
                f"{fault} ({lm.config.model_type}).", "Use --method snapkv, h2o or window."
            )

    @torch.no_grad()
    def adapt(self, state: State, chunks: Sequence[Sequence[Chunk]]) -> State:
        """Read all pieces as one text and compress it."""
        if not chunks:
            return state
        if state.tensors:
            done = f"{self.name} has compressed {max(state.meta['tokens_read'])} tokens and cannot read more."
            raise UserError(
                done, "Let it read everything at once, or use --method snapkv or window."
            )
        (pieces,) = new_chunk_ids(self.lm, state, chunks)
        ids = [*self.lm.start_ids, *chain(*pieces)]
        layers = self._compress(ids)
        seen = [attributes for _, _, attributes in layers]
        even = len({own_HP.shape for own_HP in seen}) == 1 and all(
            bool(own_HP.all()) for own_HP in seen
        )
        next_B = torch.tensor([len(ids)], device=self.lm.device)
        keys, values = (tuple(layer[part][None] for layer in layers) for part in (0, 1))
        tensors = (
            prefix_tensors(Prefix(keys, values, next_B))
            if even
            else ragged_cache(layers, next_B).tensors()
        )
        return State(1, tensors, {"tokens_read": [len(ids) - len(self.lm.start_ids)]})

    def evicts_nothing(self, tokens: int) -> bool:
        """Whether the budget is as large as the text."""
        whole = tokens + len(self.lm.start_ids)
        return in_tokens(self.settings.budget, whole) >= whole

    def patch(self, state: State, queries: Sequence[Query]) -> Patch:  # noqa: ARG002  # the contract's arguments
        """The compressed cache as a prefix."""
        held = state.tensors
        return Patch(
            prefix=RaggedCache(**held).prefix() if "counts" in held else prefix_from_tensors(held)
        )

    def _compress(self, ids: list[int]) -> list[tuple[Tensor, Tensor, Tensor]]:
        """What a press leaves of every layer: keys, values [H, P, D], and which slots a head still sees [H, P]."""
        total, name = len(ids), self.requested.name
        check_fits(self.lm, None, [total])
        first, behind = torch.zeros(1), torch.full((1,), total + RESERVED_TOKENS)
        if not all(
            bool(near(0, 0, behind, first))
            for near in get_capabilities(self.lm).local_masks.values()
        ):
            fault = f"Layers of {self.lm.name} see no further than a window, which {total} tokens are near"
            fault = f"{fault}; kvpress does not say where the slots that stay stood."
            raise UserError(fault, "Read less, or use snapkv.")
        press = build_press(self.requested)  # a new one for every text: presses remember
        press.compression_ratio = removed_share(in_tokens(self.settings.budget, total), total)
        cache = DynamicCache()
        try:
            with press_compatible(self.lm) as hidden, press(self.lm.model):
                ids_BT = torch.tensor([ids], device=self.lm.device)
                self.lm.decoder(input_ids=ids_BT, past_key_values=cache, use_cache=True)
        except (UserError, torch.OutOfMemoryError):
            raise
        except (
            Exception
        ) as error:  # whatever a press of another package raises, it refuses this text
            reason = " ".join(str(error).split()) or type(error).__name__
            fault = f"{name} cannot compress these {total} tokens ({reason[:200].rstrip('.')})."
            hint = "Give it other arguments (?key=value), more text, or choose another press."
            raise UserError(fault, hint) from error
        layers = []
        for layer, hidden_HP in zip(cache.layers, hidden, strict=True):
            keys, values = layer.keys[0], layer.values[0]
            seen = torch.ones(keys.shape[:2], dtype=torch.bool, device=keys.device)
            if hidden_HP is not None:
                seen[tuple(part.to(keys.device) for part in hidden_HP)] = False
            layers.append((keys, values, seen))
        return layers


def ragged_cache(layers: Sequence[tuple[Tensor, Tensor, Tensor]], next_B: Tensor) -> RaggedCache:
    """What is left of a text, with the position of the one that follows. Of layers that were cut it is not known
    which slots stayed: they are said to be the last ones."""
    parts = [
        (
            keys[seen],
            values[seen],
            seen.nonzero()[:, 1] + next_B.to(seen.device) - seen.shape[1],
            seen.sum(-1),
        )
        for keys, values, seen in layers
    ]
    keys, values, places, counts = (
        [part.to(next_B.device) for part in attributes] for attributes in zip(*parts, strict=True)
    )
    counts_L1H = torch.stack(counts).int()[:, None]
    return RaggedCache(
        torch.cat(keys), torch.cat(values), torch.cat(places).int(), counts_L1H, next_B
    )


def make_spec(text: str) -> MethodSpec:
    """The method of a press as it was typed."""
    requested = parse_press(text)
    build_press(requested)
    made = type("KvPress", (KvPress,), {"requested": requested})
    spec = replace(KVPRESS, name=f"kvpress:{text}", family_factory="", import_path=made)
    setattr(made, "spec", spec)  # noqa: B010  # type() gives a plain type
    return spec
