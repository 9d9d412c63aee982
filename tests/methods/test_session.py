"""A session: what is read together, what is made once, and that the way it is called changes nothing."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import ttabench
from tests.places import ROOT
from tests.tiny import tiny_llama
from tests.tiny_methods import PROMPTS, TEXTS, make_chunks, make_queries
from ttabench.core.errors import UserError
from ttabench.core.types import Chunk, Query
from ttabench.cost import NoSettings
from ttabench.lm.model import LM
from ttabench.lm.patch import Patch, State
from ttabench.methods.base import Method
from ttabench.methods.session import MAX_CHUNKS_PER_ADAPT, Session
from ttabench.methods.spec import MethodSpec


class Spy(Method[NoSettings]):
    """Notes how it is called."""

    spec = MethodSpec(name="spy")

    def __init__(self, lm: LM) -> None:
        super().__init__(lm, NoSettings())
        self.calls: list[tuple[str, int]] = []

    def adapt(self, state: State, pieces: Sequence[Sequence[Chunk]]) -> State:
        self.calls.append(("adapt", len(pieces)))
        return State(state.rows, {"read": state.tensors.get("read", torch.zeros(1)) + len(pieces)})

    def patch(self, state: State, asks: Sequence[Query]) -> Patch:  # noqa: ARG002  # the contract's
        self.calls.append(("patch", len(asks)))
        return Patch()


@pytest.fixture
def spy() -> Spy:
    return Spy(tiny_llama())


@pytest.mark.parametrize(
    ("granularity", "calls"),
    [
        ("chunk", [MAX_CHUNKS_PER_ADAPT, 300 - MAX_CHUNKS_PER_ADAPT]),
        ("segment", [300]),
        ("full", [300]),
    ],
)
def test_what_stands_between_two_questions_is_read_together_as_the_method_reports(
    spy: Spy, granularity: Any, calls: list[int]
) -> None:
    spy.granularity = granularity
    session = Session(spy.lm, spy)
    for text in range(300):
        session.read(make_chunks(str(text)))
    assert not spy.calls, "nothing is adapted to before something is asked"
    session.patch(make_queries("Who?"))
    assert spy.calls == [*(("adapt", count) for count in calls), ("patch", 1)]


def test_a_patch_that_no_question_changes_is_made_once(spy: Spy) -> None:
    session, questions = Session(spy.lm, spy), make_queries(*PROMPTS)
    session.read(make_chunks(*TEXTS))
    assert session.patch(questions) is session.patch(questions[1:])
    assert spy.calls == [("adapt", 4), ("patch", 1)]
    behind = [replace(question, window=tuple(make_chunks("In front."))) for question in questions]
    assert session.patch(behind) is not session.patch(questions), (
        "what stands in the window is part of it"
    )
    session.read(make_chunks("More."))
    session.patch(questions)
    assert spy.calls[-2:] == [("adapt", 1), ("patch", 1)]


def test_a_session_by_names_reads_asks_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The lines of the README; what they print stands behind them."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    code = "".join(re.findall(r"```python\n(.*?)```", readme, re.S))
    assert len(code.splitlines()) <= 10
    expected = re.findall(r"print\(.*\)  # (.*)", code)
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "README.md", "exec"), {"__name__": "__main__"})
    assert capsys.readouterr().out.split() == expected
    assert expected


def test_a_session_by_names_is_the_one_of_the_command_line(tmp_path: Path) -> None:
    named = ttabench.Session("nano", "mac")
    assert isinstance(named, Session)
    assert named.method.name == "mac"
    assert named.method.spec.trainable
    with pytest.raises(UserError, match="Unknown method"):
        ttabench.Session("nano", "mca")
    named.save(tmp_path)
    with pytest.raises(UserError, match="method"):
        ttabench.Session("nano", "icl", state=tmp_path)
