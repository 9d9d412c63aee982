"""How tests of methods read `observes` and ask one question."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tests.tiny_methods import PROMPTS, make_chunks, make_queries
from ttabench.lm.forward.patching import encode_patch, forward, text_start
from ttabench.lm.model import LM
from ttabench.lm.patch import Patch, State

QUESTION = make_queries("Where does Ada live?")


def read(method: Any, *texts: str) -> State:
    """These texts, read together by one reader."""
    state: State = method.adapt(method.begin(1), [[observe] for observe in make_chunks(*texts)])
    return state


def answer_nll_by_state(ran: Any) -> dict[str, float]:
    """Return the answer NLL of the runs of a command with --swap-state, by `state_of`."""
    return {
        run["config"]["state_of"]: row["value"]
        for run in ran.json()["runs"]
        for row in run["rows"]
        if row["metric"] == "answer_nll"
    }


def read_apart(method: Any, *texts: str) -> State:
    """These texts, one after the other."""
    state: State = method.begin(1)
    for observe in make_chunks(*texts):
        state = method.adapt(state, [[observe]])
    return state


@torch.no_grad()
def prompted(lm: LM, patch: Patch, text: str = PROMPTS[0]) -> Tensor:
    """Logits of a prompt under a patch."""
    patch = encode_patch(lm, patch)
    ids = torch.tensor([[*text_start(lm, patch), *lm.encode(text)]])
    return forward(lm, patch, ids)[0][0, -len(lm.encode(text)) :]


@torch.no_grad()
def logits(method: Any, state: State) -> Tensor:
    """Of the question behind a state."""
    ids = torch.tensor([method.lm.encode(QUESTION[0].prompt)])
    return forward(method.lm, method.patch(state, QUESTION), ids)[0]
