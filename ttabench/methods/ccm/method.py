"""CCM, compressed context memory: COMP tokens read a piece on top of the memory, and become part of it.

Kim et al., arXiv 2312.03414. Streams (section 4.2 and figure 8) are as in the released code: the oldest text of a full
cache becomes COMP slots, the oldest COMP slots go; keys are stored unrotated, and rotated by their slot when used.
Shape letters: L layers · B rows · H key/value heads · P slots · D head size · n COMP tokens.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from ttabench.core.errors import UserError
from ttabench.core.types import Ask, Episode, Observe
from ttabench.lm.forward.patching import deltas_applied
from ttabench.lm.forward.tokens import new_ids
from ttabench.lm.forward.ways import ways_of
from ttabench.lm.model import LM
from ttabench.lm.patch import Patch, State
from ttabench.methods.base import Reads
from ttabench.methods.ccm import CCM, GISTING, GISTING_ONLINE, CcmSettings, GistingSettings
from ttabench.methods.ccm.comp_tokens import CompTokens, Memory, joined, memory_of, prefix_of
from ttabench.methods.eviction.evicting import EvictedCache, behind, extended
from ttabench.methods.parts.kept import appended, ids_of
from ttabench.methods.parts.one_forward import Batch, Row, Slots, laid, read_piece


class Ccm(CompTokens[CcmSettings]):
    """Compressed context memory. State: keys and values of the memory, and the position of the next text token. Of a
    stream (`window`) instead keys and values of all that is held, where in the text they stood, and how much was
    read. Its `meta` counts pieces read, or how often a stream was compressed."""

    spec = CCM
    counts = ("tokens_read", "pieces_read")

    def __init__(self, lm: LM, settings: CcmSettings) -> None:
        super().__init__(lm, settings)
        self.stream = None if settings.window is None else Stream(self, settings.window)
        self.one_reader = self.stream is not None
        self.growth = "linear" if settings.update == "concat" and self.stream is None else "constant"

    @torch.no_grad()
    def adapt(self, state: State, chunks: Sequence[Sequence[Observe]]) -> State:
        """Compress piece by piece, each behind the memory of those before it."""
        rows, counts = new_ids(self.lm, state, chunks), list(state.meta["tokens_read"])
        if self.stream is not None:
            return self.stream.adapt(state, rows[0])
        memory, steps = memory_of(state), state.meta["pieces_read"][0]
        for number in range(len(chunks)):
            texts, steps = [row[number] for row in rows], steps + 1
            memory = self._read_on(memory, texts, self.next_of(counts), steps)
            counts = [count + len(text) for count, text in zip(counts, texts, strict=True)]
        return self.remembered(state, memory, counts, pieces_read=[steps] * state.rows)

    def patch(self, state: State, asks: Sequence[Ask]) -> Patch:
        """The memory, or what a stream holds, as a prefix."""
        return super().patch(state, asks) if self.stream is None else self.stream.patch(state)

    def loss_parts(self, episodes: Sequence[Episode]) -> dict[str, Tensor]:
        """Mean negative log-likelihood of the answers: each episode is read, compressed and asked in one forward."""
        rows = [self.laid(episode) for episode in episodes]
        return self.loss_of(rows, slots=self.merged if self.settings.update == "merge" else None)

    def laid(self, episode: Episode) -> Row:
        """An episode as one row: behind every piece its COMP tokens."""
        s = self.settings

        def compress(row: Row, ids: list[int], first: int) -> None:
            sees, memory = recall(row, first) if s.recursive else ([], 0)
            if s.sink or not row.texts:
                sees = [*row.starts, *sees]
            text = row.add(ids, first, sees, memory)
            row.texts.append(text)
            row.comps.append(row.add(self.comp_ids, first + len(ids), [*sees, text], memory, marked=True))

        def recall(row: Row, _: int) -> tuple[list[int], int]:
            comps = row.comps if s.update == "concat" else []
            return [*(row.starts if s.sink else []), *comps], len(row.comps)

        return laid(self.lm, episode, compress, recall)

    def merged(self, rows: Sequence[Row], batch: Batch) -> Slots:
        """Merged memories as slots: those of the memory after the first piece, then of that after the second..."""
        count, steps, device = self.settings.comp_tokens, max(len(row.comps) for row in rows), batch.ids_BT.device
        # how much of each piece the mean after each step holds
        weights_SS = torch.ones(max(1, steps), max(1, steps), device=device).tril()
        weights_SS /= weights_SS.sum(1, keepdim=True)
        mix_BSnT = torch.zeros(len(rows), len(weights_SS), count, batch.ids_BT.shape[1], device=device)
        for mix_SnT, row in zip(mix_BSnT, rows, strict=True):
            for number, block in enumerate(row.comps):
                for kind, place in enumerate(row.spans[block]):
                    mix_SnT[:, kind, place] = weights_SS[:, number]
        made_E = torch.arange(1, len(weights_SS) + 1, device=device).repeat_interleave(count)
        mix_B1ET = mix_BSnT.flatten(1, 2)[:, None]
        return (
            lambda call: (mix_B1ET.to(call.key.dtype) @ call.key, mix_B1ET.to(call.key.dtype) @ call.value),
            batch.memories_BT[:, :, None] == made_E,
        )

    def _read_on(self, memory: Memory | None, texts: Sequence[list[int]], next_B: Tensor, step: int) -> Memory:
        """Mem(t)."""
        s = self.settings
        seen = self.begun(len(texts)) if memory is None else self._seen(memory)
        fresh = self.compressed(prefix_of(seen, next_B), texts, next_B)
        if memory is None:
            return joined(seen, fresh) if s.sink else fresh
        if s.update == "concat":
            return joined(memory, fresh)
        newest = memory[..., -s.comp_tokens :, :].lerp(fresh, 1 / step)
        return joined(memory[..., : -s.comp_tokens, :], newest)

    def _seen(self, memory: Memory) -> Memory | None:
        """What a further piece sees of the memory: all of it, or what begins the text, or nothing."""
        if self.settings.recursive:
            return memory
        return memory[..., :1, :] if self.settings.sink and self.lm.start_ids else None


class Gisting(CompTokens[GistingSettings]):
    """Gisting. State: keys and values of the COMP tokens, the position of the next text token, and the ids of what was
    read, which no question sees: they are read again with what follows."""

    spec = GISTING
    reads: Reads = "run"

    @torch.no_grad()
    def adapt(self, state: State, chunks: Sequence[Sequence[Observe]]) -> State:
        """Compress all that was ever read."""
        new = [[token for piece in row for token in piece] for row in new_ids(self.lm, state, chunks)]
        if not chunks:
            return state
        kept = appended(self.lm, state.tensors, new, limit=sys.maxsize)
        texts, first_B = ids_of(kept, state.rows), self.next_of([0] * state.rows)
        memory = self.compressed(prefix_of(self.begun(state.rows), first_B), texts, first_B)
        compressed = self.remembered(state, memory, [len(text) for text in texts])
        return replace(compressed, tensors={**kept, **compressed.tensors})

    def loss_parts(self, episodes: Sequence[Episode]) -> dict[str, Tensor]:
        """Mean negative log-likelihood of the answers: each episode is read, compressed and asked in one forward."""
        return self.loss_of([self.laid(episode) for episode in episodes])

    def laid(self, episode: Episode) -> Row:
        """An episode as one row: before each run of questions COMP tokens that read the whole text."""

        def compress(row: Row, first: int) -> tuple[list[int], int]:
            if not row.comps or row.comps[-1] < row.texts[-1]:
                row.comps.append(row.add(self.comp_ids, first, [*row.starts, *row.texts], marked=True))
            return row.comps[-1:], 0

        return laid(self.lm, episode, read_piece, compress)


class GistingOnline(Gisting):
    """Gisting, piece by piece. State: keys and values of all COMP tokens, and the position of the next text token."""

    spec = GISTING_ONLINE
    reads = "pieces"

    @torch.no_grad()
    def adapt(self, state: State, chunks: Sequence[Sequence[Observe]]) -> State:
        """Compress each piece as if nothing had been read before; what begins the text stands before the first."""
        rows, counts = new_ids(self.lm, state, chunks), list(state.meta["tokens_read"])
        memory = memory_of(state)
        for number in range(len(chunks)):
            texts, first_B = [row[number] for row in rows], self.next_of(counts)
            begun = self.begun(state.rows) if memory is None else None
            memory = joined(memory, self.compressed(prefix_of(begun, first_B), texts, first_B))
            counts = [count + len(text) for count, text in zip(counts, texts, strict=True)]
        return self.remembered(state, memory, counts)


class Stream:
    """Reads a stream of tokens with a method's COMP tokens, for one reader."""

    def __init__(self, method: CompTokens[CcmSettings], window: int) -> None:
        self.method, self.settings, self.window, lm = method, method.settings, window, method.lm
        self.rotary = ways_of(lm).rotary
        self.first = max(1, len(lm.start_ids)) if self.settings.n_sink is None else self.settings.n_sink
        """Slots that always stay."""
        needed, most = self.first + self.settings.memory + self.settings.piece, lm.max_positions - 1
        if needed > window:
            fault = f"{self.first} first slots, a memory of {self.settings.memory} and a piece of {self.settings.piece}"
            fault = f"{fault} do not fit into a window of {window}"
            raise UserError(f"{fault}.", f"Give --set window={needed} or more.")
        if window > most:
            fault = f"A window of {window} and one token more exceed the {lm.max_positions} positions of {lm.name}"
            raise UserError(f"{fault}.", f"Give --set window={most} or less.")

    def adapt(self, state: State, pieces: Sequence[list[int]]) -> State:
        """What is held once these pieces are read; where they are cut does not matter. It is padded in front to the
        window: as many bytes whatever was read."""
        ids, kept = [token for piece in pieces for token in piece], _held(state.tensors)
        begun = ids if kept else [*self.method.lm.start_ids, *ids]
        kept, done = self.read(kept, begun, state.meta["pieces_read"][0])
        tensors = {} if kept is None else kept.tensors()
        if kept is not None:
            more = self.window - kept.index.shape[-1]
            tensors |= {name: pad(tensors[name], (0, 0, more, 0)) for name in ("keys", "values")}
            tensors["index"] = pad(kept.index, (more, 0), value=-1)
        return State(1, tensors, {"tokens_read": [state.meta["tokens_read"][0] + len(ids)], "pieces_read": [done]})

    def patch(self, state: State) -> Patch:
        """The held slots as a prefix."""
        kept = _held(state.tensors)
        return Patch(prefix=kept.prefix(self.rotary) if kept else None, deltas=self.method.outside)

    def read(self, kept: EvictedCache | None, ids: Sequence[int], done: int) -> tuple[EvictedCache | None, int]:
        """Read on. `kept`: one row without padding; None at the start of a text, whose first token is then what
        begins texts; `done`: how often was compressed before. Returns what is held, and how often was compressed by
        now."""
        s, lm, left = self.settings, self.method.lm, list(ids)
        while left:
            room = self.window + 1 - (0 if kept is None else kept.index.shape[-1])
            part, left = left[:room], left[room:]
            ids_BT = torch.tensor([part], device=lm.device)
            with deltas_applied(lm, self.method.outside, 1):
                kept = extended(lm, kept, ids_BT, torch.ones_like(ids_BT, dtype=torch.bool), self.rotary)
            if kept.index.shape[-1] > self.window:
                kept, done = self._shorter(kept, min(s.memory, done * s.comp_tokens)), done + 1
        return kept, done

    def _shorter(self, whole: EvictedCache, memory: int) -> EvictedCache:
        """The oldest piece of text compressed, or thrown away but for its newest tokens."""
        s, end = self.settings, self.first + memory + self.settings.piece
        front, rest = _slots(whole, 0, end), _slots(whole, end, whole.index.shape[-1])
        stays = min(s.memory, memory + s.comp_tokens)
        if s.compress:
            front = behind(_slots(front, 0, self.first + memory), self._compressed(front))
        slots = front.index.shape[-1]
        return behind(behind(_slots(front, 0, self.first), _slots(front, slots - stays, slots)), rest)

    def _compressed(self, front: EvictedCache) -> EvictedCache:
        """The COMP slots that read behind all of it."""
        count, prefix, place = self.settings.comp_tokens, front.prefix(self.rotary), front.index[:, :, :, -1:]
        if self.rotary is None:
            prefix = replace(prefix, next_position_B=place[0, :, 0, 0].long() + 1)
        keys, values = self.method.compressed(prefix, [[]], prefix.next_position_B)
        if self.rotary is not None:
            positions_BT = prefix.next_position_B[:, None] + torch.arange(count, device=keys.device)
            keys = self.rotary.turned(keys, positions_BT, back=True)
        return EvictedCache(keys, values, place.expand(-1, -1, -1, count).contiguous(), front.next)


def _held(tensors: Mapping[str, Tensor]) -> EvictedCache | None:
    """What a state holds, without padding; None before anything was read."""
    if not tensors:
        return None
    whole = EvictedCache(**tensors)
    slots = whole.index.shape[-1]
    return _slots(whole, slots - int(whole.valid.sum()), slots)


def _slots(whole: EvictedCache, start: int, end: int) -> EvictedCache:
    part = slice(start, end)
    return EvictedCache(whole.keys[..., part, :], whole.values[..., part, :], whole.index[..., part], whole.next)
