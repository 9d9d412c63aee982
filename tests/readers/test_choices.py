"""Choices under patches: kept demonstrations, heads, blanks, their metrics, and the rows of a record."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.conftest import Command, one_line
from tests.qa_files import write_jsonl
from tests.tiny import tiny_llama
from ttabench.core.types import Ask, Choose
from ttabench.lm.forward.patching import encoded
from ttabench.lm.patch import Patch
from ttabench.lm.verbs.answering import answer
from ttabench.methods.icl.method import InContext
from ttabench.methods.icl.settings import InContextSettings
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
        context = RunContext(lm=lm, method=InContext(lm, InContextSettings()), metrics=("acc", "acc_norm", "acc_mean"))
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
    class Scored:
        logprobs = (-4.0, -5.0, -9.0)
        tokens = (1, 2, 9)
        unconditional_logprobs = (-1.0, -4.5, -3.0)

    options = (" a", " bb", " " + "c" * 20)
    ask = choosing("?", *options, gold=1)
    values = {name: METRICS[name]("", ask, Scored()) for name in ("acc", "acc_norm", "acc_mean", "acc_pmi")}
    assert values == {"acc": 0.0, "acc_norm": 0.0, "acc_mean": 0.0, "acc_pmi": 1.0}
    last = choosing("?", *options, gold=2)
    assert (METRICS["acc_norm"]("", last, Scored()), METRICS["acc_mean"]("", last, Scored())) == (1.0, 1.0)


def test_the_record_has_a_row_for_every_sub_task(ttabench: Command, tiny_base: Path, tmp_path: Path) -> None:
    ran = ttabench("eval", "--method", "none", "--task", "superglue", "--source", "mini", "--model", tiny_base,
                   "--limit", 6, "--task-set", "shots=1", "--task-set", "task=rte,cb",
                   "--out", tmp_path, "--json")  # fmt: skip
    found = {row["subtask"]: (row["value"], row["n"]) for row in ran.json()["runs"][0]["rows"]}
    assert set(found) == {None, "rte", "cb", "mean"}
    assert found["mean"] == (pytest.approx((found["rte"][0] + found["cb"][0]) / 2), 6)
    assert RunFolder(tmp_path, ran.json()["runs"][0]["id"]).stored() is not None


def test_an_unknown_sub_task_is_one_line(ttabench: Command, tmp_path: Path) -> None:
    ran = ttabench("eval", "--method", "none", "--task", "superglue", "--task-set", "task=wsc", "--out", tmp_path)
    assert "Unknown sub-task of superglue 'wsc'" in one_line(ran)


REFUSED: dict[str, tuple[list[str], str]] = {
    "more shots than rows": (["superglue", "shots=97"], "shots=97 demonstrations of boolq are more than the 96 rows"),
    "fewer than no shots": (["superglue", "shots=-1"], "shots"),
    "shots that are no number": (["piqa", "shots=many"], "shots"),
    "a ratio above one": (["superglue", "ratio=1.2"], "less than or equal to 1, received '1.2'"),
    "a ratio below nothing": (["superglue", "ratio=-0.1"], "greater than or equal to 0, received '-0.1'"),
    "a ratio that is no number": (["superglue", "ratio=nan"], "ratio"),
    "a ratio in words": (["superglue", "ratio=half"], "ratio: Input should be a valid number"),
    "unknown words": (["superglue", "template=othr"], "Did you mean 'other'?"),
    "words that the sub-task lacks": (["superglue", "template=other", "task=copa"], "no words for copa"),
    "words that the task lacks": (["hellaswag", "template=other"], "Unknown template of task hellaswag 'other'"),
    "more steps than demonstrations": (["metaicl", "steps=1,17"], "step 17 needs more than the 16 demonstrations"),
    "a negative length": (["metaicl", "max_tokens=-5"], "max_tokens"),
    "an unknown protocol": (["metaicl", "protocol=cmm"], "'ccm' or 'genadapter', received 'cmm'"),
    "an unknown rule for long contexts": (["metaicl", "too_long=drop"], "'cut' or 'skip', received 'drop'"),
    "no room for any query": (["metaicl", "max_example_tokens=3"], "leave nothing to ask of metaicl"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_bad_settings_are_one_line(ttabench: Command, tmp_path: Path, name: str) -> None:
    (task, *settings), hint = REFUSED[name]
    words = [word for setting in settings for word in ("--task-set", setting)]
    ran = ttabench("eval", "--method", "none", "--task", task, "--source", "mini", *words, "--out", tmp_path)
    assert hint in one_line(ran)
    assert not list(tmp_path.glob("*")), "a refused run leaves no folder"


ROWS: dict[str, tuple[str, dict[str, Any], str]] = {
    "a label beyond the options": ("superglue/rte", {"premise": "p", "hypothesis": "h", "label": 2}, "label 2 is none"),
    "an unknown label": ("superglue/cb", {"premise": "p", "hypothesis": "h", "label": "so"}, "label 'so' is none"),
    "an answer without its letter": (
        "arc_easy", {"question": "q", "choices": {"text": ["a", "b"], "label": ["A", "B"]}, "answerKey": "C"},
        "answer 'C' is not among the options A, B",
    ),
    "an ending that is not there": (
        "hellaswag", {"activity_label": "a", "ctx_a": "b", "ctx_b": "c", "endings": ["x", "y"], "label": "2"},
        "label 2 is none of its 2 options",
    ),
    "a third name": (
        "winogrande", {"sentence": "The _ ran.", "option1": "a", "option2": "b", "answer": "3"},
        "answer 3 is neither 1 nor 2",
    ),
    "a third solution": ("piqa", {"goal": "g", "sol1": "a", "sol2": "b", "label": 2}, "label 2 is none"),
}  # fmt: skip


@pytest.mark.parametrize("name", ROWS)
def test_labels_that_no_option_has_are_one_line(ttabench: Command, tmp_path: Path, name: str) -> None:
    place, row, hint = ROWS[name]
    task, _, part = place.partition("/")
    source = write_jsonl(tmp_path / "rows.jsonl", [row])
    words = ["--task-set", f"task={part}"] if part else []
    ran = ttabench("eval", "--method", "none", "--task", task, "--source", source, *words, "--out", tmp_path / "runs")
    assert "rows.jsonl line 1" in one_line(ran)
    assert hint in one_line(ran)
