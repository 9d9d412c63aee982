"""The request that made a state, kept in its header, so that `ask` needs no options.

A method in a file is named there for people: only a file that the user names is executed."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from shlex import quote

from pydantic import TypeAdapter

from ttabench.core.architectures import ARCHITECTURES, NANO
from ttabench.core.errors import UserError
from ttabench.core.types import Json
from ttabench.methods.registry import is_file
from ttabench.methods.states import header as header_of
from ttabench.run.request import READING_FIELDS, RunRequest
from ttabench.run.resolve import NO_CHECKPOINT, SHIPPED

MADE = "made_with"
"""Where a state's header says it."""
ASKING = ("task", "chat_template")
"""Fields that decide what is asked, and in which words, where a state is asked the questions of a task."""


def made_with(request: RunRequest, *, chat: bool) -> dict[str, Json]:
    """The request that a state was made for, for its header; `chat`: it was read in a chat template."""
    return {
        **{name: getattr(request, name) for name in READING_FIELDS},
        "method": _placed_method(request.method),
        "task": _placed(request.task) if request.task.endswith((".yaml", ".yml")) else request.task,
        "model": request.model if request.model in (NANO, *ARCHITECTURES) else _placed(request.model),
        "settings": list(request.settings),
        "checkpoint": _placed_checkpoint(request.checkpoint),
        "base_checkpoint": _placed_checkpoint(request.base_checkpoint),
        "chat_template": chat,
    }


def as_it_was_made(request: RunRequest, folder: Path, typed: Collection[str], but: Collection[str] = ()) -> RunRequest:
    """A request that goes on from a state: what was not typed, and is not in `but`, is as it was when that was made."""
    made = request_of(header_of(folder), folder, request.method if "method" in typed else "")
    base = ("model", "base_checkpoint")  # one name may stand for both
    kept = {*typed, *but, *(base if {*base} & {*typed} else ())}
    return replace(request, **{name: getattr(made, name) for name in READING_FIELDS if name not in kept})


def request_of(header: Mapping[str, Json], folder: Path, method: str = "") -> RunRequest:
    """The request that a state was made for, with the method that was typed; of a state that does not say, its method
    and model by name."""
    recipe = header.get(MADE) or {"method": header.get("method"), "model": header.get("model"), "task": "streamingqa"}
    try:
        kept = {name: recipe[name] for name in READING_FIELDS if name in recipe}
        request = TypeAdapter(RunRequest).validate_json(json.dumps(kept), strict=True)
    except (TypeError, ValueError, AttributeError):
        raise UserError(f"The state in {folder} does not say how it was made.", "Make it anew.") from None
    if is_file(request.method):
        if not is_file(method):
            fault = f"The state in {folder} names the file {request.method} as its method"
            hint = f"Add --method {quote(request.method)}, if that file is yours."
            raise UserError(f"{fault}; a file runs only if you name it.", hint)
        return replace(request, method=method)  # whether it is the same one, its digest tells (`origin`)
    if method not in ("", request.method):
        fault = f"The state in {folder} was made with method {request.method}, not {method}."
        raise UserError(fault, "Leave --method out, or read anew.")
    return request


def _placed(text: str) -> str:
    path = Path(text).expanduser()
    return str(path.absolute()) if path.exists() else text


def _placed_method(text: str) -> str:
    path, dot, name = text.partition(".py")
    return f"{_placed(path + dot)}{name}" if dot else text


def _placed_checkpoint(text: str) -> str:
    return text if text in ("", NO_CHECKPOINT) or text.startswith(SHIPPED) else _placed(text)
