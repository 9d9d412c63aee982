"""From what a user typed to a resolved method (spec, preset, settings, checkpoint), and to how its task is asked: in
turns of a chat template or not, in which words. No model is loaded here."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from ttabench.core.declared import assignments
from ttabench.core.digests import digest, refuse_changed
from ttabench.core.errors import UnknownName, UserError
from ttabench.core.files import object_of
from ttabench.core.types import Ask, Json, Want
from ttabench.lm.texts import template_of
from ttabench.methods import registry
from ttabench.methods.checkpoints import HEADER, header, is_peft, settings_in, trained_tasks
from ttabench.methods.pair import SIGN, PairSpec, joined
from ttabench.methods.settings import describe_settings, key_of, plain, preset_for, settings_of, typed_settings
from ttabench.methods.spec import MethodSpec
from ttabench.methods.states import SETTING
from ttabench.readers.cards import Card, Manner, load_card
from ttabench.run.budget import asked, budgeted
from ttabench.run.request import NO_CHECKPOINT, OWN_QUESTIONS, SHIPPED, RunRequest

if TYPE_CHECKING:
    from ttabench.lm.model import LM
    from ttabench.lm.patch import State
    from ttabench.methods.base import BaseMethod

ADAPTERS = Path(__file__).parents[1] / "assets" / "adapters"
"""Adapters in the package; `chosen.json` there names all of the project's."""
HOMES = (ADAPTERS, Path(__file__).parents[2] / "results" / "adapters")
"""Folders of BASE/NAME; the second is there in a checkout only."""
TRAINED_FOR = {OWN_QUESTIONS: "streamingqa"}
"""Tasks that take the checkpoints shipped for another one, whose words they ask in."""

OWN_WORDS = ("qa_stream", "sessions")
"""Readers whose tasks ask questions in words of their own."""
SCORED = ("book", "dialogue")
"""Readers that ask for no answer: they score given texts."""
TRAINED_WITH = "asked"
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
        refuse_changed({"checkpoint": digest(self.checkpoint)}, {"checkpoint": self.checkpoint_digest})
        return made

    def checkpoint_name(self) -> str:
        """Where the checkpoint is, for people: its path, or `shipped:NAME` where the package brought it."""
        if self.checkpoint is None:
            return SIGN.join(name for part in self.parts if (name := part.checkpoint_name()))
        shipped = any(self.checkpoint.is_relative_to(home) for home in HOMES)
        return f"{SHIPPED}{self.checkpoint.name}" if shipped else str(self.checkpoint)

    def setting_inputs(self) -> dict[str, str]:
        """Digests of the files, folders and models of the hub that settings name, by `setting KEY`.

        Of a model of the hub it is the commit in the cache; where there is none, nothing is known of it before it is
        read.
        """
        texts = [key for key, kind, _ in describe_settings(self.spec) if "str" in kind.split(" or ")]
        named = {key: str(value) for key in texts if (value := self.settings.get(key))}
        return {f"{SETTING}{key}": found for key, value in named.items() if (found := _named_digest(value))}

    def notes(self) -> list[str]:
        """Caveats of figures of this method."""
        if self.parts or not self.spec.trainable or self.checkpoint is not None:
            return [note for part in self.parts for note in part.notes()]
        name = self.spec.name
        return [f"{name} has no checkpoint here: its modules are untrained, so the result says nothing about {name}"]

    def belongs(self, lm: LM) -> dict[str, Json]:
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

        entering = getattr(self.spec.load(), "from_peft", None)
        if entering is not None and is_peft(folder):
            state: State = entering(lm, self.settings_object, folder)
            return state
        return load_state(folder, self.belongs(lm), str(lm.device), self.spec.retired)


def _named_digest(value: str) -> str:
    """Of what a text names; "" where it names nothing that is there."""
    with suppress(OSError, RuntimeError):  # a text that is too long for a name; a home folder that nobody knows
        if (place := Path(value).expanduser()).exists():
            return digest(place)
    if value.count("/") != 1:
        return ""
    from ttabench.lm.loading.hub import commit_of

    return commit_of(value, fetch=False)


def resolve_method(request: RunRequest) -> ResolvedMethod:
    """Resolve the method of a request: spec, preset, settings, checkpoint.

    Settings come from, later ones winning: the defaults, the preset (or the checkpoint's own settings), `--keep` and
    `--set`.
    """
    spec = registry.find(request.method)
    amount = asked(request.keep, request.keep_tokens)
    if amount is not None:
        request = replace(request, settings=budgeted(spec, amount, request.settings))
    return _together(request, spec) if isinstance(spec, PairSpec) else _alone(request, spec)


def _alone(request: RunRequest, spec: MethodSpec) -> ResolvedMethod:
    changes = typed_settings(spec, request.settings)
    preset = preset_for(spec, request.preset, request.model)
    path = _checkpoint(request, spec)
    if path is None:
        settings = settings_of(spec, changes, preset)
        as_json = plain(asdict(settings))
        return ResolvedMethod(spec=spec, preset=preset, changes=changes, settings=as_json, settings_object=settings)
    stored = header(path)
    return ResolvedMethod(
        spec=spec, preset="", changes=changes, settings=plain({**stored.settings, **changes}),
        settings_object=settings_in(stored, spec, changes, path), checkpoint=path, checkpoint_digest=digest(path),
        training=stored.training,
    )  # fmt: skip


def _together(request: RunRequest, spec: PairSpec) -> ResolvedMethod:
    """Each part with its own settings, and with the checkpoint given if that is of its method."""
    changes, preset = typed_settings(spec, request.settings), preset_for(spec, request.preset, request.model)
    taker = request.checkpoint  # the part whose checkpoint was given; none where nobody is to have one
    if taker not in ("", NO_CHECKPOINT):
        path = named(request.checkpoint, request.base_name)
        taker = header(path).method
        if taker not in [part.name for part in spec.parts if part.trainable]:
            raise UserError(f"{path} is a checkpoint of {taker}.", f"Use --method {taker}, or {taker} with others.")
    words: list[list[str]] = [[] for _ in spec.parts]
    for text in request.settings:
        key, _, value = text.partition("=")
        place, name = spec.owners[key_of(key.strip(), spec.owners)]
        words[place].append(f"{name}={value}")
    parts = []
    for part, own in zip(spec.parts, words, strict=True):
        preset_of_it = request.preset if request.preset in part.presets else ""
        takes = part.trainable and taker in (part.name, NO_CHECKPOINT)
        checkpoint = request.checkpoint if takes else ""
        alone = replace(request, method=part.name, settings=tuple(own), preset=preset_of_it, checkpoint=checkpoint)
        parts.append(_alone(alone, part))
    return ResolvedMethod(
        spec=spec,
        preset=preset,
        changes=changes,
        settings=joined(spec.labels, [part.settings for part in parts]),
        settings_object=spec.Settings(**joined(spec.labels, [part.settings_object for part in parts])),
        checkpoint_digest=SIGN.join(part.checkpoint_digest for part in parts if part.checkpoint_digest),
        parts=tuple(parts),
    )


def chosen() -> dict[str, str]:
    """What each of the project's adapters was chosen on, by BASE/NAME, whether it is here or not."""
    return {name: str(said) for name, said in object_of(ADAPTERS / "chosen.json").items()}


def shipped() -> dict[str, Path]:
    """Folders of the project's adapters that are here, by BASE/NAME."""
    folders = [path.parent for home in HOMES for path in home.glob(f"*/*/{HEADER}")]
    return dict(sorted((f"{folder.parent.name}/{folder.name}", folder) for folder in folders))


def shipped_checkpoint(method: str, task: str, model: str) -> Path | None:
    """The project's own checkpoint of a method for a task.

    It is named by both; an adapter of several tasks that is in the package serves each of them that has none of its
    own, the one of the fewest tasks first.
    """
    name = TRAINED_FOR.get(task, task)
    if f"{model}/{method}-{name}" in chosen():
        return _here(f"{model}/{method}-{name}")
    serving = [
        (len(tasks), folder) for adapter, folder in shipped().items()
        if adapter.startswith(f"{model}/{method}-") and folder.is_relative_to(ADAPTERS)
        and name in (tasks := trained_tasks(header(folder).training)) and len(tasks) > 1
    ]  # fmt: skip
    return min(serving, default=(0, None))[1]


def _here(adapter: str) -> Path:
    folders = shipped()
    if adapter not in folders:
        raise UserError(
            f"The adapter {adapter} is not in the installed package.",
            f"Get results/adapters/{adapter} of the project's repository, and give its path as --checkpoint.",
        )
    return folders[adapter]


def _checkpoint(request: RunRequest, spec: MethodSpec) -> Path | None:
    if request.checkpoint == NO_CHECKPOINT or (not request.checkpoint and not spec.trainable):
        return None
    if request.checkpoint:
        if not spec.trainable:
            fault = f"{request.method} has no trained parameters, so it takes no checkpoint."
            raise UserError(fault, "Leave --checkpoint out.")
        if request.preset:
            raise UserError("A checkpoint brings its own settings.", "Leave --preset out, or give --checkpoint none.")
        return named(request.checkpoint, request.base_name)
    if spec.origin or request.random_weights or request.preset not in ("", request.model):
        return None  # what the project ships belongs to its own methods, and brings its own settings
    return shipped_checkpoint(spec.name, request.task, request.base_name)


def named(checkpoint: str, base: str) -> Path:
    """The folder of a checkpoint: a path, or the project's own of that name for this base model."""
    if not checkpoint.startswith(SHIPPED):
        return Path(checkpoint)
    name = checkpoint.removeprefix(SHIPPED)
    known = [each.removeprefix(f"{base}/") for each in chosen() if each.startswith(f"{base}/")]
    if not known:
        raise UserError(f"No adapter is shipped for {base}.", "Train one with `ttabench train`.")
    if name not in known:
        raise UnknownName(f"adapter shipped for {base}", name, known)
    return _here(f"{base}/{name}")


@dataclass(frozen=True, kw_only=True)
class Prompting:
    """How a task is asked."""

    card: Card
    chat: bool
    """Context and question stand in the model's chat template."""
    options: Mapping[str, str]
    """Of the task: those that were typed, and those of the prompt that follow from the model."""

    def query(self, question: str, key: str, want: Want) -> Ask:
        """A question in the words of the task, as the model is asked it."""
        options = {**self.card.protocol, **self.options}
        if self.card.reader not in OWN_WORDS or "prompt" not in options:
            raise UserError(f"The task {self.card.name} has no prompt for questions of your own.", "Leave --task out.")
        examples = int(str(options.get("examples", 0)))
        prompt = self.card.prompt.asked(question, str(options["prompt"]), examples)
        return Ask(prompt=prompt, question=question, key=key, joiner=self.card.prompt.joiner, want=want)

    @property
    def length(self) -> int:
        """Most tokens of a written answer, as the card says."""
        return int(str(self.options.get("max_new_tokens", self.card.protocol.get("max_new_tokens", 16))))


def resolve_prompting(request: RunRequest, card: Card | None = None) -> Prompting:
    """How the task of a request is asked of its model; `card`: the task's, where it was read already."""
    card, typed = card or load_card(request.task), assignments(request.task_options, "--task-set")
    turns = card.reader == "sessions" and typed.get("ask", card.protocol.get("ask", "questions")) != "questions"
    if request.chat_template and (turns or card.reader in SCORED):
        fault = f"{card.name} scores given texts and asks nothing, so it needs no chat template."
        raise UserError(fault, "Leave --chat-template out.")
    usual = _trained(request, card)
    own = None if request.random_weights else card.prompt.chat
    if usual is None and own is not None and (request.chat_template or template_of(request.model)):
        usual = own
        if request.chat_template and not usual.turns:  # turns that were asked for: no examples
            usual = Manner(prompt=usual.prompt)
    chat = bool(usual and usual.turns) if request.chat_template is None else request.chat_template
    words = {} if usual is None or "prompt" in typed else {"prompt": usual.prompt, "examples": str(usual.examples)}
    return Prompting(card=card, chat=chat, options={**words, **typed})


def trained_with(task_options: Mapping[str, Json], chat: bool) -> dict[str, Json]:
    """The prompt that a checkpoint was trained with, see `TRAINED_WITH`; empty where its task has one way only."""
    if "prompt" not in task_options:
        return {}
    return {TRAINED_WITH: {"prompt": task_options["prompt"], "examples": task_options["examples"], "turns": chat}}


def _trained(request: RunRequest, card: Card) -> Manner | None:
    """How the tuned weights were asked in training, if these are words that the card knows."""
    checkpoint = request.base_checkpoint or (request.checkpoint if request.method == "lora" else "")
    if checkpoint in ("", "none"):
        return None
    try:
        training = object_of(named(checkpoint, request.model) / HEADER)["training"]
        manner = Manner.model_validate(training["config"]["data"][TRAINED_WITH])
    except (KeyError, TypeError, ValidationError, UserError):
        return None  # no such record, or no checkpoint: whoever loads it says so
    return manner if manner.prompt in card.prompt.templates else None
