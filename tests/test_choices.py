"""Choices under patches: kept demonstrations, heads, blanks, their metrics, and the rows of a record."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.conftest import Command, one_line
from tests.tiny import tiny_llama
from ttabench.answering import answer
from ttabench.methods.icl import InContext, InContextSettings
from ttabench.metrics import METRICS
from ttabench.patching import encoded
from ttabench.readers import load
from ttabench.runner import Bench, run_episodes
from ttabench.store import RunFolder
from ttabench.types import Ask, Patch

SMALL = {"demonstrations": 6, "queries": 4, "shots": 3}


def test_under_full_context_every_ratio_gives_the_same_numbers(tmp_path: Path) -> None:
    lm = tiny_llama()
    found = []
    for ratio in (1.0, 0.6, 0.0):
        task = load("superglue", options={**SMALL, "task": "sst2", "shots": 2, "ratio": ratio, "queries": 3})
        sink = RunFolder(tmp_path, f"ratio{ratio}")
        bench = Bench(lm=lm, method=InContext(lm, InContextSettings()), metrics=("acc", "acc_norm", "acc_mean"))
        run_episodes(bench, task, sink, lambda *_: None)
        found.append({sample.key: sample.logprobs for sample in sink.samples})
        assert all(sample.part == "sst2" and min(sample.tokens) > 0 for sample in sink.samples)
    for other in found[1:]:
        for key, values in found[0].items():
            assert values == pytest.approx(other[key], abs=1e-3)


def test_heads_are_read_and_not_scored() -> None:
    lm = tiny_llama()
    context = encoded(lm, Patch(tokens_BT=torch.tensor([lm.encode("Once. ")])))
    ask = Ask(prompt="The ", key="q", mode="choose", options=(" ran.", " ran."), heads=("cat", "dog"), gold=0)
    plain = [Ask(prompt=f"The {head}", key="q", mode="choose", options=(" ran.",), gold=0) for head in ask.heads]
    other = Ask(prompt="It", key="r", mode="choose", options=(" is", " was", " has"), gold=1, blank="So:")
    (both, third), apart = answer(lm, context, [ask, other]), answer(lm, context, plain)
    assert both.logprobs == pytest.approx([each.logprobs[0] for each in apart], abs=1e-4)
    assert len(third.logprobs) == len(third.blank) == 3
    (alone,) = answer(lm, Patch(), [Ask(prompt="So:", key="s", mode="choose", options=other.options, gold=0)])
    assert third.blank == pytest.approx(alone.logprobs, abs=1e-4)


def test_metrics_of_choices() -> None:
    class Scored:
        logprobs = (-4.0, -5.0, -9.0)
        tokens = (1, 2, 9)
        blank = (-1.0, -4.5, -3.0)

    ask = Ask(prompt="?", key="q", mode="choose", options=(" a", " bb", " " + "c" * 20), gold=1)
    values = {name: METRICS[name]("", ask, Scored()) for name in ("acc", "acc_norm", "acc_mean", "acc_pmi")}
    assert values == {"acc": 0.0, "acc_norm": 0.0, "acc_mean": 0.0, "acc_pmi": 1.0}
    last = Ask(prompt="?", key="q", mode="choose", options=ask.options, gold=2)
    assert (METRICS["acc_norm"]("", last, Scored()), METRICS["acc_mean"]("", last, Scored())) == (1.0, 1.0)


def test_the_record_has_a_row_for_every_sub_task(ttabench: Command, tiny_base: Path, tmp_path: Path) -> None:
    ran = ttabench("eval", "--method", "none", "--task", "superglue", "--source", "mini", "--model", tiny_base,
                   "--limit", 6, "--task-set", "shots=1", "--task-set", "task=rte,cb",
                   "--out", tmp_path, "--json")  # fmt: skip
    found = {row["part"]: (row["value"], row["n"]) for row in ran.json()["runs"][0]["rows"]}
    assert set(found) == {None, "rte", "cb", "mean"}
    assert found["mean"] == (pytest.approx((found["rte"][0] + found["cb"][0]) / 2), 6)
    assert RunFolder(tmp_path, ran.json()["runs"][0]["id"]).stored() is not None


def test_an_unknown_sub_task_is_one_line(ttabench: Command, tmp_path: Path) -> None:
    ran = ttabench("eval", "--method", "none", "--task", "superglue", "--task-set", "task=wsc", "--out", tmp_path)
    assert "Unknown sub-task of superglue 'wsc'" in one_line(ran)
