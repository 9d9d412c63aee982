"""`ttabench ask`: answer questions about your own texts, read by `adapt` or now."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ttabench.cli import options as o
from ttabench.cli.adapt import DEFAULT_STATE, read_chunks, read_into_session
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
    from ttabench.run.resolve import ResolvedMethod

NO_CONTEXT, FULL_CONTEXT = "none", "icl"
SCORE_METRICS = ("em", "f1")
SCORE_COLUMNS = ("right answer", "#em", "#f1")
"""Columns that need gold answers."""
QUERIES_PER_BATCH = 32
"""Number of questions answered in one batch."""


@o.add_options("request", RunRequest, only=o.RUN_OPTIONS["ask"], method="icl", task="streamingqa")
def ask(
    command: typer.Context,
    request: RunRequest,
    questions: Annotated[
        list[str] | None,
        typer.Argument(help="Questions to answer.", metavar="QUESTION...", show_default=False),
    ] = None,
    file: Annotated[
        Path | None,
        o.option(
            QUERY_GROUP,
            "File of questions: a .txt with one per line, or a .jsonl, .json or .csv with the"
            " column question and, for scores, answers.",
            "--questions",
        ),
    ] = None,
    state: Annotated[
        Path | None,
        o.option(
            QUERY_GROUP,
            "State folder written by `adapt`. Model and method come from it, unless you set them. "
            "(default: ./state, unless --context is given)",
        ),
    ] = None,
    context: o.Context = None,
    pieces: o.Pieces = "file",
    max_new_tokens: Annotated[
        int | None,
        o.option(
            QUERY_GROUP, "Maximum tokens per answer. (default: set by the task, usually 16)", min=1
        ),
    ] = None,
    compare: Annotated[
        bool,
        o.option(
            QUERY_GROUP,
            "Also answer with the baselines none (no context) and icl (full context).",
            "--compare",
        ),
    ] = False,
    threads: o.Threads = None,
    json: o.AsJson = False,
    quiet: Annotated[
        bool, o.option(EXECUTION_GROUP, "Print only the answers, one per line.", "--quiet", "-q")
    ] = False,
) -> None:
    """Answer questions about your own files, from a state of `adapt` or from --context FILE."""
    from ttabench.readers.cards import load_card
    from ttabench.readers.qa_rows import questions_of_texts, read_questions
    from ttabench.run.evaluation import ModelCache
    from ttabench.run.prompts import resolve_prompt
    from ttabench.run.resolve import resolve_method

    files = [text for text in questions or [] if context and os.path.isfile(text)]  # noqa: PTH113  # of any length
    context = [*(context or []), *map(Path, files)]
    questions = [text for text in questions or [] if text not in files]
    if bool(questions) == bool(file):
        if questions:
            fault = f"Both the question {questions[0]!r} and --questions {file} are given."
            raise UserError(
                fault,
                "Remove one of them. If it is a file to read, add --context and fix its path.",
            )
        hint = 'Add a question (ttabench ask "Who wrote it?"), or use --questions FILE.'
        raise UserError("No question is given.", hint)
    own_rows = read_questions(file) if file else questions_of_texts(questions)
    state_folder = (state or DEFAULT_STATE) if state or not context else None
    chunks_before = list[Chunk]()
    reload_failure = ""
    if state_folder is not None:
        from ttabench.run.request import inherit_from_state

        chunks_before, reload_failure = _reload_chunks(state_folder)
        request = inherit_from_state(request, state_folder, o.typed_names(command))
    task_prompt = resolve_prompt(request, load_card(request.task))
    resolved = resolve_method(request)
    new_chunks = read_chunks(context, pieces) if context else []
    queries = [
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
    # imports torch, so only after all checks of the input
    from ttabench.core.environment import seed_everything
    from ttabench.methods.states import reporting_misfit
    from ttabench.run.recording import generation_caveats, nano_caveats

    seed_everything(0)
    lm = ModelCache().get(request, chat_template=task_prompt.chat)
    with render.show_progress(not (json or quiet)) as on_progress:
        state_before = None if state_folder is None else resolved.stored_state(state_folder, lm)
        with reporting_misfit(state_folder, resolved.spec.name):
            own_result, warnings = _answer_with_method(
                lm, resolved, state_before, new_chunks, queries, on_progress
            )
        methods = [own_result]
        notes = [*resolved.notes(), *nano_caveats(lm), *generation_caveats(lm), *warnings]
        for name in (
            name for name in (NO_CONTEXT, FULL_CONTEXT) if compare and name != own_result["method"]
        ):
            if name == FULL_CONTEXT and reload_failure:
                notes.append(f"icl is skipped: {reload_failure}")
                continue
            baseline = resolve_method(
                RunRequest(method=name, task=request.task, model=request.model)
            )
            baseline_chunks = [*chunks_before, *new_chunks] if name == FULL_CONTEXT else []
            try:
                methods.append(
                    _answer_with_method(lm, baseline, None, baseline_chunks, queries, on_progress)[
                        0
                    ]
                )
            except UserError as error:
                notes.append(f"{name} is skipped: {error.what.rstrip('.')}")
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
        tables = [_answer_table(methods), _cost_table(methods, run_info)]
        if own_result["scores"] is None:
            tables = [table.without(*SCORE_COLUMNS) for table in tables]
        render.print_tables(tables)
        for note in notes:
            render.print_note(f"Note: {note}.")


def _reload_chunks(folder: Path) -> tuple[list[Chunk], str]:
    """Read the chunks of a state again from their files; on failure, return none and the reason."""
    from ttabench.methods.checkpoints import is_peft_folder
    from ttabench.methods.states import FILES_READ_KEY, HEADER_FILE, read_state_header

    if is_peft_folder(folder):
        return [], "a peft adapter does not list the files it was trained on"
    if not (folder / HEADER_FILE).exists():
        hint = "Run `ttabench adapt --context FILE` first, or add --context FILE."
        raise UserError(f"There is no state in {folder}.", hint)
    chunks: list[Chunk] = []
    for file in read_state_header(folder).get(FILES_READ_KEY, []):
        path = Path(os.path.normpath(folder / file["file"]))
        if not path.is_file():
            return [], f"{path} was read, but no longer exists"
        if digest_path(path) != file["digest"]:
            return [], f"{path} has changed since it was read"
        chunks += read_chunks([path], file["pieces"])
    return chunks, "" if chunks else f"the state in {folder} does not list the files it has read"


def _answer_with_method(
    lm: LM,
    resolved: ResolvedMethod,
    before: State | None,
    chunks: Sequence[Chunk],
    queries: Sequence[Query],
    on_progress: ProgressCallback,
) -> tuple[dict[str, Any], list[str]]:
    """Continue from a state, read chunks, and answer. Return the result (JSON) and notes."""
    import torch

    from ttabench.core.meter import Meter
    from ttabench.methods.session import Session
    from ttabench.run.recording import state_caveats
    from ttabench.stats.metrics import metric

    meter = Meter(lm.device)
    method = resolved.build(lm)
    session = Session(lm, method, before)
    with meter.phase("adapt"):
        state = read_into_session(session, chunks, on_progress)
    prefix_bytes = 0
    if not method.query_aware:
        with torch.no_grad(), meter.phase("encode"):
            patch = session.patch(queries[:1])
        prefix_bytes = patch.prefix.nbytes if patch.prefix is not None else 0

    answers = list[Answer]()
    for start in range(0, len(queries), QUERIES_PER_BATCH):
        batch = queries[start : start + QUERIES_PER_BATCH]
        with meter.phase("ask"):
            answers += session.answer(batch)
        on_progress("answered", len(answers), len(queries))
    answer_rows: list[dict[str, Any]] = []
    for query, answer in zip(queries, answers, strict=True):
        answer_rows.append(
            {"question": query.question, "answer": answer.prediction, "ended": answer.ended}
        )
        if query.answers:
            scored = {
                name: metric(name)(answer.prediction, query, answer) for name in SCORE_METRICS
            }
            answer_rows[-1] |= {"answers": list(query.answers), **scored}
    known = [row for row in answer_rows if "answers" in row]
    scores = (
        {"n": len(known), **{name: fmean(row[name] for row in known) for name in SCORE_METRICS}}
        if known
        else None
    )
    cost = {
        "adapt_seconds": meter.seconds["adapt"] + meter.seconds["encode"]
        if chunks or before is None
        else None,
        "ask_ms": meter.seconds["ask"] * 1000 / len(queries),
        "state_bytes": max(state.nbytes, prefix_bytes),
        "tokens_read": int(state.meta["tokens_read"][0]) if "tokens_read" in state.meta else None,
    }
    notes = state_caveats(method, state)
    if cut_answers := sum(not answer.ended for answer in answers):
        notes.append(
            f"{cut_answers} of {len(queries)} answers were cut off; "
            "for longer ones use --max-new-tokens N"
        )
    return {
        "answers": answer_rows,
        "scores": scores,
        "method": resolved.spec.name,
        "cost": cost,
    }, notes


def _answer_table(methods: Sequence[Mapping[str, Any]]) -> render.Table:
    """Build the table of answers: one row per question and method."""
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
    """Build the table of costs, and scores if known: one row per method."""
    rows = []
    for method in methods:
        cost = method["cost"]
        scores = method["scores"] or {}
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
