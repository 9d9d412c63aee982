"""CCM (compressed context memory), Gisting, and online Gisting.

Kim et al., arXiv 2312.03414. COMP tokens after each chunk attend to the chunk and to the memory.
Their keys and values are then added to the memory. Streams (section 4.2 and figure 8) follow the
released code. When the cache of a stream is full, its oldest text is compressed to COMP slots. Its
oldest COMP slots are dropped. Keys are stored unrotated, and rotated by their slot when used.

Shape letters: L layers · B rows · H key/value heads · P slots · D head size · n COMP tokens ·
    T tokens of a row · K chunks of an episode · E = K * n merged slots.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain

import torch
from torch import Tensor
from torch.nn.functional import pad

from ttabench.core.errors import UserError
from ttabench.core.types import Chunk, Episode, Query
from ttabench.lm.forward.capabilities import get_capabilities
from ttabench.lm.forward.patching import deltas_applied
from ttabench.lm.forward.tokens import new_chunk_ids
from ttabench.lm.model import LM
from ttabench.lm.patch import Patch, State
from ttabench.methods.base import Granularity
from ttabench.methods.ccm import CCM, GISTING, GISTING_ONLINE, CcmSettings, GistingSettings
from ttabench.methods.ccm.comp_tokens import (
    CompTokens,
    Memory,
    concat_memories,
    memory_to_prefix,
    state_to_memory,
)
from ttabench.methods.eviction.cache import EvictedCache, concat_caches
from ttabench.methods.eviction.evicting import extend_cache
from ttabench.methods.parts.kept import append_ids, stored_ids
from ttabench.methods.parts.one_forward import Batch, Row, Slots, add_chunk, episode_row


class Ccm(CompTokens[CcmSettings]):
    """Compressed context memory.

    State: keys and values of the memory, and the position of the next text token. For a stream
    (`window`): keys and values of all slots kept, their positions in the text, and the number of
    tokens read. `meta` counts the chunks read, or the compressions of a stream.
    """

    spec = CCM
    counts = ("tokens_read", "pieces_read")

    def __init__(self, lm: LM, settings: CcmSettings) -> None:
        super().__init__(lm, settings)
        self.stream = None if settings.window is None else StreamMemory(self, settings.window)
        self.supports_batching = self.stream is None
        self.growth = (
            "linear" if settings.update == "concat" and self.stream is None else "constant"
        )

    @torch.no_grad()
    def adapt(self, state: State, chunks: Sequence[Sequence[Chunk]]) -> State:
        """Compress chunk by chunk, each after the memory of the chunks before it."""
        rows, counts = new_chunk_ids(self.lm, state, chunks), list(state.meta["tokens_read"])
        if self.stream is not None:
            return self.stream.adapt(state, rows[0])
        memory, before = state_to_memory(state), state.meta["pieces_read"][0]
        for step, texts in enumerate(zip(*rows, strict=True), before + 1):
            memory = self._update_memory(memory, texts, self.next_positions(counts), step)
            counts = [count + len(text) for count, text in zip(counts, texts, strict=True)]
        pieces_read = [before + len(chunks)] * state.rows
        return self.build_state(state, memory, counts, pieces_read=pieces_read)

    def patch(self, state: State, queries: Sequence[Query]) -> Patch:
        """Return the memory, or the slots of a stream, as a prefix."""
        return super().patch(state, queries) if self.stream is None else self.stream.patch(state)

    @property
    def slots(self) -> Callable[[Sequence[Row], Batch], Slots] | None:
        """Function to the merged memories, with `update=merge`."""
        return self.merge_slots if self.settings.update == "merge" else None

    def episode_row(self, episode: Episode) -> Row:
        """Lay out an episode as one row, with COMP tokens after every chunk."""
        s = self.settings

        def compress(row: Row, ids: list[int], first: int) -> None:
            # blocks that the chunk attends to, and number of chunks that it sees as merged slots
            sees, memory = visible_blocks(row, first) if s.recursive else ([], 0)
            if s.sink or not row.texts:
                sees = [*row.starts, *sees]
            text = row.add(ids, first, sees, memory)
            row.texts.append(text)
            row.comps.append(
                row.add(self.comp_ids, first + len(ids), [*sees, text], memory, marked=True)
            )

        def visible_blocks(row: Row, _: int) -> tuple[list[int], int]:
            comps = row.comps if s.update == "concat" else []
            return [*(row.starts if s.sink else []), *comps], len(row.comps)

        return episode_row(self.lm, episode, compress, visible_blocks)

    def merge_slots(self, rows: Sequence[Row], batch: Batch) -> Slots:
        """Return the merged memory after each chunk as slots, for training in one forward pass."""
        count = self.settings.comp_tokens
        steps = max(1, *(len(row.comps) for row in rows))
        device = batch.ids_BT.device
        # row k: weights of the chunks in the mean after chunk k
        weights_KK = torch.ones(steps, steps, device=device).tril()
        weights_KK /= weights_KK.sum(1, keepdim=True)
        mix_BKnT = torch.zeros(len(rows), steps, count, batch.ids_BT.shape[1], device=device)
        for mix_KnT, row in zip(mix_BKnT, rows, strict=True):
            for number, block in enumerate(row.comps):
                for slot, position in enumerate(row.spans[block]):
                    mix_KnT[:, slot, position] = weights_KK[:, number]
        step_E = torch.arange(1, steps + 1, device=device).repeat_interleave(count)
        mix_B1ET = mix_BKnT.flatten(1, 2)[:, None]
        return (
            lambda call: (
                mix_B1ET.to(call.key.dtype) @ call.key,
                mix_B1ET.to(call.key.dtype) @ call.value,
            ),
            batch.memories_BT[:, :, None] == step_E,
        )

    def _update_memory(
        self, memory: Memory | None, texts: Sequence[list[int]], next_B: Tensor, step: int
    ) -> Memory:
        """Return the memory Mem(t) of the paper, after step t (from 1)."""
        s = self.settings
        if memory is None:
            visible = self.encode_start(len(texts))
        elif s.recursive:
            visible = memory
        else:
            visible = memory[..., :1, :] if s.sink and self.lm.start_ids else None
        new_slots = self.compress_texts(memory_to_prefix(visible, next_B), texts, next_B)
        if memory is None:
            return concat_memories(visible, new_slots) if s.sink else new_slots
        if s.update == "concat":
            return concat_memories(memory, new_slots)
        mean_slots = memory[..., -s.comp_tokens :, :].lerp(new_slots, 1 / step)
        return concat_memories(memory[..., : -s.comp_tokens, :], mean_slots)


class Gisting(CompTokens[GistingSettings]):
    """Gisting of the whole text read so far.

    State: keys and values of the COMP tokens, the position of the next text token, and the ids of
    all tokens read. Every `adapt` compresses all these tokens again, together with the new ones.
    Queries attend to the COMP tokens only.
    """

    spec = GISTING
    granularity: Granularity = "segment"

    @torch.no_grad()
    def adapt(self, state: State, chunks: Sequence[Sequence[Chunk]]) -> State:
        """Compress everything read so far."""
        if not chunks:
            return state
        new = [list(chain(*row)) for row in new_chunk_ids(self.lm, state, chunks)]
        token_tensors = append_ids(self.lm, state.tensors, new, limit=sys.maxsize)
        texts = stored_ids(token_tensors, state.rows)
        first_B = self.next_positions([0] * state.rows)
        memory = self.compress_texts(
            memory_to_prefix(self.encode_start(state.rows), first_B), texts, first_B
        )
        new_state = self.build_state(state, memory, [len(text) for text in texts])
        return replace(new_state, tensors={**token_tensors, **new_state.tensors})

    def episode_row(self, episode: Episode) -> Row:
        """Lay out an episode as one row, with COMP tokens before the first query after a chunk."""

        def compress(row: Row, first: int) -> tuple[list[int], int]:
            if not row.comps or row.comps[-1] < row.texts[-1]:
                row.comps.append(
                    row.add(self.comp_ids, first, [*row.starts, *row.texts], marked=True)
                )
            return row.comps[-1:], 0

        return episode_row(self.lm, episode, add_chunk, compress)


class GistingOnline(Gisting):
    """Gisting of each chunk alone.

    State: keys and values of all COMP tokens, and the position of the next text token.
    """

    spec = GISTING_ONLINE
    granularity = "chunk"

    @torch.no_grad()
    def adapt(self, state: State, chunks: Sequence[Sequence[Chunk]]) -> State:
        """Compress each chunk alone; the start tokens precede the first chunk only."""
        rows, counts = new_chunk_ids(self.lm, state, chunks), list(state.meta["tokens_read"])
        memory = state_to_memory(state)
        for texts in zip(*rows, strict=True):
            first_B = self.next_positions(counts)
            start = self.encode_start(state.rows) if memory is None else None
            memory = concat_memories(
                memory, self.compress_texts(memory_to_prefix(start, first_B), texts, first_B)
            )
            counts = [count + len(text) for count, text in zip(counts, texts, strict=True)]
        return self.build_state(state, memory, counts)


class StreamMemory:
    """CCM memory of a stream, for one sequence: sinks, COMP slots and recent text."""

    def __init__(self, method: CompTokens[CcmSettings], window: int) -> None:
        self.method, self.settings, self.window, lm = method, method.settings, window, method.lm
        self.rotary = get_capabilities(lm).rotary
        self.sink_slots = (
            max(1, len(lm.start_ids)) if self.settings.n_sink is None else self.settings.n_sink
        )
        """Number of first slots that are never dropped."""
        min_window = self.sink_slots + self.settings.memory + self.settings.piece
        max_window = lm.max_positions - 1
        if min_window > window:
            needed = f"memory={self.settings.memory} and piece={self.settings.piece}"
            fault = f"{self.sink_slots} first slots, {needed} exceed window={window}."
            raise UserError(fault, f"Use --set window={min_window} or more.")
        if window > max_window:
            fault = f"window={window} + 1 exceeds the {lm.position_limit}."
            raise UserError(fault, f"Use --set window={max_window} or less.")

    def adapt(self, state: State, chunk_ids: Sequence[list[int]]) -> State:
        """Return the state after these chunks, read as one text.

        The state is padded at the front to the window, so its size does not depend on the tokens
        read.
        """
        ids = list(chain(*chunk_ids))
        cache = _cache_from_state(state)
        text_ids = ids if cache else [*self.method.lm.start_ids, *ids]
        cache, compressions = self.read(cache, text_ids, state.meta["pieces_read"][0])
        tensors = {}
        if cache is not None:
            padding = self.window - cache.index.shape[-1]
            tensors = {
                "keys": pad(cache.keys, (0, 0, padding, 0)),
                "values": pad(cache.values, (0, 0, padding, 0)),
                "index": pad(cache.index, (padding, 0), value=-1),
                "next": cache.next,
            }
        tokens_read = [state.meta["tokens_read"][0] + len(ids)]
        return State(1, tensors, {"tokens_read": tokens_read, "pieces_read": [compressions]})

    def patch(self, state: State) -> Patch:
        """Return the kept slots as a prefix."""
        cache = _cache_from_state(state)
        return Patch(
            prefix=cache.prefix(self.rotary) if cache else None, deltas=self.method.text_deltas
        )

    def read(
        self, cache: EvictedCache | None, ids: Sequence[int], compressions: int
    ) -> tuple[EvictedCache | None, int]:
        """Read further tokens, and return the cache and the number of compressions.

        `cache`: one row without padding. If it is None, `ids` must begin with the start tokens.
        `compressions`: number of compressions so far.
        """
        s, lm, unread_ids = self.settings, self.method.lm, list(ids)
        while unread_ids:
            free_slots = self.window + 1 - (0 if cache is None else cache.index.shape[-1])
            part, unread_ids = unread_ids[:free_slots], unread_ids[free_slots:]
            ids_BT = torch.tensor([part], device=lm.device)
            with deltas_applied(lm, self.method.text_deltas, 1):
                cache = extend_cache(
                    lm, cache, ids_BT, torch.ones_like(ids_BT, dtype=torch.bool), self.rotary
                )
            if cache.index.shape[-1] > self.window:
                cache = self._evict_oldest(cache, min(s.memory, compressions * s.comp_tokens))
                compressions += 1
        return cache, compressions

    def _evict_oldest(self, cache: EvictedCache, memory: int) -> EvictedCache:
        """Compress the oldest chunk of text. Without `compress`, keep only its last tokens.

        `memory`: number of memory slots after the sinks.
        """
        s, sinks = self.settings, _slice_cache(cache, 0, self.sink_slots)
        start = self.sink_slots + memory
        kept_slots = min(s.memory, memory + s.comp_tokens)
        end = start + s.piece
        if not s.compress:
            return concat_caches(sinks, _slice_cache(cache, end - kept_slots))
        new_slots = self._compress_front(_slice_cache(cache, 0, end))
        kept_memory = _slice_cache(cache, start + s.comp_tokens - kept_slots, start)
        memory_slots = concat_caches(kept_memory, new_slots)
        return concat_caches(concat_caches(sinks, memory_slots), _slice_cache(cache, end))

    def _compress_front(self, front: EvictedCache) -> EvictedCache:
        """Return the slots of COMP tokens that attend to all of `front`."""
        count = self.settings.comp_tokens
        prefix = front.prefix(self.rotary)
        last_position = front.index[:, :, :, -1:]
        if self.rotary is None:
            prefix = replace(prefix, next_position_B=last_position[0, :, 0, 0].long() + 1)
        keys, values = self.method.compress_texts(prefix, [[]], prefix.next_position_B)
        if self.rotary is not None:
            positions_BT = prefix.next_position_B[:, None] + torch.arange(count, device=keys.device)
            keys = self.rotary.rotate(keys, positions_BT, inverse=True)
        return EvictedCache(
            keys, values, last_position.expand(-1, -1, -1, count).contiguous(), front.next
        )


def _cache_from_state(state: State) -> EvictedCache | None:
    """Return the cache of a state without its padding; None if nothing was read."""
    cache = EvictedCache.of(state)
    return _slice_cache(cache, int((~cache.valid).sum())) if cache else None


def _slice_cache(cache: EvictedCache, start: int, end: int | None = None) -> EvictedCache:
    slots = slice(start, end)
    return EvictedCache(
        cache.keys[..., slots, :], cache.values[..., slots, :], cache.index[..., slots], cache.next
    )
