"""Whose state answers: the text's own, another's, none. Every method, what stays in the window, the command line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests import fake_kvpress
from tests.conftest import Command
from tests.run.test_runner import FakeTask, run
from tests.tiny import tiny_llama
from tests.tiny_methods import PROMPTS, TEXTS, make_chunks, tiny_method
from ttabench.core.types import Answer, Episode, Generate, Query, Score, StreamPosition
from ttabench.lm.model import LM
from ttabench.lm.patch import Dense, LowRank, Patch
from ttabench.methods.base import Method
from ttabench.methods.eviction.window import WindowSettings
from ttabench.methods.eviction.window.method import SlidingWindow
from ttabench.methods.registry import find_method, methods
from ttabench.readers.tokens import Tokens
from ttabench.records.folder import RunFolder
from ttabench.records.samples import EpisodeCost
from ttabench.run.runner import RunContext, replace_state

PRESS = "kvpress:LastPress"
OTHERS = (
    "It is a harbour in the north.",
    "There are terns and one lighthouse.",
    "Nobody came by on Monday.",
    "Old ropes lie on the quay....",
)


@pytest.fixture(scope="module")
def lm() -> LM:
    return tiny_llama()


@pytest.fixture(params=[*methods(), "window stride", PRESS])
def method(request: pytest.FixtureRequest, lm: LM, monkeypatch: pytest.MonkeyPatch) -> Method[Any]:
    if request.param == PRESS:
        fake_kvpress.installed(monkeypatch)
        spec = find_method(PRESS)
        made: Method[Any] = spec.load()(lm, spec.Settings(budget=12))
        return made
    if request.param == "window stride":
        return SlidingWindow(lm, WindowSettings(mode="stride", n_sink=0, recent=12))
    return tiny_method(request.param, lm)


def scored(key: str, step: int = 0) -> Query:
    return Query(
        prompt=PROMPTS[0], key=key, want=Score(continuation=" Port Ansel"), at=StreamPosition(step)
    )


def once(texts: tuple[str, ...]) -> Episode:
    """Everything is read, then two queries are asked."""
    written = Query(prompt=PROMPTS[1], key="b", want=Generate(answers=("x",)))
    return Episode(key="e", steps=(*make_chunks(*texts), scored("a"), written))


class WithOthers(FakeTask):
    """Episodes and what stands in for their observations."""

    def __init__(self, *pairs: tuple[Episode, Episode]) -> None:
        super().__init__(*(own for own, _ in pairs))
        self._others = tuple(other for _, other in pairs)

    def swapped_episodes(self, tokens: Tokens | None = None) -> Iterator[Episode]:
        assert tokens is not None
        yield from self._others


def ran(method: Method[Any], task: FakeTask, where: Path, state_of: str = "own") -> RunFolder:
    folder = RunFolder(where, state_of)
    run(RunContext(lm=method.lm, method=method, metrics=(), state_of=state_of), task, folder)
    return folder


def answers(folder: RunFolder) -> dict[str, Answer]:
    return {sample.key: sample.answer for sample in folder.samples}


def without_times(cost: EpisodeCost) -> tuple[object, ...]:
    return cost.pieces, cost.tokens_read, cost.truncated


def tensors_of(patch: Patch) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    if patch.prefix is not None:
        found += [*patch.prefix.keys_LBHPD, *patch.prefix.values_LBHPD]
    for delta in patch.deltas.values():
        assert isinstance(delta, LowRank | Dense)
        found += [delta.a_BRI, delta.b_BOR] if isinstance(delta, LowRank) else [delta.delta]
    return found


def test_nothing_of_an_own_text_is_left_under_another_state_or_none(
    method: Method[Any], tmp_path: Path
) -> None:
    """Where a method keeps no text in the window, other answers as the other text does, and none as no text does."""
    if method.unswapped_tensors:
        pytest.skip("keeps the own text in the window; see the next test")
    task = WithOthers((once(TEXTS), once(OTHERS)))
    plain = {
        name: ran(method, FakeTask(once(texts)), tmp_path / name)
        for name, texts in (("own", TEXTS), ("other", OTHERS), ("none", ()))
    }
    for state_of, expected in plain.items():
        found = ran(method, task, tmp_path / "swapped", state_of)
        assert answers(found) == answers(expected), state_of
        assert found.costs[0].state_bytes == expected.costs[0].state_bytes, (
            "of the state that answers"
        )
        assert without_times(found.costs[0]) == without_times(plain["own"].costs[0]), (
            "the own reading is what counts"
        )
    closed_book = ran(tiny_method("none", method.lm), FakeTask(once(TEXTS)), tmp_path / "closed")
    assert answers(plain["none"]) == answers(closed_book)
    assert plain["none"].costs[0].state_bytes == 0
    assert (answers(plain["own"]) != answers(plain["other"])) == (method.growth != "none")


def test_text_in_the_window_stays_and_everything_else_goes(method: Method[Any]) -> None:
    own, other = (
        method.adapt(method.begin(1), [[piece] for piece in make_chunks(*texts)])
        for texts in (TEXTS, OTHERS)
    )
    before, asks = method.patch(own, [scored("a")]), [scored("a")]
    swapped, emptied = (
        method.patch(replace_state(method, own, state), asks) for state in (other, method.begin(1))
    )
    expected = tensors_of(method.patch(other, asks))
    assert all(
        torch.equal(one, two) for one, two in zip(tensors_of(swapped), expected, strict=True)
    )
    if not method.unswapped_tensors:
        return
    assert before.tokens_BT is not None
    assert before.tokens_BT.numel() > 0
    for patch in (swapped, emptied):
        assert patch.tokens_BT is not None
        assert patch.tokens_BT.tolist() == before.tokens_BT.tolist()
    assert not tensors_of(emptied)
    assert bool(expected) == (method.name != "window"), (
        "all that a plain window knows stands in the window"
    )


def test_swap_state_answers_three_times_and_compares(ttabench: Command, tmp_path: Path) -> None:
    words = [
        "--method",
        "icl",
        "--task",
        "streamingqa",
        "--task-set",
        "documents=8",
        "--task-set",
        "questions=1",
        "--out",
        tmp_path,
    ]
    plain = ttabench("eval", *words, "--json").json()["runs"][0]
    found = ttabench("eval", *words, "--swap-state", "--json").json()
    own, other, none = found["runs"]
    assert (own["id"], own["how"]) == (plain["id"], "stored"), (
        "the own state's run is the plain run"
    )
    assert [run["config"]["state_of"] for run in (own, other, none)] == ["own", "other", "none"]
    assert any("swapped state" in note for note in other["notes"])
    assert any("empty state" in note for note in none["notes"])
    assert other["cost"]["pieces"] == own["cost"]["pieces"]
    apart = {(each["left"], each["right"]): each for each in found["differences"]}
    assert apart["icl", "icl (swapped state)"]["value"] > 0.5
    assert apart["icl", "icl (empty state)"]["n"] == own["n"] == 8
    memory = ttabench("compare", "--out", words[words.index("--out") + 1], "--json").json()[
        "memory"
    ]
    assert [row["memory"] for row in memory] == ["yes"]
    plans = ttabench("eval", *words, "--swap-state", "--dry-run", "--json").json()["runs"]
    assert [each["id"] for each in plans] == [own["id"], other["id"], none["id"]]
