"""Answers to one's own questions: got from a session, timed, scored where the right ones are known, and as tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True, kw_only=True)
class Reply:
    """What one method says to all questions."""

    told: Mapping[str, Any]
    """Its answers, scores and cost, as JSON has them."""
    notes: Sequence[str]
    """Where that would mislead."""
    shares: PieceShares | None


class Asker:
    """Asks the same questions of several methods on one model; `looking`: and which pieces they look at."""

    def __init__(
        self, lm: LM, questions: Sequence[OwnQuestion], asks: Sequence[Ask], tick: Tick, *, looking: bool
    ) -> None:
        self.lm, self.questions, self.asks, self.tick, self.looking = lm, questions, asks, tick, looking

    def reply(self, resolved: ResolvedMethod, before: State | None, pieces: Sequence[Observe]) -> Reply:
        """What a method says that goes on from a state and reads these pieces."""
        meter, method = Meter(self.lm.device), resolved.build(self.lm)
        session = Session(self.lm, method, before)
        with meter.phase("adapt"):
            state = read(session, pieces, self.tick)
        held = 0
        if not method.looks_at_question:
            with torch.no_grad(), meter.phase("encode"):
                patch = session.patch(self.asks[:1])
            held = patch.prefix.nbytes if patch.prefix is not None else 0
        answers = self._answers(session, meter)
        shares = session.piece_shares(self.asks) if self.looking else None
        cost = {
            "adapt_seconds": meter.seconds["adapt"] + meter.seconds["encode"] if pieces or before is None else None,
            "ask_ms": meter.seconds["ask"] * 1000 / len(self.asks),
            "state_bytes": max(state.nbytes, held),
            "tokens_read": int(state.meta["tokens_read"][0]) if "tokens_read" in state.meta else None,
        }
        notes = state_caveats(method, state)
        if cut := sum(not answer.ended for answer in answers):
            notes.append(f"{cut} of {len(answers)} answers were cut at their length: --max-new-tokens N allows more")
        return Reply(told=self._told(resolved.spec.name, answers, shares, cost), notes=notes, shares=shares)

    def _answers(self, session: Session, meter: Meter) -> list[Answer]:
        def answered(batch: list[Ask]) -> list[tuple[str, Answer]]:
            with meter.phase("ask"):
                given = session.answer(batch)
            return [(ask.key, answer) for ask, answer in zip(batch, given, strict=True)]

        size, by_key = BatchSize(TOGETHER, self.lm.device.type), dict[str, Answer]()
        for together in alike(self.lm, self.asks):
            for answers in in_batches(together, size, answered):
                by_key.update(answers)
                self.tick("answered", len(by_key), len(self.asks))
        return [by_key[ask.key] for ask in self.asks]

    def _told(
        self, method: str, answers: Sequence[Answer], shares: PieceShares | None, cost: Mapping[str, Json]
    ) -> dict[str, Json]:
        told: list[dict[str, Json]] = []
        for number, (question, query, answer) in enumerate(zip(self.questions, self.asks, answers, strict=True)):
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
        meaning = {"share": shares.meaning} if shares else {}
        scored = {"n": len(known), **means} if known else None
        return {"method": method, "answers": told, **meaning, "scores": scored, "cost": cost}


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
