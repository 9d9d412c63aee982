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
from ttabench.cli.adapt import DEFAULT_STATE, READING_OPTIONS, read_chunks, read_into_session
from ttabench.cli.errors import apply_resource_limits
from ttabench.core import amounts
from ttabench.core.declared import EXECUTION_GROUP, QUERY_GROUP
from ttabench.core.digests import digest_path
from ttabench.core.errors import UserError
from ttabench.core.types import Answer, Chunk, Json, ProgressCallback, Query
from ttabench.run.request import RunRequest
from ttabench.terminal import render

if TYPE_CHECKING:
    from ttabench.lm.model import LM
    from ttabench.lm.patch import State
    from ttabench.readers.qa_rows import UserQuestion
    from ttabench.run.resolve import ResolvedMethod

NO_CONTEXT, FULL_CONTEXT = "none", "icl"
SCORE_METRICS = ("em", "f1")
SCORE_COLUMNS = ("right answer", "#em", "#f1")
"""Columns of questions whose right answers are known."""
QUERIES_PER_BATCH = 32
"""Questions answered in one batch."""


@o.add_options("request", RunRequest, only=READING_OPTIONS, method="icl", task="streamingqa")
def ask(
    command: typer.Context,
    request: RunRequest,
    questions: Annotated[
        list[str] | None,
        typer.Argument(help="Questions.", metavar="QUESTION...", show_default=False),
    ] = None,
    file: Annotated[
        Path | None,
        o.option(
            QUERY_GROUP,
            "File of questions: .txt, one a line; or .jsonl, .json, .csv with a column question, and answers"
            " where the right ones are known.",
            "--questions",
        ),
    ] = None,
    state: Annotated[
        Path | None,
        o.option(
            QUERY_GROUP,
            "State that `adapt` wrote; it brings its model and method. (default: state, without --context)",
        ),
    ] = None,
    context: o.Context = None,
    pieces: o.Pieces = "file",
    max_new_tokens: Annotated[
        int | None,
        o.option(
            QUERY_GROUP, "Most tokens of a written answer. (default: 16, as the task says)", min=1
        ),
    ] = None,
    compare: Annotated[
        bool,
        o.option(
            QUERY_GROUP,
            "Ask the same under none (nothing read) and icl (all of it in view).",
            "--compare",
        ),
    ] = False,
    threads: o.Threads = None,
    json: o.AsJson = False,
    quiet: Annotated[
        bool, o.option(EXECUTION_GROUP, "Print only the answers, one a line.", "--quiet", "-q")
    ] = False,
) -> None:
    """Ask questions of your own about your own files: of what `adapt` has read, or of --context FILE."""
    from ttabench.readers.qa_rows import questions_of_texts, read_questions
    from ttabench.run.evaluation import ModelCache
    from ttabench.run.resolve import resolve_method, resolve_prompt

    files = [text for text in questions or [] if context and os.path.isfile(text)]  # noqa: PTH113  # of any length
    context = [*(context or []), *map(Path, files)]
    questions = [text for text in questions or [] if text not in files]
    if bool(questions) == bool(file):
        if questions:
            fault = (
                f"{questions[0]!r} is typed as a question, and --questions names the file {file}."
            )
            raise UserError(
                fault, "Remove one of them. A file to read needs --context and must be there."
            )
        hint = 'Write a question (ttabench ask "Who wrote it?"), or give --questions FILE.'
        raise UserError("There is no question.", hint)
    own_rows = read_questions(file) if file else questions_of_texts(questions)
    state_folder, before, reload_failure = (
        (state or DEFAULT_STATE) if state or not context else None,
        list[Chunk](),
        "",
    )
    if state_folder is not None:
        from ttabench.run.request import inherit_from_state

        before, reload_failure = _reload_chunks(state_folder)
        request = inherit_from_state(request, state_folder, o.typed_names(command))
    resolved, task_prompt = resolve_method(request), resolve_prompt(request)
    new_chunks = read_chunks(context, pieces) if context else []
    asks = [
        task_prompt.make_query(
            row.question,
            row.key,
            task_prompt.card.prompt.make_generate(
                row.answers, max_new_tokens or task_prompt.max_answer_tokens
            ),
        )
        for row in own_rows
    ]
    apply_resource_limits(threads)
    # torch comes once nothing typed is refused
    from ttabench.core.environment import seed_everything
    from ttabench.run.recording import generation_caveats, nano_caveats

    seed_everything(0)
    lm, texts = ModelCache().get(request, chat_template=task_prompt.chat), [*before, *new_chunks]
    with render.show_progress(not (json or quiet)) as on_progress:
        state_before = None if state_folder is None else resolved.stored_state(state_folder, lm)
        own_result, warnings = _answer_with_method(
            lm, resolved, state_before, new_chunks, own_rows, asks, on_progress
        )
        methods, notes = (
            [own_result],
            [*resolved.notes(), *nano_caveats(lm), *generation_caveats(lm), *warnings],
        )
        for name in (
            name for name in (NO_CONTEXT, FULL_CONTEXT) if compare and name != own_result["method"]
        ):
            if name == FULL_CONTEXT and reload_failure:
                notes.append(f"icl is not asked: {reload_failure}")
                continue
            baseline_request = replace(
                request,
                method=name,
                preset="",
                settings=(),
                checkpoint="",
                keep=None,
                keep_tokens=None,
            )
            baseline_chunks = texts if name == FULL_CONTEXT else []
            try:
                methods.append(
                    _answer_with_method(
                        lm,
                        resolve_method(baseline_request),
                        None,
                        baseline_chunks,
                        own_rows,
                        asks,
                        on_progress,
                    )[0]
                )
            except UserError as error:
                notes.append(f"{name} cannot be asked: {error.what.rstrip('.')}")
    run_info = {
        "model": request.base_name,
        "method": own_result["method"],
        "state": None if state_folder is None else str(state_folder),
    }
    if json:
        render.print_json({**run_info, "notes": notes, "methods": methods})
    elif quiet:
        for answer in own_result["answers"]:
            render.print_line(answer["answer"])
    else:
        tables, scored = (
            [_answer_table(methods), _cost_table(methods, run_info)],
            own_result["scores"] is not None,
        )
        render.print_tables(
            tables if scored else [table.without(*SCORE_COLUMNS) for table in tables]
        )
        for note in notes:
            render.print_note(f"Note: {note}.")


def _reload_chunks(folder: Path) -> tuple[list[Chunk], str]:
    """The pieces that the state in `folder` has read, from their files; or none, and why they are not to be had."""
    from ttabench.methods.checkpoints import is_peft_folder
    from ttabench.methods.states import FILES_READ_KEY, HEADER_FILE, read_header

    if is_peft_folder(folder):
        return [], "an adapter of peft does not name them"
    if not (folder / HEADER_FILE).exists():
        hint = "Read files first (`ttabench adapt --context FILE`), or give --context FILE here."
        raise UserError(f"There is no state in {folder}.", hint)
    pieces: list[Chunk] = []
    for file in read_header(folder).get(FILES_READ_KEY, []):
        path = Path(os.path.normpath(folder / file["file"]))
        if not path.is_file():
            return [], f"{path}, which was read, is not there any more"
        if digest_path(path) != file["digest"]:
            return [], f"{path} has changed since it was read"
        pieces += read_chunks([path], file["pieces"])
    return pieces, "" if pieces else f"the state in {folder} does not say which files it has read"


def _answer_with_method(
    lm: LM,
    resolved: ResolvedMethod,
    before: State | None,
    pieces: Sequence[Chunk],
    questions: Sequence[UserQuestion],
    asks: Sequence[Query],
    on_progress: ProgressCallback,
) -> tuple[dict[str, Any], list[str]]:
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
        state = read_into_session(session, pieces, on_progress)
    prefix_bytes = 0
    if not method.query_aware:
        with torch.no_grad(), meter.phase("encode"):
            patch = session.patch(asks[:1])
        prefix_bytes = patch.prefix.nbytes if patch.prefix is not None else 0

    by_key = dict[str, Answer]()
    for start in range(0, len(asks), QUERIES_PER_BATCH):
        batch = asks[start : start + QUERIES_PER_BATCH]
        with meter.phase("ask"):
            batch_answers = session.answer(batch)
        by_key |= {ask.key: answer for ask, answer in zip(batch, batch_answers, strict=True)}
        on_progress("answered", len(by_key), len(asks))
    answer_rows: list[dict[str, Any]] = []
    for question, ask in zip(questions, asks, strict=True):
        answer = by_key[ask.key]
        answer_rows.append(
            {"question": question.question, "answer": answer.prediction, "ended": answer.ended}
        )
        if ask.answers:
            scored = {name: metric(name)(answer.prediction, ask, answer) for name in SCORE_METRICS}
            answer_rows[-1] |= {"answers": list(question.answers), **scored}
    known = [row for row in answer_rows if "answers" in row]
    scores = (
        {"n": len(known), **{name: fmean(row[name] for row in known) for name in SCORE_METRICS}}
        if known
        else None
    )
    cost = {
        "adapt_seconds": meter.seconds["adapt"] + meter.seconds["encode"]
        if pieces or before is None
        else None,
        "ask_ms": meter.seconds["ask"] * 1000 / len(asks),
        "state_bytes": max(state.nbytes, prefix_bytes),
        "tokens_read": int(state.meta["tokens_read"][0]) if "tokens_read" in state.meta else None,
    }
    notes = state_caveats(method, state)
    if cut_answers := sum(not answer.ended for answer in by_key.values()):
        notes.append(
            f"{cut_answers} of {len(asks)} answers were cut at their length: --max-new-tokens N allows more"
        )
    return {
        "answers": answer_rows,
        "scores": scores,
        "method": resolved.spec.name,
        "cost": cost,
    }, notes


def _answer_table(methods: Sequence[Mapping[str, Any]]) -> render.Table:
    """The answers of every method to each question."""
    rows = []
    for answers in zip(*(method["answers"] for method in methods), strict=True):
        for method, answer_row in zip(methods, answers, strict=True):
            scores = (_percent(answer_row.get(name)) for name in SCORE_METRICS)
            question_cells = (answer_row["question"], " / ".join(answer_row.get("answers", ())))
            question, right_answers = question_cells if method is methods[0] else ("", "")
            rows.append(
                (
                    question,
                    method["method"],
                    answer_row["answer"] or "(nothing)",
                    right_answers,
                    *scores,
                )
            )
    columns = ("question", "method", "answer", *SCORE_COLUMNS)
    return render.Table(title="answers", columns=columns, rows=tuple(rows))


def _cost_table(methods: Sequence[Mapping[str, Any]], run_info: Mapping[str, Json]) -> render.Table:
    """The cost of every method, and its scores where right answers are known."""
    rows = []
    for method in methods:
        cost, scores = method["cost"], method["scores"] or {}
        read = "-" if cost["tokens_read"] is None else f"{cost['tokens_read']:,}"
        adapted = (
            "before"
            if cost["adapt_seconds"] is None
            else amounts.format_number(cost["adapt_seconds"], 2)
        )
        costs = (
            read,
            adapted,
            amounts.format_number(cost["ask_ms"]),
            amounts.format_bytes(cost["state_bytes"]),
        )
        rows.append(
            (method["method"], *costs, *(_percent(scores.get(name)) for name in SCORE_METRICS))
        )
    source = f" from {run_info['state']}" if run_info["state"] else ""
    scores = methods[0]["scores"]
    count = f"; n = {scores['n']} questions" if scores else ""
    columns = ("method", "#tokens read", "#adapt s", "#ask ms", "#state", *SCORE_COLUMNS[1:])
    caption = f"{run_info['method']} on {run_info['model']}{source}{count}"
    return render.Table(title="cost", columns=columns, rows=tuple(rows), caption=caption)


def _percent(value: float | None) -> str:
    return "" if value is None else amounts.format_number(100 * value)
