"""`ttabench adapt`: read files and write the adapted state."""

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
from ttabench.cli.errors import apply_resource_limits
from ttabench.core.declared import EXECUTION_GROUP, RUN_GROUP
from ttabench.core.digests import digest_path
from ttabench.core.errors import UserError, require_known
from ttabench.core.files import read_text
from ttabench.core.types import Chunk, Json, ProgressCallback
from ttabench.methods.registry import names_file
from ttabench.run.request import RunRequest
from ttabench.terminal import render

if TYPE_CHECKING:
    from ttabench.lm.patch import State
    from ttabench.methods.session import Session
    from ttabench.run.resolve import ResolvedMethod

CHUNK_SEPARATORS = {"file": None, "paragraphs": "\n\n", "lines": "\n"}
"""Separators of chunks, by value of `--pieces`; None for no split."""
DEFAULT_STATE = Path("state")
"""Default folder of the state."""


@o.add_options("request", RunRequest, only=o.RUN_OPTIONS["adapt"], method="icl", task="streamingqa")
def adapt(
    command: typer.Context,
    request: RunRequest,
    more: Annotated[
        list[Path] | None,
        typer.Argument(
            help="Text files to read after those of --context, in this order.",
            metavar="FILE...",
            show_default=False,
        ),
    ] = None,
    context: o.Context = None,
    out: Annotated[
        Path, o.folder(EXECUTION_GROUP, "Folder to write the state to.", "--out", "-o")
    ] = DEFAULT_STATE,
    state: Annotated[
        Path | None,
        o.option(RUN_GROUP, "State folder written by `adapt`, to continue with its own method."),
    ] = None,
    add: Annotated[
        list[Path] | None,
        o.option(RUN_GROUP, "Another state of the same method, to merge in. Repeatable."),
    ] = None,
    pieces: o.Pieces = "file",
    threads: o.Threads = None,
    memory_limit: o.MemoryLimit = "",
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="Replace an existing state in --out. Other files are never replaced."
        ),
    ] = False,
    json: o.AsJson = False,
    quiet: o.Quiet = False,
) -> None:
    """Adapt a model to text files, and write the resulting state for `ask`.

    --state continues an earlier state, and --add merges in another one.
    Method, settings and model are then those of that state, unless you set them.

    --task selects the bundled adapter and the default of --chat-template.
    """
    earlier_states = (*([state] if state else []), *(add or []))
    if earlier_states:
        from ttabench.run.request import inherit_from_state

        request = inherit_from_state(request, earlier_states[0], o.typed_names(command))
    from ttabench.methods.states import FILES_READ_KEY, read_state_header, state_writer
    from ttabench.readers.cards import load_card
    from ttabench.run.prompts import resolve_prompt
    from ttabench.run.request import REQUEST_KEY, state_header
    from ttabench.run.resolve import resolve_method

    apply_resource_limits(threads, memory_limit, request.device)
    request = replace(request, state=state)
    files = (*(context or []), *(more or []))
    chunks = read_chunks(files, pieces) if files or not add else []
    chat = resolve_prompt(request, load_card(request.task)).chat
    resolved = resolve_method(request)
    provenance = {
        REQUEST_KEY: state_header(request, chat=chat),
        FILES_READ_KEY: _provenance_of_files(earlier_states, files, pieces, out),
    }
    from ttabench.core.environment import seed_everything
    from ttabench.methods.session import Session
    from ttabench.methods.states import reporting_misfit
    from ttabench.run.evaluation import ModelCache

    is_verbose = not (json or quiet)
    with state_writer(out, force=force) as write, render.show_progress(is_verbose) as on_progress:
        seed_everything(0)
        lm = ModelCache().get(request, chat_template=chat)
        method = resolved.build(lm)
        combined_state: State | None = None
        for folder in earlier_states:
            loaded = resolved.stored_state(folder, lm)
            with reporting_misfit(folder, method.name):
                combined_state = (
                    loaded
                    if combined_state is None
                    else method.combine_states(combined_state, loaded)
                )
        with reporting_misfit(state, method.name):
            session = Session(lm, method, combined_state)
            written, notes = _write_state(
                session,
                read_into_session(session, chunks, on_progress),
                resolved,
                provenance,
                write,
            )
    result = {
        "method": resolved.spec.name,
        "model": request.base_name,
        "files": len(files),
        "pieces": len(chunks),
    }
    if "tokens_read" in written["meta"]:
        *before, tokens_in_all = (
            int(sum(loaded["meta"].get("tokens_read", [0])))
            for loaded in (*map(read_state_header, earlier_states), written)
        )
        result["tokens"] = tokens_in_all - sum(before)
    result |= {"state_bytes": written["bytes"], "folder": str(out)}
    if any(name.startswith("peft/") for name in written["files"]):
        result["peft"] = str(out / "peft")
        if written["window_tokens"]:
            result["peft_without"] = (
                f"the last {written['window_tokens']} tokens, which stay in the context window"
            )
    result |= {"notes": notes} if json else {}
    ask_options = "" if out == DEFAULT_STATE else f" --state {quote(str(out))}"
    ask_options += f" --method {quote(request.method)}" if names_file(request.method) else ""
    o.show_result(
        "adapted", result, f'Next: ttabench ask "..."{ask_options}', json=json, quiet=quiet
    )
    for note in notes if is_verbose else ():
        render.print_note(f"Note: {note}.")


def read_chunks(files: Sequence[Path], separator: str) -> list[Chunk]:
    """Read files and split them into chunks, in order; empty chunks are dropped.

    Raises:
        UserError: no file is given, a file cannot be read, or all files are empty.
    """
    if not files:
        raise UserError("No context is given.", "Add --context FILE.")
    require_known("value of --pieces", separator, CHUNK_SEPARATORS)
    from ttabench.readers.formats import is_readable, read_document

    chunks = []
    for file in files:
        text = read_document(file)
        if is_readable(file) and text == read_text(file):
            render.print_note(
                f"Note: {file} is read as plain text, including its markup and field names."
            )
        parts = [
            part.strip()
            for part in (
                text.split(CHUNK_SEPARATORS[separator]) if CHUNK_SEPARATORS[separator] else [text]
            )
        ]
        chunks += [
            Chunk(text=part, key=f"{file.name}#{number}")
            for number, part in enumerate(filter(None, parts))
        ]
    if not chunks:
        raise UserError(f"{files[0]} has no text.", "Use a file with text.")
    return chunks


def _provenance_of_files(
    earlier_states: Sequence[Path], files: Sequence[Path], separator: str, out: Path
) -> list[dict[str, Json]]:
    """List the files that a state in `out` has read; empty if an earlier state lists none."""
    from ttabench.methods.states import FILES_READ_KEY, read_state_header

    entries: list[dict[str, Json]] = []
    for state in earlier_states:
        if not (read_before := read_state_header(state).get(FILES_READ_KEY, [])):
            return []
        entries += [
            {**file, "file": os.path.relpath(state / file["file"], out)} for file in read_before
        ]
    return entries + [
        {"file": os.path.relpath(file, out), "digest": digest_path(file), "pieces": separator}
        for file in files
    ]


def _write_state(
    session: Session,
    state: State,
    resolved: ResolvedMethod,
    provenance: Mapping[str, Json],
    write: Callable[..., dict[str, Any]],
) -> tuple[dict[str, Json], list[str]]:
    """Write the state; return its header and its notes."""
    from ttabench.lm.patch import Patch
    from ttabench.methods.checkpoints import is_exportable, save_peft
    from ttabench.run.recording import state_caveats

    lm, method = session.lm, session.method
    patch = Patch() if method.query_aware else method.patch(state, [])
    window = 0 if patch.tokens_BT is None else patch.tokens_BT.shape[1]
    header_fields = {**resolved.state_identity(lm), **provenance, "window_tokens": window}
    # a KV cache that grows with the text would be stored twice
    duplicates_text = patch.prefix is not None and method.growth != "constant"
    exports_peft = is_exportable(patch) and not duplicates_text
    written = write(state, header_fields, partial(save_peft, lm, patch) if exports_peft else None)
    return written, [*resolved.notes(), *state_caveats(method, state)]


def read_into_session(
    session: Session, chunks: Sequence[Chunk], on_progress: ProgressCallback
) -> State:
    """Read chunks into a session, in order, and return its state."""
    session.read(chunks)
    while session.adapt_pending():
        on_progress("read", len(chunks) - session.pending, len(chunks))
    return session.state
