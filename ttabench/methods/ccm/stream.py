"""CCM on an endless stream: the oldest text of a full cache becomes COMP slots, and the oldest COMP slots go.

Kim et al., arXiv 2312.03414, section 4.2 and figure 8, as the released code does it: keys are stored as they were
before the model rotated them, and rotated by their slot whenever they are used.
Shape letters: L layers · B rows · H key/value heads · P slots · D head size · n COMP tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import pad

from ttabench.core.errors import UserError
from ttabench.lm.attention.layout import Layout
from ttabench.lm.forward.deltas import deltas_applied
from ttabench.lm.forward.patching import hidden_states
from ttabench.lm.forward.ways import ways_of
from ttabench.lm.model import LM
from ttabench.lm.patch import LowRank, Patch
from ttabench.methods.ccm import CcmSettings
from ttabench.methods.eviction.evicted_cache import EvictedCache, behind, extended

OnStep: TypeAlias = Callable[[range], None]
"""Told how many slots are held before each of the tokens of one forward."""


class Stream:
    """Reads a stream of tokens, one row at a time."""

    def __init__(self, lm: LM, settings: CcmSettings) -> None:
        assert settings.window is not None, "a stream has a window"
        self.lm, self.settings, self.window = lm, settings, settings.window
        self.rotary = ways_of(lm).rotary
        self.first = max(1, len(lm.start_ids)) if settings.n_sink is None else settings.n_sink
        """Slots that always stay."""
        needed, most = self.first + settings.memory + settings.piece, lm.max_positions - 1
        if needed > self.window:
            fault = f"{self.first} first slots, a memory of {settings.memory} and a piece of {settings.piece}"
            fault = f"{fault} do not fit into a window of {self.window}"
            raise UserError(f"{fault}.", f"Give --set window={needed} or more.")
        if self.window > most:
            fault = f"A window of {self.window} and one token more exceed the {lm.max_positions} positions of {lm.name}"
            raise UserError(f"{fault}.", f"Give --set window={most} or less.")

    def read(
        self, kept: EvictedCache | None, ids: Sequence[int], done: int, use: CompUse, on_step: OnStep | None = None
    ) -> tuple[EvictedCache | None, int]:
        """Read on. `kept`: one row without padding; None at the start of a text, whose first token is then what
        begins texts; `done`: how often was compressed before. Returns what is held, and how often was compressed by
        now."""
        s, left = self.settings, list(ids)
        while left:
            held = 0 if kept is None else kept.index.shape[-1]
            part, left = left[: self.window + 1 - held], left[self.window + 1 - held :]
            if on_step is not None:
                on_step(range(held, held + len(part)))
            ids_BT = torch.tensor([part], device=self.lm.device)
            with deltas_applied(self.lm, use.outside, 1):
                kept = extended(self.lm, kept, ids_BT, torch.ones_like(ids_BT, dtype=torch.bool), self.rotary)
            if kept.index.shape[-1] > self.window:
                kept, done = self._shorter(kept, min(s.memory, done * s.comp_tokens), use), done + 1
        return kept, done

    def _shorter(self, whole: EvictedCache, memory: int, use: CompUse) -> EvictedCache:
        """The oldest piece of text compressed, or thrown away but for its newest tokens."""
        s, end = self.settings, self.first + memory + self.settings.piece
        front, rest = _slots(whole, 0, end), _slots(whole, end, whole.index.shape[-1])
        stays = min(s.memory, memory + s.comp_tokens)
        if s.compress:
            front = behind(_slots(front, 0, self.first + memory), self._compressed(front, use))
        slots = front.index.shape[-1]
        return behind(behind(_slots(front, 0, self.first), _slots(front, slots - stays, slots)), rest)

    def _compressed(self, front: EvictedCache, use: CompUse) -> EvictedCache:
        """The COMP slots that read behind all of it."""
        lm, count = self.lm, len(use.embeddings_nC)
        prefix = front.prefix(self.rotary)
        place = front.index[:, :, :, -1:]
        if self.rotary is None:
            prefix = replace(prefix, next_position_B=place[0, :, 0, 0].long() + 1)
        positions_BT = prefix.next_position_B[:, None] + torch.arange(count, device=lm.device)
        ids_BT = torch.arange(lm.vocab_size, lm.vocab_size + count, device=lm.device)[None]
        layout = Layout(positions_BT=positions_BT, embeddings_BTC=lm.embedded(ids_BT, use.embeddings_nC))
        _, window = hidden_states(lm, Patch(prefix=prefix, deltas=use.deltas), ids_BT, layout)
        after, slots = window.prefix(), front.index.shape[-1]
        comp = after.take(torch.arange(slots, slots + count, device=lm.device))
        keys, values = torch.stack(comp.keys_LBHPD), torch.stack(comp.values_LBHPD)
        if self.rotary is not None:
            keys = self.rotary.unrotate(keys, positions_BT)
        return EvictedCache(keys, values, place.expand(-1, -1, -1, count).contiguous(), front.next)

    def tensors(self, rows: Sequence[EvictedCache | None]) -> dict[str, Tensor]:
        """Rows as tensors of a state, padded in front to the window: as many bytes whatever was read."""
        like = next((row for row in rows if row is not None), None)
        if like is None:
            return {}
        nothing = replace(_slots(like, 0, 0), next=torch.zeros_like(like.next))
        padded = [_padded(row or nothing, self.window).tensors() for row in rows]
        return {name: torch.cat([row[name] for row in padded], int(name != "next")) for name in padded[0]}

    def patch(self, tensors: Mapping[str, Tensor], deltas: Mapping[str, LowRank]) -> Patch:
        """The held slots as a prefix, with no more padding than the longest row leaves."""
        if not tensors:
            return Patch(deltas=deltas)
        whole = EvictedCache(**tensors)
        longest = int(whole.valid.sum(1).max())
        return Patch(prefix=_slots(whole, self.window - longest, self.window).prefix(self.rotary), deltas=deltas)


@dataclass(frozen=True)
class CompUse:
    """COMP tokens in use."""

    embeddings_nC: Tensor
    """Inputs of the first layer."""
    deltas: Mapping[str, LowRank]
    """Under which they are read."""
    outside: Mapping[str, LowRank]
    """Under which all other tokens are."""


def row_of(tensors: Mapping[str, Tensor], row: int) -> EvictedCache | None:
    """One row of a state without its padding; None before anything of it was read."""
    if not tensors or not int(tensors["next"][row]):
        return None
    whole = EvictedCache(**tensors).select(torch.tensor([row], device=tensors["next"].device))
    slots = whole.index.shape[-1]
    return _slots(whole, slots - int(whole.valid.sum()), slots)


def _slots(whole: EvictedCache, start: int, end: int) -> EvictedCache:
    part = slice(start, end)
    return EvictedCache(whole.keys[..., part, :], whole.values[..., part, :], whole.index[..., part], whole.next)


def _padded(row: EvictedCache, slots: int) -> EvictedCache:
    more = slots - row.index.shape[-1]
    keys, values = (pad(tensor, (0, 0, more, 0)) for tensor in (row.keys, row.values))
    return EvictedCache(keys, values, pad(row.index, (more, 0), value=-1), row.next)
