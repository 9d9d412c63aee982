"""The request of a user, as typed: its fields are the options of `eval`; `records.run_fields` has those that stay.

The request that made a state is kept in its header, so that `ask` needs no options. A method in a file is named there
for people: only a file that the user names is executed."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import join, quote
from typing import Annotated, TypeAlias

from pydantic import AfterValidator, TypeAdapter

from ttabench.core.architectures import ARCHITECTURES, NANO
from ttabench.core.declared import QUERY_GROUP, RUN_GROUP, OptionInfo, option_fields
from ttabench.core.errors import UserError
from ttabench.core.files import validate_path
from ttabench.core.types import Json
from ttabench.methods.checkpoints import is_peft_folder
from ttabench.methods.registry import names_file
from ttabench.methods.states import read_header as header_of
from ttabench.records.run_fields import RunFields, base_model_name
from ttabench.run.budget import parse_budget

UserPath: TypeAlias = Annotated[str | Path, AfterValidator(validate_path)]
"""A file or folder that a caller from Python names."""
MODEL_ALIASES = {"smollm2-135m-qa": ("smollm2-135m", "shipped:qa")}
"""Names of base models that stand on a checkpoint of the package: (model, checkpoint)."""
READING_FIELDS = (
    "method",
    "task",
    "model",
    "preset",
    "settings",
    "checkpoint",
    "random_weights",
    "bos",
    "base_checkpoint",
    "chat_template",
    "thinking",
    "keep",
    "keep_tokens",
)
"""Fields of a request that decide which method reads, on which model, in which words."""
OWN_QUESTIONS_TASK = "qa"
"""The task of a user's own table of texts, questions and answers; `--task FILE` means it."""

NO_CHECKPOINT = "none"
SHIPPED_PREFIX = "shipped:"
REQUEST_KEY = "made_with"
"""Where a state's header says it."""
QUERY_FIELDS = ("task", "chat_template", "thinking")
"""Fields that decide what is asked, and in which words, where a state is asked the questions of a task."""


@dataclass(frozen=True, kw_only=True)
class RunRequest(RunFields):
    """The request of a user, as typed; see the options of `ttabench eval`."""

    method: Annotated[
        str, OptionInfo("How to adapt; see `list methods`.", RUN_GROUP, flags=("--method", "-m"))
    ]
    task: Annotated[
        str,
        OptionInfo(
            "A task's name (`list tasks`), the path of a card, or a file of your own questions.",
            RUN_GROUP,
            flags=("--task", "-t"),
        ),
    ]
    preset: Annotated[
        str,
        OptionInfo(
            "Named settings of the method. (default: the one named like the model)",
            RUN_GROUP,
            default=False,
        ),
    ] = ""
    settings: Annotated[
        tuple[str, ...],
        OptionInfo(
            "A setting of the method, key=value; repeat for more.", RUN_GROUP, flags=("--set", "-s")
        ),
    ] = ()
    checkpoint: Annotated[
        str,
        OptionInfo(
            "Trained adapter folder, shipped:NAME, or none. (default: shipped for method, task, model)",
            RUN_GROUP,
            default=False,
        ),
    ] = ""
    """"none": untrained modules; "shipped:NAME": one of the package's own, whatever the task."""
    state: Annotated[
        Path | None, OptionInfo("Start from a state written by `adapt`.", RUN_GROUP)
    ] = None
    source: Annotated[
        str,
        OptionInfo(
            "mini, hub, generated, or a file or folder. (default: mini for nano, else hub; of ruler generated)",
            RUN_GROUP,
            default=False,
        ),
    ] = ""
    """Empty: see `sources.default_source`."""
    task_options: Annotated[
        tuple[str, ...],
        OptionInfo(
            "A setting of the task, key=value; repeat for more.", QUERY_GROUP, flags=("--task-set",)
        ),
    ] = ()
    metric: Annotated[
        str,
        OptionInfo(
            "Main metric in place of the task's own, which stay: a name, or a function in a file "
            "(./mine.py:closeness).",
            QUERY_GROUP,
            default=False,
        ),
    ] = ""
    chat_template: Annotated[
        bool | None,
        OptionInfo(
            "Give context and question as a user's turn of the tokenizer's chat template. (default: where there "
            "is one and the task's card has a prompt for it)",
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
                    f"--task {self.task} is a file of data, so --source cannot be given.",
                    "Leave --source out.",
                )
            object.__setattr__(self, "source", self.task)
            object.__setattr__(self, "task", OWN_QUESTIONS_TASK)
        if base := MODEL_ALIASES.get(self.model):
            if self.base_checkpoint:
                raise UserError(
                    f"{self.model} includes a base checkpoint already.",
                    "Leave --base-checkpoint out.",
                )
            object.__setattr__(self, "model", base[0])
            object.__setattr__(self, "base_checkpoint", base[1])

    @property
    def base_model_options(self) -> str:
        """The options that name this base model, as they are typed."""
        fields = [
            option_fields(RunRequest)[name] for name in ("base_checkpoint", "bos", "chat_template")
        ]
        more = [word for field in fields for word in field.cli_arguments(getattr(self, field.name))]
        return join(["--model", self.model, *more])

    @property
    def base_name(self) -> str:
        """The base model's name, with the checkpoint it stands on."""
        return base_model_name(self.model, self.base_checkpoint)


def state_header(request: RunRequest, *, chat: bool) -> dict[str, Json]:
    """The request that a state was made for, for its header; `chat`: it was read in a chat template."""
    return {
        **{name: getattr(request, name) for name in READING_FIELDS},
        "method": _absolute_path(request.method) if names_file(request.method) else request.method,
        "task": _absolute_path(request.task)
        if request.task.endswith((".yaml", ".yml"))
        else request.task,
        "model": request.model
        if request.model in (NANO, *ARCHITECTURES)
        else _absolute_path(request.model),
        "settings": [_absolute_setting_path(text) for text in request.settings],
        "checkpoint": _absolute_path(request.checkpoint),
        "base_checkpoint": _absolute_path(request.base_checkpoint),
        "chat_template": chat,
    }


def inherit_from_state(
    request: RunRequest, folder: Path, typed: Collection[str], except_fields: Collection[str] = ()
) -> RunRequest:
    """A request that goes on from a state: what was not typed, and is not in `except_fields`, is as it was when that was made;
    an adapter of peft does not say."""
    if is_peft_folder(folder):
        return request
    stored_request = request_from_header(
        header_of(folder), folder, request.method if "method" in typed else ""
    )
    base = ("model", "base_checkpoint")  # one name may stand for both
    kept = {*typed, *except_fields, *(base if {*base} & {*typed} else ())}
    return replace(
        request,
        **{name: getattr(stored_request, name) for name in READING_FIELDS if name not in kept},
    )


def request_from_header(header: Mapping[str, Json], folder: Path, method: str = "") -> RunRequest:
    """The request that a state was made for, with the method that was typed."""
    try:
        kept = {
            name: value for name, value in header[REQUEST_KEY].items() if name in READING_FIELDS
        }
        request = TypeAdapter(RunRequest).validate_json(json.dumps(kept), strict=True)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise UserError(
            f"The state in {folder} does not say how it was made.", "Make it anew."
        ) from None
    if names_file(request.method):
        if not names_file(method):
            fault = f"The state in {folder} names the file {request.method} as its method"
            hint = f"Add --method {quote(request.method)}, if that file is yours."
            raise UserError(f"{fault}; a file runs only if you name it.", hint)
        return replace(
            request, method=method
        )  # whether it is the same one, its digest tells (`origin`)
    if method not in ("", request.method):
        fault = f"The state in {folder} was made with method {request.method}, not {method}."
        raise UserError(fault, "Leave --method out, or read anew.")
    return request


def _absolute_setting_path(text: str) -> str:
    """A setting as it is typed, `key=value`; a path with a `/` in it is absolute."""
    key, mark, value = text.partition("=")
    return key + mark + (_absolute_path(value) if "/" in value else value)


def _absolute_path(text: str) -> str:
    """The absolute path of a file, folder or object in a file (`mine.py:Mine`); a name stays as it is."""
    if text in ("", NO_CHECKPOINT) or text.startswith(SHIPPED_PREFIX):
        return text
    path, mark, name = text.partition(".py:")
    full_path = Path(f"{path}.py" if mark else text).expanduser()
    return str(full_path.absolute()) + f":{name}" * bool(mark) if full_path.exists() else text
