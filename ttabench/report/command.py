"""The command that gives a stored run again, from its record; no model is loaded, no data are read.

command_of(record)     ttabench eval --method mac --task streamingqa --set hierarchy=16 --seed 1

It names what a plain command would resolve otherwise, and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from shlex import join
from typing import Any

from ttabench.core.architectures import NANO
from ttabench.core.declared import declared
from ttabench.core.errors import UserError
from ttabench.core.identity import changed
from ttabench.core.sizes import tokens_in
from ttabench.core.typed import as_typed
from ttabench.core.types import Json
from ttabench.readers.cards import load_card
from ttabench.records.run_fields import RunFields
from ttabench.records.schema import RunRecord
from ttabench.report.configuration import whole
from ttabench.run.config import RunConfig
from ttabench.run.plan import OURS
from ttabench.run.prompting import resolve_prompting
from ttabench.run.request import STANDING, RunRequest
from ttabench.run.resolve import NO_CHECKPOINT, resolve_method

BASE = ("model", "base_checkpoint", "random_weights")
"""Options that name the base model."""


def command_of(record: RunRecord) -> tuple[str, tuple[str, ...]]:
    """(command, what is to be known before it is run).

    What cannot be resolved here (a method or a checkpoint that is gone) is written as the record has it.
    """
    config, notes = whole(record.config), list[str]()
    words = ["ttabench", "eval", "--method", config.method, "--task", config.task, *_base(config)]
    if config.source != ("mini" if config.model == NANO else "hub"):
        words += ["--source", config.source]
    words += [*_method(config, notes), *_options(config, notes)]
    if origin := config.inputs.get(f"metric {record.main_metric}"):
        words += ["--metric", record.main_metric]
        if origin != OURS:
            file = f"--metric ./FILE.py:{record.main_metric}"
            notes.append(f"the metric is of {origin}: name its file, {file}, where it is no installed package")
    for name, field in declared(RunFields).items():
        words += field.words(getattr(config, name)) if name not in BASE else []
    words += ["--state", config.state] if config.state else []
    words += ["--seed", str(config.seed)] if config.seed else []
    if config.state_of != "own":
        words.append("--swap-state")
        notes.append(f"--swap-state makes three runs: this is the one that answers under state: {config.state_of}")
    return join(words), tuple(notes)


def _base(config: RunConfig) -> list[str]:
    standing = next((n for n, base in STANDING.items() if base == (config.model, config.base_checkpoint)), "")
    words = ["--model", standing or config.model] if (standing or config.model) != NANO else []
    if config.base_checkpoint and not standing:
        words += ["--base-checkpoint", config.base_checkpoint]
    return words + (["--random-weights"] if config.random_weights else [])


def _request(config: RunConfig) -> RunRequest:
    """Options that were typed, without those that follow from them."""
    return RunRequest(
        method=config.method, task=config.task, model=config.model, source=config.source,
        base_checkpoint=config.base_checkpoint, random_weights=config.random_weights, keep=config.keep,
        keep_tokens=config.keep_tokens,
    )  # fmt: skip


def _method(config: RunConfig, notes: list[str]) -> list[str]:
    """Checkpoint, preset and settings, as far as they do not follow from the rest."""
    request, words = _request(config), list[str]()
    if origin := config.inputs.get("method"):
        notes.append(f"the method is of {origin}: name its file, --method ./FILE.py, where it is no installed package")
    try:
        plain = resolve_method(request)
        trainable = plain.spec.trainable
        if trainable and plain.checkpoint_name() != config.checkpoint:
            words += ["--checkpoint", config.checkpoint or NO_CHECKPOINT]
            plain = resolve_method(replace(request, checkpoint=config.checkpoint or NO_CHECKPOINT))
        if config.preset and plain.preset != config.preset and not config.checkpoint:
            none = NO_CHECKPOINT if trainable else ""
            plain = resolve_method(replace(request, checkpoint=none, preset=config.preset))
            words += ["--preset", config.preset]
        settings = plain.settings
    except UserError:
        settings = config.defaults.get("settings", {})
        if config.checkpoint:
            words = ["--checkpoint", config.checkpoint]
            notes.append(f"checkpoint {config.checkpoint} is not here")
    return words + _assigned("--set", changed(config.settings, settings))


def _options(config: RunConfig, notes: list[str]) -> list[str]:
    """Options of the task that are not what its card says, and whether it is asked in a chat template."""
    words: list[str] = []
    given: Mapping[str, Any] = config.task_options
    try:
        card, asked = load_card(config.task), resolve_prompting(_request(config))
    except UserError:
        notes.append(f"there is no card of {config.task} here")
        return _assigned("--task-set", given)
    if asked.chat != config.chat_template:
        words.append("--chat-template" if config.chat_template else "--no-chat-template")
        asked = resolve_prompting(replace(_request(config), chat_template=config.chat_template))
    twin = card.twin if config.source == "mini" else None
    plain = {**config.defaults.get("task_options", {}), **card.protocol}
    plain |= {**twin.arguments, **twin.protocol} if twin else {}
    if given.get("paper_quirks") and not plain.get("paper_quirks"):
        words += _assigned("--task-set", {"paper_quirks": True})
        plain |= {**card.quirks, "paper_quirks": True}
    plain |= asked.options
    typed = {key: value for key, value in given.items() if key not in plain or not _alike(value, plain[key])}
    return words + _assigned("--task-set", typed)


def _alike(one: Json, other: Json) -> bool:
    """As options of a task are typed: `16k` in a card is 16,384 in a record."""
    sizes = [[tokens_in(part) for part in as_typed(value).split(",")] for value in (one, other)]
    return as_typed(one) == as_typed(other) or (sizes[0] == sizes[1] and None not in sizes[0])


def _assigned(flag: str, values: Mapping[str, Json]) -> list[str]:
    return [word for key, value in values.items() for word in (flag, f"{key}={as_typed(value)}")]
