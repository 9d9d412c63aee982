"""`ttabench check --model MODEL`: what methods give under a base model, beside plain forwards of transformers.

    outcomes(lm)     {"none": "right", "icl": "right", "window": "refused: ...", ...}

The truth is transformers' own forward of the whole text (eager, no cache, no padding, its own head). A method that
keeps all it reads must equal it with the context in front; one that changes weights, under the changed weights.
Log-likelihoods and greedy answers count, and questions of unequal length asked together must equal each alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ttabench.core.errors import UserError
from ttabench.core.types import Ask, Generate, Observe
from ttabench.lm.forward.patching import deltas_applied, weight_changes
from ttabench.lm.forward.probe import BOUNDS, whole
from ttabench.lm.forward.tokens import gold_ids, piece_ids, prompt_ids
from ttabench.lm.model import LM
from ttabench.lm.patch import Dense
from ttabench.methods import registry
from ttabench.methods.session import Session

TEXT = Observe(text="Mira Tolen keeps nine grey geese by the mill, and a heron.")
NEW_TOKENS = 4
ASKS = tuple(
    Ask(prompt=question, key=question, want=Generate(answers=(answer,), max_new_tokens=NEW_TOKENS))
    for question, answer in (("How many geese?", "nine"), ("Who?", "Mira"), ("By what are they?", "a mill"))
)
SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "none": {},
    "icl": {},
    "window": {"recent": 200},
    "snapkv": {"budget": 200, "window": 8},
    "h2o": {"heavy": 300, "recent": 300},
    "kvzip": {"budget": 1.0},
    "templora": {"prefix": 0, "lr": 1e-3, "schedule": "constant"},
    "generative_adapter": {},
}
"""Methods, at budgets that keep all of the text; the last is trained, here with fresh weights."""


def outcomes(lm: LM) -> dict[str, str]:
    """By method "right", "refused: ..", "wrong: .." or "raised: ..", the last two of which are faults of ours."""
    said = {}
    for name in SETTINGS:
        try:
            said[name] = outcome(name, lm)
        except UserError as error:
            said[name] = f"refused: {error}"
        except Exception as error:  # which must not happen, and is shown where it does
            said[name] = f"raised: {type(error).__name__}: {str(error)[:120]}"
    return said


def outcome(name: str, lm: LM) -> str:
    """Of one method; a UserError where the model is refused."""
    spec = registry.find(name)
    settings = spec.Settings(**SETTINGS[name]) if SETTINGS[name] or spec.checked is None else spec.checked
    with torch.random.fork_rng():
        torch.manual_seed(0)
        session = Session(lm, spec.load()(lm, settings))
        session.read([TEXT])
        patch = session.patch(ASKS[:1])
    context = [] if name == "none" or patch.deltas else piece_ids(lm, TEXT, first=True)
    for ask, batch in zip(ASKS, given(session, ASKS), strict=True):
        changes = {name: Dense(change[None]) for name, change in weight_changes(lm, patch.deltas).items()}
        with deltas_applied(lm, changes, 1):
            logprob, written = truth(lm, ask, context)
        for (own, answer), how in ((batch, "in a batch"), (given(session, [ask])[0], "alone")):
            if abs(own - logprob) > BOUNDS[lm.dtype] * (2 + abs(logprob) / 50):
                return f"wrong: log-likelihood {how} {own:.3f} for {logprob:.3f}"
            if answer != written and lm.dtype == torch.float32:
                return f"wrong: answer {how} {answer!r} for {written!r}"
    return "right"


@torch.no_grad()
def truth(lm: LM, ask: Ask, context: Sequence[int]) -> tuple[float, str]:
    """By plain forwards of the whole text, one for the gold answer and one for every token of the greedy one."""
    prompt = [*lm.start_ids, *context, *prompt_ids(lm, ask, follows=bool(context))]
    target, answer = gold_ids(lm, ask), list[int]()

    def logprobs(ids: Sequence[int]) -> torch.Tensor:
        return whole(lm, torch.tensor([ids], device=lm.device))

    places_TV = logprobs([*prompt, *target])[len(prompt) - 1 : -1]
    while len(answer) < NEW_TOKENS and not (answer and answer[-1] in lm.eos_ids):
        answer.append(int(logprobs([*prompt, *answer])[-1, : lm.text_ids].argmax()))
    written = lm.decode([token for token in answer if token not in lm.eos_ids]).strip()
    return float(places_TV.gather(1, torch.tensor(target, device=lm.device)[:, None]).sum()), written


def given(session: Session, asks: Sequence[Ask]) -> list[tuple[float, str]]:
    """Log-probability (natural log, summed) and greedy answer that a session gives each of these, asked together."""
    likelihoods, answers = session.gold_likelihoods(asks), session.answer(asks)
    return [(value, answer.prediction) for (value, _), answer in zip(likelihoods, answers, strict=True)]
