"""How a task is asked where the user leaves it open; what a state says about how it was made makes its method again."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from ttabench.core.declared import parse_assignments
from ttabench.core.errors import UserError
from ttabench.lm.loading import devices
from ttabench.methods.states import HEADER_FILE, STATE_SCHEMA_VERSION, header_digest
from ttabench.readers.cards import load_card
from ttabench.run.plan import make_plan
from ttabench.run.prompts import resolve_prompt, training_prompt
from ttabench.run.request import (
    QUERY_FIELDS,
    REQUEST_KEY,
    RunRequest,
    inherit_from_state,
    request_from_header,
    state_header,
)

CARD = {"prompt": "qa", "examples": "1"}


def asked(
    model: Path, *options: str, chat: bool | None = None, base_checkpoint: str = "", **more: Any
) -> Any:
    said = {"method": "icl", "task": "squad_seq", **more}
    request = RunRequest(
        model=str(model),
        task_options=parse_assignments(options),
        chat_template=chat,
        base_checkpoint=base_checkpoint,
        **said,
    )
    found = resolve_prompt(request, load_card(request.task))
    return found.chat, dict(found.options)


@pytest.fixture
def chatting(tmp_path: Path) -> Path:
    """A folder of a model with a chat template; nothing else of it is looked at."""
    (tmp_path / "chat_template.jinja").write_text("{{ messages }}", encoding="utf-8")
    return tmp_path


def test_the_card_reports_how_models_with_a_chat_template_are_asked(chatting: Path) -> None:
    assert asked(chatting) == (False, CARD)
    assert asked(chatting, "documents=4") == (False, {**CARD, "documents": "4"})
    assert asked(chatting, "examples=3") == (False, {**CARD, "examples": "3"})
    assert asked(chatting, "prompt=short") == (False, {"prompt": "short"}), (
        "a prompt that is named stands alone"
    )


def checkpoint(folder: Path, data: Any) -> str:
    folder.mkdir()
    (folder / "adapter.json").write_text(
        json.dumps({"training": {"config": {"data": data}}}), encoding="utf-8"
    )
    return str(folder)


def test_a_checkpoint_under_the_model_is_asked_as_it_was_trained(chatting: Path) -> None:
    told = training_prompt({"prompt": "instruction", "examples": 0, "documents": 4}, chat=True)
    under = checkpoint(chatting / "lora", told)
    assert asked(chatting, base_checkpoint=under) == (
        True,
        {"prompt": "instruction", "examples": "0"},
    )
    assert asked(chatting, base_checkpoint=under, chat=False) == (
        False,
        {"prompt": "instruction", "examples": "0"},
    )
    assert asked(chatting, "prompt=bare", base_checkpoint=under) == (True, {"prompt": "bare"})
    assert asked(chatting, method="lora", checkpoint=under) == asked(
        chatting, base_checkpoint=under
    )
    assert asked(chatting, method="mac", checkpoint=under) == (False, CARD)
    assert asked(chatting, base_checkpoint=under, task="superglue") == (False, {})


STATE = Path("mine")


def test_a_request_comes_back_as_it_was_resolved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my-mac").mkdir()
    Path("nano").mkdir()
    request = RunRequest(
        method="mac",
        task="squad_seq",
        model="smollm2-135m-qa",
        checkpoint="my-mac",
        settings={"hierarchy": 2},
        bos="no",
    )
    found = request_from_header({REQUEST_KEY: state_header(request, chat=True)}, STATE)
    assert found.base_name == request.base_name == "smollm2-135m-qa"
    assert (found.method, found.task, found.settings, found.bos) == (
        "mac",
        "squad_seq",
        {"hierarchy": 2},
        "no",
    )
    assert found.chat_template is True
    assert found.checkpoint == str(tmp_path / "my-mac"), "asked from any folder"
    assert state_header(RunRequest(method="icl", task="qa"), chat=False)["model"] == "nano", (
        "a name, whatever lies here"
    )
    own = state_header(RunRequest(method="./tail.py:Tail", task="./card.yaml"), chat=False)
    assert (own["method"], own["task"]) == ("./tail.py:Tail", "./card.yaml"), (
        "what is not there stays as it was typed"
    )
    Path("tail.py").touch()
    assert (
        state_header(RunRequest(method="./tail.py:Tail", task="qa"), chat=False)["method"]
        == f"{tmp_path}/tail.py:Tail"
    )


def test_a_method_in_a_file_is_named_by_the_user() -> None:
    header = {
        REQUEST_KEY: state_header(RunRequest(method="./theirs.py:Tail", task="qa"), chat=False)
    }
    assert request_from_header(header, STATE, "./mine.py").method == "./mine.py", (
        "what was typed, not what is said"
    )
    for typed in ("", "icl"):
        with pytest.raises(UserError, match=r"names the file \./theirs\.py:Tail"):
            request_from_header(header, STATE, typed)
    plain = {REQUEST_KEY: state_header(RunRequest(method="icl", task="qa"), chat=False)}
    with pytest.raises(UserError, match=r"made with method icl, not \./mine\.py"):
        request_from_header(plain, STATE, "./mine.py")


def test_what_goes_on_from_a_state_is_as_the_state_was_made(tmp_path: Path) -> None:
    own = RunRequest(
        method="mac", task="squad_seq", model="smollm2-135m-qa", settings={"hierarchy": 2}, bos="no"
    )
    content = {
        "schema_version": STATE_SCHEMA_VERSION,
        "rows": 1,
        "meta": {},
        "files": {},
        REQUEST_KEY: state_header(own, chat=True),
    }
    (tmp_path / HEADER_FILE).write_text(json.dumps({**content, "digest": header_digest(content)}))
    plain = RunRequest(method="icl", task="streamingqa", device="cpu")
    made = inherit_from_state(plain, tmp_path, ())
    assert (made.method, made.task, made.base_name) == ("mac", "squad_seq", "smollm2-135m-qa")
    assert (made.settings, made.bos, made.chat_template, made.device) == (
        {"hierarchy": 2},
        "no",
        True,
        "cpu",
    )
    asking = inherit_from_state(plain, tmp_path, (), except_fields=QUERY_FIELDS)
    assert (asking.method, asking.task, asking.chat_template) == ("mac", "streamingqa", None)
    other = inherit_from_state(
        replace(plain, settings={"heads": 2}), tmp_path, {"settings", "model"}
    )
    assert (other.method, other.settings, other.base_name) == ("mac", {"heads": 2}, "nano"), (
        "what is typed stays"
    )
    with pytest.raises(UserError, match="made with method mac, not icl"):
        inherit_from_state(plain, tmp_path, {"method"})


@pytest.mark.parametrize("fast", ["float32", "bfloat16"])
def test_the_fastest_number_format_is_tried_and_recorded(
    fast: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    times = {"float32": 2.0, "bfloat16": 2.0} | {fast: 1.0}
    monkeypatch.setattr(devices, "time_dtypes", lambda: times)
    devices.fastest_dtype.cache_clear()
    request = RunRequest(method="none", task="streamingqa", device="cpu", dtype="fastest")
    plans = [make_plan(replace(request, dtype=dtype), 0) for dtype in ("fastest", fast)]
    assert devices.find_dtype("fastest", torch.device("cpu")) == devices.DTYPES[fast]
    devices.fastest_dtype.cache_clear()
    assert [plan.config.dtype for plan in plans] == [plan.request.dtype for plan in plans]
    assert plans[0].config.identity() == plans[1].config.identity()
    assert fast in caplog.text
