"""Answers to one's own questions: got from a session, timed, scored where the right ones are known, and shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING

from ttabench.cli.ask_shares import largest_shares
from ttabench.cli.reading import read
from ttabench.cli.showing import Showing
from ttabench.core import amounts
from ttabench.core.progress import Tick
from ttabench.core.types import Answer, Ask, Json, Observe
from ttabench.readers.own_questions import OwnQuestion
from ttabench.run.resolve import ResolvedMethod
from ttabench.stats.metrics import metric
from ttabench.terminal import render

if TYPE_CHECKING:
    from ttabench.core.meter import Meter
    from ttabench.lm.model import LM
    from ttabench.lm.patch import State
    from ttabench.methods.piece_shares import PieceShares
    from ttabench.methods.session import Session

SCORES = ("em", "f1")
TOGETHER = 32
"""Questions answered in one batch."""


@dataclass(frozen=True, kw_only=True)
class Told:
    """The answers of one method, and their cost."""

    method: str
    answers: list[Answer]
    """One a question, in order."""
    scores: list[Mapping[str, float]]
    """By name, 0 to 1; empty where no right answer is known."""
    adapt_seconds: float | None
    """None where a state had read everything before."""
    ask_ms: float
    """Mean over the questions."""
    state_bytes: int
    tokens: int | None
    notes: list[str]
    """Where that would mislead."""
    shares: PieceShares | None = None
    """Which pieces of context the questions look at, where that is asked for and told."""

    def mean(self, name: str) -> float | None:
        """A score over the questions whose answer is known."""
        known = [scores[name] for scores in self.scores if name in scores]
        return fmean(known) if known else None


class Asker:
    """Asks the same questions of several methods on one model.

    Args:
        lm: the base model.
        asks: the questions.
        tick: is told about progress.
    """

    def __init__(self, lm: LM, asks: Sequence[Ask], tick: Tick) -> None:
        self.lm, self.asks, self.tick = lm, asks, tick

    def told(
        self, resolved: ResolvedMethod, before: State | None, pieces: Sequence[Observe], *, looking: bool = False
    ) -> Told:
        """What a method says that goes on from a state and reads these pieces; `looking`: and which pieces it looks at.

        Raises:
            UserError: the pieces or a question do not fit the model, or the method refuses them.
        """
        import torch

        from ttabench.core.meter import Meter
        from ttabench.methods.session import Session
        from ttabench.run.caveats import state_caveats

        meter = Meter(self.lm.device)
        method = resolved.build(self.lm)
        session = Session(self.lm, method, before)
        with meter.phase("adapt"):
            state = read(session, pieces, self.tick)
        held = 0
        if not method.looks_at_question:
            with torch.no_grad(), meter.phase("encode"):
                patch = session.patch(self.asks[:1])
            held = patch.prefix.nbytes if patch.prefix is not None else 0
        answers = self._answers(session, meter)
        return Told(
            method=resolved.spec.name,
            answers=answers,
            scores=[_scores(ask, answer) for ask, answer in zip(self.asks, answers, strict=True)],
            adapt_seconds=meter.seconds["adapt"] + meter.seconds["encode"] if pieces or before is None else None,
            ask_ms=meter.seconds["ask"] * 1000 / len(self.asks),
            state_bytes=max(state.nbytes, held),
            tokens=int(state.meta["tokens_read"][0]) if "tokens_read" in state.meta else None,
            notes=state_caveats(method, state),
            shares=session.piece_shares(self.asks) if looking else None,
        )

    def _answers(self, session: Session, meter: Meter) -> list[Answer]:
        from ttabench.lm.verbs.batching import BatchSize, alike, in_batches

        def answered(batch: list[Ask]) -> list[tuple[str, Answer]]:
            with meter.phase("ask"):
                given = session.answer(batch)
            return [(ask.key, answer) for ask, answer in zip(batch, given, strict=True)]

        size = BatchSize(TOGETHER, self.lm.device.type)
        answers_by_key: dict[str, Answer] = {}
        for together in alike(self.lm, self.asks):
            for answers in in_batches(together, size, answered):
                answers_by_key.update(answers)
                self.tick("answered", len(answers_by_key), len(self.asks))
        return [answers_by_key[ask.key] for ask in self.asks]


def _scores(ask: Ask, answer: Answer) -> dict[str, float]:
    return {name: metric(name)(answer.prediction, ask, answer) for name in SCORES} if ask.answers else {}


def show(
    questions: Sequence[OwnQuestion],
    replies: Sequence[Told],
    where: Mapping[str, Json],
    notes: Sequence[str],
    showing: Showing,
) -> None:
    """Show answers and costs: the first of `replies` is what was asked for, the others stand beside it."""
    if showing.json:
        methods = [_as_json(questions, reply) for reply in replies]
        render.print_json({**where, "notes": list(notes), "methods": methods})
    elif showing.quiet:
        for answer in replies[0].answers:
            render.print_line(answer.prediction)
    else:
        render.show([_answer_table(questions, replies), _cost_table(replies, where)])
        for note in notes:
            render.remark(f"Note: {note}.")


def _as_json(questions: Sequence[OwnQuestion], reply: Told) -> dict[str, Json]:
    answers = [
        {
            "question": question.question,
            "answer": answer.prediction,
            "ended": answer.ended,
            **({"answers": list(question.answers), **scores} if scores else {}),
            **({"logprobs": list(answer.logprobs)} if answer.logprobs else {}),
            **({"pieces": largest_shares(reply.shares, number)} if reply.shares else {}),
        }
        for number, (question, answer, scores) in enumerate(zip(questions, reply.answers, reply.scores, strict=True))
    ]
    scored = [scores for scores in reply.scores if scores]
    return {
        "method": reply.method,
        "answers": answers,
        **({"share": reply.shares.meaning} if reply.shares else {}),
        "scores": {"n": len(scored), **{name: reply.mean(name) for name in SCORES}} if scored else None,
        "cost": {
            "adapt_seconds": reply.adapt_seconds,
            "ask_ms": reply.ask_ms,
            "state_bytes": reply.state_bytes,
            "tokens_read": reply.tokens,
        },
    }


def _answer_table(questions: Sequence[OwnQuestion], replies: Sequence[Told]) -> render.Table:
    several, scored = len(replies) > 1, any(question.answers for question in questions)
    rows = []
    for number, asked in enumerate(questions):
        for method in replies:
            scores = method.scores[number]
            first = method is replies[0]
            prediction = method.answers[number].prediction or "(nothing)"
            row = [asked.question if first else "", *([method.method] if several else []), prediction]
            if scored:
                row += [" / ".join(asked.answers) if first else "", *(_percent(scores.get(name)) for name in SCORES)]
            rows.append(tuple(row))
    heads = ("question", *(["method"] if several else []), "answer")
    more = ("right answer", *(f"#{name}" for name in SCORES)) if scored else ()
    return render.Table(title="answers", columns=(*heads, *more), rows=tuple(rows))


def _cost_table(replies: Sequence[Told], where: Mapping[str, Json]) -> render.Table:
    scored = [name for name in SCORES if any(reply.mean(name) is not None for reply in replies)]
    columns = ("method", "#tokens read", "#adapt s", "#ask ms", "#state", *(f"#{name}" for name in scored))
    rows = tuple(
        (
            reply.method,
            "-" if reply.tokens is None else f"{reply.tokens:,}",
            "before" if reply.adapt_seconds is None else amounts.number(reply.adapt_seconds, 2),
            amounts.number(reply.ask_ms),
            amounts.size(reply.state_bytes),
            *(_percent(reply.mean(name)) for name in scored),
        )
        for reply in replies
    )
    count = sum(bool(scores) for scores in replies[0].scores)
    source = f" from {where['state']}" if where["state"] else ""
    caption = f"{where['method']} on {where['model']}{source}" + (f"; n = {count} questions" if scored else "")
    return render.Table(title="cost", columns=columns, rows=rows, caption=caption)


def _percent(value: float | None) -> str:
    return amounts.number(None if value is None else value * metric("f1").scale)
