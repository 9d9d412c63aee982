"""COMP tokens: their keys and values are the compressed form of the text before them.

Kim et al., arXiv 2312.03414, equation 1.

Shape letters: K keys and values · L layers · B rows · H key/value heads · P slots · D head size · T
tokens · C width · n COMP tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias, TypeVar

import torch
from torch import Tensor, nn

from ttabench.core.types import Episode, Query
from ttabench.lm.forward.patching import hidden_states, prefill
from ttabench.lm.forward.tokens import pad
from ttabench.lm.forward.window import Layout
from ttabench.lm.model import LM
from ttabench.lm.patch import LowRank, Patch, Prefix, State
from ttabench.methods.ccm import AttentionLoraSettings, GistingSettings
from ttabench.methods.parts.lora import TrainableLora, attention_linear_names
from ttabench.methods.parts.one_forward import Batch, Row, Slots, row_loss

Memory: TypeAlias = Tensor
"""Keys and values [K, L, B, H, P, D]."""
LoraT = TypeVar("LoraT", bound=AttentionLoraSettings)
CompT = TypeVar("CompT", bound=GistingSettings)


class AttentionMemory(TrainableLora[LoraT]):
    """LoRA on the attention projections, with a memory that is used as a prefix."""

    required_capabilities = ("keys", "hooks", "embeddings", "shape")

    def __init__(self, lm: LM, settings: LoraT) -> None:
        super().__init__(lm, settings, None if settings.targets else attention_linear_names(lm))

    @property
    def text_deltas(self) -> dict[str, LowRank]:
        """Deltas that act while queries and answers are read."""
        return {}

    def patch(self, state: State, queries: Sequence[Query]) -> Patch:  # noqa: ARG002  # interface
        """Return the memory as a prefix, with the LoRA if it acts at every token."""
        t = state.tensors
        prefix = memory_to_prefix((t["keys"], t["values"]), t["next"]) if t else None
        return Patch(prefix=prefix, deltas=self.text_deltas)

    def encode_start(self, rows: int) -> Memory | None:
        """Encode the start tokens (BOS) for this number of rows; None if there are none."""
        if not self.lm.start_ids:
            return None
        start = prefill(
            self.lm, Patch(deltas=self.text_deltas), torch.zeros(rows, 0, dtype=torch.int64)
        )
        return prefix_to_memory(start)

    def build_state(
        self, state: State, memory: Memory | None, counts: list[int], **meta: list[int]
    ) -> State:
        """Build the state that follows `state`, with this memory and these token counts."""
        tensors = {}
        if memory is not None:
            tensors = {"keys": memory[0], "values": memory[1], "next": self.next_positions(counts)}
        return State(state.rows, tensors, {"tokens_read": counts, **meta})

    def next_positions(self, counts: Sequence[int]) -> Tensor:
        """Return the position [B] of the next text token after these numbers of context tokens."""
        return torch.tensor(counts, device=self.lm.device) + len(self.lm.start_ids)


class CompTokens(AttentionMemory[CompT]):
    """COMP tokens with trained embeddings.

    Row i starts as the mean of every n-th row of the vocabulary, beginning with row i.
    """

    def __init__(self, lm: LM, settings: CompT) -> None:
        super().__init__(lm, settings)
        table_VC = lm.model.get_input_embeddings().weight.detach().float()
        count = settings.comp_tokens
        first_nC = torch.stack([table_VC[row::count].mean(0) for row in range(count)])
        self.embeddings = nn.Embedding(count, first_nC.shape[1], _weight=first_nC)

    def modules(self) -> nn.ModuleDict:
        """Return the LoRA factors a and b of each map, and the COMP embeddings."""
        return nn.ModuleDict({**super().modules(), "embeddings": self.embeddings})

    @property
    def text_deltas(self) -> dict[str, LowRank]:
        """Deltas that act at tokens other than COMP tokens."""
        return {} if self.settings.conditional else self.deltas

    @property
    def comp_ids(self) -> range:
        """Ids of the COMP tokens, which follow the vocabulary."""
        return range(self.lm.vocab_size, self.lm.vocab_size + self.settings.comp_tokens)

    def compress_texts(
        self, prefix: Prefix | None, texts: Sequence[list[int]], first_B: Tensor
    ) -> Memory:
        """Return keys and values of the COMP tokens after these texts, [K, L, B, H, n, D].

        `prefix`: slots that texts and COMP tokens also attend to. `first_B`: position of the first
        token of each text.
        """
        lm, count = self.lm, self.settings.comp_tokens
        rows = [[*text, *self.comp_ids] for text in texts]
        ids_BT, mask_BT = pad(rows, lm.pad_id, "left", lm.device)
        layout = Layout(
            positions_BT=first_B[:, None] + mask_BT.long().cumsum(1) - 1,
            embeddings_BTC=lm.embed(ids_BT, self.embeddings.weight),
            delta_mask_BT=ids_BT >= lm.vocab_size if self.settings.conditional else None,
        )
        _, window = hidden_states(
            lm, Patch(prefix=prefix, deltas=self.deltas), ids_BT, layout, mask_BT
        )
        return prefix_to_memory(window.prefix().map_layers(lambda layer: layer[:, :, -count:]))

    @property
    def slots(self) -> Callable[[Sequence[Row], Batch], Slots] | None:
        """Function to the memory slots of rows in training. None: tokens see COMP tokens."""
        return None

    def episode_row(self, episode: Episode) -> Row:
        """Lay out an episode as one row, with COMP tokens."""
        raise NotImplementedError

    def loss_parts(self, episodes: Sequence[Episode]) -> dict[str, Tensor]:
        """Return the mean answer NLL; each episode takes one forward pass."""
        loss = row_loss(
            self.lm,
            [self.episode_row(episode) for episode in episodes],
            self.deltas,
            embeddings_NC=self.embeddings.weight,
            marked=self.settings.conditional,
            slots=self.slots,
        )
        return {"answer": loss}


def prefix_to_memory(prefix: Prefix) -> Memory:
    """Stack the keys and values of a prefix."""
    return torch.stack([torch.stack(prefix.keys_LBHPD), torch.stack(prefix.values_LBHPD)])


def memory_to_prefix(
    memory: Memory | tuple[Tensor, Tensor] | None, next_B: Tensor
) -> Prefix | None:
    """Return the memory as a prefix of text at these positions; None without a memory."""
    if memory is None:
        return None
    keys, values = map(tuple, memory)
    return Prefix(keys, values, next_B, holds_bos=True)


def state_to_memory(state: State) -> Memory | None:
    """Return the memory of a state; None if nothing was read."""
    t = state.tensors
    return torch.stack([t["keys"], t["values"]]) if t else None


def concat_memories(memory: Memory | None, new_slots: Memory) -> Memory:
    """Append the new slots to the memory."""
    return new_slots if memory is None else torch.cat([memory, new_slots], 4)
