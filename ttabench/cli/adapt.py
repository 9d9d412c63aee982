"""`ttabench adapt`: read files, write the state, and say how to ask it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ttabench.cli import options as o
from ttabench.cli.ending import bounded
from ttabench.core.declared import HOW, RUN
from ttabench.core.digests import digest
from ttabench.core.errors import UnknownName, UserError
from ttabench.core.files import read_text
from ttabench.core.types import Json, Observe, Tick
from ttabench.methods.registry import is_file
from ttabench.run.request import READING_FIELDS, RunRequest
from ttabench.terminal import render

if TYPE_CHECKING:
    from ttabench.lm.patch import State
    from ttabench.methods.session import Session
    from ttabench.run.resolve import ResolvedMethod

READING = (*READING_FIELDS, "device", "dtype")
"""Options of `eval` that say how files are read, and where."""
PIECES = {"file": None, "paragraphs": "\n\n", "lines": "\n"}
"""What stands between pieces, by their name."""
DEFAULT_STATE = Path("state")
"""Where `adapt` writes and `ask` looks."""


@o.takes("request", RunRequest, only=READING, method="icl", task="streamingqa")
def adapt(
    command: typer.Context,
    request: RunRequest,
    more: Annotated[list[Path] | None, typer.Argument(help="More files to read, in order.", metavar="FILE...")] = None,
    context: o.Context = None,
    out: Annotated[Path, o.folder(HOW, "Folder the state is written to.", "--out", "-o")] = DEFAULT_STATE,
    state: Annotated[Path | None, o.option(RUN, "Continue from a state that `adapt` wrote, by its own method.")] = None,
    add: Annotated[list[Path] | None, o.option(RUN, "Add another state of the same method; repeat for more.")] = None,
    pieces: o.Pieces = "file",
    threads: o.Threads = None,
    memory_limit: o.MemoryLimit = "",
    force: Annotated[
        bool, typer.Option("--force", help="Replace the state in --out; other files there are never replaced.")
    ] = False,
    json: o.AsJson = False,
    quiet: o.Quiet = False,
) -> None:
    """Read files and write the adapted state for `ask`; --state continues an earlier one, --add puts another to it.

    An earlier state is continued by the method, settings and model that it was made with.

    --task chooses the shipped checkpoint, and whether the files are read in the model's chat template.
    """
    earlier = (*([state] if state else []), *(add or []))
    if earlier:
        from ttabench.run.request import as_it_was_made

        request = as_it_was_made(request, earlier[0], o.typed_names(command))
    from ttabench.methods.states import READ, header, state_writer
    from ttabench.run.request import MADE, made_with
    from ttabench.run.resolve import resolve_method, resolve_prompting

    bounded(threads, memory_limit, request.device)
    request, files = replace(request, state=state), (*(context or []), *(more or []))
    texts = pieces_of(files, pieces) if files or not add else []
    chat, resolved = resolve_prompting(request).chat, resolve_method(request)
    provenance = {MADE: made_with(request, chat=chat), READ: _read_files(earlier, files, pieces, out)}
    from ttabench.core.environment import seed_everything
    from ttabench.methods.session import Session
    from ttabench.methods.states import fitting
    from ttabench.run.evaluation import ModelCache

    talking = not (json or quiet)
    with state_writer(out, force=force) as write, render.progress(talking) as tick:
        seed_everything(0)
        lm = ModelCache().get(request, chat_template=chat)
        method = resolved.build(lm)
        together: State | None = None
        for folder in earlier:
            one = resolved.stored_state(folder, lm)
            with fitting(folder, method.name):
                together = one if together is None else method.combined(together, one)
        with fitting(state, method.name):
            session = Session(lm, method, together)
            written, notes = _written(session, read(session, texts, tick), resolved, provenance, write)
    result = {"method": resolved.spec.name, "model": request.base_name, "files": len(files), "pieces": len(texts)}
    if "tokens_read" in written["meta"]:
        *before, now = (int(sum(one["meta"].get("tokens_read", [0]))) for one in (*map(header, earlier), written))
        result["tokens"] = now - sum(before)
    result |= {"state_bytes": written["bytes"], "folder": str(out)}
    if any(name.startswith("peft/") for name in written["files"]):
        result["peft"] = str(out / "peft")
        if written["window_tokens"]:
            result["peft_without"] = f"the last {written['window_tokens']} tokens, which stand in the window"
    result |= {"notes": notes} if json else {}
    where = "" if out == DEFAULT_STATE else f" --state {quote(str(out))}"
    where += f" --method {quote(request.method)}" if is_file(request.method) else ""
    o.show_result("adapted", result, f'Ask it: ttabench ask "..."{where}', json=json, quiet=quiet)
    for note in notes if talking else ():
        render.remark(f"Note: {note}.")


def pieces_of(files: Sequence[Path], cut: str) -> list[Observe]:
    """The files' text as pieces, in order; empty pieces are left out."""
    if not files:
        raise UserError("There is nothing to read.", "Give --context FILE.")
    if cut not in PIECES:
        raise UnknownName("value of --pieces", cut, list(PIECES))
    from ttabench.readers.formats import readable

    pieces = []
    for file in files:
        text = read_text(file)
        if readable(file):
            render.remark(f"Note: {file} is read as plain text, with all its punctuation and names of fields.")
        parts = [part.strip() for part in (text.split(PIECES[cut]) if PIECES[cut] else [text])]
        pieces += [Observe(text=part, key=f"{file.name}#{number}") for number, part in enumerate(filter(None, parts))]
    if not pieces:
        raise UserError(f"{files[0]} holds no text.", "Give a file with text.")
    return pieces


def _read_files(earlier: Sequence[Path], files: Sequence[Path], cut: str, out: Path) -> list[dict[str, Json]]:
    """The files that a state in `out` has read, earlier ones first; nothing where an earlier state names none."""
    from ttabench.methods.states import READ, header

    moved: list[dict[str, Json]] = []
    for state in earlier:
        if not (read_before := header(state).get(READ, [])):
            return []
        moved += [{**file, "file": os.path.relpath(state / file["file"], out)} for file in read_before]
    return moved + [{"file": os.path.relpath(file, out), "digest": digest(file), "pieces": cut} for file in files]


def _written(
    session: Session,
    state: State,
    resolved: ResolvedMethod,
    provenance: Mapping[str, Json],
    write: Callable[..., dict[str, Any]],
) -> tuple[dict[str, Json], list[str]]:
    """Write the state: its header, and notes on it."""
    from ttabench.lm.patch import Patch
    from ttabench.methods.checkpoints import exportable, save_peft
    from ttabench.run.recording import state_caveats

    lm, method = session.lm, session.method
    patch = Patch() if method.looks_at_question else method.patch(state, [])
    window = 0 if patch.tokens_BT is None else patch.tokens_BT.shape[1]
    said = {**resolved.belongs(lm), **provenance, "window_tokens": window}
    twice = patch.prefix is not None and method.growth != "constant"  # all of a long text is not written twice
    leaves = exportable(patch) and not twice
    written = write(state, said, partial(save_peft, lm, patch) if leaves else None)
    return written, [*resolved.notes(), *state_caveats(method, state)]


def read(session: Session, pieces: Sequence[Observe], tick: Tick) -> State:
    """The state of one reader who has read these pieces in order."""
    session.read(pieces)
    while session.flush_some():
        tick("read", len(pieces) - session.pending, len(pieces))
    return session.state
