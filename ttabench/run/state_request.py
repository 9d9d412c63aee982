"""What a state says about how it was made, so that whoever asks it need not say it again.

    save_state(folder, state, {**resolved.belongs(lm), MADE: made_with(request, chat=False)})
    request_of(header(folder), folder).method                "mac"

Names stand as they were typed; paths of models, checkpoints, methods and cards are made absolute.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from ttabench.core.architectures import ARCHITECTURES, NANO
from ttabench.core.errors import UserError
from ttabench.core.types import Json
from ttabench.run.resolve import NO_CHECKPOINT, SHIPPED, RunRequest

MADE = "made_with"
"""Where a state's header says it."""
FIELDS = (
    "method", "task", "model", "preset", "settings", "checkpoint", "random_weights", "bos", "base_checkpoint",
    "chat_template",
)  # fmt: skip
"""Of a request: what decides which method reads, on which model, in which words."""
ANEW = "Read anew with --context FILE, or leave it out."


def made_with(request: RunRequest, *, chat: bool) -> dict[str, Json]:
    """What a state's header says of the request that it was made for; `chat`: it was read in a chat template."""
    said = {name: getattr(request, name) for name in FIELDS}
    known = (NANO, *ARCHITECTURES)
    return {
        **said,
        "method": _placed_method(request.method),
        "task": _placed(request.task) if request.task.endswith((".yaml", ".yml")) else request.task,
        "model": request.model if request.model in known else _placed(request.model),
        "settings": list(request.settings),
        "checkpoint": _placed_checkpoint(request.checkpoint),
        "base_checkpoint": _placed_checkpoint(request.base_checkpoint),
        "chat_template": chat,
    }


def request_of(header: Mapping[str, Json], folder: Path) -> RunRequest:
    """The request that a state was made for; of a state that does not say, its method and model by name.

    Raises:
        UserError: what it says is no request.
    """
    said = header.get(MADE) or {"method": header.get("method"), "model": header.get("model"), "task": "streamingqa"}
    try:
        kept = {name: said[name] for name in FIELDS if name in said}
        texts = [str(each) for each in kept.get("settings", ())]
        return RunRequest(**{**kept, "settings": tuple(texts)})
    except (TypeError, ValueError, AttributeError):
        raise UserError(f"The state in {folder} does not say how it was made.", "Make it anew.") from None


def with_state(request: RunRequest, folder: Path, typed: Mapping[str, Json]) -> RunRequest:
    """The request of a state; what was typed beside it must say the same.

    Raises:
        UserError: it says something else.
    """
    for name, value in typed.items():
        if name in ("device", "dtype"):
            request = replace(request, **{name: value})
        elif name in ("method", "model", "base_checkpoint"):
            _refuse_other(request, folder, name, str(value))
        else:
            option = f"--{'set' if name == 'settings' else name.replace('_', '-')}"
            raise UserError(f"{option} is for reading; the state in {folder} was read already.", ANEW)
    return request


def _refuse_other(request: RunRequest, folder: Path, name: str, value: str) -> None:
    own = {getattr(request, name), request.base_name if name == "model" else ""}
    if {value, _placed(value), _placed_method(value)} & own:
        return
    told = request.base_name if name == "model" else getattr(request, name) or "none"
    what = f"The state in {folder} was made with {name.replace('_', ' ')} {told}, not {value}."
    raise UserError(what, f"Leave --{name.replace('_', '-')} out, or read anew with --context FILE.")


def _placed(text: str) -> str:
    path = Path(text).expanduser()
    return str(path.absolute()) if path.exists() else text


def _placed_method(text: str) -> str:
    path, dot, name = text.partition(".py")
    return f"{_placed(path + dot)}{name}" if dot else text


def _placed_checkpoint(text: str) -> str:
    return text if text in ("", NO_CHECKPOINT) or text.startswith(SHIPPED) else _placed(text)
