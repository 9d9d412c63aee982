"""StreamAdapter trained on disjoint segments: exact gradients in flat memory, states carried on, judged by swaps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from tests.tiny import tiny_gpt2, tiny_llama
from tests.tiny_methods import teach
from ttabench.core.types import Ask, Episode, Observe, Score
from ttabench.lm.forward.deltas import deltas_applied
from ttabench.lm.forward.window import Window
from ttabench.lm.model import LM
from ttabench.methods.streamadapter import StreamAdapterSettings, segments
from ttabench.methods.streamadapter.method import StreamAdapter, compared, judged
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


def plainly(method: StreamAdapter, h: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Losses and state with the graph of the whole stretch; keys and values are constants, as in `learned`."""
    lm, losses = method.lm, []
    for begin in range(0, ids.shape[1] - 1, SEGMENT):
        part = ids[:, begin : begin + SEGMENT + 1]
        start = torch.tensor([list(lm.bos_ids)] * len(ids), dtype=torch.int64)
        window = Window(lm, None, len(ids))
        with deltas_applied(lm, method.networks.deltas(h), len(ids)):
            hidden = window.feed(torch.cat([start, part[:, :-1]], dim=1))
        logits = lm.logits(hidden[:, start.shape[1] :])
        losses.append(cross_entropy(logits.transpose(1, 2), part[:, 1:], reduction="none"))
        read = window.prefix()
        keys, values = (
            [each.detach()[:, :, start.shape[1] :] for each in pair] for pair in (read.keys_LBHPD, read.values_LBHPD)
        )
        h = method.networks.advanced(h, keys, values, torch.full((len(ids),), SEGMENT // 8))
    return torch.cat(losses, dim=1), h


@pytest.mark.parametrize("count", [1, 2, 5, 6])
def test_rehearsed_stretches_read_every_token_and_half_of_them_twice(count: int) -> None:
    method = taught(tiny_llama(), rehearse=True)
    texts = [book(17 * SEGMENT + 3), book(20 * SEGMENT, 1)]
    rows = [segments.sequence_ids(method.lm, each) for each in texts]
    read: list[list[int]] = [[row[0]] for row in rows]
    for number, parts in enumerate(segments.parts_of(method.networks, texts, count)):
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


@pytest.mark.parametrize("make", [tiny_llama, tiny_gpt2])
def test_gradients_are_those_of_the_whole_graph(make: type) -> None:
    lm = make()
    method = taught(lm)
    ids = torch.tensor([text(4 * SEGMENT + 1), text(4 * SEGMENT + 1, 1)])
    h = torch.randn(method.networks.empty(2)["h"].shape)
    losses, state = plainly(method, h, ids)
    losses.mean().backward()  # type: ignore[no-untyped-call]
    wanted = {name: p.grad.clone() for name, p in method.modules().named_parameters() if p.grad is not None}
    method.modules().zero_grad()
    found, after = segments.learned(method.networks, h, ids, SEGMENT, 1 / losses.numel())
    torch.testing.assert_close(found, losses.detach(), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(after, state.detach(), atol=1e-5, rtol=1e-5)
    grads = {name: p.grad for name, p in method.modules().named_parameters()}
    assert wanted.keys() == grads.keys(), "gates, queries and projections all learn"
    torch.testing.assert_close(grads, wanted, atol=1e-5, rtol=1e-5)
    assert all(float(each.abs().max()) > 1e-6 for each in wanted.values())


def test_the_state_goes_on_from_step_to_step() -> None:
    lm = tiny_llama()
    method = taught(lm)
    first, second = list(method.training_steps([[book(100)]]))[:2]
    method.accumulate_gradients(first)
    carried = method.training_state()["h"]
    told = method.accumulate_gradients(second)
    ids = torch.tensor([second[0].observes()[0].ids])
    loss, after = plainly(method, carried, ids)
    assert told["loss"].item() == pytest.approx(loss.mean().item(), rel=1e-5)
    torch.testing.assert_close(method.training_state()["h"], after.detach())
    method.accumulate_gradients(first)
    torch.testing.assert_close(method.training_state()["h"], carried, msg="a new text begins with an empty state")


def test_rows_learn_as_they_do_alone() -> None:
    lm = tiny_llama()
    both, alone = taught(lm), [taught(lm), taught(lm)]
    (step, *_) = both.training_steps([[book(60), book(60, 1)]])
    loss = both.accumulate_gradients(step)["loss"]
    losses = [one.accumulate_gradients([row])["loss"] for one, row in zip(alone, step, strict=True)]
    assert loss.item() == pytest.approx(sum(each.item() for each in losses) / 2, rel=1e-6)
    for name, p in both.modules().named_parameters():
        each = [dict(one.modules().named_parameters())[name].grad for one in alone]
        torch.testing.assert_close(p.grad, (each[0] + each[1]) / 2, atol=1e-6, rtol=1e-5)


def test_judged_by_the_state_of_another_text() -> None:
    lm = tiny_llama()
    method = taught(lm)
    ids = torch.tensor([text(3 * SEGMENT + 1, seed) for seed in (0, 1)])
    found = judged(method.networks, ids, SEGMENT)
    with torch.no_grad():
        own, _ = plainly(method, method.networks.empty(2)["h"], ids)
        none = segments.base_losses(method.networks, ids, SEGMENT)
        other = own.clone()
        for row in (0, 1):
            _, h = plainly(method, method.networks.empty(1)["h"], ids[1 - row : 2 - row, : SEGMENT + 1])
            other[row, SEGMENT : 2 * SEGMENT] = plainly(method, h, ids[row : row + 1, SEGMENT : 2 * SEGMENT + 1])[0]
    torch.testing.assert_close(found["own"], own, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(found["none"], none, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(found["other"][:, : 2 * SEGMENT], other[:, : 2 * SEGMENT], atol=1e-5, rtol=1e-5)
    assert float((found["other"] - own)[:, SEGMENT:].abs().max()) > 1e-3
    told = compared(found, SEGMENT)
    worse = (found["other"] - own)[:, SEGMENT:]
    assert told["other_less_own"] == pytest.approx(float(worse.mean()), abs=1e-6)
    by_text = worse.mean(1)
    assert told["other_less_own_stderr"] == pytest.approx(float(by_text.std()) / 2**0.5, rel=1e-4)


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


def test_an_interrupted_step_is_not_carried_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What learning left of a step whose update was never made is forgotten."""
    lm = tiny_llama()
    config = TrainConfig(steps=4, lr=1e-2, out=tmp_path / "cut", save_every=10, resume=True)
    whole = train(taught(lm), books(), replace(config, out=tmp_path / "whole"))
    clip, calls = torch.nn.utils.clip_grad_norm_, []

    def cut(*arguments: object) -> Tensor:
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return clip(*arguments)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(torch.nn.utils, "clip_grad_norm_", cut)
        with pytest.raises(KeyboardInterrupt):
            train(taught(lm), books(), config)
    told: list[int] = []
    assert train(taught(lm), books(), config, lambda step, _: told.append(step)).losses == whole.losses
    assert told == [3, 4]
