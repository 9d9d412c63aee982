"""StreamAdapter trained on disjoint segments: every token once, states carried on and resumed, judged by swaps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.tiny import tiny_llama
from tests.tiny_methods import teach
from ttabench.core.types import Ask, Episode, Observe, Score
from ttabench.lm.model import LM
from ttabench.lm.patch import Patch, Prefix
from ttabench.lm.verbs.scoring import token_logprobs
from ttabench.methods.streamadapter import StreamAdapterSettings, segments
from ttabench.methods.streamadapter.method import StreamAdapter
from ttabench.training.loop import TrainConfig, train

SEGMENT = 16
TINY = StreamAdapterSettings(
    queries=4, down=4, chunk=8, window=32, stride=SEGMENT, form="segments", step_segments=3, query_std=1.0
)


def taught(lm: LM, **changes: object) -> StreamAdapter:
    method = StreamAdapter(lm, replace(TINY, **changes))  # type: ignore[arg-type]
    teach(method)
    return method


def text(tokens: int, seed: int = 0) -> tuple[int, ...]:
    source = torch.Generator().manual_seed(seed)
    return tuple(torch.randint(0, 250, (tokens,), generator=source).tolist())


def book(tokens: int, seed: int = 0) -> Episode:
    """A text as the reader of books cuts it: pieces, and queries about what comes next."""
    ids = text(tokens, seed)
    pieces = [Observe(text="", joiner="", ids=ids[begin : begin + 10]) for begin in range(0, tokens - 20, 10)]
    read = sum(len(piece.ids) for piece in pieces)
    want = Score(continuation="", prompt_ids=ids[read : read + 1], ids=ids[read + 1 :])
    asked = Ask(prompt="", key="q", want=want)
    return Episode(key=f"book{seed}", steps=(*pieces, asked))


@pytest.mark.parametrize("count", [1, 2, 5, 6])
def test_rehearsed_stretches_read_every_token_and_half_of_them_twice(count: int) -> None:
    method = taught(tiny_llama(), rehearse=True)
    texts = [book(17 * SEGMENT + 3), book(20 * SEGMENT, 1)]
    rows = [segments.sequence_ids(method.lm, each) for each in texts]
    read: list[list[int]] = [[row[0]] for row in rows]
    for number, parts in enumerate(segments.stretches(method.networks, texts, count)):
        for part, row, so_far in zip(parts, rows, read, strict=True):
            front, *ids = part.observes()[0].ids
            assert front == row[part.start] == so_far[-1]
            times = 2 if number % 2 else 1
            once = ids[: len(ids) // times]
            assert ids == times * once
            assert len(once) % SEGMENT == 0
            assert len(ids) <= max(times, count) * SEGMENT
            so_far += once
    whole = (min(map(len, rows)) - 1) // SEGMENT * SEGMENT
    assert read == [row[: whole + 1] for row in rows]


@torch.no_grad()
def test_a_segment_sees_its_state_alone_and_is_judged_by_that_of_another_text() -> None:
    """State by state through the patch that is used, a text at a time."""
    method = taught(tiny_llama())
    networks, lm, texts = method.networks, method.lm, [book(3 * SEGMENT + 1, seed) for seed in (0, 1)]
    rows = [segments.sequence_ids(lm, each) for each in texts]
    states, losses = [[networks.empty(1)["h"]] for _ in rows], {"own": 0.0, "other": 0.0, "none": 0.0}
    for end in (SEGMENT, 2 * SEGMENT, 3 * SEGMENT):
        parts = [row[end - SEGMENT : end + 1] for row in rows]
        for number, part in enumerate(parts):
            known = {"own": states[number][-1], "other": states[1 - number][end // SEGMENT - 1], "none": None}
            for name, h in known.items():
                patch = Patch() if h is None else Patch(deltas=networks.deltas(h))
                (values,) = token_logprobs(lm, patch, [(part[:1], part[1:])])
                losses[name] -= float(values.sum()) / (4 * SEGMENT) if end > SEGMENT else 0.0
        for number, part in enumerate(parts):
            h = states[number][-1]
            _, seen = segments._segment(networks, h, torch.tensor([part]))
            assert isinstance(seen, Prefix)
            states[number].append(segments._after(networks, h, seen))
    found = segments.judged(networks, texts)
    assert {name: found[name] for name in losses} == pytest.approx(losses, rel=1e-5)
    assert found["other_less_own"] == pytest.approx(losses["other"] - losses["own"], abs=1e-5)
    assert abs(found["other_less_own"]) > 1e-5
    assert found["other_less_own_stderr"] > 0


def test_the_state_goes_on_and_rows_learn_as_they_do_alone() -> None:
    lm = tiny_llama()
    both, alone, whole = taught(lm), [taught(lm), taught(lm)], taught(lm)
    steps = list(both.training_steps([[book(97), book(97, 1)]]))[:2]
    for step in steps:
        loss = both.accumulate_gradients(step)["loss"]
        losses = [one.accumulate_gradients([row])["loss"] for one, row in zip(alone, step, strict=True)]
        assert loss.item() == pytest.approx(sum(each.item() for each in losses) / 2, rel=1e-6)
    for name, p in both.modules().named_parameters():
        each = [dict(one.modules().named_parameters())[name].grad for one in alone]
        assert p.grad is not None, "gates, queries and projections all learn"
        torch.testing.assert_close(p.grad, (each[0] + each[1]) / 2, atol=1e-6, rtol=1e-5)
        assert float(p.grad.abs().max()) > 1e-7
    ids = torch.tensor([text(6 * SEGMENT + 1), text(6 * SEGMENT + 1, 1)])
    _, h = segments.read(whole.networks, whole.networks.empty(2)["h"], ids, 1.0)
    carried = both.training_state()["h"]
    torch.testing.assert_close(carried, h.detach(), atol=1e-5, rtol=1e-5)
    both.accumulate_gradients(steps[0])
    again = both.training_state()["h"]
    both.accumulate_gradients(steps[0])
    assert torch.equal(both.training_state()["h"], again), "a new text begins with an empty state"
    assert not torch.equal(again, carried)


def test_gradients_of_one_segment_at_a_time_are_those_of_the_whole_stretch() -> None:
    lm = tiny_llama()
    apart, whole = taught(lm), taught(lm)
    ids, h = torch.tensor([text(4 * SEGMENT + 1)]), whole.networks.empty(1)["h"]
    losses, _ = segments.read(apart.networks, h, ids, 0.5)
    total = torch.zeros(())
    for end in range(SEGMENT, ids.shape[1], SEGMENT):
        loss, seen = segments._segment(whole.networks, h, ids[:, end - SEGMENT : end + 1])
        total, h = total + 0.5 * loss.sum(), segments._after(whole.networks, h, seen)
    total.backward()  # type: ignore[no-untyped-call]
    assert float(0.5 * losses.sum()) == pytest.approx(total.item(), rel=1e-6)
    for one, other in zip(apart.modules().parameters(), whole.modules().parameters(), strict=True):
        assert one.grad is not None
        torch.testing.assert_close(one.grad, other.grad, atol=1e-6, rtol=1e-4)


def books() -> Iterator[list[Episode]]:
    seed = 0
    while True:
        yield [book(100, seed), book(100, seed + 1)]
        seed += 2


def test_a_resumed_training_carries_its_states_on(tmp_path: Path) -> None:
    """Stopped in the middle of a text, it ends with the weights of one that was never stopped."""
    lm = tiny_llama()
    config = TrainConfig(steps=5, lr=1e-2, out=tmp_path, save_every=1, resume=True, validate_every=2)
    whole, asked = taught(lm, centred=True), [book(100, 8), book(100, 9)]
    expected = train(whole, books(), replace(config, out=tmp_path / "whole"), validation={"v": asked})
    train(taught(lm, centred=True), books(), replace(config, steps=3), validation={"v": asked})
    again = taught(lm, centred=True)
    record = train(again, books(), config, validation={"v": asked})
    assert record.losses == expected.losses
    assert [each["own"] for each in record.validation][-1] == expected.validation[-1]["own"]
    for name, p in whole.modules().named_parameters():
        assert torch.equal(p, dict(again.modules().named_parameters())[name])
    assert "base" not in record.validation[0]
