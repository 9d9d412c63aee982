"""User requests: the options of `ttabench eval`, as typed.

Options that a record stores as typed are declared in `records.run_fields`.

A state's header stores the request that made it, so `ask` needs no options. A method file named in
a header is never executed unless the user names the same file.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from shlex import join, quote
from typing import Annotated, TypeAlias

from pydantic import AfterValidator, TypeAdapter

from ttabench.core.architectures import model_names
from ttabench.core.declared import (
    QUERY_GROUP,
    RUN_GROUP,
    OptionInfo,
    option_fields,
    parse_assignments,
)
from ttabench.core.errors import UserError
from ttabench.core.files import validate_path
from ttabench.core.types import Json
from ttabench.methods.checkpoints import is_peft_folder
from ttabench.methods.registry import names_file
from ttabench.methods.states import read_state_header
from ttabench.records.run_fields import RunFields, base_model_name
from ttabench.run.budget import parse_budget

UserPath: TypeAlias = Annotated[str | Path, AfterValidator(validate_path)]
"""Path argument of the Python API."""
MODEL_ALIASES = {"smollm2-135m-qa": ("smollm2-135m", "shipped:qa")}
"""Aliases of base models with a bundled checkpoint: (model, checkpoint)."""
READING_FIELDS = (
    "method",
    "task",
    "model",
    "preset",
    "settings",
    "checkpoint",
    "random_weights",
    "bos",
    "max_context",
    "base_checkpoint",
    "chat_template",
    "thinking",
    "keep",
    "keep_tokens",
    "bits",
)
"""Fields that determine method, base model and prompts. A state's header stores them."""
OWN_QUESTIONS_TASK = "qa"
"""Task that reads a user's own file of texts, questions and answers (`--task FILE`)."""

NO_CHECKPOINT = "none"
"""Value of `--checkpoint` for untrained modules."""
SHIPPED_PREFIX = "shipped:"
"""Prefix of bundled adapters in `--checkpoint`."""
REQUEST_KEY = "made_with"
"""Key of the request in a state's header."""
QUERY_FIELDS = ("task", "chat_template", "thinking")
"""Fields that determine queries and prompts, to exclude when a request inherits from a state."""


@dataclass(frozen=True, kw_only=True)
class RunRequest(RunFields):
    """Request of a user, as typed. Its fields are the options of `ttabench eval`."""

    method: Annotated[
        str,
        OptionInfo(
            "Adaptation method: a name (see `ttabench list methods`), A+B for two methods, or a "
            "Python file.",
            RUN_GROUP,
            flags=("--method", "-m"),
        ),
    ]
    task: Annotated[
        str,
        OptionInfo(
            "Task: a name (see `ttabench list tasks`), a task card (.yaml), or a file of your own "
            "questions.",
            RUN_GROUP,
            flags=("--task", "-t"),
        ),
    ]
    preset: Annotated[
        str,
        OptionInfo(
            "Named settings of the method. (default: the preset with the name of the model, if any)",
            RUN_GROUP,
            default=False,
        ),
    ] = ""
    settings: Annotated[
        Mapping[str, Json],
        OptionInfo(
            "Setting of the method, key=value. Repeatable.", RUN_GROUP, flags=("--set", "-s")
        ),
    ] = field(default_factory=dict)
    checkpoint: Annotated[
        str,
        OptionInfo(
            "Trained adapter: a folder, a bundled adapter (shipped:NAME), or none. (default: the "
            "bundled adapter for method, task and model)",
            RUN_GROUP,
            default=False,
        ),
    ] = ""
    """"none": untrained modules; "shipped:NAME": a bundled adapter, for any task."""
    state: Annotated[
        Path | None, OptionInfo("State folder written by `adapt`, to start from.", RUN_GROUP)
    ] = None
    source: Annotated[
        str,
        OptionInfo(
            "Data source: mini (synthetic version), hub (published data), generated (by the task), "
            "or a file or folder. (default: mini for nano, generated for ruler, else hub)",
            RUN_GROUP,
            default=False,
        ),
    ] = ""
    """Empty: the default of `sources.default_source`."""
    task_options: Annotated[
        Mapping[str, Json],
        OptionInfo(
            "Setting of the task, key=value. Repeatable.", QUERY_GROUP, flags=("--task-set",)
        ),
    ] = field(default_factory=dict)
    metric: Annotated[
        str,
        OptionInfo(
            "Main metric: a name, or a function in a file (./mine.py:closeness). The task's metrics "
            "are still reported. (default: the task's main metric)",
            QUERY_GROUP,
            default=False,
        ),
    ] = ""
    chat_template: Annotated[
        bool | None,
        OptionInfo(
            "Format context and query with the tokenizer's chat template, as a user turn. "
            "(default: on if the model has a template and the task has a chat prompt)",
            QUERY_GROUP,
            default=False,
            flags=("--chat-template/--no-chat-template",),
        ),
    ] = None

    def __post_init__(self) -> None:
        from ttabench.readers.formats import is_readable

        super().__post_init__()
        parse_budget(self.keep, self.keep_tokens)
        if is_readable(Path(self.task)):
            if self.source:
                raise UserError(
                    f"--task {self.task} is a data file, so --source has no effect.",
                    "Remove --source.",
                )
            object.__setattr__(self, "source", self.task)
            object.__setattr__(self, "task", OWN_QUESTIONS_TASK)
        if alias := MODEL_ALIASES.get(self.model):
            if self.base_checkpoint:
                raise UserError(
                    f"{self.model} already includes a base checkpoint.", "Remove --base-checkpoint."
                )
            object.__setattr__(self, "model", alias[0])
            object.__setattr__(self, "base_checkpoint", alias[1])

    @property
    def base_model_options(self) -> str:
        """Options that select this base model, as a command line."""
        fields = [
            option_fields(RunRequest)[name]
            for name in ("base_checkpoint", "bos", "max_context", "chat_template")
        ]
        arguments = [
            word for field in fields for word in field.cli_arguments(getattr(self, field.name))
        ]
        return join(["--model", self.model, *arguments])

    @property
    def base_name(self) -> str:
        """Name of the base model, including its base checkpoint."""
        return base_model_name(self.model, self.base_checkpoint)


def state_header(request: RunRequest, *, chat: bool) -> dict[str, Json]:
    """Build the request in a state's header, with absolute paths.

    Args:
        chat: True if the chat template was used.
    """
    return {
        **{name: getattr(request, name) for name in READING_FIELDS},
        "method": _absolute_path(request.method) if names_file(request.method) else request.method,
        "task": _absolute_path(request.task)
        if request.task.endswith((".yaml", ".yml"))
        else request.task,
        "model": request.model if request.model in model_names() else _absolute_path(request.model),
        "settings": {
            key: _absolute_path(value) if isinstance(value, str) and "/" in value else value
            for key, value in request.settings.items()
        },
        "checkpoint": _absolute_path(request.checkpoint),
        "base_checkpoint": _absolute_path(request.base_checkpoint),
        "chat_template": chat,
    }


def inherit_from_state(
    request: RunRequest, folder: Path, typed: Collection[str], except_fields: Collection[str] = ()
) -> RunRequest:
    """Fill the fields that were not typed from the state in `folder`.

    A peft adapter stores no request, so the request is returned unchanged.

    Args:
        typed: names of the fields that were typed.
        except_fields: fields that are never inherited.
    """
    if is_peft_folder(folder):
        return request
    stored_request = request_from_header(
        read_state_header(folder), folder, request.method if "method" in typed else ""
    )
    base_fields = {
        "model",
        "base_checkpoint",
    }  # a model alias sets both, so typing one stops both from being inherited
    not_inherited = {*typed, *except_fields}
    if base_fields.intersection(typed):
        not_inherited |= base_fields
    return replace(
        request,
        **{
            name: getattr(stored_request, name)
            for name in READING_FIELDS
            if name not in not_inherited
        },
    )


def request_from_header(header: Mapping[str, Json], folder: Path, method: str = "") -> RunRequest:
    """Restore the request from a state's header.

    Args:
        method: the method that the user typed, "" if none. It is required if the header names a
            method file, so that no file is executed without consent.

    Raises:
        UserError: the header has no valid request, or was made with another method.
    """
    try:
        fields = {
            name: value for name, value in header[REQUEST_KEY].items() if name in READING_FIELDS
        }
        if isinstance(fields.get("settings"), list):  # headers of earlier versions
            fields["settings"] = parse_assignments(fields["settings"])
        request = TypeAdapter(RunRequest).validate_json(json.dumps(fields), strict=True)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise UserError(
            f"The header of the state in {folder} has no valid {REQUEST_KEY!r}.",
            "Run `ttabench adapt` again.",
        ) from None
    if names_file(request.method):
        if not names_file(method):
            fault = f"The state in {folder} names the file {request.method} as its method."
            hint = (
                f"To run this file, add --method {quote(request.method)}. Only run files you trust."
            )
            raise UserError(fault, hint)
        return replace(
            request, method=method
        )  # `origin` has the digest of the file, so a changed file is detected
    if method not in ("", request.method):
        fault = f"The state in {folder} was made with method {request.method}, not {method}."
        raise UserError(fault, "Remove --method, or run `ttabench adapt` again.")
    return request


def _absolute_path(text: str) -> str:
    """Make the path of an existing file, folder or object (`mine.py:Mine`) absolute.

    Other texts are names, and unchanged.
    """
    if text in ("", NO_CHECKPOINT) or text.startswith(SHIPPED_PREFIX):
        return text
    stem, separator, object_name = text.partition(".py:")
    full_path = Path(f"{stem}.py" if separator else text).expanduser()
    if not full_path.exists():
        return text
    return f"{full_path.absolute()}:{object_name}" if separator else str(full_path.absolute())
