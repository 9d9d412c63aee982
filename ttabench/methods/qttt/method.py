"""Query-only test-time training: gradient steps on spans of text adapt query projections.

Keys and values are computed once and stay valid. Bansal et al., "Let's (not) just put things in
Context: Test-Time Training for Long-Context LLMs", arXiv 2512.13898.

Shape letters: N parameters of the factors · P slots.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain

import torch
from torch import Tensor

from ttabench.core.errors import UserError
from ttabench.core.types import Chunk, Query
from ttabench.lm.forward.patching import prefill
from ttabench.lm.forward.tokens import new_chunk_ids
from ttabench.lm.inference.scoring import answer_nll
from ttabench.lm.model import LM
from ttabench.lm.patch import Patch, Prefix, State
from ttabench.methods.base import Method
from ttabench.methods.parts.kept import append_ids, prefix_from_tensors, prefix_tensors, stored_ids
from ttabench.methods.parts.lora import Factors, split_vector
from ttabench.methods.qttt import QTTT, QueryTrainingSettings


class QueryTraining(Method[QueryTrainingSettings]):
    """Query-only test-time training.

    State: the KV cache, the token ids, and the factors `weights` [1, N], float32.
    """

    spec = QTTT
    granularity = "segment"
    supports_batching = False
    required_capabilities = ("keys", "gradients")

    def __init__(self, lm: LM, settings: QueryTrainingSettings) -> None:
        super().__init__(lm, settings)
        self._factors = Factors(lm, settings)

    def adapt(self, state: State, chunks: Sequence[Sequence[Chunk]]) -> State:
        """Read the new text after the cached text, then train on spans of the whole text."""
        new_tokens = list(chain(*new_chunk_ids(self.lm, state, chunks)[0]))
        if not new_tokens:
            return state
        ids = [*stored_ids(state.tensors, 1)[0], *new_tokens]
        with torch.no_grad():
            prefix = prefill(
                self.lm,
                Patch(prefix=prefix_from_tensors(state.tensors)),
                torch.tensor([new_tokens]),
            )
        vector_N = self._train_factors(state.tensors.get("weights"), prefix, ids)
        tensors = {
            **prefix_tensors(prefix),
            **append_ids(self.lm, {}, [ids], len(ids)),
            "weights": vector_N[None],
        }
        return State(1, tensors, {"tokens_read": [len(ids)]})

    def patch(self, state: State, queries: Sequence[Query]) -> Patch:  # noqa: ARG002  # interface
        """Return the cache, and the adapted query projections."""
        if "weights" not in state.tensors:
            return Patch()
        return replace(
            self._factor_patch(state.tensors["weights"][0]),
            prefix=prefix_from_tensors(state.tensors),
        )

    def _factor_patch(self, vector_N: Tensor) -> Patch:
        return self._factors.patch(split_vector(vector_N, self._factors.layout))

    def _train_factors(self, before_1N: Tensor | None, prefix: Prefix, ids: list[int]) -> Tensor:
        """Return the factors after all steps.

        Raises UserError if a gradient is not finite.
        """
        s, starts = self.settings, len(self.lm.start_ids)
        vector_N = (
            (self._factors.start() if before_1N is None else before_1N[0])
            .detach()
            .clone()
            .requires_grad_()
        )
        optimiser = torch.optim.Adam([vector_N], lr=s.lr)
        generator = torch.Generator().manual_seed(s.seed * 1_000_003 + len(ids))
        span = min(s.span, len(ids))
        for _ in range(s.steps if span > 1 else 0):
            begin = int(torch.randint(len(ids) - span + 1, (1,), generator=generator))
            first, *rest = ids[begin : begin + span]
            optimiser.zero_grad()
            with torch.enable_grad():
                patch = replace(
                    self._factor_patch(vector_N), prefix=truncate_prefix(prefix, starts + begin)
                )
                total, count = answer_nll(self.lm, patch, [([first], rest)])
                (total / count).backward()  # type: ignore[no-untyped-call]
            if vector_N.grad is None or not math.isfinite(float(vector_N.grad.norm())):
                fault = f"{self.name} stopped: the gradient is not finite."
                raise UserError(fault, f"Use a smaller --set lr than {s.lr:g}.")
            optimiser.step()
        return vector_N.detach()


def truncate_prefix(prefix: Prefix, slots: int) -> Prefix:
    """Return the keys and values of the first `slots` tokens."""
    truncated = prefix.map_layers(lambda layer: layer[:, :, :slots])
    return replace(truncated, next_position_B=torch.full_like(prefix.next_position_B, slots))
