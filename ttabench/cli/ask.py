"""`ttabench ask`: questions about one's own texts, read before by `adapt` or now; beside floor and ceiling if asked."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ttabench.cli import options as o
from ttabench.cli.adapt import DEFAULT_STATE, READING, pieces_of, read
from ttabench.cli.ending import bounded
from ttabench.core import amounts
from ttabench.core.declared import HOW, WHAT
from ttabench.core.digests import digest
from ttabench.core.errors import UserError
from ttabench.core.types import Answer, Ask, Json, Observe, Tick
from ttabench.run.request import RunRequest
from ttabench.terminal import render

if TYPE_CHECKING:
    from ttabench.lm.model import LM
    from ttabench.lm.patch import State
    from ttabench.readers.qa_rows import OwnQuestion
    from ttabench.run.resolve import ResolvedMethod

FLOOR, CEILING = "none", "icl"
SCORES = ("em", "f1")
SCORED = ("right answer", "#em", "#f1")
"""Columns of questions whose right answers are known."""
TOGETHER = 32
"""Questions answered in one batch."""


@o.takes("request", RunRequest, only=READING, method="icl", task="streamingqa")
def ask(
    command: typer.Context,
    request: RunRequest,
    questions: Annotated[
        list[str] | None, typer.Argument(help="Questions.", metavar="QUESTION...", show_default=False)
    ] = None,
    file: Annotated[
        Path | None,
        o.option(WHAT, "File of questions: .txt, one a line; or .jsonl, .json, .csv with a column question, and answers"
                 " where the right ones are known.", "--questions"),
    ] = None,
    state: Annotated[
        Path | None,
        o.option(WHAT, "State that `adapt` wrote; it brings its model and method. (default: state, without --context)"),
    ] = None,
    context: o.Context = None,
    pieces: o.Pieces = "file",
    max_new_tokens: Annotated[
        int | None, o.option(WHAT, "Most tokens of a written answer. (default: 16, as the task says)", min=1)
    ] = None,
    compare: Annotated[
        bool, o.option(WHAT, "Ask the same under none (nothing read) and icl (all of it in view).", "--compare")
    ] = False,
    threads: o.Threads = None,
    json: o.AsJson = False,
    quiet: Annotated[bool, o.option(HOW, "Print only the answers, one a line.", "--quiet", "-q")] = False,
) -> None:  # fmt: skip
    """Ask questions of your own about your own files: of what `adapt` has read, or of --context FILE."""
    from ttabench.readers.qa_rows import own_questions, typed_questions
    from ttabench.run.evaluation import ModelCache
    from ttabench.run.resolve import resolve_method, resolve_prompting

    files = [text for text in questions or [] if context and os.path.isfile(text)]  # noqa: PTH113  # of any length
    context = [*(context or []), *map(Path, files)]
    questions = [text for text in questions or [] if text not in files]
    if bool(questions) == bool(file):
        if questions:
            fault = f"{questions[0]!r} is typed as a question, and --questions names the file {file}."
            raise UserError(fault, "Remove one of them. A file to read needs --context and must be there.")
        hint = 'Write a question (ttabench ask "Who wrote it?"), or give --questions FILE.'
        raise UserError("There is no question.", hint)
    wanted = own_questions(file) if file else typed_questions(questions)
    earlier, before, lost = (state or DEFAULT_STATE) if state or not context else None, list[Observe](), ""
    if earlier is not None:
        from ttabench.run.request import as_it_was_made

        before, lost = _read_again(earlier)
        request = as_it_was_made(request, earlier, o.typed_names(command))
    resolved, asked = resolve_method(request), resolve_prompting(request)
    new = pieces_of(context, pieces) if context else []
    asks = [
        asked.query(one.question, one.key, asked.card.prompt.generated(one.answers, max_new_tokens or asked.length))
        for one in wanted
    ]
    bounded(threads)
    # torch comes once nothing typed is refused
    from ttabench.core.environment import seed_everything
    from ttabench.run.recording import generation_caveats, nano_caveats

    seed_everything(0)
    lm, texts = ModelCache().get(request, chat_template=asked.chat), [*before, *new]
    with render.progress(not (json or quiet)) as tick:
        state_before = None if earlier is None else resolved.stored_state(earlier, lm)
        own, warnings = _reply(lm, resolved, state_before, new, wanted, asks, tick)
        methods, notes = [own], [*resolved.notes(), *nano_caveats(lm), *generation_caveats(lm), *warnings]
        for name in (name for name in (FLOOR, CEILING) if compare and name != own["method"]):
            if name == CEILING and lost:
                notes.append(f"icl is not asked: {lost}")
                continue
            alone = replace(request, method=name, preset="", settings=(), checkpoint="", keep=None, keep_tokens=None)
            seen = texts if name == CEILING else []
            try:
                methods.append(_reply(lm, resolve_method(alone), None, seen, wanted, asks, tick)[0])
            except UserError as error:
                notes.append(f"{name} cannot be asked: {error.what.rstrip('.')}")
    where = {"model": request.base_name, "method": own["method"], "state": None if earlier is None else str(earlier)}
    if json:
        render.print_json({**where, "notes": notes, "methods": methods})
    elif quiet:
        for answer in own["answers"]:
            render.print_line(answer["answer"])
    else:
        tables, scored = [_answer_table(methods), _cost_table(methods, where)], own["scores"] is not None
        render.show(tables if scored else [table.without(*SCORED) for table in tables])
        for note in notes:
            render.remark(f"Note: {note}.")


def _read_again(folder: Path) -> tuple[list[Observe], str]:
    """The pieces that the state in `folder` has read, from their files; or none, and why they are not to be had."""
    from ttabench.methods.checkpoints import is_peft
    from ttabench.methods.states import HEADER_FILE, READ, header

    if is_peft(folder):
        return [], "an adapter of peft does not name them"
    if not (folder / HEADER_FILE).exists():
        hint = "Read files first (`ttabench adapt --context FILE`), or give --context FILE here."
        raise UserError(f"There is no state in {folder}.", hint)
    pieces: list[Observe] = []
    for file in header(folder).get(READ, []):
        path = Path(os.path.normpath(folder / file["file"]))
        if not path.is_file():
            return [], f"{path}, which was read, is not there any more"
        if digest(path) != file["digest"]:
            return [], f"{path} has changed since it was read"
        pieces += pieces_of([path], file["pieces"])
    return pieces, "" if pieces else f"the state in {folder} does not say which files it has read"


def _reply(
    lm: LM, resolved: ResolvedMethod, before: State | None, pieces: Sequence[Observe], questions: Sequence[OwnQuestion],
    asks: Sequence[Ask], tick: Tick,
) -> tuple[dict[str, Any], list[str]]:  # fmt: skip
    """What a method says that goes on from a state and reads these pieces: answers, scores and cost as JSON has them;
    and where they would mislead."""
    import torch

    from ttabench.core.meter import Meter
    from ttabench.methods.session import Session
    from ttabench.run.recording import state_caveats
    from ttabench.stats.metrics import metric

    meter, method = Meter(lm.device), resolved.build(lm)
    session = Session(lm, method, before)
    with meter.phase("adapt"):
        state = read(session, pieces, tick)
    held = 0
    if not method.looks_at_question:
        with torch.no_grad(), meter.phase("encode"):
            patch = session.patch(asks[:1])
        held = patch.prefix.nbytes if patch.prefix is not None else 0

    by_key = dict[str, Answer]()
    for begin in range(0, len(asks), TOGETHER):
        batch = asks[begin : begin + TOGETHER]
        with meter.phase("ask"):
            given = session.answer(batch)
        by_key |= {ask.key: answer for ask, answer in zip(batch, given, strict=True)}
        tick("answered", len(by_key), len(asks))
    told: list[dict[str, Any]] = []
    for question, ask in zip(questions, asks, strict=True):
        answer = by_key[ask.key]
        told.append({"question": question.question, "answer": answer.prediction, "ended": answer.ended})
        if ask.answers:
            scored = {name: metric(name)(answer.prediction, ask, answer) for name in SCORES}
            told[-1] |= {"answers": list(question.answers), **scored}
    known = [one for one in told if "answers" in one]
    scores = {"n": len(known), **{name: fmean(one[name] for one in known) for name in SCORES}} if known else None
    cost = {
        "adapt_seconds": meter.seconds["adapt"] + meter.seconds["encode"] if pieces or before is None else None,
        "ask_ms": meter.seconds["ask"] * 1000 / len(asks),
        "state_bytes": max(state.nbytes, held),
        "tokens_read": int(state.meta["tokens_read"][0]) if "tokens_read" in state.meta else None,
    }
    notes = state_caveats(method, state)
    if cut := sum(not answer.ended for answer in by_key.values()):
        notes.append(f"{cut} of {len(asks)} answers were cut at their length: --max-new-tokens N allows more")
    return {"answers": told, "scores": scores, "method": resolved.spec.name, "cost": cost}, notes


def _answer_table(methods: Sequence[Mapping[str, Any]]) -> render.Table:
    """The answers of every method to each question."""
    rows = []
    for answers in zip(*(method["answers"] for method in methods), strict=True):
        for method, told in zip(methods, answers, strict=True):
            scores = (_percent(told.get(name)) for name in SCORES)
            asked = (told["question"], " / ".join(told.get("answers", ())))
            question, right = asked if method is methods[0] else ("", "")
            rows.append((question, method["method"], told["answer"] or "(nothing)", right, *scores))
    columns = ("question", "method", "answer", *SCORED)
    return render.Table(title="answers", columns=columns, rows=tuple(rows))


def _cost_table(methods: Sequence[Mapping[str, Any]], where: Mapping[str, Json]) -> render.Table:
    """The cost of every method, and its scores where right answers are known."""
    rows = []
    for method in methods:
        cost, scores = method["cost"], method["scores"] or {}
        read = "-" if cost["tokens_read"] is None else f"{cost['tokens_read']:,}"
        adapted = "before" if cost["adapt_seconds"] is None else amounts.number(cost["adapt_seconds"], 2)
        costs = (read, adapted, amounts.number(cost["ask_ms"]), amounts.size(cost["state_bytes"]))
        rows.append((method["method"], *costs, *(_percent(scores.get(name)) for name in SCORES)))
    source = f" from {where['state']}" if where["state"] else ""
    scores = methods[0]["scores"]
    count = f"; n = {scores['n']} questions" if scores else ""
    columns = ("method", "#tokens read", "#adapt s", "#ask ms", "#state", *SCORED[1:])
    caption = f"{where['method']} on {where['model']}{source}{count}"
    return render.Table(title="cost", columns=columns, rows=tuple(rows), caption=caption)


def _percent(value: float | None) -> str:
    return "" if value is None else amounts.number(100 * value)
