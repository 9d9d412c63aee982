"""`ttabench adapt`: read files, write the state, and say how to ask it."""

from __future__ import annotations

from collections.abc import Sequence
from shlex import quote
from typing import TYPE_CHECKING

from ttabench.cli.commands import Showing, Storing, show_result
from ttabench.cli.reading import DEFAULT_STATE, READ, Reading, pieces_of, read, told_after
from ttabench.core import render
from ttabench.core.types import Json, Observe
from ttabench.run.asking import manner
from ttabench.run.evaluation import ModelCache
from ttabench.run.resolve import ResolvedMethod, RunRequest, resolve_method
from ttabench.run.state_request import MADE, made_with

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
    pieces, asked, resolved = pieces_of(reading), manner(request), resolve_method(request)
    assert storing.out is not None, "adapt has a default folder"
    said = {MADE: made_with(request, chat=asked.chat), READ: told_after(request.state, reading, storing.out)}
    from ttabench.core.environment import seed_everything  # torch comes once nothing typed is refused
    from ttabench.methods.session import Session
    from ttabench.methods.state_folder import StateFolder
    from ttabench.run.notes import state_notes

    folder = StateFolder(storing.out, force=storing.force)
    with folder.held():
        seed_everything(0)
        lm = ModelCache().get(request, chat_template=asked.chat)
        method = resolved.build(lm)
        before = None if request.state is None else resolved.stored_state(request.state, lm)
        with render.progress(showing.talking) as tick:
            state = read(Session(lm, method, before), pieces, tick)
        peft = _written(folder, method, state, {**resolved.belongs(lm), **said})
    result = {
        "method": resolved.spec.name,
        "model": request.base_name,
        "files": len(reading.files),
        "pieces": len(pieces),
        **_tokens(before, state),
        "state_bytes": state.nbytes,
        "folder": str(folder.path),
        **peft,
    }
    _show(result, [*misleading(lm, resolved, pieces), *state_notes(method, state)], showing)


def misleading(lm: LM, resolved: ResolvedMethod, pieces: Sequence[Observe]) -> list[str]:
    """Why answers about these pieces would say less of the method than they seem to."""
    from ttabench.lm.familiar import unfamiliar

    return [*resolved.notes(), *unfamiliar(lm, (piece.text for piece in pieces))]


def _written(folder: StateFolder, method: BaseMethod[object], state: State, header: dict[str, Json]) -> dict[str, Json]:
    """Write the state, and what it says in peft's form; returns where that is, and what it lacks."""
    from ttabench.lm.patch import Patch
    from ttabench.methods.peft_export import exportable, save_lora

    patch = Patch() if method.looks_at_question else method.patch(state, [])
    if not exportable(patch):
        folder.write(state, header)
        return {}
    folder.write(state, header, lambda inside: save_lora(method.lm, patch, inside))
    found: dict[str, Json] = {"peft": str(folder.path / "peft")}
    if patch.tokens_BT is not None:
        found["peft_without"] = f"the last {patch.tokens_BT.shape[1]} tokens, which stand in the window"
    return found


def _tokens(before: State | None, state: State) -> dict[str, Json]:
    """Tokens that were read now; nothing of a method that does not count them."""
    counts = [int(sum(each.meta.get("tokens_read", [0]))) for each in (before, state) if each is not None]
    return {"tokens": counts[-1] - sum(counts[:-1])} if "tokens_read" in state.meta else {}


def _show(result: dict[str, Json], notes: Sequence[str], showing: Showing) -> None:
    where = "" if result["folder"] == str(DEFAULT_STATE) else f" --state {quote(str(result['folder']))}"
    if showing.json:
        result = {**result, "notes": list(notes)}
    show_result("adapted", result, showing, f'Ask it: ttabench ask "..."{where}')
    if showing.talking:
        for note in notes:
            render.remark(f"Note: {note}.")
