"""`ttabench adapt`: read files, write the state, and say how to ask it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from ttabench.cli.reading import DEFAULT_STATE, Reading, asked_of, earlier_states, pieces_of, read, told_after
from ttabench.cli.showing import Showing, Storing, show_result
from ttabench.core.progress import Tick
from ttabench.core.types import Json, Observe
from ttabench.methods.registry import is_file
from ttabench.methods.state_header import READ, header
from ttabench.run.base_model import ModelCache
from ttabench.run.prompting import resolve_prompting
from ttabench.run.request import RunRequest
from ttabench.run.resolve import ResolvedMethod, resolve_method
from ttabench.run.state_request import MADE, made_with
from ttabench.terminal import render

if TYPE_CHECKING:
    from ttabench.lm.model import LM
    from ttabench.lm.patch import State
    from ttabench.methods.base import BaseMethod
    from ttabench.methods.state_folder import StateFolder


def adapt(request: RunRequest, reading: Reading, storing: Storing, showing: Showing) -> None:
    """Read files and write the state.

    Raises:
        UserError: anything typed that is wrong, a file that cannot be read, a folder that holds something else, a text
            that does not fit the model.
    """
    pieces, asked, resolved = pieces_of(reading), resolve_prompting(request), resolve_method(request)
    assert storing.out is not None, "adapt has a default folder"
    provenance = {MADE: made_with(request, chat=asked.chat), READ: told_after(request.state, reading, storing.out)}
    from ttabench.methods.state_folder import StateFolder

    asked_for = asked_of(request, resolved, pieces, provenance, reading.added)
    folder = StateFolder(storing.out, force=storing.force, asked=asked_for)
    notes: list[str] = []
    with folder.held():
        written = folder.stored()
        if written is None:
            with render.progress(showing.talking) as tick:
                written, notes = _made(request, folder, pieces, provenance, tick, reading.added)
        elif showing.talking:
            render.remark(f"This state is in {folder.path} already; --force makes it anew.")
    result = {
        "method": resolved.spec.name,
        "model": request.base_name,
        "files": len(reading.files),
        "pieces": len(pieces),
        **_tokens([header(state) for state in earlier_states(request.state, reading)], written),
        "state_bytes": written["bytes"],
        "folder": str(folder.path),
        **_peft(folder, written),
    }
    _show(result, request, notes, showing)


def _made(
    request: RunRequest,
    folder: StateFolder,
    pieces: Sequence[Observe],
    provenance: Mapping[str, Json],
    tick: Tick,
    added: Sequence[Path],
) -> tuple[dict[str, Json], list[str]]:
    """Read the pieces and write the state: its header, and notes on it."""
    from ttabench.core.environment import seed_everything
    from ttabench.methods.session import Session
    from ttabench.methods.states import fitting
    from ttabench.run.caveats import state_caveats

    resolved = resolve_method(request)
    seed_everything(0)
    lm = ModelCache().get(request, chat_template=resolve_prompting(request).chat)
    method = resolved.build(lm)
    before = None if request.state is None else resolved.stored_state(request.state, lm)
    for folder_added in added:
        other = resolved.stored_state(folder_added, lm)
        with fitting(folder_added, method.name):
            before = other if before is None else method.combined(before, other)
    with fitting(request.state, method.name):
        state = read(Session(lm, method, before), pieces, tick)
        written = _write(folder, method, state, {**resolved.belongs(lm), **provenance})
    return written, [*misleading(lm, resolved, pieces), *state_caveats(method, state)]


def misleading(lm: LM, resolved: ResolvedMethod, pieces: Sequence[Observe]) -> list[str]:
    """Why answers about these pieces would say less of the method than they seem to."""
    from ttabench.run.caveats import fertility_caveats

    return [*resolved.notes(), *fertility_caveats(lm, (piece.text for piece in pieces))]


def _write(
    folder: StateFolder, method: BaseMethod[object], state: State, header: Mapping[str, Json]
) -> dict[str, Json]:
    """Write the state, and what it says in peft's form; returns its header."""
    from ttabench.lm.patch import Patch
    from ttabench.methods.peft_export import exportable, is_cartridge, save_cartridge, save_lora

    patch = Patch() if method.looks_at_question else method.patch(state, [])
    save = save_lora if exportable(patch) else None
    if method.prefix_for_peft and is_cartridge(patch):
        save = save_cartridge
    peft = None if save is None else partial(save, method.lm, patch)
    window = 0 if patch.tokens_BT is None else patch.tokens_BT.shape[1]
    return folder.write(state, {**header, "window_tokens": window}, peft)


def _peft(folder: StateFolder, header: Mapping[str, Json]) -> dict[str, Json]:
    """Where peft finds the state, and what it lacks there; nothing of a state that is no LoRA."""
    if not any(name.startswith("peft/") for name in header["files"]):
        return {}
    where: dict[str, Json] = {"peft": str(folder.path / "peft")}
    if header["window_tokens"]:
        where["peft_without"] = f"the last {header['window_tokens']} tokens, which stand in the window"
    return where


def _tokens(before: Sequence[Mapping[str, Json]], header: Mapping[str, Json]) -> dict[str, Json]:
    """Tokens that were read now; nothing of a method that does not count them."""
    counts = [int(sum(one["meta"].get("tokens_read", [0]))) for one in (*before, header)]
    return {"tokens": counts[-1] - sum(counts[:-1])} if "tokens_read" in header["meta"] else {}


def _show(result: dict[str, Json], request: RunRequest, notes: Sequence[str], showing: Showing) -> None:
    where = "" if result["folder"] == str(DEFAULT_STATE) else f" --state {quote(str(result['folder']))}"
    where += f" --method {quote(request.method)}" if is_file(request.method) else ""
    if showing.json:
        result = {**result, "notes": list(notes)}
    show_result("adapted", result, showing, f'Ask it: ttabench ask "..."{where}')
    if showing.talking:
        for note in notes:
            render.remark(f"Note: {note}.")
