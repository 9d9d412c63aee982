"""How a task is asked of a model where the user leaves it open."""

import json
from pathlib import Path
from typing import Any

import pytest

from ttabench.run.request import RunRequest
from ttabench.run.resolve import resolve_prompting, trained_with

CARD = {"prompt": "qa", "examples": "1"}


def asked(model: Path, *options: str, chat: bool | None = None, base_checkpoint: str = "", **more: Any) -> Any:
    said = {"method": "icl", "task": "squad_seq", **more}
    found = resolve_prompting(
        RunRequest(model=str(model), task_options=options, chat_template=chat, base_checkpoint=base_checkpoint, **said)
    )
    return found.chat, dict(found.options)


@pytest.fixture
def chatting(tmp_path: Path) -> Path:
    """A folder of a model with a chat template; nothing else of it is looked at."""
    (tmp_path / "chat_template.jinja").write_text("{{ messages }}", encoding="utf-8")
    return tmp_path


def test_the_card_says_how_models_with_a_chat_template_are_asked(chatting: Path) -> None:
    assert asked(chatting) == (False, CARD)
    assert asked(chatting, "documents=4") == (False, {**CARD, "documents": "4"})
    assert asked(chatting, "examples=3") == (False, {**CARD, "examples": "3"})
    assert asked(chatting, "prompt=short") == (False, {"prompt": "short"}), "a prompt that is named stands alone"


def test_turns_on_request(chatting: Path) -> None:
    assert asked(chatting, chat=True) == (True, {"prompt": "qa", "examples": "0"})
    assert asked(chatting, chat=False) == (False, CARD)


def test_a_model_without_a_template_is_asked_as_the_protocol_says(tmp_path: Path) -> None:
    assert asked(tmp_path) == (False, {})
    assert asked(tmp_path, task="superglue") == (False, {})


def test_tuned_weights_without_a_template_are_asked_as_they_were_trained(tmp_path: Path) -> None:
    under = checkpoint(tmp_path / "lora", trained_with({"prompt": "qa", "examples": 0}, chat=False))
    assert asked(tmp_path, base_checkpoint=under) == (False, {"prompt": "qa", "examples": "0"})


def checkpoint(folder: Path, data: Any) -> str:
    folder.mkdir()
    (folder / "adapter.json").write_text(json.dumps({"training": {"config": {"data": data}}}), encoding="utf-8")
    return str(folder)


def test_a_checkpoint_under_the_model_is_asked_as_it_was_trained(chatting: Path) -> None:
    told = trained_with({"prompt": "instruction", "examples": 0, "documents": 4}, chat=True)
    under = checkpoint(chatting / "lora", told)
    assert asked(chatting, base_checkpoint=under) == (True, {"prompt": "instruction", "examples": "0"})
    assert asked(chatting, base_checkpoint=under, chat=False) == (False, {"prompt": "instruction", "examples": "0"})
    assert asked(chatting, "prompt=bare", base_checkpoint=under) == (True, {"prompt": "bare"})
    assert asked(chatting, method="lora", checkpoint=under) == asked(chatting, base_checkpoint=under)
    assert asked(chatting, method="mac", checkpoint=under) == (False, CARD)
    assert asked(chatting, base_checkpoint=under, task="superglue") == (False, {})
