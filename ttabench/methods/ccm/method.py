"""CCM, compressed context memory: COMP tokens read a piece on top of the memory, and become part of it.

Kim et al., arXiv 2312.03414.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace

import torch
from torch import Tensor

from ttabench.core.errors import UserError
from ttabench.core.types import Ask, Episode, Observe
from ttabench.lm.attention.interface import watched
from ttabench.lm.forward.tokens import new_ids
from ttabench.lm.model import LM
from ttabench.lm.patch import Patch, State
from ttabench.methods.base import Reads
from ttabench.methods.ccm import CCM, GISTING, GISTING_ONLINE, CcmSettings, GistingSettings
from ttabench.methods.ccm.comp_tokens import (
    CompTokens,
    Memory,
    joined,
    laid,
    laid_whole,
    memory_of,
    merged,
    merging,
    sees_all,
    sees_newest,
)
from ttabench.methods.ccm.stream import CompUse, Stream, row_of
from ttabench.methods.eviction.evicted_cache import EvictedCache
from ttabench.methods.parts.newest import appended, ids_of
from ttabench.methods.parts.one_forward import Batch, Row, mean_nll


class Ccm(CompTokens[CcmSettings]):
    """Compressed context memory. State: keys and values of the memory, and the position of the next text token. Of a
    stream (`window`) instead keys and values of all that is held, where in the text they stood, and how much was
    read. Its `meta` counts pieces read, or how often a stream was compressed."""

    spec = CCM

    def __init__(self, lm: LM, settings: CcmSettings) -> None:
        super().__init__(lm, settings)
        self.stream = None if settings.window is None else Stream(lm, settings)
        grows = settings.update == "concat" and self.stream is None and not isinstance(settings.held, int)
        self.growth = "linear" if grows else "constant"

    def begin(self, rows: int) -> State:
        """Nothing read."""
        if rows > 1 and isinstance(self.settings.held, float):
            fault = (
                f"ccm holds a share of each text (held={self.settings.held}), so it reads for one reader, not {rows}."
            )
            raise UserError(fault, "Read one context at a time, or give a number of tokens.")
        return State(rows, meta={"tokens_read": [0] * rows, "pieces_read": [0] * rows})

    @torch.no_grad()
    def adapt(self, state: State, chunks: Sequence[Sequence[Observe]]) -> State:
        """Compress piece by piece, each behind the memory of those before it."""
        rows, counts = new_ids(self.lm, state, chunks), list(state.meta["tokens_read"])
        if self.stream is not None:
            return self._streamed(self.stream, state, rows)
        memory, steps = memory_of(state), state.meta["pieces_read"][0]
        for number in range(len(chunks)):
            texts, steps = [row[number] for row in rows], steps + 1
            memory = self._read_on(memory, texts, counts, steps)
            counts = [count + len(text) for count, text in zip(counts, texts, strict=True)]
            memory = self._newest(memory, counts[0])
        return self.remembered(state, memory, counts, pieces_read=[steps] * state.rows)

    def patch(self, state: State, asks: Sequence[Ask]) -> Patch:
        """The memory, or what a stream holds, as a prefix."""
        if self.stream is not None:
            return self.stream.patch(state.tensors, self.outside)
        return super().patch(state, asks)

    def comp_use(self) -> CompUse:
        """The method that a stream reads with."""
        return CompUse(self.embeddings.weight, self.deltas, self.outside)

    def _streamed(self, stream: Stream, state: State, rows: Sequence[Sequence[list[int]]]) -> State:
        """What a stream holds once these pieces are read; where they are cut does not matter."""
        use, counts = self.comp_use(), list(state.meta["tokens_read"])
        held, done = list[EvictedCache | None](), list(state.meta["pieces_read"])
        for row, pieces in enumerate(rows):
            ids, kept = [token for piece in pieces for token in piece], row_of(state.tensors, row)
            kept, done[row] = stream.read(kept, ids if kept else [*self.lm.start_ids, *ids], done[row], use)
            held.append(kept)
            counts[row] += len(ids)
        meta = {"tokens_read": counts, "pieces_read": done}
        return State(state.rows, stream.tensors(held), meta)

    def loss_parts(self, episodes: Sequence[Episode]) -> dict[str, Tensor]:
        """Mean negative log-likelihood of the answers: each episode is read, compressed and asked in one forward."""
        return {"answer": mean_nll([laid(self.lm, self.settings, episode) for episode in episodes], self._nll)}

    def _nll(self, rows: list[Row]) -> tuple[Tensor, int]:
        batch, s = Batch.of(rows, self.lm), self.settings
        if s.update == "concat":
            return self.answer_nll(rows, batch, sees_all(batch, sink=s.sink), nullcontext())
        attending = watched(merging(*merged(batch, s, self.lm)))
        return self.answer_nll(rows, batch, batch.sees(sink=s.sink), attending)

    def _read_on(self, memory: Memory | None, texts: Sequence[list[int]], counts: Sequence[int], step: int) -> Memory:
        """Mem(t)."""
        if memory is None:
            begun = self.begun(len(texts), self.outside)
            fresh = self.compressed(begun, texts, counts)
            return joined(begun, fresh) if self.settings.sink else fresh
        fresh = self.compressed(self._seen(memory), texts, counts)
        if self.settings.update == "concat":
            return joined(memory, fresh)
        weight, size = self.settings.weight(step), self.settings.comp_tokens
        keys, values = (
            torch.cat([old[..., :-size, :], old[..., -size:, :].lerp(new, weight)], 3)
            for old, new in zip(memory, fresh, strict=True)
        )
        return keys, values

    def _newest(self, memory: Memory, read: int) -> Memory:
        """The memory without its oldest groups, where it holds more than it may."""
        groups = self.settings.groups(read + len(self.lm.start_ids))
        if groups is None:
            return memory
        front = len(self.lm.start_ids) if self.settings.sink else 0
        slots = memory[0].shape[3]
        begin = max(front, slots - groups * self.settings.comp_tokens)
        keys, values = (torch.cat([one[..., :front, :], one[..., begin:, :]], 3) for one in memory)
        return keys, values

    def _seen(self, memory: Memory) -> Memory | None:
        """What a further piece sees of the memory: all of it, or what begins the text, or nothing."""
        if self.settings.recursive:
            return memory
        return (memory[0][..., :1, :], memory[1][..., :1, :]) if self.settings.sink and self.lm.start_ids else None


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
        texts = ids_of(kept, state.rows)
        counts = [len(text) for text in texts]
        memory = self.compressed(self.begun(state.rows, self.outside), texts, [0] * state.rows)
        compressed = self.remembered(state, memory, counts)
        return replace(compressed, tensors={**kept, **compressed.tensors})

    def loss_parts(self, episodes: Sequence[Episode]) -> dict[str, Tensor]:
        """Mean negative log-likelihood of the answers: each episode is read, compressed and asked in one forward."""
        comp = self.settings.comp_tokens
        return {"answer": mean_nll([laid_whole(self.lm, comp, episode) for episode in episodes], self._nll)}

    def _nll(self, rows: list[Row]) -> tuple[Tensor, int]:
        batch = Batch.of(rows, self.lm)
        return self.answer_nll(rows, batch, sees_newest(batch), nullcontext())


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
            texts = [row[number] for row in rows]
            seen = self.begun(state.rows, self.outside) if memory is None else None
            memory = joined(memory, self.compressed(seen, texts, counts))
            counts = [count + len(text) for count, text in zip(counts, texts, strict=True)]
        return self.remembered(state, memory, counts)
