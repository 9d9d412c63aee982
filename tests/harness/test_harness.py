"""Methods as models of lm-eval: full context gives the numbers of lm-eval's own `hf`, and every prefix is read once."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("lm_eval")

from datasets import Dataset
from lm_eval.evaluator import simple_evaluate
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager

from tests.docs.pages import commands
from tests.lm.test_texts import _sentencepiece
from tests.places import ROOT
from tests.tiny import tiny_gpt2, tiny_llama
from tests.tiny_methods import tiny_method
from ttabench.core.errors import UserError
from ttabench.harness import AdaptedLM, evaluate, model
from ttabench.harness.reading import PromptSplitter, make_context_chunk
from ttabench.lm.inference.answering import BatchSize
from ttabench.lm.loading.hub import NANO_FOLDER
from ttabench.lm.model import LM, load
from ttabench.readers import load as load_task

pytestmark = pytest.mark.filterwarnings(
    "ignore"
)  # lm-eval, datasets and transformers warn about each other
MODELS: dict[str, Callable[[], LM]] = {"llama-gqa": tiny_llama, "gpt2": tiny_gpt2}
ANIMALS = "wren newt moth crow toad lynx hare mole ibis crab".split()
TASK: dict[str, Any] = {
    "task": "toy",
    "training_split": "train",
    "test_split": "test",
    "fewshot_split": "train",
    "fewshot_config": {"sampler": "first_n"},
    "num_fewshot": 3,
    "doc_to_text": "Is a {{word}} a bird?",
    "doc_to_target": "{{answer}}",
    "metadata": {"version": 1.0},
}
CHOICES = {
    "output_type": "multiple_choice",
    "doc_to_target": "label",
    "doc_to_choice": ["no", "yes, it is"],
    "metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}],
}
WRITING = {
    "output_type": "generate_until",
    "generation_kwargs": {"until": ["\n"], "max_gen_toks": 6, "do_sample": False},
    "metric_list": [{"metric": "exact_match"}],
}


def rows(**_: Any) -> dict[str, Dataset]:
    made = [
        {"word": word, "label": i % 2, "answer": ["no", "yes, it is"][i % 2]}
        for i, word in enumerate(ANIMALS)
    ]
    return {"train": Dataset.from_list(made[:4]), "test": Dataset.from_list(made[4:])}


def manager() -> TaskManager:
    return TaskManager(include_defaults=False)


def task(**changes: Any) -> dict[str, Any]:
    return {**TASK, "custom_dataset": rows, **CHOICES, **changes}


def hf(lm: LM) -> HFLM:
    """lm-eval's own model, unmodified."""
    return HFLM(pretrained=lm.model, tokenizer=deepcopy(lm.tokenizer), batch_size=4)


def adapted(name: str, lm: LM, **more: Any) -> AdaptedLM:
    return AdaptedLM(tiny_method(name, lm), batch_size=4, **more)


def run(model: Any, asked: dict[str, Any]) -> Any:
    return simple_evaluate(model=model, tasks=[asked], task_manager=manager(), bootstrap_iters=0)


def answers(results: Any) -> list[Any]:
    samples = sorted(results["samples"]["toy"], key=lambda sample: sample["doc_id"])
    return [answer for sample in samples for answer in sample["filtered_resps"]]


@pytest.fixture(params=MODELS)
def lm(request: pytest.FixtureRequest) -> LM:
    return MODELS[request.param]()


@pytest.mark.parametrize("shots", [0, 3])
def test_full_context_gives_the_numbers_of_lm_evals_own_model(lm: LM, shots: int) -> None:
    model = adapted("icl", lm)
    ours, theirs = run(model, task(num_fewshot=shots)), run(hf(lm), task(num_fewshot=shots))
    assert model.reader.read == (1 if shots else 0), "one prefix, read once"
    assert len(answers(ours)) == 12
    for (found, greedy), (expected, likeliest) in zip(answers(ours), answers(theirs), strict=True):
        assert found == pytest.approx(expected, abs=1e-4)
        assert greedy == likeliest
    for metric in ("acc,none", "acc_norm,none"):
        assert ours["results"]["toy"][metric] == theirs["results"]["toy"][metric]


def test_full_context_does_not_depend_on_the_split() -> None:
    lm = tiny_llama()
    expected = [value for value, _ in answers(run(adapted("icl", lm), task()))]
    found = [
        value
        for value, _ in answers(
            run(adapted("icl", lm, prompts=PromptSplitter(split="none")), task())
        )
    ]
    assert found == pytest.approx(expected, abs=1e-4)


def test_generation_gives_the_texts_of_lm_evals_own_model(lm: LM) -> None:
    ours, theirs = run(adapted("icl", lm), task(**WRITING)), run(hf(lm), task(**WRITING))
    assert answers(ours) == answers(theirs)
    assert any(answers(ours))


def test_a_query_that_begins_the_window_has_the_tokens_of_a_text() -> None:
    lm = LM(tiny_llama().model, _sentencepiece(), "a blank in front of every text")
    ours, theirs = run(adapted("none", lm), task()), run(hf(lm), task(num_fewshot=0))
    assert [v for v, _ in answers(ours)] == pytest.approx([v for v, _ in answers(theirs)], abs=1e-4)
    full = run(adapted("icl", lm), task())
    assert [v for v, _ in answers(full)] == pytest.approx(
        [v for v, _ in answers(run(hf(lm), task()))], abs=1e-4
    )


def test_a_method_that_looks_at_the_question() -> None:
    lm = tiny_llama()
    one, many = adapted("mac", lm), adapted("mac", lm)
    one.size = BatchSize(1)
    found, expected = run(many, task()), run(one, task())
    assert many.reader.read == 1
    assert [v for v, _ in answers(found)] == pytest.approx(
        [v for v, _ in answers(expected)], abs=1e-4
    )
    closed = run(adapted("none", lm), task())
    assert [v for v, _ in answers(found)] != pytest.approx(
        [v for v, _ in answers(closed)], abs=1e-3
    )


def test_evaluate_by_model_arguments() -> None:
    found = evaluate(
        model_args={"method": "icl", "model": str(NANO_FOLDER), "set.truncate": "left"},
        tasks=[task()],
        task_manager=manager(),
        bootstrap_iters=0,
        limit=2,
    )
    assert found["config"]["model"] == "ttabench"
    assert found["config"]["method"] == "icl"
    assert found["config"]["settings"]["truncate"] == "left"
    assert re.fullmatch("[0-9a-f]{64}", found["config"]["fingerprint"])
    hub = {**TASK, **CHOICES, "task": "away", "dataset_path": "no-such-owner/no-such-data"}
    with pytest.raises(UserError, match="no-such-owner"):
        evaluate(model_args="method=none", tasks=[hub], task_manager=manager())
    with pytest.raises(UserError, match="answers by prompt alone"):
        evaluate(
            model_args="method=none", tasks=[task()], task_manager=manager(), use_cache="answers"
        )
    with pytest.raises(UserError, match="not a registered task"):
        evaluate(model_args="method=none", tasks=["toyy"], task_manager=manager())


def test_the_task_of_the_guide_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (words,) = [words for words in commands().values() if "docs/examples/lm_eval.yaml" in words]
    monkeypatch.setattr("lm_eval.tasks.TaskManager", partial(TaskManager, include_defaults=False))
    monkeypatch.setattr(sys, "argv", ["lm-eval", *words[words.index("ttabench.harness") + 1 :]])
    monkeypatch.chdir(ROOT)
    assert model.main() in (None, 0)
    assert "|lighthouse|" in capsys.readouterr().out


@pytest.mark.parametrize("prefix", ["a b\n\nc d\n\n", "a b.\n\nc d.\n\n", "a.\n\n"])
def test_what_is_read_has_the_tokens_of_the_whole(prefix: str) -> None:
    lm = load()
    prompts = lm.encode_many([prefix + query for query in ("e f:", "g:", " h")])
    ids = list(make_context_chunk(prefix, lm.encode(prefix), prompts).ids)
    assert ids
    assert all(prompt[: len(ids)] == ids and len(prompt) > len(ids) for prompt in prompts)


@pytest.mark.parametrize(
    "text",
    ["task: [x\n - {", "- a\n", "", "task: foo\ndataset_path: json\noutput_type: none\n", None],
    ids=repr,
)
def test_a_task_that_cannot_be_loaded_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None
) -> None:
    monkeypatch.setattr("lm_eval.tasks.TaskManager", partial(TaskManager, include_defaults=False))
    source = tmp_path / "odd.yaml"
    if text is not None:
        source.write_text(text)
    with pytest.raises(UserError, match=r"odd\.yaml"):
        load_task("lm_eval", source=str(source))


def test_a_name_that_no_task_has_is_refused_without_an_index(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("lm_eval.tasks.TaskManager", None)
    with pytest.raises(UserError, match="no_such_task"):
        load_task("lm_eval", source="no_such_task")
