"""lm-eval's tasks of long contexts, on rows in their published format: what is read, and lm-eval's own numbers.

The task files are lm-eval's own, but for where their rows come from.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("lm_eval")

import lm_eval
from datasets import Dataset
from lm_eval.evaluator import simple_evaluate
from lm_eval.tasks._yaml_loader import load_yaml

from tests.harness.test_harness import adapted, hf, manager
from tests.harness.test_lm_eval_scores import roomy
from tests.tiny_methods import tiny_method
from ttabench.core.errors import UserError
from ttabench.harness.reading import PromptSplitter
from ttabench.methods.session import Session
from ttabench.readers import lm_eval as reader, load

pytestmark = pytest.mark.filterwarnings(
    "ignore"
)  # lm-eval, datasets and transformers warn about each other
BOOKS = ["Ada went to the hall.\n\nBo saw a goat.", "Cy keeps a wren. It rained.\n\nThe end "]
ROWS: dict[str, tuple[str, str, list[dict[str, Any]]]] = {
    "field:input": (
        "babilong/babilong_qa1",
        "Where is Ada?",
        [{"input": f" {book}", "question": "Where is Ada? ", "target": "hall"} for book in BOOKS],
    ),
    "field:context": (
        "longbench2/academic_single",
        "What is it?",
        [
            {
                "context": book.strip(),
                "question": "What is it?",
                "choices": ["a", "b", "c", "d"],
                "answer": i,
            }
            for i, book in enumerate(BOOKS)
        ],
    ),
    "field: context": (
        "longbench/hotpotqa",
        "Who?",
        [{"context": book, "question": "Who?", "answers": ["Bo"]} for book in BOOKS],
    ),
    "marker:Question:": (
        "infinitebench/infinitebench_longbook_choice_en",
        "Who saw a goat?",
        [
            {
                "context": book,
                "input": "Who saw a goat?",
                "answer": ["Bo"],
                "options": ["Ada", "Bo", "Cy", "Di"],
            }
            for book in BOOKS
        ],
    ),
    'marker:"What is the special"': (
        "ruler/niah_single_1",
        "What is the special",
        [
            {
                "input": f"{book} What is the special number?",
                "outputs": ["7"],
                "gen_prefix": "The number is",
                "max_length": 64,
            }
            for book in BOOKS
        ],
    ),
}
"""By split: a task, what is asked of its rows, and these rows."""
SPLITS = list(ROWS)


def task_of(split: str) -> dict[str, Any]:
    name, _, rows = ROWS[split]
    path, words_in_code = (
        Path(lm_eval.__file__).parent / "tasks" / f"{name}.yaml",
        name.startswith("infinitebench"),
    )
    config = load_yaml(
        path, resolve_func=words_in_code
    )  # the code of others imports what is not installed here
    held = {config["test_split"]: Dataset.from_list(rows)}
    known = {
        **config,
        "task": "toy",
        "custom_dataset": lambda **_: held,
        "dataset_path": "",
        "dataset_kwargs": {},
    }
    if "generation_kwargs" in known:
        known["generation_kwargs"] = {"do_sample": False, "max_gen_toks": 6, "until": ["\n"]}
    return {
        key: value
        for key, value in known.items()
        if key not in ("tag", "group", "process_results", "metric_list")
    }


def prompts(split: str) -> PromptSplitter:
    return PromptSplitter(split=split.replace(" context", "context"))


def answered(model: Any, split: str) -> list[Any]:
    results = simple_evaluate(
        model=model, tasks=[task_of(split)], task_manager=manager(), bootstrap_iters=0
    )
    samples = sorted(results["samples"]["toy"], key=lambda sample: sample["doc_id"])
    return [answer for sample in samples for answer in sample["filtered_resps"]]


@pytest.mark.parametrize("split", SPLITS)
def test_full_context_gives_the_numbers_of_lm_evals_own_model(split: str) -> None:
    lm = roomy(2048)
    model = adapted("icl", lm, prompts=prompts(split))
    ours, theirs = answered(model, split), answered(hf(lm), split)
    assert model.reader.read == 2, "each document has a context of its own, read once"
    assert model.reader.counts["toy"]["answered_without_context"] == 0
    assert len(ours) == (8 if "longbench2" in ROWS[split][0] else 2)
    for own, other in zip(ours, theirs, strict=True):
        if isinstance(own, str):
            assert own == other
        else:
            assert own[0] == pytest.approx(float(other[0]), abs=1e-4)


@pytest.mark.parametrize("split", SPLITS)
def test_the_context_is_read_and_the_rest_is_asked(
    split: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = adapted("none", roomy(2048), prompts=prompts(split))
    seen: list[tuple[str, str]] = []
    plain = model.reader._read_context

    def read(cut: int, opening: int, reading: Any, contexts: list[str]) -> Any:
        seen.append((contexts[0][:cut], contexts[0][cut:]))
        return plain(cut, opening, reading, contexts)

    monkeypatch.setattr(model.reader, "_read_context", read)
    answered(model, split)
    for book, (context, query) in zip(BOOKS, seen, strict=True):
        assert book.strip() in context
        assert book.strip() not in query
        assert ROWS[split][1] in query
        assert ROWS[split][1] not in context.split(book.strip())[-1]


@pytest.mark.parametrize("split", SPLITS)
def test_eval_asks_what_lm_eval_asks(split: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lm = roomy(2048)
    (task,) = manager().load([task_of(split)])["tasks"].values()
    monkeypatch.setattr(reader, "load_lm_eval_task", lambda _name: task)
    bound = load(
        "lm_eval",
        source="toy",
        options={"cut": split.replace(" context", "context"), "piece": "16"},
    )
    answers = list[Any]()
    for episode in bound.episodes(lm):
        session = Session(lm, tiny_method("icl", lm))
        session.read(episode.chunks())
        for answer in session.answer(episode.queries()):
            answers += (
                answer.logprobs if episode.queries()[0].mode == "choose" else [answer.prediction]
            )
    theirs = [one if isinstance(one, str) else float(one[0]) for one in answered(hf(lm), split)]
    if isinstance(theirs[0], str):
        assert answers == [one.strip() for one in theirs]
    else:
        assert answers == pytest.approx(theirs, abs=1e-4)
    assert [len(episode.chunks()) > 1 for episode in bound.swapped_episodes(lm)] == [True, True]


@pytest.mark.parametrize(
    ("split", "fault"),
    [
        ("field:book", "no text in a field 'book'"),
        ("field:choices", "context, question"),
        ("marker:nowhere", "nowhere"),
    ],
)
def test_a_split_of_nothing_is_reported(split: str, fault: str) -> None:
    with pytest.raises(UserError, match=fault):
        answered(adapted("icl", roomy(2048), prompts=PromptSplitter(split=split)), "field:context")


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"doc_to_target": "none of them"}, "toy document 0"),
        ({"output_type": "loglikelihood"}, "toy .*choices"),
        ({"metric_list": [{"metric": "acc_mutual_info"}]}, ""),
    ],
)
def test_documents_that_cannot_be_asked_are_reported(
    changes: dict[str, Any], fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (task,) = manager().load([task_of("field:context") | changes])["tasks"].values()
    monkeypatch.setattr(reader, "load_lm_eval_task", lambda _name: task)
    if fault:
        with pytest.raises(UserError, match=fault):
            load("lm_eval", source="toy")
    else:
        assert {
            len(ask.want.options)
            for e in load("lm_eval", source="toy").episodes()
            for ask in e.queries()
        } == {4}
    with pytest.raises(UserError, match="--split"):
        load("lm_eval", source="toy", split="train")
