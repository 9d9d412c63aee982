"""CCM, compressed context memory: COMP tokens read a piece on top of the memory, and become part of it.

    adapt   h(t) = keys and values of the COMP tokens of [c(t), COMP] read behind Mem(t-1)                   equation 1
            Mem(t) = [Mem(t-1); h(t)], or (1 - a_t) Mem(t-1) + a_t h(t)                                      equation 2
    patch   Mem(t) as a prefix                                                                               equation 3

Trained are the embeddings of the COMP tokens and a LoRA that acts at them alone: the text is read by the base model as
it is. Text keeps the positions of the full context, COMP tokens take none: the k-th of a piece stands where the k-th
token of the next one will. Kim et al., arXiv 2312.03414.

Shape letters: L layers · B rows · H key/value heads · P slots of the memory · D head size · T tokens · C width.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ttabench.core.types import Ask, Episode, Observe
from ttabench.lm.layout import Layout
from ttabench.lm.model import LM
from ttabench.lm.patch import LowRank, Patch, Prefix, State
from ttabench.lm.patching import hidden_states, read
from ttabench.lm.tokens import new_ids, pad
from ttabench.methods.ccm import CCM
from ttabench.methods.ccm.parallel import answer_nll
from ttabench.methods.ccm.settings import CcmSettings
from ttabench.methods.parts import lora
from ttabench.methods.trainable import Trainable

Memory = tuple[Tensor, Tensor]
"""Keys and values [L, B, H, P, D]."""


class Ccm(Trainable[CcmSettings]):
    """Compressed context memory. State: keys and values of the memory, and the position of the next text token.

    Its `meta` counts pieces read.

    Raises:
        UserError: the base has no linear map of that name.
    """

    spec = CCM

    def __init__(self, lm: LM, settings: CcmSettings) -> None:
        super().__init__(lm, settings)
        self.growth = "linear" if settings.update == "concat" else "constant"
        started = lora.started(lm, settings, None if settings.targets else attention_maps(lm))
        self.names = list(started)
        self.a = nn.ParameterList(a_RI for a_RI, _ in started.values())
        self.b = nn.ParameterList(b_OR for _, b_OR in started.values())
        first = first_embeddings(lm, settings.comp_tokens)
        self.embeddings = nn.Embedding(settings.comp_tokens, first.shape[1], _weight=first)

    def modules(self) -> nn.ModuleDict:
        """a and b, one of each a linear map, and the embeddings of the COMP tokens."""
        return nn.ModuleDict({"a": self.a, "b": self.b, "embeddings": self.embeddings})

    @property
    def deltas(self) -> dict[str, LowRank]:
        """The LoRA."""
        return lora.deltas(dict(zip(self.names, zip(self.a, self.b, strict=True), strict=True)), self.settings)

    def begin(self, rows: int) -> State:
        """Nothing read."""
        return State(rows, meta={"tokens_read": [0] * rows, "pieces_read": [0] * rows})

    @torch.no_grad()
    def adapt(self, state: State, chunks: Sequence[Sequence[Observe]]) -> State:
        """Compress piece by piece, each behind the memory of those before it."""
        rows, counts = new_ids(self.lm, state, chunks), list(state.meta["tokens_read"])
        memory = (state.tensors["keys"], state.tensors["values"]) if "keys" in state.tensors else None
        steps = state.meta["pieces_read"][0]
        for number in range(len(chunks)):
            texts, steps = [row[number] for row in rows], steps + 1
            memory = self._updated(memory, self._compressed(memory, texts, counts, steps), steps)
            counts = [count + len(text) for count, text in zip(counts, texts, strict=True)]
        meta = {"tokens_read": counts, "pieces_read": [steps] * state.rows}
        if memory is None:
            return State(state.rows, meta=meta)
        following = torch.tensor(counts, device=self.lm.device) + len(self.lm.start_ids)
        return State(state.rows, {"keys": memory[0], "values": memory[1], "next": following}, meta)

    def patch(self, state: State, asks: Sequence[Ask]) -> Patch:  # noqa: ARG002  # the contract's arguments
        """The memory as a prefix; where the LoRA acts at every token, the LoRA too."""
        deltas = {} if self.settings.conditional else self.deltas
        if "keys" not in state.tensors:
            return Patch(deltas=deltas)
        keys, values, following = (state.tensors[name] for name in ("keys", "values", "next"))
        return Patch(prefix=_prefix((keys, values), following), deltas=deltas)

    def loss_parts(self, episodes: Sequence[Episode]) -> dict[str, Tensor]:
        """Mean negative log-likelihood of the answers: each episode is read, compressed and asked in one forward."""
        deltas, embeddings_NC = self.deltas, self.embeddings.weight
        total, count = answer_nll(self.lm, self.settings, deltas, embeddings_NC, episodes)
        return {"answer": total / count}

    def _compressed(
        self, memory: Memory | None, texts: Sequence[list[int]], counts: Sequence[int], step: int
    ) -> Memory:
        """h(t): keys and values of the COMP tokens behind these texts, [L, B, H, n, D]; BOS in front with `sink`."""
        lm, s = self.lm, self.settings
        tokens_BT, mask_BT = pad(list(texts), lm.pad_id, "left")
        first_B = torch.tensor(counts)[:, None] + len(lm.start_ids)
        positions_BT = first_B + mask_BT.long().cumsum(1) - 1
        comp = torch.arange(s.comp_tokens)
        lengths_B = torch.tensor([len(text) for text in texts])[:, None]
        ids_BT = torch.cat([tokens_BT, (lm.vocab_size + comp).expand(len(texts), -1)], 1).to(lm.device)
        positions_BT = torch.cat([positions_BT, first_B + lengths_B + comp], 1).to(lm.device)
        mask_BT = torch.cat([mask_BT.bool(), torch.ones(len(texts), s.comp_tokens, dtype=torch.bool)], 1).to(lm.device)
        marked_BT = ids_BT >= lm.vocab_size
        layout = Layout(
            positions_BT=positions_BT.clamp(min=0),
            embeddings_BTC=lm.embedded(ids_BT, self.embeddings.weight),
            marked_BT=marked_BT if s.conditional else None,
        )
        begun = self._begun(len(texts)) if step == 1 else None
        seen = begun if memory is None else self._seen(memory)
        prefix = None if seen is None else _prefix(seen, first_B[:, 0].to(lm.device))
        _, window = hidden_states(lm, Patch(prefix=prefix, deltas=self.deltas), ids_BT, layout, mask_BT)
        after = window.prefix()
        keys, values = torch.stack(after.keys_LBHPD), torch.stack(after.values_LBHPD)
        fresh = keys[..., -s.comp_tokens :, :], values[..., -s.comp_tokens :, :]
        if step == 1 and s.sink and begun is not None:
            return torch.cat([begun[0], fresh[0]], 3), torch.cat([begun[1], fresh[1]], 3)
        return fresh

    def _seen(self, memory: Memory) -> Memory | None:
        """What a further piece sees of the memory: all of it, or what begins the text, or nothing."""
        if self.settings.recursive:
            return memory
        return (memory[0][..., :1, :], memory[1][..., :1, :]) if self.settings.sink and self.lm.start_ids else None

    def _begun(self, rows: int) -> Memory | None:
        """Keys and values of what begins a text, of as many rows; None where nothing does."""
        if not self.lm.start_ids:
            return None
        deltas = {} if self.settings.conditional else self.deltas
        start = read(self.lm, Patch(deltas=deltas), torch.zeros(rows, 0, dtype=torch.int64))
        return torch.stack(start.keys_LBHPD), torch.stack(start.values_LBHPD)

    def _updated(self, memory: Memory | None, fresh: Memory, step: int) -> Memory:
        """Mem(t)."""
        if memory is None:
            return fresh
        if self.settings.update == "concat":
            return torch.cat([memory[0], fresh[0]], 3), torch.cat([memory[1], fresh[1]], 3)
        weight, size = self.settings.weight(step), self.settings.comp_tokens
        keys, values = (
            torch.cat([old[..., :-size, :], old[..., -size:, :].lerp(new, weight)], 3)
            for old, new in zip(memory, fresh, strict=True)
        )
        return keys, values


def attention_maps(lm: LM) -> list[str]:
    """The linear maps of attention."""
    return [name for name in lm.linear_names() if name.split(".")[-2] in ("self_attn", "attn", "attention")]


def first_embeddings(lm: LM, comp_tokens: int) -> Tensor:
    """Where the embeddings of COMP tokens begin: row i is the mean of every n-th row of the vocabulary, from i on."""
    table_VC: Tensor = lm.model.get_input_embeddings().weight.detach().float()
    return torch.stack([table_VC[row::comp_tokens].mean(0) for row in range(comp_tokens)])


def _prefix(memory: Memory, next_B: Tensor) -> Prefix:
    keys, values = memory
    return Prefix(tuple(keys.unbind(0)), tuple(values.unbind(0)), next_B, holds_bos=True)
