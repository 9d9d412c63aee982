"""`--keep` and `--keep-tokens`: one budget for every method that has one, and how much of it was kept."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Command, error_line
from tests.tiny import tiny_llama
from ttabench.core.errors import UserError
from ttabench.core.types import Chunk, Generate, Query
from ttabench.lm.model import LM
from ttabench.methods.registry import methods
from ttabench.methods.session import Session
from ttabench.records.samples import EpisodeCost
from ttabench.report.selection import load_run
from ttabench.run.budget import kept_share
from ttabench.run.plan import make_plan
from ttabench.run.request import RunRequest
from ttabench.run.resolve import resolve_method

BESIDE = {
    "index",
    "scores",
    "next",
    "mask",
    "real",
    "tokens",
    "lengths",
    "texts",
    "texts_sizes",
    "words",
    "words_sizes",
    "counts",
    "bias",
}
"""Tensors of a state beside its keys and values: where slots stood, how many, scores, where the text goes on; ids and
words."""
TEXTS = [f"Document {number}: " + "the lamp stands by the door, " * 3 for number in range(4)]
ASK = Query(key="q", prompt="Where is it?", want=Generate(answers=("here",), max_new_tokens=2))
"""Settings of a method that keep more than the budget where there is none."""


def request(method: str, **more: Any) -> RunRequest:
    return RunRequest(method=method, task="streamingqa", **more)


@pytest.fixture(scope="module")
def lm() -> LM:
    return tiny_llama()


def session(lm: LM, method: str, **budget: Any) -> Session:
    """A method under a budget that has read all texts."""
    resolved = resolve_method(request(method, **budget))
    reading = Session(lm, resolved.spec.load()(lm, resolved.settings_object))
    reading.read([Chunk(text=text, key=str(number)) for number, text in enumerate(TEXTS)])
    return reading


def kept_slots(reading: Session) -> float:
    """Keys and values of the state, in those of one token, or what a question reads where that is more."""
    state, lm = reading.state, reading.lm
    own = {name: tensor for name, tensor in state.tensors.items() if name not in BESIDE}
    held = replace(state, tensors=own).nbytes / lm.slot_bytes
    return max(held, reading.count_context_slots(reading.patch([ASK]), ASK))


@pytest.mark.parametrize("budget", [{"keep": 0.25}, {"keep": 0.5}, {"keep_tokens": 60}], ids=str)
@pytest.mark.parametrize("method", [name for name, spec in methods().items() if spec.keep])
def test_a_method_keeps_no_more_than_was_asked(lm: LM, method: str, budget: dict[str, Any]) -> None:
    keep, (amount,) = methods()[method].keep, budget.values()
    assert keep is not None
    try:
        keep(amount)
    except ValueError:  # of what is known before anything is read, or in proportion alone
        with pytest.raises(UserError, match=rf"--keep.* does not fit {method}: .*--keep"):
            session(lm, method, **budget)
        return
    reading = session(lm, method, **budget)
    full = reading.state.meta["tokens_read"][0] + len(lm.start_ids)
    allowed = budget.get("keep_tokens", budget.get("keep", 0) * full)
    assert 0.5 * allowed <= kept_slots(reading) <= allowed < full


def test_a_budget_is_its_settings_and_changes_no_other_id() -> None:
    def identity(**more: Any) -> str:
        return make_plan(request("snapkv", **more), 0).config.identity()

    plain = make_plan(request("snapkv"), 0).config
    assert not {"keep", "keep_tokens", "window_share"} & set(plain.non_default_values())
    assert (
        identity(keep=0.2)
        == identity(settings={"budget": 0.2, "window_share": 0.5})
        != plain.identity()
    )
    assert identity(keep=0.2) not in (identity(keep=0.3), identity(keep_tokens=9))
    config = make_plan(request("snapkv", keep=0.2), 0).config
    assert (config.keep, config.settings["budget"], config.preset) == (0.2, 0.2, "nano")


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (("--keep-tokens", "0"), "--keep-tokens must be at least 1, got 0"),
        (("--keep", "0.2", "--keep-tokens", "9"), "--keep 0.2"),
        (("--keep", "0.2", "--set", "heavy=5"), "heavy=0.1"),
    ],
)
def test_bad_budgets_are_refused_in_one_line(
    ttabench: Command, words: tuple[str, ...], fault: str
) -> None:
    left = ttabench("eval", "--method", "h2o", "--task", "streamingqa", *words, "--dry-run")
    assert left.code == 2
    assert fault in error_line(left)


def test_the_share_is_of_all_that_was_read() -> None:
    one = EpisodeCost(
        episode="0",
        pieces=1,
        tokens_read=99,
        adapt_seconds=0.0,
        encode_seconds=0.0,
        state_bytes=1,
        patch_bytes=1,
        adapt_peak_bytes=None,
        ask_peak_bytes=None,
        slots=(20, 100),
    )
    costs = [one, replace(one, slots=(70, 300))]
    assert kept_share(costs) == 0.225
    assert kept_share([]) is kept_share([*costs, replace(one, slots=None)]) is None


def test_a_run_reports_what_was_kept_next_to_what_was_asked(
    ttabench: Command, tmp_path: Path
) -> None:
    words = (
        "--task",
        "streamingqa",
        "--limit",
        "2",
        "--task-set",
        "documents=4",
        "--out",
        tmp_path,
    )
    ran = ttabench("eval", "--method", "h2o", "--keep", "0.25", *words)
    assert "(budget 25 %)" in ran.out, ran.err
    assert ttabench("eval", "--method", "h2o", "--keep", "0.5", *words).code == 0
    record = load_run(next(tmp_path.iterdir()))
    assert abs(record.cost["kept_share"] - record.config["keep"]) < 0.05
    assert "h2o keep=0.25" in ttabench("compare", tmp_path).out
