"""Prefill methods of NVIDIA's kvpress, such as `--method 'kvpress:SnapKVPress?window_size=32'`.

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
from ttabench.core.errors import UserError, require_known
from ttabench.core.registry import Registry
from ttabench.core.types import Chunk, Query
from ttabench.lm.forward.capabilities import get_capabilities
from ttabench.lm.forward.patching import check_fits
from ttabench.lm.forward.tokens import new_chunk_ids
from ttabench.lm.model import LM
from ttabench.lm.patch import Patch, Prefix, State
from ttabench.methods.base import Method
from ttabench.methods.eviction.cache import RaggedCache
from ttabench.methods.kvpress import KVPRESS, KvPressSettings
from ttabench.methods.parts.kept import prefix_from_tensors, prefix_tensors
from ttabench.methods.parts.settings import in_tokens
from ttabench.methods.spec import MethodSpec

INSTALL_COMMAND = (
    "pip install --no-deps kvpress==0.5.5 cachetools==5.5.2 fire==0.7.1 termcolor==3.3.0"
)
"""kvpress requires an older transformers; these packages suffice to import it."""
SYNTAX_HINT = (
    "Use --method 'kvpress:SnapKVPress?window_size=32', or 'kvpress:AdaKVPress(SnapKVPress)'."
)
RESERVED_TOKENS = 256
"""Tokens of prompt and answer that must fit a local attention window of the model."""


@dataclass(frozen=True, kw_only=True)
class Press:
    """Parsed name of a press, with the press that it wraps."""

    name: str
    wrapped: Press | None = None
    arguments: Mapping[str, str] = field(default_factory=dict)


def parse_press(text: str) -> Press:
    """Parse `NAME(PRESS)?KEY=VALUE&KEY=VALUE`; only the name is required."""
    typed = re.fullmatch(r"(\w+)(?:\((.*)\))?(?:\?([^()?]*))?", text)
    if typed is None or text.count("(") > 2:
        raise UserError(f"{text[:80]!r} is not a valid press name.", SYNTAX_HINT)
    name, wrapped, arguments = typed.groups()
    pairs = [part for part in (arguments or "").split("&") if part]
    inner = None if wrapped is None else parse_press(wrapped)
    return Press(name=name, wrapped=inner, arguments=parse_assignments(pairs, f"{name}?"))


def build_press(requested: Press) -> Any:
    """Create a press.

    Raises:
        UserError: kvpress is missing, or the name or an argument is not supported.
    """
    try:
        kvpress = import_module("kvpress")
    except Exception as error:  # imports of other packages may raise anything
        raise UserError(
            f"kvpress cannot be imported ({error}).", f"Run: {INSTALL_COMMAND}"
        ) from None
    # it warns for every new press, and there is one for every text
    logging.getLogger("kvpress").setLevel(logging.ERROR)
    named = {
        name: made
        for name in kvpress.__all__
        if name not in ("BasePress", "ScorerPress")
        and issubclass(made := getattr(kvpress, name), kvpress.BasePress)
    }
    cls = Registry("press", named).find(requested.name)
    if cls.__call__ is not kvpress.BasePress.__call__ or requested.name == "KeyRerotationPress":
        fault = f"{requested.name} has its own way of reading, which is not supported."
        raise UserError(fault, "Choose another press, or use the pipeline of kvpress.")
    hints, given = get_type_hints(cls.__init__), dict[str, Any]()
    accepted = [name for name in inspect.signature(cls).parameters if not name.startswith("_")]
    wrapped_argument = next((name for name in accepted if "Press" in str(hints[name])), "")
    if requested.wrapped is not None:
        if not wrapped_argument:
            raise UserError(f"{requested.name} does not wrap another press.", SYNTAX_HINT)
        given[wrapped_argument] = build_press(requested.wrapped)
    arguments = [name for name in accepted if name != wrapped_argument]
    for key, text in requested.arguments.items():
        if key == "compression_ratio":
            fault = f"{requested.name} does not accept compression_ratio={text} in ttabench."
            raise UserError(fault, "Remove it and set the share to keep, e.g. --set budget=0.5.")
        require_known(f"argument of {requested.name}", key, arguments)
        given[key] = parse_value(text, hints[key], f"{key} of {requested.name}")
    try:
        press = cls(**given)
        # presses without a budget raise here
        press.compression_ratio = press.compression_ratio
    except Exception as error:
        raise UserError(f"{requested.name}: {' '.join(str(error).split())}.", SYNTAX_HINT) from None
    return press


def removed_share(kept: int, total: int) -> float:
    """Return a compression ratio with `int(total * (1 - ratio)) == kept`, robust to rounding."""
    return 0.0 if kept >= total else 1.0 - (kept + 0.5) / total


@contextmanager
def press_compatible(lm: LM) -> Iterator[list[Any]]:
    """Prepare a model for presses, and undo all changes to its modules on exit.

    Attention gets `cache_position`, which transformers does not pass since 5.4. Yields a list that
    on exit contains, for every layer, the (heads, slots) hidden by the press, or None.
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
        for module in modules:
            indices = vars(module)["masked_key_indices"]
            masked.append(indices and tuple(indices)[1:])
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
    """Pass the positions of the tokens to attention (forward pre-hook)."""
    hidden_BTD = kwargs["hidden_states"]
    return args, {
        "cache_position": torch.arange(hidden_BTD.shape[1], device=hidden_BTD.device),
        **kwargs,
    }


class KvPress(Method[KvPressSettings]):
    """Cache of the context, compressed by a press.

    State: keys, values [L, 1, H, P, D] and next. It is a `RaggedCache` if the numbers of kept slots
    differ between layers or heads.
    """

    spec = KVPRESS
    granularity = "full"
    supports_batching = False
    required_capabilities = ("keys", "hooks", "gaps", "shape")
    requested: ClassVar[Press]

    def __init__(self, lm: LM, settings: KvPressSettings) -> None:
        super().__init__(lm, settings)
        self.growth = "constant" if isinstance(settings.budget, int) else "linear"
        if not all(hasattr(block, "self_attn") for block in getattr(lm.decoder, "layers", [None])):
            fault = f"kvpress does not support {lm.name} ({lm.config.model_type})."
            hint = "Use a Llama, Mistral, Phi-3, Qwen or Gemma model"
            raise UserError(fault, f"{hint}, or --method snapkv, h2o or window.")

    @torch.no_grad()
    def adapt(self, state: State, chunks: Sequence[Sequence[Chunk]]) -> State:
        """Read all chunks as one text and compress it.

        Raises:
            UserError: the state has been compressed before, or the press cannot compress the text.
        """
        if not chunks:
            return state
        if state.tensors:
            tokens = max(state.meta["tokens_read"])
            fault = f"{self.name} has compressed {tokens} tokens and cannot read more."
            raise UserError(fault, "Use one text for everything, or --method snapkv or window.")
        (row,) = new_chunk_ids(self.lm, state, chunks)
        ids = [*self.lm.start_ids, *chain(*row)]
        layers = self._compress(ids)
        masks = [seen_HP for _, _, seen_HP in layers]
        even = len({seen_HP.shape for seen_HP in masks}) == 1 and all(
            bool(seen_HP.all()) for seen_HP in masks
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
        """Return True if the budget covers the whole text."""
        whole = tokens + len(self.lm.start_ids)
        return in_tokens(self.settings.budget, whole) >= whole

    def patch(self, state: State, queries: Sequence[Query]) -> Patch:  # noqa: ARG002  # base class
        """Return the compressed cache as a prefix."""
        if "counts" not in state.tensors:
            return Patch(prefix=prefix_from_tensors(state.tensors))
        cache = RaggedCache.of(state)
        return Patch(prefix=None if cache is None else cache.prefix())

    def _compress(self, ids: list[int]) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Return keys, values [H, P, D] and the mask of visible slots [H, P] of every layer."""
        total, name = len(ids), self.requested.name
        check_fits(self.lm, None, [total])
        first, last = torch.zeros(1), torch.full((1,), total + RESERVED_TOKENS)
        for near in get_capabilities(self.lm).local_masks.values():
            if not bool(near(0, 0, last, first)):
                # kvpress does not report the positions of kept slots, which local attention needs
                fault = f"{total} tokens are too long for the local attention of {self.lm.name}."
                raise UserError(fault, "Use fewer tokens, or --method snapkv.")
        press = build_press(self.requested)  # a new one for every text, as presses have a state
        press.compression_ratio = removed_share(in_tokens(self.settings.budget, total), total)
        cache = DynamicCache()
        try:
            with press_compatible(self.lm) as hidden, press(self.lm.model):
                ids_BT = torch.tensor([ids], device=self.lm.device)
                self.lm.decoder(input_ids=ids_BT, past_key_values=cache, use_cache=True)
        except (UserError, torch.OutOfMemoryError):
            raise
        except Exception as error:  # presses of another package may raise anything
            reason = " ".join(str(error).split()) or type(error).__name__
            fault = f"{name} cannot compress these {total} tokens ({reason[:200].rstrip('.')})."
            hint = "Use other arguments (?key=value), more text, or another press."
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
    """Pack the compressed layers of a text, with the position of the text that follows.

    Presses that cut layers do not report positions. Their slots are stored as the last ones.
    """
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
        [part.to(next_B.device) for part in layer_parts] for layer_parts in zip(*parts, strict=True)
    )
    counts_L1H = torch.stack(counts).int()[:, None]
    return RaggedCache(
        torch.cat(keys), torch.cat(values), torch.cat(places).int(), counts_L1H, next_B
    )


def make_spec(text: str) -> MethodSpec:
    """Return the method of a press name, see `parse_press`."""
    requested = parse_press(text)
    build_press(requested)
    made = type("KvPress", (KvPress,), {"requested": requested})
    spec = replace(KVPRESS, name=f"kvpress:{text}", family_factory="", import_path=made)
    setattr(made, "spec", spec)  # noqa: B010  # type() gives a plain type
    return spec
