"""Answers to one's own questions: got from a session, timed, scored where the right ones are known, and as tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

import torch

from ttabench.cli.adapt import read
from ttabench.core import amounts
from ttabench.core.meter import Meter
from ttabench.core.progress import Tick
from ttabench.core.types import Answer, Ask, Json, Observe
from ttabench.lm.model import LM
from ttabench.lm.patch import State
from ttabench.lm.verbs.batching import BatchSize, alike, in_batches
from ttabench.methods.base import PieceShares
from ttabench.methods.session import Session
from ttabench.readers.own_questions import OwnQuestion
from ttabench.run.caveats import state_caveats
from ttabench.run.resolve import ResolvedMethod
from ttabench.stats.metrics import metric
from ttabench.terminal.table import Table

SCORES = ("em", "f1")
TOGETHER = 32
"""Questions answered in one batch."""
LARGEST = 5
"""Pieces told beside an answer, at most."""


def reply(
    lm: LM, resolved: ResolvedMethod, before: State | None, pieces: Sequence[Observe], questions: Sequence[OwnQuestion],
    asks: Sequence[Ask], tick: Tick, *, looking: bool,
) -> tuple[dict[str, Any], list[str], PieceShares | None]:  # fmt: skip
    """What a method says that goes on from a state and reads these pieces: answers, scores and cost as JSON has them,
    where they would mislead, and, if `looking`, which pieces each question looks at."""
    meter, method = Meter(lm.device), resolved.build(lm)
    session = Session(lm, method, before)
    with meter.phase("adapt"):
        state = read(session, pieces, tick)
    held = 0
    if not method.looks_at_question:
        with torch.no_grad(), meter.phase("encode"):
            patch = session.patch(asks[:1])
        held = patch.prefix.nbytes if patch.prefix is not None else 0

    def answered(batch: list[Ask]) -> list[tuple[str, Answer]]:
        with meter.phase("ask"):
            given = session.answer(batch)
        return [(ask.key, answer) for ask, answer in zip(batch, given, strict=True)]

    size, by_key = BatchSize(TOGETHER, lm.device.type), dict[str, Answer]()
    for together in alike(lm, asks):
        for answers in in_batches(together, size, answered):
            by_key.update(answers)
            tick("answered", len(by_key), len(asks))
    shares = session.piece_shares(asks) if looking else None
    told = _told(questions, asks, by_key, shares)
    told |= {"method": resolved.spec.name, "cost": {
        "adapt_seconds": meter.seconds["adapt"] + meter.seconds["encode"] if pieces or before is None else None,
        "ask_ms": meter.seconds["ask"] * 1000 / len(asks),
        "state_bytes": max(state.nbytes, held),
        "tokens_read": int(state.meta["tokens_read"][0]) if "tokens_read" in state.meta else None,
    }}  # fmt: skip
    notes = state_caveats(method, state)
    if cut := sum(not answer.ended for answer in by_key.values()):
        notes.append(f"{cut} of {len(asks)} answers were cut at their length: --max-new-tokens N allows more")
    return told, notes, shares


def _told(
    questions: Sequence[OwnQuestion], asks: Sequence[Ask], answers: Mapping[str, Answer], shares: PieceShares | None
) -> dict[str, Any]:
    """The answers, scored where the right ones are known, and what the shares of pieces are."""
    told: list[dict[str, Json]] = []
    for number, (question, query) in enumerate(zip(questions, asks, strict=True)):
        answer = answers[query.key]
        told.append({"question": question.question, "answer": answer.prediction, "ended": answer.ended})
        if query.answers:
            scores = {name: metric(name)(answer.prediction, query, answer) for name in SCORES}
            told[-1] |= {"answers": list(question.answers), **scores}
        if answer.logprobs:
            told[-1]["logprobs"] = list(answer.logprobs)
        if shares:
            told[-1]["pieces"] = _largest_shares(shares, number)
    known = [one for one in told if "answers" in one]
    means = {name: fmean(one[name] for one in known) for name in SCORES} if known else {}
    scored = {"n": len(known), **means} if known else None
    return {"answers": told, "scores": scored, **({"share": shares.meaning} if shares else {})}


def _largest_shares(shares: PieceShares, question: int) -> list[dict[str, Json]]:
    """The pieces that a question looks at most: their shares, 0 to 1, and the scores that pieces were chosen by."""
    scores = shares.scores_QK
    return [
        {
            "name": shares.names[place],
            "share": float(shares.shares_QK[question, place]),
            **({} if scores is None else {"score": float(scores[question, place])}),
        }
        for place in shares.largest(question, LARGEST)
    ]


def answer_table(methods: Sequence[Mapping[str, Any]]) -> Table:
    """The answers of every method to each question."""
    several, scored = len(methods) > 1, methods[0]["scores"] is not None
    rows = []
    for number in range(len(methods[0]["answers"])):
        for method in methods:
            told, first = method["answers"][number], method is methods[0]
            row = [told["question"] if first else "", *([method["method"]] if several else [])]
            row.append(told["answer"] or "(nothing)")
            if scored:
                right = " / ".join(told.get("answers", ())) if first else ""
                row += [right, *(_percent(told.get(name)) for name in SCORES)]
            rows.append(tuple(row))
    heads = ("question", *(["method"] if several else []), "answer")
    more = ("right answer", *(f"#{name}" for name in SCORES)) if scored else ()
    return Table(title="answers", columns=(*heads, *more), rows=tuple(rows))


def cost_table(methods: Sequence[Mapping[str, Any]], where: Mapping[str, Json]) -> Table:
    """The cost of every method, and its scores where right answers are known."""
    scores = methods[0]["scores"]
    scored = SCORES if scores else ()
    columns = ("method", "#tokens read", "#adapt s", "#ask ms", "#state", *(f"#{name}" for name in scored))
    rows = tuple(
        (
            method["method"],
            "-" if cost["tokens_read"] is None else f"{cost['tokens_read']:,}",
            "before" if cost["adapt_seconds"] is None else amounts.number(cost["adapt_seconds"], 2),
            amounts.number(cost["ask_ms"]),
            amounts.size(cost["state_bytes"]),
            *(_percent(method["scores"][name]) for name in scored),
        )
        for method in methods
        for cost in [method["cost"]]
    )
    source = f" from {where['state']}" if where["state"] else ""
    count = f"; n = {scores['n']} questions" if scores else ""
    return Table(
        title="cost", columns=columns, rows=rows, caption=f"{where['method']} on {where['model']}{source}{count}"
    )


def _percent(value: float | None) -> str:
    return amounts.number(None if value is None else value * metric("f1").scale)
