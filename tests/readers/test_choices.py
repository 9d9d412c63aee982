"""Choices under patches: kept demonstrations, heads, blanks, their metrics, and the rows of a record."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.conftest import Command
from tests.tiny import tiny_llama
from ttabench.core.types import Answer, Ask, Choose
from ttabench.lm.forward.patching import encoded
from ttabench.lm.patch import Patch
from ttabench.lm.verbs.answering import answer
from ttabench.methods.icl import InContextSettings
from ttabench.methods.icl.method import InContext
from ttabench.readers import load
from ttabench.records.store import RunFolder
from ttabench.run.runner import RunContext, run_episodes
from ttabench.stats.metrics import METRICS

SMALL = {"demonstrations": 6, "queries": 4, "shots": 3}


def test_under_full_context_every_ratio_gives_the_same_numbers(tmp_path: Path) -> None:
    lm = tiny_llama()
    found = []
    for ratio in (1.0, 0.6, 0.0):
        task = load("superglue", options={**SMALL, "task": "sst2", "shots": 2, "ratio": ratio, "queries": 3})
        sink = RunFolder(tmp_path, f"ratio{ratio}")
        context = RunContext(
            lm=lm,
            method=InContext(lm, InContextSettings()),
            metrics=tuple(METRICS[name] for name in ("acc", "acc_norm", "acc_mean")),
        )
        run_episodes(context, task, sink, lambda *_: None)
        found.append({sample.key: sample.answer.logprobs for sample in sink.samples})
        assert all(sample.ask.subtask == "sst2" and min(sample.answer.tokens) > 0 for sample in sink.samples)
    for other in found[1:]:
        for key, values in found[0].items():
            assert values == pytest.approx(other[key], abs=1e-3)


def choosing(prompt: str, *options: str, gold: int = 0, **more: Any) -> Ask:
    return Ask(prompt=prompt, key=f"{prompt}{gold}", want=Choose(options=options, gold=gold, **more))


def test_option_prefixes_are_read_and_not_scored() -> None:
    lm = tiny_llama()
    context = encoded(lm, Patch(tokens_BT=torch.tensor([lm.encode("Once. ")])))
    ask = choosing("The ", " ran.", " ran.", option_prefixes=("cat", "dog"))
    plain = [choosing(f"The {name}", " ran.") for name in ("cat", "dog")]
    other = choosing("It", " is", " was", " has", unconditional_prompt="So:")
    (both, third), apart = answer(lm, context, [ask, other]), answer(lm, context, plain)
    assert both.logprobs == pytest.approx([each.logprobs[0] for each in apart], abs=1e-4)
    assert len(third.logprobs) == len(third.unconditional_logprobs) == 3
    (alone,) = answer(lm, Patch(), [choosing("So:", " is", " was", " has")])
    assert third.unconditional_logprobs == pytest.approx(alone.logprobs, abs=1e-4)


def test_metrics_of_choices() -> None:
    scored = Answer(
        prediction="", logprobs=(-4.0, -5.0, -9.0), tokens=(1, 2, 9), unconditional_logprobs=(-1.0, -4.5, -3.0)
    )
    options = (" a", " bb", " " + "c" * 20)
    ask = choosing("?", *options, gold=1)
    values = {name: METRICS[name]("", ask, scored) for name in ("acc", "acc_norm", "acc_mean", "acc_pmi")}
    assert values == {"acc": 0.0, "acc_norm": 0.0, "acc_mean": 0.0, "acc_pmi": 1.0}
    last = choosing("?", *options, gold=2)
    assert (METRICS["acc_norm"]("", last, scored), METRICS["acc_mean"]("", last, scored)) == (1.0, 1.0)


def test_the_record_has_a_row_for_every_sub_task(ttabench: Command, tiny_base: Path, tmp_path: Path) -> None:
    ran = ttabench("eval", "--method", "none", "--task", "superglue", "--source", "mini", "--model", tiny_base,
                   "--limit", 6, "--task-set", "shots=1", "--task-set", "task=rte,cb",
                   "--out", tmp_path, "--json")  # fmt: skip
    found = {row["subtask"]: (row["value"], row["n"]) for row in ran.json()["runs"][0]["rows"]}
    assert set(found) == {None, "rte", "cb", "mean"}
    assert found["mean"] == (pytest.approx((found["rte"][0] + found["cb"][0]) / 2), 6)
    assert RunFolder(tmp_path, ran.json()["runs"][0]["id"]).stored() is not None
