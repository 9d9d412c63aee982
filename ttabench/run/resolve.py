"""Resolution of a request: the method (spec, preset, settings, checkpoint) and the task's prompt.

No model is loaded here.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

from pydantic import ValidationError

from ttabench.core.digests import digest_path, refuse_changed_files
from ttabench.core.errors import UserError, require_known
from ttabench.core.files import read_json_object
from ttabench.core.types import Json, Query, Want
from ttabench.lm.texts import find_chat_template, template_values
from ttabench.methods import registry
from ttabench.methods.checkpoints import (
    HEADER_FILE,
    is_peft_folder,
    read_header,
    settings_from_header,
    trained_tasks,
)
from ttabench.methods.pair import PAIR_SEPARATOR, PairSpec, join_by_label, split_settings
from ttabench.methods.settings import build_settings, json_values, parse_settings, resolve_preset
from ttabench.methods.spec import MethodSpec
from ttabench.methods.states import SETTING_PREFIX
from ttabench.readers.cards import Card, ChatPrompt
from ttabench.run.budget import budget_settings, parse_budget
from ttabench.run.request import NO_CHECKPOINT, OWN_QUESTIONS_TASK, SHIPPED_PREFIX, RunRequest

if TYPE_CHECKING:
    from ttabench.lm.model import LM
    from ttabench.lm.patch import State
    from ttabench.methods.base import Method

ADAPTERS_FOLDER = Path(__file__).parents[1] / "assets" / "adapters"
"""Folder of the bundled adapters. Its `chosen.json` lists all adapters of the project."""
ADAPTER_FOLDERS = (ADAPTERS_FOLDER, Path(__file__).parents[2] / "results" / "adapters")
"""Folders with adapters at BASE/NAME. The second exists only in a checkout of the repository."""
CHECKPOINT_TASK = {OWN_QUESTIONS_TASK: "streamingqa"}
"""Task whose bundled checkpoints a task uses. Both have the same prompts."""

READERS_WITH_PROMPTS = ("qa_stream", "sessions")
"""Dataset readers of tasks with prompt templates."""
SCORING_READERS = ("book", "dialogue")
"""Dataset readers of tasks that score given texts."""
TRAINING_PROMPT_KEY = "asked"
"""Key of the prompt in a checkpoint's training record."""


@dataclass(frozen=True, kw_only=True)
class ResolvedMethod:
    """Resolved method: spec, settings and checkpoint, before a model is loaded."""

    spec: MethodSpec
    preset: str
    """Name of the preset in use; empty if there is none."""
    settings_object: Any
    """All settings in use, as an instance of `spec.Settings`."""
    checkpoint: Path | None = None
    checkpoint_digest: str = ""
    """For a pair, the digests of its parts, joined."""
    training: Mapping[str, Json] = field(default_factory=dict)
    """Training record of the checkpoint."""
    parts: tuple[ResolvedMethod, ...] = ()
    """Parts of a pair `A+B`; empty for a single method."""

    @cached_property
    def settings(self) -> dict[str, Json]:
        """All settings in use, as JSON values."""
        return json_values(asdict(self.settings_object))

    def build(self, lm: LM) -> Method[Any]:
        """Build the method on a base model."""
        if self.checkpoint is None:
            pair_arguments = [[part.build(lm) for part in self.parts]] if self.parts else []
            method: Method[Any] = self.spec.load()(lm, self.settings_object, *pair_arguments)
            return method
        from ttabench.methods import checkpoints

        method = checkpoints.load(self.spec.load(), lm, self.checkpoint, self.settings_object)
        refuse_changed_files(
            {"checkpoint": digest_path(self.checkpoint)}, {"checkpoint": self.checkpoint_digest}
        )
        return method

    def checkpoint_name(self) -> str:
        """Return the checkpoint's name: its path, or `shipped:NAME` for a bundled adapter."""
        if self.checkpoint is None:
            return PAIR_SEPARATOR.join(
                name for part in self.parts if (name := part.checkpoint_name())
            )
        is_shipped = any(self.checkpoint.is_relative_to(folder) for folder in ADAPTER_FOLDERS)
        return f"{SHIPPED_PREFIX}{self.checkpoint.name}" if is_shipped else str(self.checkpoint)

    def setting_inputs(self) -> dict[str, str]:
        """Return digests of the files, folders and hub models named in settings, by `setting KEY`.

        The digest of a hub model is its cached commit. A model that is not cached yet has none.
        """
        hints = get_type_hints(self.spec.Settings)
        return {
            f"{SETTING_PREFIX}{key}": digest
            for key, value in self.settings.items()
            if value
            and isinstance(value, str)
            and str in (hints[key], *get_args(hints[key]))
            and (digest := _digest_if_exists(value))
        }

    def notes(self) -> list[str]:
        """List the notes on results of this method."""
        if self.parts or not self.spec.trainable or self.checkpoint is not None:
            return [note for part in self.parts for note in part.notes()]
        name = self.spec.name
        return [
            f"{name} has no checkpoint: its modules are untrained, so this does not measure {name}"
        ]

    def state_identity(self, lm: LM) -> dict[str, Json]:
        """Return the identity of a state made by this method on `lm`, see `methods/states`."""
        return {
            "method": self.spec.name,
            "settings": dict(self.settings),
            "model": lm.name,
            "fingerprint": lm.fingerprint,
            "checkpoint": self.checkpoint_digest,
            "start": lm.tokenizer.decode(list(lm.start_ids)),
            "inputs": {**lm.inputs, **self.setting_inputs()},
            **({"origin": self.spec.origin} if self.spec.origin else {}),
        }

    def stored_state(self, folder: Path, lm: LM) -> State:
        """Load a state written by `ttabench adapt`, or by peft if the method supports it."""
        from ttabench.methods.states import load_state

        load_from_peft = getattr(self.spec.load(), "from_peft", None)
        if load_from_peft is not None and is_peft_folder(folder):
            state: State = load_from_peft(lm, self.settings_object, folder)
            return state
        return load_state(
            folder, self.state_identity(lm), str(lm.device), self.spec.deprecated_settings
        )


def _digest_if_exists(value: str) -> str:
    """Return the digest of a path or a cached hub model; "" if neither exists."""
    # OSError: the text is too long for a path. RuntimeError: "~user" is unknown.
    with suppress(OSError, RuntimeError):
        if (path := Path(value).expanduser()).exists():
            return digest_path(path)
    if value.count("/") != 1:
        return ""
    from ttabench.lm.loading.hub import hub_commit

    return hub_commit(value, fetch=False)


def resolve_method(request: RunRequest) -> ResolvedMethod:
    """Resolve the method of a request: spec, preset, settings and checkpoint.

    Settings are merged in this order, later ones win: defaults, preset (or the settings stored in
    the checkpoint), `--keep`, `--set`.
    """
    spec = registry.find_method(request.method)
    preset = resolve_preset(spec, request.preset, request.model)
    typed = parse_settings(spec, request.settings)
    amount = parse_budget(request.keep, request.keep_tokens)
    changes = {**budget_settings(spec, amount, typed), **typed}
    if isinstance(spec, PairSpec):
        owner, parts = _checkpoint_owner(request, spec), split_settings(spec.parts, changes)
    else:
        owner, parts = spec.name, [(spec, changes)]
    resolved = []
    for part, values in parts:
        part_preset = next((name for name in (preset, request.model) if name in part.presets), "")
        checkpoint = request.checkpoint if owner in (part.name, NO_CHECKPOINT) else ""
        folder = _find_checkpoint(request, part, part_preset, checkpoint)
        resolved.append(_resolve_single(part, part_preset, values, folder))
    if not isinstance(spec, PairSpec):
        return resolved[0]
    return ResolvedMethod(
        spec=spec,
        preset=preset,
        settings_object=spec.Settings(
            **join_by_label(spec.labels, [part.settings_object for part in resolved])
        ),
        checkpoint_digest=PAIR_SEPARATOR.join(
            part.checkpoint_digest for part in resolved if part.checkpoint_digest
        ),
        parts=tuple(resolved),
    )


def _checkpoint_owner(request: RunRequest, spec: PairSpec) -> str:
    """Return the part that gets the typed checkpoint; "" or NO_CHECKPOINT if none was typed."""
    if request.checkpoint in ("", NO_CHECKPOINT):
        return request.checkpoint
    folder = checkpoint_path(request.checkpoint, request.base_name)
    owner = read_header(folder).method
    if owner not in [part.name for part in spec.parts if part.trainable]:
        fault = f"{folder} is a checkpoint of {owner}."
        raise UserError(fault, f"Use --method {owner}, or a pair that includes {owner}.")
    return owner


def _resolve_single(
    spec: MethodSpec, preset: str, changes: Mapping[str, Json], checkpoint: Path | None
) -> ResolvedMethod:
    """Resolve a single method, or a part of a pair."""
    if checkpoint is None:
        settings = build_settings(spec, changes, preset)
        return ResolvedMethod(spec=spec, preset=preset, settings_object=settings)
    header = read_header(checkpoint)
    return ResolvedMethod(
        spec=spec,
        preset="",
        settings_object=settings_from_header(header, spec, changes, checkpoint),
        checkpoint=checkpoint,
        checkpoint_digest=digest_path(checkpoint),
        training=header.training,
    )


def bundled_adapters() -> dict[str, str]:
    """Return the reason for choosing each adapter of the project, by BASE/NAME.

    Adapters that are not installed are included, see `find_adapters` for the installed ones.
    """
    return read_json_object(ADAPTERS_FOLDER / "chosen.json")


def find_adapters() -> dict[str, Path]:
    """Return the folders of the installed adapters, by BASE/NAME."""
    folders = [
        path.parent for folder in ADAPTER_FOLDERS for path in folder.glob(f"*/*/{HEADER_FILE}")
    ]
    return dict(sorted((f"{folder.parent.name}/{folder.name}", folder) for folder in folders))


def shipped_checkpoint(method: str, task: str, model: str) -> Path | None:
    """Return the project's checkpoint of a method for a task; None if there is none.

    The adapter named METHOD-TASK is preferred. Otherwise, it is a bundled adapter trained on
    several tasks including this one; of several such adapters, the one with the fewest tasks.

    Raises:
        UserError: the adapter exists in the project but is not installed.
    """
    name = CHECKPOINT_TASK.get(task, task)
    if f"{model}/{method}-{name}" in bundled_adapters():
        return _adapter_folder(f"{model}/{method}-{name}")
    candidates = [
        (len(tasks), folder)
        for adapter, folder in find_adapters().items()
        if adapter.startswith(f"{model}/{method}-")
        and folder.is_relative_to(ADAPTERS_FOLDER)
        and name in (tasks := trained_tasks(read_header(folder).training))
        and len(tasks) > 1
    ]
    return min(candidates, default=(0, None))[1]


def _adapter_folder(adapter: str) -> Path:
    folders = find_adapters()
    if adapter not in folders:
        raise UserError(
            f"The adapter {adapter} is not part of the installed package.",
            f"Download results/adapters/{adapter} from the repository. Use its path as --checkpoint.",
        )
    return folders[adapter]


def _find_checkpoint(
    request: RunRequest, spec: MethodSpec, preset: str, checkpoint: str
) -> Path | None:
    """Return the folder of a typed or bundled checkpoint of a single method; None if it has none."""
    if checkpoint == NO_CHECKPOINT or (not checkpoint and not spec.trainable):
        return None
    if checkpoint:
        if not spec.trainable:
            fault = f"{spec.name} has no trained parameters, so it takes no checkpoint."
            raise UserError(fault, "Remove --checkpoint.")
        if request.preset in spec.presets:
            raise UserError(
                "--checkpoint and --preset exclude each other: a checkpoint has its own settings.",
                "Remove --preset, or use --checkpoint none.",
            )
        return checkpoint_path(checkpoint, request.base_name)
    if spec.origin or request.random_weights or preset not in ("", request.model):
        return None  # bundled adapters fit only built-in methods, with the preset of the model
    return shipped_checkpoint(spec.name, request.task, request.base_name)


def checkpoint_path(checkpoint: str, base: str) -> Path:
    """Return the folder of a checkpoint, given as a path or as `shipped:NAME` for this base model.

    Raises:
        UserError: no adapter has this name, or it is not installed.
    """
    if not checkpoint.startswith(SHIPPED_PREFIX):
        return Path(checkpoint)
    name = checkpoint.removeprefix(SHIPPED_PREFIX)
    known = [
        adapter.removeprefix(f"{base}/")
        for adapter in bundled_adapters()
        if adapter.startswith(f"{base}/")
    ]
    if not known:
        raise UserError(f"There is no bundled adapter for {base}.", "Run `ttabench train`.")
    require_known(f"bundled adapter for {base}", name, known)
    return _adapter_folder(f"{base}/{name}")


@dataclass(frozen=True, kw_only=True)
class ResolvedPrompt:
    """Resolved prompt of a task."""

    card: Card
    chat: bool
    """True if context and query are formatted with the chat template of the model."""
    options: Mapping[str, Json]
    """Task options: those typed by the user, and those of the prompt chosen for the model."""
    template_values: str
    """Values that the chat template gets besides the messages; empty if it is not used."""

    def make_query(self, question: str, key: str, want: Want) -> Query:
        """Build a query from a question with the task's prompt template.

        Raises:
            UserError: the task has no prompt template.
        """
        options = {**self.card.protocol, **self.options}
        if self.card.reader not in READERS_WITH_PROMPTS or "prompt" not in options:
            raise UserError(
                f"The task {self.card.name} has no prompt template for your own questions.",
                "Remove --task.",
            )
        examples = int(str(options.get("examples", 0)))
        prompt = self.card.prompt.fill_template(question, str(options["prompt"]), examples)
        return Query(
            prompt=prompt, question=question, key=key, joiner=self.card.prompt.joiner, want=want
        )

    @property
    def max_answer_tokens(self) -> int:
        """Maximum number of tokens of a generated answer, as set by the task."""
        return int(
            str(self.options.get("max_new_tokens", self.card.protocol.get("max_new_tokens", 16)))
        )


def resolve_prompt(request: RunRequest, card: Card) -> ResolvedPrompt:
    """Resolve the prompt of a request's task for its model.

    Args:
        card: the task's card.

    Raises:
        UserError: `--chat-template` does not apply to the task.
    """
    typed_options = request.task_options
    scores_turns = (
        card.reader == "sessions"
        and typed_options.get("ask", card.protocol.get("ask", "questions")) != "questions"
    )
    if request.chat_template and (scores_turns or card.reader in SCORING_READERS):
        fault = f"{card.name} scores given texts, so it uses no chat template."
        raise UserError(fault, "Remove --chat-template.")
    chat_prompt = _prompt_of_checkpoint(request, card)
    template = find_chat_template(request.model)
    card_prompt = None if request.random_weights else card.prompt.chat
    if chat_prompt is None and card_prompt is not None and (request.chat_template or template):
        chat_prompt = card_prompt
        if request.chat_template and not chat_prompt.turns:
            chat_prompt = ChatPrompt(prompt=chat_prompt.prompt)  # without its examples
    chat = (
        bool(chat_prompt and chat_prompt.turns)
        if request.chat_template is None
        else request.chat_template
    )
    prompt_options = (
        {}
        if chat_prompt is None or "prompt" in typed_options
        else {"prompt": chat_prompt.prompt, "examples": str(chat_prompt.examples)}
    )
    return ResolvedPrompt(
        card=card,
        chat=chat,
        options={**prompt_options, **typed_options},
        template_values=template_values(template, thinking=request.thinking) if chat else "",
    )


def training_prompt(task_options: Mapping[str, Json], chat: bool) -> dict[str, Json]:
    """Return the training prompt for a checkpoint's record, by `TRAINING_PROMPT_KEY`.

    Empty if the task has only one prompt.
    """
    if "prompt" not in task_options:
        return {}
    return {
        TRAINING_PROMPT_KEY: {
            "prompt": task_options["prompt"],
            "examples": task_options["examples"],
            "turns": chat,
        }
    }


def _prompt_of_checkpoint(request: RunRequest, card: Card) -> ChatPrompt | None:
    """Return the prompt that the checkpoint was trained with.

    None without a checkpoint, if it stores no prompt, or if the card lacks that prompt.
    """
    checkpoint = request.base_checkpoint or (request.checkpoint if request.method == "lora" else "")
    if checkpoint in ("", "none"):
        return None
    try:
        folder = checkpoint_path(checkpoint, request.model)
        training_record = read_json_object(folder / HEADER_FILE)["training"]
        chat_prompt = ChatPrompt.model_validate(
            training_record["config"]["data"][TRAINING_PROMPT_KEY]
        )
    except (KeyError, TypeError, ValidationError, UserError):
        return None  # loading the checkpoint reports a missing or damaged header
    return chat_prompt if chat_prompt.prompt in card.prompt.templates else None
