"""The loop: what a method is shown, what is stored, and that a stop loses nothing and changes nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.tiny import tiny_llama
from tests.tiny_methods import PROMPTS, TEXTS, make_chunks, make_queries, tiny_method
from ttabench.core.errors import UserError
from ttabench.core.types import Chunk, Episode, Generate, Query, StreamPosition
from ttabench.cost import NoSettings
from ttabench.lm.model import LM
from ttabench.lm.patch import Patch, State
from ttabench.methods.base import Method
from ttabench.methods.icl import InContextSettings
from ttabench.methods.icl.method import InContext
from ttabench.methods.registry import find_method, methods
from ttabench.methods.spec import MethodSpec
from ttabench.methods.states import load_state, save_state
from ttabench.readers.tokens import Tokens
from ttabench.records.folder import RunFolder
from ttabench.run.runner import RunContext, run_episodes
from ttabench.stats.metrics import metric

METRICS = (metric("em"), metric("f1"))


@pytest.fixture(scope="module")
def lm() -> LM:
    return tiny_llama()


def ask(number: int, step: int = 0, **changes: Any) -> Query:
    want = Generate(answers=("here",), max_new_tokens=4)
    return Query(
        **{
            "prompt": f"Where is {'x' * number}?",
            "key": f"q{number}",
            "want": want,
            "at": StreamPosition(step),
            **changes,
        }
    )


class FakeTask:
    """Episodes without a card."""

    def __init__(self, *episodes: Episode) -> None:
        self._episodes = episodes
        self.n_chunks = sum(len(episode.chunks()) for episode in episodes)
        self.n_queries = sum(len(episode.queries()) for episode in episodes)

    def episodes(self, tokens: Tokens | None = None) -> Iterator[Episode]:
        assert tokens is None or len(tokens.encode("abc")) == 3
        yield from self._episodes


def stream(name: str = "e", asks: int = 7) -> Episode:
    pieces = [Chunk(text=f"Fact {i}.", key=f"d{i}") for i in range(3)]
    return Episode(key=name, steps=(*pieces, *(ask(i, 3) for i in range(asks))))


class Spy(Method[NoSettings]):
    """Notes how it is called; remembers how many pieces it read."""

    spec = MethodSpec(name="spy")

    def __init__(self, lm: LM, looks: bool) -> None:
        super().__init__(lm, NoSettings())
        self.query_aware = looks
        self.calls: list[tuple[str, int]] = []

    def adapt(self, state: State, chunks: Sequence[Sequence[Chunk]]) -> State:
        self.calls.append(("adapt", len(chunks)))
        read = state.meta["tokens_read"][0] + len(chunks)
        return State(1, {"memory": torch.zeros(read)}, {"tokens_read": [read]})

    def patch(self, state: State, asks: Sequence[Query]) -> Patch:
        assert state.rows == 1
        self.calls.append(("patch", len(asks)))
        return Patch()


def run(context: RunContext, task: Any, folder: RunFolder) -> list[tuple[str, int, int]]:
    ticks: list[tuple[str, int, int]] = []
    run_episodes(context, task, folder, lambda what, done, total: ticks.append((what, done, total)))
    return ticks


def test_a_method_that_looks_at_questions_gets_them_in_batches(lm: LM, tmp_path: Path) -> None:
    method = Spy(lm, looks=True)
    run(
        RunContext(lm=lm, method=method, metrics=METRICS, batch_size=3),
        FakeTask(stream()),
        RunFolder(tmp_path, "r"),
    )
    assert method.calls == [("adapt", 3), ("patch", 3), ("patch", 3), ("patch", 1)]


def test_steps_are_taken_in_order(lm: LM, tmp_path: Path) -> None:
    pieces = [Chunk(text=f"Fact {i}.") for i in range(3)]
    episode = Episode(key="e", steps=(pieces[0], ask(1, 1), pieces[1], pieces[2], ask(2, 3)))
    method, folder = Spy(lm, looks=False), RunFolder(tmp_path, "r")
    ticks = run(RunContext(lm=lm, method=method, metrics=METRICS), FakeTask(episode), folder)
    assert method.calls == [("adapt", 1), ("patch", 1), ("adapt", 2), ("patch", 1)]
    assert [(sample.key, sample.step, sample.context_tokens) for sample in folder.samples] == [
        ("q1", 1, 1),
        ("q2", 3, 3),
    ]
    assert ticks[0] == ("read", 1, 3)
    assert ticks[-1] == ("answered", 2, 2)
    (cost,) = folder.costs
    assert cost.pieces == 3
    assert cost.state_bytes == 12
    assert cost.adapt_seconds > 0
    assert cost.ask_peak_bytes > 2**20


def icl(lm: LM) -> InContext:
    return InContext(lm, InContextSettings())


def answers(folder: RunFolder) -> dict[str, tuple[str, dict[str, float]]]:
    return {sample.key: (sample.answer.prediction, sample.metrics) for sample in folder.samples}


def test_a_run_out_of_memory_goes_on_with_smaller_batches(
    lm: LM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ttabench.methods import session

    whole = RunFolder(tmp_path, "whole")
    run(RunContext(lm=lm, method=icl(lm), metrics=METRICS), FakeTask(stream()), whole)
    answer, sizes = session.answer_queries, []

    def narrow(lm: LM, patch: Patch, asks: list[Query]) -> object:
        sizes.append(len(asks))
        if len(asks) > 1:
            raise RuntimeError("CUDA out of memory")
        return answer(lm, patch, asks)

    monkeypatch.setattr(session, "answer_queries", narrow)
    halved = RunFolder(tmp_path, "halved")
    run(
        RunContext(lm=lm, method=icl(lm), metrics=METRICS, batch_size=4), FakeTask(stream()), halved
    )
    assert max(sizes) > 1
    assert answers(halved) == answers(whole)


SEVERAL = [name for name in methods() if not find_method(name).query_aware]


@pytest.mark.parametrize("name", SEVERAL)
def test_contexts_read_together_are_answered_as_alone(lm: LM, tmp_path: Path, name: str) -> None:
    """Of unequal lengths, one of another shape among them, one half done before."""
    pieces = make_chunks(*TEXTS * 2)
    episodes = [
        Episode(
            key=f"e{number}",
            steps=(
                *pieces[number : number + count],
                *make_queries(*PROMPTS),
                *pieces[:1],
                *make_queries("And?"),
            ),
        )
        for number, count in enumerate((2, 2, 3, 2, 2))
    ]
    method = tiny_method(name, lm)
    if method.granularity == "full":
        episodes = [Episode(key=episode.key, steps=episode.steps[:-2]) for episode in episodes]
    alone, together = RunFolder(tmp_path, "alone"), RunFolder(tmp_path, "together")
    run(RunContext(lm=lm, method=method, metrics=METRICS), FakeTask(*episodes), alone)
    together.append([sample for sample in alone.samples if sample.episode == "e1"][:1])
    together.resume()
    together.samples.clear()
    calls, adapt = list[int](), method.adapt
    method.adapt = lambda state, chunks: (calls.append(state.rows), adapt(state, chunks))[1]  # type: ignore[method-assign]
    run(
        RunContext(lm=lm, method=method, metrics=METRICS, batch_contexts=3),
        FakeTask(*episodes),
        together,
    )
    assert set(calls) == ({1} if not method.supports_batching else {2, 1})
    ours, theirs = (
        {(sample.episode, sample.key): sample for sample in folder.samples}
        for folder in (together, alone)
    )
    assert ours.keys() == theirs.keys()
    for key, sample in ours.items():
        same = theirs[key]
        assert sample.answer.prediction == same.answer.prediction, key
        assert sample.answer.logprobs == pytest.approx(same.answer.logprobs, abs=1e-3)
        assert (sample.context_tokens, sample.read_slots) == (same.context_tokens, same.read_slots)
    for cost, same_cost in zip(together.costs, alone.costs, strict=True):
        assert (cost.episode, cost.pieces, cost.tokens_read) == (
            same_cost.episode,
            same_cost.pieces,
            same_cost.tokens_read,
        )
        assert cost.state_bytes >= same_cost.state_bytes


def test_a_given_state_and_no_context(lm: LM, tmp_path: Path) -> None:
    method = icl(lm)
    state = method.adapt(method.begin(1), [[Chunk(text=f"Fact {i}.")] for i in range(3)])
    belongs = {
        "method": "icl",
        "fingerprint": lm.fingerprint,
        "settings": {},
        "checkpoint": "",
        "model": lm.name,
    }
    loaded = load_state(save_state(tmp_path / "state", state, belongs), belongs)
    with_state, read = RunFolder(tmp_path, "a"), RunFolder(tmp_path, "b")
    run(
        RunContext(lm=lm, method=method, metrics=METRICS, start=loaded, ask_only=True),
        FakeTask(stream()),
        with_state,
    )
    run(RunContext(lm=lm, method=method, metrics=METRICS), FakeTask(stream()), read)
    assert answers(with_state) == answers(read)
    assert with_state.costs[0].pieces == 0
    assert with_state.costs[0].state_bytes == read.costs[0].state_bytes
    with pytest.raises(UserError, match="another base model"):
        load_state(tmp_path / "state", belongs | {"fingerprint": "other"})
    (tmp_path / "state" / "state.safetensors").write_bytes(b"damaged")
    with pytest.raises(UserError, match="cannot be read"):
        load_state(tmp_path / "state", belongs)
