"""`ttabench ask`: questions of one's own about one's own texts, read before by `adapt` or now.

    ttabench ask "Who wrote it?"                                     of the state that `adapt` wrote
    ttabench ask "Who wrote it?" --context notes.txt --method icl    read now

A state says which model and method made it, and which files it has read: with `--compare` the same is asked of a model
that has read nothing (`none`), and of one that has all of it in view (`icl`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ttabench.cli.adapt_state import misleading
from ttabench.cli.ask_answers import Asker, Told, show
from ttabench.cli.ask_shares import check_tells, draw_shares
from ttabench.cli.reading import DEFAULT_STATE, Reading, pieces_of, read_again
from ttabench.cli.showing import Showing
from ttabench.core.errors import UserError
from ttabench.core.types import Ask, Choose, Json, Observe
from ttabench.methods.state_header import HEADER_FILE, header
from ttabench.readers.own_questions import OwnQuestion, own_questions, typed_questions
from ttabench.report.pictures import check_path
from ttabench.run.base_model import ModelCache
from ttabench.run.prompting import Prompting, resolve_prompting
from ttabench.run.request import RunRequest
from ttabench.run.resolve import ResolvedMethod, resolve_method
from ttabench.run.state_request import request_of
from ttabench.terminal import render

FLOOR, CEILING = "none", "icl"


@dataclass(frozen=True, kw_only=True)
class Asking:
    """The questions of `ask`, as typed."""

    questions: tuple[str, ...] = ()
    file: Path | None = None
    """A file of questions."""
    options: str = ""
    """Answers to choose from, separated by commas; empty: an answer is written."""
    max_new_tokens: int | None = None
    compare: bool = False
    """Ask `none` and `icl` too."""
    attention: Path | None = None
    """A picture of which pieces each question looks at."""


@dataclass(frozen=True, kw_only=True)
class Given:
    """The context of `ask`, as typed: a state, or files and how to read them."""

    state: Path | None
    reading: Reading
    typed: Mapping[str, Json]
    """Fields of a request that were typed, by name."""


@dataclass(frozen=True, kw_only=True)
class _Source:
    """The context of `ask`, resolved, before a model is loaded."""

    request: RunRequest
    resolved: ResolvedMethod
    asked: Prompting
    state: Path | None
    pieces: list[Observe]
    """Read now."""
    before: list[Observe]
    """Pieces that the state has read."""
    lost: str = ""
    """Why that is not to be had."""


def ask(given: Given, asking: Asking, showing: Showing) -> None:
    """Answer questions, and say what it cost.

    Raises:
        UserError: anything typed that is wrong, a state that is missing or of something else, a text or question that
            does not fit the model.
    """
    given, asking = _files_apart(given, asking)
    questions = _questions(asking)
    if asking.attention is not None:
        check_path(asking.attention, "--attention")
    source = _source(given)
    if asking.attention is not None:
        check_tells(source.resolved)
    asks = _asks(questions, source.asked, asking)
    from ttabench.core.environment import seed_everything  # torch comes once nothing typed is refused

    seed_everything(0)
    lm = ModelCache().get(source.request, chat_template=source.asked.chat)
    with render.progress(showing.talking) as tick:
        asker = Asker(lm, asks, tick)
        before = None if source.state is None else source.resolved.stored_state(source.state, lm)
        looking = showing.json or asking.attention is not None
        answered = [asker.told(source.resolved, before, source.pieces, looking=looking)]
        read = [*source.before, *source.pieces]
        notes = [*misleading(lm, source.resolved, read), *answered[0].notes, *_cut(asks, answered[0])]
        if asking.compare:
            compared, lost = _compared(asker, source)
            answered, notes = [*answered, *compared], [*notes, *lost]
    show(questions, answered, _where(source), notes, showing)
    if asking.attention is not None:
        title = f"{source.resolved.spec.name} on {source.request.base_name}"
        draw_shares(asking.attention, answered[0].shares, questions, read, title)


def _files_apart(given: Given, asking: Asking) -> tuple[Given, Asking]:
    """Beside --context, words that name a file are read: a shell writes `--context *.txt` out as several words."""
    if not given.reading.files:
        return given, asking
    named = [text for text in asking.questions if _names_a_file(text)]
    questions = tuple(text for text in asking.questions if text not in named)
    files = (*given.reading.files, *map(Path, named))
    return replace(given, reading=replace(given.reading, files=files)), replace(asking, questions=questions)


def _names_a_file(text: str) -> bool:
    misspelt = text.endswith(".txt") and " " not in text
    try:
        return misspelt or Path(text).is_file()
    except OSError:  # too long for a name
        return False


def _questions(asking: Asking) -> list[OwnQuestion]:
    if asking.file is not None and asking.questions:
        raise UserError("Questions are both typed and in the file of --questions.", "Give one of them.")
    if asking.file is not None:
        return own_questions(asking.file)
    if not asking.questions:
        hint = 'Write a question (ttabench ask "Who wrote it?"), or give --questions FILE.'
        raise UserError("There is no question.", hint)
    return typed_questions(asking.questions)


def _source(given: Given) -> _Source:
    if given.reading.files and given.state is None:
        request, folder, state_header = RunRequest(**{"method": "icl", "task": "streamingqa", **given.typed}), None, {}
    else:
        folder = given.state or DEFAULT_STATE
        if not (folder / HEADER_FILE).exists():
            hint = "Read files first (`ttabench adapt --context FILE`), or give --context FILE here."
            raise UserError(f"There is no state in {folder}.", hint)
        state_header = header(folder)
        request = request_of(state_header, folder, given.typed)
    resolved, asked = resolve_method(request), resolve_prompting(request)
    before, lost = ([], "") if folder is None else read_again(state_header, folder)
    pieces = pieces_of(given.reading) if given.reading.files else []
    return _Source(
        request=request, resolved=resolved, asked=asked, state=folder, pieces=pieces, before=before, lost=lost
    )


def _asks(questions: Sequence[OwnQuestion], asked: Prompting, asking: Asking) -> list[Ask]:
    if asking.max_new_tokens is not None and asking.options:
        raise UserError("With --options no answer is written, so --max-new-tokens has no effect.", "Leave one out.")
    options = _options(asking.options) if asking.options else ()
    prompt, length = asked.card.prompt, asking.max_new_tokens or asked.length
    asks = []
    for question in questions:
        if options:
            gold = next((options.index(answer) for answer in question.answers if answer in options), None)
            texts = tuple(prompt.delimiter + option for option in options)
            want = Choose(options=texts, gold=gold, delimiter=prompt.delimiter)
            asks.append(asked.query(question.question, question.key, want))
        else:
            written = prompt.generated(question.answers, length)
            asks.append(asked.query(question.question, question.key, written))
    return asks


def _options(text: str) -> tuple[str, ...]:
    options = tuple(option.strip() for option in text.split(","))
    if len(set(options)) < max(2, len(options)) or not all(options):
        raise UserError(f"--options needs two or more different answers, got {text!r:.60}.", "Write --options yes,no.")
    return options


def _compared(asker: Asker, source: _Source) -> tuple[list[Told], list[str]]:
    """The answers of floor and ceiling, and why one of them is left out."""
    replies, left_out = [], []
    for name in (FLOOR, CEILING):
        if name == source.resolved.spec.name:
            continue
        if name == CEILING and source.lost:
            left_out.append(f"icl is not asked: {source.lost}")
            continue
        plain = replace(source.request, method=name, preset="", settings=(), checkpoint="")
        texts = [*source.before, *source.pieces] if name == CEILING else []
        try:
            replies.append(asker.told(resolve_method(plain), None, texts))
        except UserError as error:
            left_out.append(f"{name} cannot be asked: {error.what.rstrip('.')}")
    return replies, left_out


def _cut(asks: Sequence[Ask], reply: Told) -> list[str]:
    cut = sum(not answer.ended for answer in reply.answers)
    if not cut:
        return []
    return [f"{cut} of {len(asks)} answers were cut at their length: --max-new-tokens N allows more"]


def _where(source: _Source) -> dict[str, Json]:
    return {
        "model": source.request.base_name,
        "method": source.resolved.spec.name,
        "state": None if source.state is None else str(source.state),
    }
