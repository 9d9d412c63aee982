"""The request that made a state, kept in its header, so that `ask` needs no options.

A method in a file is named there for people: only a file that the user names is executed."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from shlex import quote
from types import MappingProxyType

from pydantic import TypeAdapter

from ttabench.core.architectures import ARCHITECTURES, NANO
from ttabench.core.errors import UserError
from ttabench.core.types import Json
from ttabench.methods.registry import is_file
from ttabench.methods.state_header import header as header_of
from ttabench.run.request import READING_FIELDS, RunRequest
from ttabench.run.resolve import NO_CHECKPOINT, SHIPPED

MADE = "made_with"
"""Where a state's header says it."""
ASKING = ("task", "chat_template")
"""Fields that decide what is asked, and in which words, where a state is asked the questions of a task."""
NOTHING: Mapping[str, Json] = MappingProxyType({})
ANEW = "Read anew with --context FILE, or leave it out."


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
    """A request that goes on from a state, under the method, settings and base model that the state was made with.

    Fields that were typed stay as they are, and those in `but`; with a method that was typed all of them.
    """
    if "method" in typed:
        return request
    made = request_of(header_of(folder), folder)
    base = ("model", "base_checkpoint")  # one name may stand for both
    kept = {*typed, *but, *(base if {*base} & {*typed} else ())}
    return replace(request, **{name: getattr(made, name) for name in READING_FIELDS if name not in kept})


def request_of(header: Mapping[str, Json], folder: Path, typed: Mapping[str, Json] = NOTHING) -> RunRequest:
    """The request that a state was made for; of a state that does not say, its method and model by name."""
    recipe = header.get(MADE) or {"method": header.get("method"), "model": header.get("model"), "task": "streamingqa"}
    try:
        kept = {name: recipe[name] for name in READING_FIELDS if name in recipe}
        request = TypeAdapter(RunRequest).validate_json(json.dumps(kept), strict=True)
    except (TypeError, ValueError, AttributeError):
        raise UserError(f"The state in {folder} does not say how it was made.", "Make it anew.") from None
    method = str(typed.get("method", ""))
    if is_file(request.method):
        if not is_file(method):
            fault = f"The state in {folder} names the file {request.method} as its method"
            hint = f"Add --method {quote(request.method)}, if that file is yours."
            raise UserError(f"{fault}; a file runs only if you name it.", hint)
        request = replace(request, method=method)  # whether it is the same one, its digest tells (`origin`)
    for name, value in typed.items():
        if name in ("device", "dtype"):
            request = replace(request, **{name: value})
        elif name in ("method", "model", "base_checkpoint"):
            _refuse_other(request, folder, name, str(value))
        else:
            option = f"--{'set' if name == 'settings' else name.replace('_', '-')}"
            fault = f"{option} changes how a context is read, but that of the state in {folder} was read before."
            raise UserError(fault, ANEW)
    return request


def _refuse_other(request: RunRequest, folder: Path, name: str, value: str) -> None:
    own = {getattr(request, name)}
    if name == "model":
        own |= {request.base_name, request.base_checkpoint}  # a folder of peft stands for its base, too
    if {value, _placed(value), _placed_method(value)} & own:
        return
    wanted = request.base_name if name == "model" else getattr(request, name) or "none"
    fault = f"The state in {folder} was made with {name.replace('_', ' ')} {wanted}, not {value}."
    raise UserError(fault, f"Leave --{name.replace('_', '-')} out, or read anew with --context FILE.")


def _placed(text: str) -> str:
    path = Path(text).expanduser()
    return str(path.absolute()) if path.exists() else text


def _placed_method(text: str) -> str:
    path, dot, name = text.partition(".py")
    return f"{_placed(path + dot)}{name}" if dot else text


def _placed_checkpoint(text: str) -> str:
    return text if text in ("", NO_CHECKPOINT) or text.startswith(SHIPPED) else _placed(text)
