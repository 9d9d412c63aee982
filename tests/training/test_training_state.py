"""A training killed at any write goes on to the same weights; another training, a full disk and a second process are
refused in one line."""

from __future__ import annotations

import errno
import json
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.tiny import tiny_llama
from tests.tiny_methods import make_episode, tiny_method, trainable_methods
from ttabench.core import files
from ttabench.core.errors import UserError
from ttabench.core.files import INDEX_FILE
from ttabench.core.types import Episode
from ttabench.lm.loading import safetensors_io
from ttabench.lm.model import LM
from ttabench.methods import checkpoints
from ttabench.methods.base import Method
from ttabench.training import training_state
from ttabench.training.config import TrainConfig
from ttabench.training.loop import MAX_UNSAVED_SECONDS, train


@pytest.fixture(scope="module")
def lm() -> LM:
    return tiny_llama()


def episodes() -> Iterator[list[Episode]]:
    index = 0
    while True:
        yield [make_episode(f"{index:03d}", documents=1)]
        index += 1


def method(lm: LM) -> Method[Any]:
    return tiny_method("lora", lm)


def weights(trained: Method[Any]) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in trained.modules().named_parameters()}


CONFIG = TrainConfig(
    steps=4,
    lr=1e-2,
    save_every=2,
    validate_every=2,
    resume=True,
    out=Path("never"),
    data={"digest": "a"},
)


class Killed(BaseException):
    """Nobody catches it, as nobody catches a kill."""


WRITES = (
    (safetensors_io, "save_file"),
    (files, "move_path"),
    (files, "remove_path"),
    (files, "remove_partial_files"),
    (Path, "write_bytes"),
    (Path, "replace"),
)


def killing(monkeypatch: pytest.MonkeyPatch, at: int) -> list[str]:
    """Kill after the `at`-th write from now on; returns the names of the writes so far."""
    seen: list[str] = []

    def wrapped(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            seen.append(name)
            number, result = len(seen), original(*arguments, **named)
            if number == at:
                raise Killed
            return result

        return call

    for where, name in WRITES:
        monkeypatch.setattr(where, name, wrapped(name, getattr(where, name)))
    return seen


@pytest.fixture(scope="module")
def whole(
    lm: LM, tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[str, Tensor], list[float], int]:
    """Weights and losses of a training that nothing stopped, and how many writes it took."""
    out, trained = tmp_path_factory.mktemp("whole"), method(lm)
    with pytest.MonkeyPatch.context() as patch:
        seen = killing(patch, 0)
        record = train(
            trained, episodes(), replace(CONFIG, out=out), validation={"v": [make_episode("v")]}
        )
    return weights(trained), record.losses, len(seen)


def test_a_kill_after_any_write_leads_to_the_same_weights(
    lm: LM, whole: tuple[dict[str, Tensor], list[float], int], tmp_path: Path
) -> None:
    expected, losses, writes = whole
    assert writes > 20
    for at in range(1, writes + 1):
        out = tmp_path / f"{at}"
        config = replace(CONFIG, out=out)
        with pytest.MonkeyPatch.context() as patch:
            killing(patch, at)
            with pytest.raises(Killed):
                train(method(lm), episodes(), config, validation={"v": [make_episode("v")]})
        again = method(lm)
        record = train(again, episodes(), config, validation={"v": [make_episode("v")]})
        assert record.losses == losses, f"killed at write {at}"
        assert [each["step"] for each in record.validation] == [2, 4]
        found = weights(again)
        assert all(torch.equal(found[name], each) for name, each in expected.items()), (
            f"killed at write {at}"
        )
        stored = weights(checkpoints.load(type(again), lm, out))
        assert all(torch.equal(stored[name], each) for name, each in expected.items())
        steps = [
            json.loads(line)["step"] for line in (out / "curve.jsonl").read_text().splitlines()
        ]
        assert steps == [1, 2, 2, 3, 4, 4]


@pytest.mark.parametrize("name", trainable_methods())
def test_a_training_interrupted_between_saves_goes_on_to_the_same_weights(
    lm: LM, tmp_path: Path, name: str
) -> None:
    config = replace(CONFIG, steps=3, save_every=100, validate_every=0, lr=1e-3)
    whole, stopped, again = (tiny_method(name, lm) for _ in range(3))
    train(whole, episodes(), replace(config, out=tmp_path / "whole"))

    def interrupt(step: int, _parts: object) -> None:
        if step == 2:
            os.kill(os.getpid(), signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    config = replace(config, out=tmp_path / "two")
    with pytest.raises(KeyboardInterrupt):
        train(stopped, episodes(), config, interrupt)
    signal.signal(signal.SIGINT, before)
    steps = list[int]()
    train(again, episodes(), config, lambda step, _: steps.append(step))
    assert steps == [3]
    found = weights(again)
    assert all(torch.equal(found[name], each) for name, each in weights(whole).items())


def test_a_second_signal_acts_at_once(lm: LM, tmp_path: Path) -> None:
    def interrupt(step: int, _parts: object) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        raise AssertionError(f"step {step} goes on")

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    with pytest.raises(KeyboardInterrupt):
        train(method(lm), episodes(), replace(CONFIG, out=tmp_path), interrupt)
    signal.signal(signal.SIGINT, before)
    assert not (tmp_path / training_state.SAVE).exists()


@pytest.mark.parametrize(("save_every", "expected"), [(100, [2, 4]), (0, [4])])
def test_a_training_is_saved_by_the_clock(
    lm: LM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, save_every: int, expected: list[int]
) -> None:
    saved, keep, now = list[int](), training_state.save_state, 0.0

    def noted(*given: Any) -> None:
        saved.append(given[3].steps)
        keep(*given)

    def later(_step: int, _parts: object) -> None:
        nonlocal now
        now += MAX_UNSAVED_SECONDS * 0.6

    monkeypatch.setattr(training_state, "save_state", noted)
    monkeypatch.setattr("ttabench.training.loop.time.monotonic", lambda: now)
    config = replace(CONFIG, steps=4, save_every=save_every, out=tmp_path)
    train(method(lm), episodes(), config, later)
    assert saved == expected


def test_the_best_step_is_kept(lm: LM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = type(method(lm))

    def grown(self: Any, episodes: Any) -> dict[str, float]:
        return {"loss": float(sum(each.abs().sum() for each in weights(self).values()))}

    monkeypatch.setattr(kind, "validate", grown)
    two, best, judged = method(lm), method(lm), {"v": [make_episode("v")], "w": [make_episode("w")]}
    train(two, episodes(), replace(CONFIG, steps=2, out=None, resume=False))
    record = train(best, episodes(), replace(CONFIG, best=True, out=tmp_path), validation=judged)
    assert (record.steps, record.best()) == (4, 2)
    for found in (weights(best), weights(checkpoints.load(kind, lm, tmp_path))):
        assert all(torch.equal(found[name], each) for name, each in weights(two).items())


def test_without_validations_no_step_is_the_best(lm: LM, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--best"):
        train(method(lm), episodes(), replace(CONFIG, out=tmp_path, best=True))
    with pytest.raises(ValueError, match="best needs validate_every"):
        replace(CONFIG, best=True, validate_every=0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lr": 1e-3}, r"lr \(recipe\): 0\.01, not 0\.001"),
        ({"data": {"digest": "b"}}, r"digest \(data\): a, not b"),
        ({"stands_on": {"name": "qa"}}, r"stands_on \(base\): {}, not {'name': 'qa'}"),
    ],
)
def test_another_training_is_refused(
    lm: LM, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    config = replace(CONFIG, steps=2, out=tmp_path)
    train(method(lm), episodes(), config)
    with pytest.raises(UserError, match=message) as refused:
        train(method(lm), episodes(), replace(config, steps=4, **changes))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("where", "failing", "good"), [(safetensors_io, "save_file", 2), (files, "move_path", 7)]
)
def test_a_full_disk_is_one_line_and_the_last_save_stays(
    lm: LM,
    whole: tuple[dict[str, Tensor], list[float], int],
    tmp_path: Path,
    where: Any,
    failing: str,
    good: int,
) -> None:
    config, calls = replace(CONFIG, out=tmp_path, save_every=1), 0
    original = getattr(where, failing)

    def full(*arguments: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > good:
            raise OSError(errno.ENOSPC, "No space left on device")
        return original(*arguments, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(where, failing, full)
        with pytest.raises(UserError, match="No space left on device") as refused:
            train(method(lm), episodes(), config)
    assert "\n" not in str(refused.value)
    assert (tmp_path / training_state.SAVE).exists()
    assert not list(tmp_path.rglob("*.part"))
    again = method(lm)
    assert train(again, episodes(), config).losses == whole[1]


def test_validation_changes_nothing(lm: LM, tmp_path: Path) -> None:
    plain, judged = method(lm), method(lm)
    first = train(plain, episodes(), replace(CONFIG, out=tmp_path / "a", validate_every=0))
    second = train(
        judged,
        episodes(),
        replace(CONFIG, out=tmp_path / "b", validate_every=1),
        None,
        validation={"v": [make_episode("v")]},
    )
    assert first.losses == second.losses
    assert len(second.validation) == 4
    assert second.validation[0]["loss"] != second.validation[-1]["loss"]
    assert all(torch.equal(each, weights(judged)[name]) for name, each in weights(plain).items())


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(folder)): file.read_bytes()
        for file in folder.rglob("*")
        if file.is_file()
    }


@pytest.mark.parametrize("resume", [True, False], ids=["plain", "force"])
@pytest.mark.parametrize("name", ["adapter.json", INDEX_FILE])
def test_what_somebody_else_wrote_is_never_replaced(
    lm: LM, tmp_path: Path, name: str, resume: bool
) -> None:
    (tmp_path / name).write_text('{"step": 1}')
    told: list[int] = []
    config = replace(CONFIG, out=tmp_path, resume=resume)
    with pytest.raises(UserError, match=name) as refused:
        train(method(lm), episodes(), config, lambda step, _: told.append(step))
    assert "--out" in refused.value.hint
    assert not told
    assert contents(tmp_path).items() - {(".lock", b"")} == {(name, b'{"step": 1}')}
