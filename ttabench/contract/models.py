"""Comparison of methods under a base model with plain transformers (`ttabench check --model`).

    check_methods(lm)     {"none": "right", "icl": "right", "window": "refused: ...", ...}

The reference is transformers' own forward of the whole text (eager, own head, no cache or padding).
A method that keeps all context must equal it with the context before the query. A method that
changes weights must equal it with the changed weights. Log-likelihoods and greedy answers are
compared. Queries of unequal length must give the same answers in a batch and alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ttabench.core.errors import UserError
from ttabench.core.types import Chunk, Generate, Query
from ttabench.lm.forward.capability_probe import MAX_LOGPROB_DIFFERENCE, reference_logprobs
from ttabench.lm.forward.patching import deltas_applied, weight_changes
from ttabench.lm.forward.tokens import chunk_ids, gold_ids, prompt_ids
from ttabench.lm.model import LM
from ttabench.lm.patch import Dense
from ttabench.methods import registry
from ttabench.methods.session import Session

CONTEXT = Chunk(text="Mira Tolen keeps nine grey geese by the mill, and a heron.")
MAX_NEW_TOKENS = 4
QUERIES = tuple(
    Query(
        prompt=question,
        key=question,
        want=Generate(answers=(answer,), max_new_tokens=MAX_NEW_TOKENS),
    )
    for question, answer in (
        ("How many geese?", "nine"),
        ("Who?", "Mira"),
        ("By what are they?", "a mill"),
    )
)
METHOD_SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "none": {},
    "icl": {},
    "window": {"recent": 200},
    "snapkv": {"budget": 200, "window": 8},
    "h2o": {"heavy": 300, "recent": 300},
    "kvzip": {"budget": 1.0},
    "templora": {"prefix": 0, "lr": 1e-3, "schedule": "constant"},
    "generative_adapter": {},
}
"""Settings by method, with budgets that keep the full text. generative_adapter is untrained."""


def check_methods(lm: LM) -> dict[str, str]:
    """Return "right", "refused: ..", "wrong: .." or "raised: .." by method; the last two are bugs."""
    results = {}
    for name in METHOD_SETTINGS:
        try:
            results[name] = check_method(name, lm)
        except UserError as error:
            results[name] = f"refused: {error}"
        except Exception as error:  # a bug, which is reported
            results[name] = f"raised: {type(error).__name__}: {str(error)[:120]}"
    return results


def check_method(name: str, lm: LM) -> str:
    """Check one method. Raises a UserError if it does not support the model."""
    spec = registry.find_method(name)
    settings = (
        spec.Settings(**METHOD_SETTINGS[name])
        if METHOD_SETTINGS[name] or spec.test_settings is None
        else spec.test_settings
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        session = Session(lm, spec.load()(lm, settings))
        session.read([CONTEXT])
        patch = session.patch(QUERIES[:1])
    context = [] if name == "none" or patch.deltas else chunk_ids(lm, CONTEXT, first=True)
    for query, batch in zip(QUERIES, session_answers(session, QUERIES), strict=True):
        changes = {
            name: Dense(change[None]) for name, change in weight_changes(lm, patch.deltas).items()
        }
        with deltas_applied(lm, changes, 1):
            logprob, written = reference_answer(lm, query, context)
        for (own, answer), mode in (
            (batch, "in a batch"),
            (session_answers(session, [query])[0], "alone"),
        ):
            if abs(own - logprob) > MAX_LOGPROB_DIFFERENCE[lm.dtype] * (2 + abs(logprob) / 50):
                return f"wrong: log-likelihood {mode} {own:.3f}, expected {logprob:.3f}"
            if answer != written and lm.dtype == torch.float32:
                return f"wrong: answer {mode} {answer!r}, expected {written!r}"
    return "right"


@torch.no_grad()
def reference_answer(lm: LM, query: Query, context: Sequence[int]) -> tuple[float, str]:
    """Compute gold log-likelihood and greedy answer by uncached forwards of the whole text."""
    prompt = [*lm.start_ids, *context, *prompt_ids(lm, query, is_continuation=bool(context))]
    target, answer = gold_ids(lm, query), list[int]()

    def logprobs(ids: Sequence[int]) -> torch.Tensor:
        return reference_logprobs(lm, torch.tensor([ids], device=lm.device))

    places_TV = logprobs([*prompt, *target])[len(prompt) - 1 : -1]
    while len(answer) < MAX_NEW_TOKENS and not (answer and answer[-1] in lm.eos_ids):
        answer.append(int(logprobs([*prompt, *answer])[-1, : lm.text_vocab_size].argmax()))
    written = lm.decode([token for token in answer if token not in lm.eos_ids]).strip()
    return float(
        places_TV.gather(1, torch.tensor(target, device=lm.device)[:, None]).sum()
    ), written


def session_answers(session: Session, queries: Sequence[Query]) -> list[tuple[float, str]]:
    """Answer a batch of queries: (summed natural-log probability, greedy answer) for each."""
    likelihoods, answers = session.gold_likelihoods(queries), session.answer(queries)
    return [
        (value, answer.prediction) for (value, _), answer in zip(likelihoods, answers, strict=True)
    ]
