"""`ttabench ask`: questions about one's own texts, read before by `adapt` or now; beside floor and ceiling if asked."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ttabench.cli import options as o
from ttabench.cli.adapt import DEFAULT_STATE, READING, misleading, pieces_of
from ttabench.cli.ending import bounded
from ttabench.core.declared import HOW, WHAT
from ttabench.core.digests import digest
from ttabench.core.errors import UserError
from ttabench.core.types import Ask, Choose, Json, Observe, Want
from ttabench.run.request import RunRequest

if TYPE_CHECKING:
    from ttabench.methods.base import PieceShares
    from ttabench.readers.own_questions import OwnQuestion
    from ttabench.run.prompting import Prompting
    from ttabench.run.resolve import ResolvedMethod

FLOOR, CEILING = "none", "icl"


@dataclass(frozen=True, kw_only=True)
class Source:
    """The context of `ask`, resolved, before a model is loaded."""

    request: RunRequest
    resolved: ResolvedMethod
    asked: Prompting
    state: Path | None
    pieces: list[Observe]
    before: list[Observe]
    """Pieces that the state has read."""
    lost: str = ""
    """Why that is not to be had."""


@o.takes("typed", RunRequest, only=READING, typed_only=True)
def ask(
    typed: Mapping[str, Any],
    questions: Annotated[
        list[str] | None,
        typer.Argument(help="Questions. With --context, words that name a file are more files to read.",
                       metavar="QUESTION...", show_default=False),
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
    options: Annotated[
        str, o.option(WHAT, "Answers to choose from by their likelihood, separated by commas: yes,no.")
    ] = "",
    max_new_tokens: Annotated[
        int | None, o.option(WHAT, "Most tokens of a written answer. (default: 16, as the task says)", min=1)
    ] = None,
    compare: Annotated[
        bool, o.option(WHAT, "Ask the same under none (nothing read) and icl (all of it in view).", "--compare")
    ] = False,
    attention: Annotated[
        Path | None,
        o.option(HOW, "Draw which pieces of context each question looks at, too: .png, .svg or .pdf (mac, rag)."),
    ] = None,
    threads: o.Threads = None,
    json: o.AsJson = False,
    quiet: Annotated[bool, o.option(HOW, "Print only the answers, one a line.", "--quiet", "-q")] = False,
) -> None:  # fmt: skip
    """Ask questions of your own about your own files: of what `adapt` has read, or of --context FILE."""
    from ttabench.run.base_model import ModelCache
    from ttabench.run.resolve import resolve_method
    from ttabench.terminal import render

    words = questions or []
    # a shell writes `--context *.txt` out as several words
    files = [Path(word) for word in words if _names_a_file(word)] if context else []
    wanted = _questions([word for word in words if Path(word) not in files], file)
    if attention is not None:
        from ttabench.report.heat_map import check

        check(attention)
    given = {name: value for name, value in typed.items() if value != "auto"}
    source = _source(state, [*(context or []), *files], pieces, given)
    if attention is not None:
        _check_tells(source.resolved)
    asks = _asks(wanted, source.asked, options, max_new_tokens)
    bounded(threads)
    # torch comes once nothing typed is refused
    from ttabench.cli.ask_answers import answer_table, cost_table, reply
    from ttabench.core.environment import seed_everything

    seed_everything(0)
    lm = ModelCache().get(source.request, chat_template=source.asked.chat)
    with render.progress(not (json or quiet)) as tick:
        before = None if source.state is None else source.resolved.stored_state(source.state, lm)
        looking = json or attention is not None
        own, warnings, shares = reply(lm, source.resolved, before, source.pieces, wanted, asks, tick, looking=looking)
        texts, methods = [*source.before, *source.pieces], [own]
        notes = [*misleading(lm, source.resolved, texts), *warnings]
        others = [name for name in (FLOOR, CEILING) if compare and name != own["method"]]
        if CEILING in others and source.lost:
            others.remove(CEILING)
            notes.append(f"icl is not asked: {source.lost}")
        for name in others:
            plain = replace(source.request, method=name, preset="", settings=(), checkpoint="")
            read = texts if name == CEILING else []
            try:
                methods.append(reply(lm, resolve_method(plain), None, read, wanted, asks, tick, looking=False)[0])
            except UserError as error:
                notes.append(f"{name} cannot be asked: {error.what.rstrip('.')}")
    method, model = source.resolved.spec.name, source.request.base_name
    where = {"model": model, "method": method, "state": None if source.state is None else str(source.state)}
    if json:
        render.print_json({**where, "notes": notes, "methods": methods})
    elif quiet:
        for answer in own["answers"]:
            render.print_line(answer["answer"])
    else:
        render.show([answer_table(methods), cost_table(methods, where)])
        for note in notes:
            render.remark(f"Note: {note}.")
    if attention is not None:
        _draw(attention, shares, wanted, texts, f"{method} on {model}")


def _names_a_file(word: str) -> bool:
    misspelt = word.endswith(".txt") and " " not in word
    try:
        return misspelt or Path(word).is_file()
    except OSError:  # too long for a name
        return False


def _questions(words: Sequence[str], file: Path | None) -> list[OwnQuestion]:
    from ttabench.readers.own_questions import own_questions, typed_questions

    if file is not None and words:
        raise UserError("Questions are both typed and in the file of --questions.", "Give one of them.")
    if file is not None:
        return own_questions(file)
    if not words:
        hint = 'Write a question (ttabench ask "Who wrote it?"), or give --questions FILE.'
        raise UserError("There is no question.", hint)
    return typed_questions(words)


def _source(state: Path | None, files: Sequence[Path], cut: str, typed: Mapping[str, Json]) -> Source:
    from ttabench.methods.state_header import HEADER_FILE, header
    from ttabench.run.prompting import resolve_prompting
    from ttabench.run.resolve import resolve_method
    from ttabench.run.state_request import request_of

    before, lost = list[Observe](), ""
    if files and state is None:
        request, folder = RunRequest(**{"method": "icl", "task": "streamingqa", **typed}), None
    else:
        folder = state or DEFAULT_STATE
        if not (folder / HEADER_FILE).exists():
            hint = "Read files first (`ttabench adapt --context FILE`), or give --context FILE here."
            raise UserError(f"There is no state in {folder}.", hint)
        request = request_of(header(folder), folder, typed)
        before, lost = _read_again(header(folder), folder)
    resolved, asked = resolve_method(request), resolve_prompting(request)
    pieces = pieces_of(files, cut) if files else []
    return Source(
        request=request, resolved=resolved, asked=asked, state=folder, pieces=pieces, before=before, lost=lost
    )


def _read_again(header: Mapping[str, Json], folder: Path) -> tuple[list[Observe], str]:
    """The pieces that the state in `folder` has read, from their files; or none, and why they are not to be had."""
    from ttabench.methods.state_header import READ

    pieces: list[Observe] = []
    for file in header.get(READ, []):
        path = Path(os.path.normpath(folder / file["file"]))
        if not path.is_file():
            return [], f"{path}, which was read, is not there any more"
        if digest(path) != file["digest"]:
            return [], f"{path} has changed since it was read"
        pieces += pieces_of([path], file["pieces"])
    return pieces, "" if pieces else f"the state in {folder} does not say which files it has read"


def _asks(questions: Sequence[OwnQuestion], asked: Prompting, options: str, length: int | None) -> list[Ask]:
    if length is not None and options:
        raise UserError("With --options no answer is written, so --max-new-tokens has no effect.", "Leave one out.")
    prompt, choices = asked.card.prompt, tuple(option.strip() for option in options.split(",")) if options else ()
    if options and (len(set(choices)) < max(2, len(choices)) or not all(choices)):
        raise UserError(f"--options needs two or more different answers, got {options!r:.60}.", "Write --options a,b.")
    asks = []
    for question in questions:
        want: Want = prompt.generated(question.answers, length or asked.length)
        if choices:
            gold = next((choices.index(answer) for answer in question.answers if answer in choices), None)
            texts = tuple(prompt.delimiter + choice for choice in choices)
            want = Choose(options=texts, gold=gold, delimiter=prompt.delimiter)
        asks.append(asked.query(question.question, question.key, want))
    return asks


def _check_tells(resolved: ResolvedMethod) -> None:
    """Whether a method tells which pieces a question looks at; asked before anything is read."""
    from ttabench.methods.registry import methods

    spec = resolved.spec
    if spec.piece_shares(resolved.settings_object):
        return
    able = [name for name, other in methods().items() if other.piece_shares(other.Settings())]
    with_these = " with these settings" if spec.name in able else ""
    fault = f"{spec.name} does not tell which pieces of context a question looks at{with_these}."
    raise UserError(fault, f"Leave --attention out, or read with {' or '.join(able)} as they come.")


def _draw(
    path: Path, shares: PieceShares | None, questions: Sequence[OwnQuestion], read: Sequence[Observe], title: str
) -> None:
    """Write the picture; pieces are called by their names and, where their files are there, how they begin."""
    from ttabench.report.heat_map import HeatMap, draw

    if shares is None:
        raise UserError("Nothing was read, so there is nothing to draw.", "Leave --attention out.")
    texts: dict[str, set[str]] = {}
    for piece in read:
        texts.setdefault(piece.key, set()).add(piece.text)
    named = [f"{name}: {next(iter(texts[name]))}" if len(texts.get(name, ())) == 1 else name for name in shares.names]
    asked = [question.question for question in questions]
    heading = f"{title}\n{shares.meaning}"
    draw(HeatMap(title=heading, questions=asked, pieces=named, shares_QK=shares.shares_QK.numpy()), path)
