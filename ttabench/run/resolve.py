"""From what a user typed to a resolved method (spec, preset, settings, checkpoint), and to how its task is asked: in
turns of a chat template or not, in which words. No model is loaded here."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from ttabench.core.declared import parse_assignments
from ttabench.core.digests import digest_path, refuse_changed_files
from ttabench.core.errors import UnknownName, UserError
from ttabench.core.files import read_json_object
from ttabench.core.types import Json, Query, Want
from ttabench.lm.texts import find_chat_template
from ttabench.methods import registry
from ttabench.methods.checkpoints import (
    HEADER_FILE,
    is_peft_folder,
    read_header,
    settings_from_header,
    trained_tasks,
)
from ttabench.methods.pair import PAIR_SEPARATOR, PairSpec, join_by_label
from ttabench.methods.settings import (
    build_settings,
    describe_settings,
    json_values,
    parse_settings,
    resolve_key,
    resolve_preset,
)
from ttabench.methods.spec import MethodSpec
from ttabench.methods.states import SETTING_PREFIX
from ttabench.readers.cards import Card, ChatPrompt, load_card
from ttabench.run.budget import apply_budget, parse_budget
from ttabench.run.request import NO_CHECKPOINT, OWN_QUESTIONS_TASK, SHIPPED_PREFIX, RunRequest

if TYPE_CHECKING:
    from ttabench.lm.model import LM
    from ttabench.lm.patch import State
    from ttabench.methods.base import BaseMethod

ADAPTERS_FOLDER = Path(__file__).parents[1] / "assets" / "adapters"
"""Adapters in the package; `chosen.json` there names all of the project's."""
ADAPTER_FOLDERS = (ADAPTERS_FOLDER, Path(__file__).parents[2] / "results" / "adapters")
"""Folders of BASE/NAME; the second is there in a checkout only."""
CHECKPOINT_TASK = {OWN_QUESTIONS_TASK: "streamingqa"}
"""Tasks that take the checkpoints shipped for another one, whose words they ask in."""

READERS_WITH_PROMPTS = ("qa_stream", "sessions")
"""Readers whose tasks ask questions in words of their own."""
SCORING_READERS = ("book", "dialogue")
"""Readers that ask for no answer: they score given texts."""
TRAINING_PROMPT_KEY = "asked"
"""Where a checkpoint's record of its training says how it was asked."""


@dataclass(frozen=True, kw_only=True)
class ResolvedMethod:
    """A resolved method: its spec, settings and checkpoint, before a model is loaded."""

    spec: MethodSpec
    preset: str
    changes: Mapping[str, Json]
    settings: Mapping[str, Json]
    """All settings in use, as records keep them."""
    settings_object: Any
    """The same as an instance of `spec.Settings`."""
    checkpoint: Path | None = None
    checkpoint_digest: str = ""
    training: Mapping[str, Json] = field(default_factory=dict)
    """The training record of the checkpoint."""
    parts: tuple[ResolvedMethod, ...] = ()
    """Of `A+B`, the methods that read together."""

    def build(self, lm: LM) -> BaseMethod[Any]:
        """The method on a base model."""
        if self.checkpoint is None:
            parts = [[part.build(lm) for part in self.parts]] if self.parts else []
            made: BaseMethod[Any] = self.spec.load()(lm, self.settings_object, *parts)
            return made
        from ttabench.methods import checkpoints

        made = checkpoints.load(self.spec.load(), lm, self.checkpoint, self.changes)
        refuse_changed_files(
            {"checkpoint": digest_path(self.checkpoint)}, {"checkpoint": self.checkpoint_digest}
        )
        return made

    def checkpoint_name(self) -> str:
        """Where the checkpoint is, for people: its path, or `shipped:NAME` where the package brought it."""
        if self.checkpoint is None:
            return PAIR_SEPARATOR.join(
                name for part in self.parts if (name := part.checkpoint_name())
            )
        is_shipped = any(self.checkpoint.is_relative_to(folder) for folder in ADAPTER_FOLDERS)
        return f"{SHIPPED_PREFIX}{self.checkpoint.name}" if is_shipped else str(self.checkpoint)

    def setting_inputs(self) -> dict[str, str]:
        """Digests of the files, folders and models of the hub that settings name, by `setting KEY`.

        Of a model of the hub it is the commit in the cache; where there is none, nothing is known of it before it is
        read.
        """
        texts = [
            key for key, kind, _ in describe_settings(self.spec) if "str" in kind.split(" or ")
        ]
        texts_by_setting = {key: str(value) for key in texts if (value := self.settings.get(key))}
        return {
            f"{SETTING_PREFIX}{key}": found
            for key, value in texts_by_setting.items()
            if (found := _digest_if_exists(value))
        }

    def notes(self) -> list[str]:
        """Caveats of figures of this method."""
        if self.parts or not self.spec.trainable or self.checkpoint is not None:
            return [note for part in self.parts for note in part.notes()]
        name = self.spec.name
        return [
            f"{name} has no checkpoint here: its modules are untrained, so the result says nothing about {name}"
        ]

    def state_identity(self, lm: LM) -> dict[str, Json]:
        """Identity of a state made by this method on this base model, see `methods/states`."""
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
        """The state of one reader, as `ttabench adapt` wrote it, or as peft has it where the method reads that."""
        from ttabench.methods.states import load_state

        load_from_peft = getattr(self.spec.load(), "from_peft", None)
        if load_from_peft is not None and is_peft_folder(folder):
            state: State = load_from_peft(lm, self.settings_object, folder)
            return state
        return load_state(
            folder, self.state_identity(lm), str(lm.device), self.spec.deprecated_settings
        )


def _digest_if_exists(value: str) -> str:
    """Of what a text names; "" where it names nothing that is there."""
    with suppress(
        OSError, RuntimeError
    ):  # a text that is too long for a name; a home folder that nobody knows
        if (place := Path(value).expanduser()).exists():
            return digest_path(place)
    if value.count("/") != 1:
        return ""
    from ttabench.lm.loading.hub import hub_commit

    return hub_commit(value, fetch=False)


def resolve_method(request: RunRequest) -> ResolvedMethod:
    """Resolve the method of a request: spec, preset, settings, checkpoint.

    Settings come from, later ones winning: the defaults, the preset (or the checkpoint's own settings), `--keep` and
    `--set`.
    """
    spec = registry.find_method(request.method)
    amount = parse_budget(request.keep, request.keep_tokens)
    if amount is not None:
        request = replace(request, settings=apply_budget(spec, amount, request.settings))
    return (
        _resolve_pair(request, spec)
        if isinstance(spec, PairSpec)
        else _resolve_single(request, spec)
    )


def _resolve_single(request: RunRequest, spec: MethodSpec) -> ResolvedMethod:
    changes = parse_settings(spec, request.settings)
    preset = resolve_preset(spec, request.preset, request.model)
    path = _resolve_checkpoint(request, spec)
    if path is None:
        settings = build_settings(spec, changes, preset)
        as_json = json_values(asdict(settings))
        return ResolvedMethod(
            spec=spec, preset=preset, changes=changes, settings=as_json, settings_object=settings
        )
    stored = read_header(path)
    return ResolvedMethod(
        spec=spec,
        preset="",
        changes=changes,
        settings=json_values({**stored.settings, **changes}),
        settings_object=settings_from_header(stored, spec, changes, path),
        checkpoint=path,
        checkpoint_digest=digest_path(path),
        training=stored.training,
    )


def _resolve_pair(request: RunRequest, spec: PairSpec) -> ResolvedMethod:
    """Each part with its own settings, and with the checkpoint given if that is of its method."""
    changes, preset = (
        parse_settings(spec, request.settings),
        resolve_preset(spec, request.preset, request.model),
    )
    checkpoint_owner = (
        request.checkpoint
    )  # the part whose checkpoint was given; none where nobody is to have one
    if checkpoint_owner not in ("", NO_CHECKPOINT):
        path = checkpoint_path(request.checkpoint, request.base_name)
        checkpoint_owner = read_header(path).method
        if checkpoint_owner not in [part.name for part in spec.parts if part.trainable]:
            raise UserError(
                f"{path} is a checkpoint of {checkpoint_owner}.",
                f"Use --method {checkpoint_owner}, or {checkpoint_owner} with others.",
            )
    settings_by_part: list[list[str]] = [[] for _ in spec.parts]
    for text in request.settings:
        key, _, value = text.partition("=")
        place, name = spec.setting_owners[resolve_key(key.strip(), spec.setting_owners)]
        settings_by_part[place].append(f"{name}={value}")
    parts = []
    for part, part_settings in zip(spec.parts, settings_by_part, strict=True):
        part_preset = request.preset if request.preset in part.presets else ""
        takes_checkpoint = part.trainable and checkpoint_owner in (part.name, NO_CHECKPOINT)
        checkpoint = request.checkpoint if takes_checkpoint else ""
        part_request = replace(
            request,
            method=part.name,
            settings=tuple(part_settings),
            preset=part_preset,
            checkpoint=checkpoint,
        )
        parts.append(_resolve_single(part_request, part))
    return ResolvedMethod(
        spec=spec,
        preset=preset,
        changes=changes,
        settings=join_by_label(spec.labels, [part.settings for part in parts]),
        settings_object=spec.Settings(
            **join_by_label(spec.labels, [part.settings_object for part in parts])
        ),
        checkpoint_digest=PAIR_SEPARATOR.join(
            part.checkpoint_digest for part in parts if part.checkpoint_digest
        ),
        parts=tuple(parts),
    )


def bundled_adapters() -> dict[str, str]:
    """What each of the project's adapters was chosen on, by BASE/NAME, whether it is here or not."""
    return {
        name: str(reason)
        for name, reason in read_json_object(ADAPTERS_FOLDER / "chosen.json").items()
    }


def find_adapters() -> dict[str, Path]:
    """Folders of the project's adapters that are here, by BASE/NAME."""
    folders = [
        path.parent for folder in ADAPTER_FOLDERS for path in folder.glob(f"*/*/{HEADER_FILE}")
    ]
    return dict(sorted((f"{folder.parent.name}/{folder.name}", folder) for folder in folders))


def shipped_checkpoint(method: str, task: str, model: str) -> Path | None:
    """The project's own checkpoint of a method for a task.

    It is named by both; an adapter of several tasks that is in the package serves each of them that has none of its
    own, the one of the fewest tasks first.
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
            f"The adapter {adapter} is not in the installed package.",
            f"Get results/adapters/{adapter} of the project's repository, and give its path as --checkpoint.",
        )
    return folders[adapter]


def _resolve_checkpoint(request: RunRequest, spec: MethodSpec) -> Path | None:
    if request.checkpoint == NO_CHECKPOINT or (not request.checkpoint and not spec.trainable):
        return None
    if request.checkpoint:
        if not spec.trainable:
            fault = f"{request.method} has no trained parameters, so it takes no checkpoint."
            raise UserError(fault, "Leave --checkpoint out.")
        if request.preset:
            raise UserError(
                "A checkpoint brings its own settings.",
                "Leave --preset out, or give --checkpoint none.",
            )
        return checkpoint_path(request.checkpoint, request.base_name)
    if spec.origin or request.random_weights or request.preset not in ("", request.model):
        return (
            None  # what the project ships belongs to its own methods, and brings its own settings
        )
    return shipped_checkpoint(spec.name, request.task, request.base_name)


def checkpoint_path(checkpoint: str, base: str) -> Path:
    """The folder of a checkpoint: a path, or the project's own of that name for this base model."""
    if not checkpoint.startswith(SHIPPED_PREFIX):
        return Path(checkpoint)
    name = checkpoint.removeprefix(SHIPPED_PREFIX)
    known = [
        each.removeprefix(f"{base}/") for each in bundled_adapters() if each.startswith(f"{base}/")
    ]
    if not known:
        raise UserError(f"No adapter is shipped for {base}.", "Train one with `ttabench train`.")
    if name not in known:
        raise UnknownName(f"adapter shipped for {base}", name, known)
    return _adapter_folder(f"{base}/{name}")


@dataclass(frozen=True, kw_only=True)
class ResolvedPrompt:
    """How a task is asked."""

    card: Card
    chat: bool
    """Context and question stand in the model's chat template."""
    options: Mapping[str, str]
    """Of the task: those that were typed, and those of the prompt that follow from the model."""

    def make_query(self, question: str, key: str, want: Want) -> Query:
        """A question in the words of the task, as the model is asked it."""
        options = {**self.card.protocol, **self.options}
        if self.card.reader not in READERS_WITH_PROMPTS or "prompt" not in options:
            raise UserError(
                f"The task {self.card.name} has no prompt for questions of your own.",
                "Leave --task out.",
            )
        examples = int(str(options.get("examples", 0)))
        prompt = self.card.prompt.fill_template(question, str(options["prompt"]), examples)
        return Query(
            prompt=prompt, question=question, key=key, joiner=self.card.prompt.joiner, want=want
        )

    @property
    def max_answer_tokens(self) -> int:
        """Most tokens of a written answer, as the card says."""
        return int(
            str(self.options.get("max_new_tokens", self.card.protocol.get("max_new_tokens", 16)))
        )


def resolve_prompt(request: RunRequest, card: Card | None = None) -> ResolvedPrompt:
    """How the task of a request is asked of its model; `card`: the task's, where it was read already."""
    card, typed = (
        card or load_card(request.task),
        parse_assignments(request.task_options, "--task-set"),
    )
    turns = (
        card.reader == "sessions"
        and typed.get("ask", card.protocol.get("ask", "questions")) != "questions"
    )
    if request.chat_template and (turns or card.reader in SCORING_READERS):
        fault = f"{card.name} scores given texts and asks nothing, so it needs no chat template."
        raise UserError(fault, "Leave --chat-template out.")
    manner_in_use = _prompt_of_checkpoint(request, card)
    chat_manner = None if request.random_weights else card.prompt.chat
    if (
        manner_in_use is None
        and chat_manner is not None
        and (request.chat_template or find_chat_template(request.model))
    ):
        manner_in_use = chat_manner
        if (
            request.chat_template and not manner_in_use.turns
        ):  # turns that were asked for: no examples
            manner_in_use = ChatPrompt(prompt=manner_in_use.prompt)
    chat = (
        bool(manner_in_use and manner_in_use.turns)
        if request.chat_template is None
        else request.chat_template
    )
    prompt_options = (
        {}
        if manner_in_use is None or "prompt" in typed
        else {"prompt": manner_in_use.prompt, "examples": str(manner_in_use.examples)}
    )
    return ResolvedPrompt(card=card, chat=chat, options={**prompt_options, **typed})


def training_prompt(task_options: Mapping[str, Json], chat: bool) -> dict[str, Json]:
    """The prompt that a checkpoint was trained with, see `TRAINING_PROMPT_KEY`; empty where its task has one way only."""
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
    """How the tuned weights were asked in training, if these are words that the card knows."""
    checkpoint = request.base_checkpoint or (request.checkpoint if request.method == "lora" else "")
    if checkpoint in ("", "none"):
        return None
    try:
        training = read_json_object(checkpoint_path(checkpoint, request.model) / HEADER_FILE)[
            "training"
        ]
        manner = ChatPrompt.model_validate(training["config"]["data"][TRAINING_PROMPT_KEY])
    except (KeyError, TypeError, ValidationError, UserError):
        return None  # no such record, or no checkpoint: whoever loads it says so
    return manner if manner.prompt in card.prompt.templates else None
