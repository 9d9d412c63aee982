"""Reader, runner and scoring give, document by document, the numbers of lm-evaluation-harness's own evaluation.

Its own model, unmodified, with and without its chat template: under a tokenizer of a token a byte, and under one that
joins line breaks and knows a BOS token that it never adds, as GPT-2's and SmolLM2's do.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("lm_eval")

import torch
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.processors import TemplateProcessing
from transformers import LlamaForCausalLM

from tests.choice_files import EDGE_CASE_ROWS, shared_rows
from tests.harness.test_harness import hf
from tests.lm.test_texts import TEMPLATE
from tests.qa_files import write_jsonl
from tests.tiny import byte_tokenizer, tiny_llama
from ttabench.lm.model import LM, load as load_lm
from ttabench.methods.icl import InContextSettings
from ttabench.methods.icl.method import InContext
from ttabench.mini.demonstrations import superglue, unseen
from ttabench.readers import load
from ttabench.readers.cards import SubTask, load_card
from ttabench.records.folder import RunFolder
from ttabench.records.samples import Sample
from ttabench.run.runner import RunContext, run_episodes
from ttabench.stats.metrics import METRICS

pytestmark = pytest.mark.filterwarnings(
    "ignore"
)  # lm-eval, datasets and transformers warn about each other
TEMPLATES = {
    "boolq": "super_glue/boolq/default",
    "cb": "super_glue/cb/default",
    "copa": "super_glue/copa/default",
    "rte": "super_glue/rte/default",
    "sst2": "glue/sst2/default",
    "hellaswag": "hellaswag/hellaswag",
    "winogrande": "winogrande/default",
    "openbookqa": "openbookqa/openbookqa",
    "arc_easy": "arc/arc_easy",
    "arc_challenge": "arc/arc_challenge",
    "piqa": "piqa/piqa",
}
BLANK_AT_THE_END: dict[str, list[dict[str, Any]]] = {
    "openbookqa": [
        {
            "question_stem": "Which of these is \t ",
            "answerKey": "C",
            "choices": {"text": ["a longer answer", "b", "cc", "d"], "label": list("ABCD")},
        }
    ],
    "winogrande": [{"sentence": "So _ left.", "option1": "Ann  ", "option2": "Bo", "answer": "2"}],
}
"""Prompts that end in blanks, which lm-evaluation-harness scores with the option."""
SHOTS, SEED = 2, 3


def roomy(positions: int = 1024) -> LM:
    """A random Llama of a token a byte."""
    config = tiny_llama().config
    config.max_position_embeddings = positions
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return LM(LlamaForCausalLM(config), byte_tokenizer(), "bytes", random_weights=True)


def merging() -> LM:
    """A random Llama under nano's byte-level BPE, which begins no text."""
    tokenizer = load_lm(device="cpu").tokenizer
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single="$A", special_tokens=[])
    tokenizer.backend_tokenizer.pre_tokenizer = ByteLevel(
        add_prefix_space=False
    )  # "\n\n" before a word: two tokens
    tokenizer.chat_template = TEMPLATE
    config = tiny_llama().config
    config.vocab_size, config.max_position_embeddings = len(tokenizer), 1024
    with torch.random.fork_rng():
        torch.manual_seed(0)
        made = LM(LlamaForCausalLM(config), tokenizer, "merging", random_weights=True)
    assert not made.bos_ids
    assert tokenizer.bos_token_id is not None
    return made


MODELS = {"bytes": roomy, "merging": merging}


@dataclass(frozen=True)
class Files:
    """One sub-task on disk: a folder in a published layout, and the rows in it, in the columns of the hub."""

    card: str
    part: str
    folder: Path
    train: list[dict[str, Any]]
    asked: list[dict[str, Any]]


def sub_task(name: str) -> tuple[str, SubTask]:
    card = "superglue" if name in load_card("superglue").parts else name
    return card, load_card(card).parts[name]


def files(name: str, base: Path) -> Files:
    """Rows of the miniature world and awkward ones; SST-2 in its published tsv, the others as jsonl."""
    card, _ = sub_task(name)
    make = superglue if card == "superglue" else unseen
    made: dict[str, list[dict[str, Any]]] = make(name, "validation", 1, 5, 6)
    awkward = [*EDGE_CASE_ROWS.get(name, []), *BLANK_AT_THE_END.get(name, [])]
    return written(name, base, made["train"], [*made["validation"], *awkward])


def real_files(name: str, base: Path, count: int) -> Files:
    """Published rows, in the columns of the hub: the last ones are shown, the others asked."""
    _, rows = shared_rows(name, count + SHOTS)
    return written(name, base, rows[count:], rows[:count])


def written(
    name: str, base: Path, train: list[dict[str, Any]], asked: list[dict[str, Any]]
) -> Files:
    card, part = sub_task(name)
    train, asked = (
        [
            {key: value for key, value in row.items() if key not in ("id", "idx", "qID", "ind")}
            for row in rows
        ]
        for rows in (train, asked)
    )
    folder = base / part.folders[0]
    folder.mkdir(parents=True)
    for split, rows in ((part.train, train), (part.test, asked)):
        stem = folder / split.files[0]
        if name == "sst2":
            lines = ["sentence\tlabel", *(f"{row['sentence']}\t{row['label']}" for row in rows)]
            stem.with_suffix(".tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
        else:
            write_jsonl(stem.with_suffix(".jsonl"), rows)
    return Files(card, name, base, train, asked)


def ours(lm: LM, held: Files, scratch: Path, shots: int) -> tuple[list[str], list[Sample]]:
    """(keys of the demonstrations, what became of each query in file order)."""
    task = load(
        held.card, source=str(held.folder), seed=SEED, options={"task": held.part, "shots": shots}
    )
    (episode,) = task.episodes()
    sink = RunFolder(scratch, "ours")
    context = RunContext(
        lm=lm,
        method=InContext(lm, InContextSettings()),
        metrics=tuple(METRICS[name] for name in task.card.metrics),
        batch_size=4,
    )
    run_episodes(context, task, sink, lambda *_: None)
    found = {sample.key: sample for sample in sink.samples}
    return [piece.key for piece in episode.chunks()], [found[ask.key] for ask in episode.queries()]


def theirs(
    lm: LM, held: Files, shown: list[dict[str, Any]], scratch: Path, chat: bool
) -> tuple[Any, list[dict[str, Any]]]:
    """lm-evaluation-harness's own evaluator, model and template on the same rows: (means, documents in file order)."""
    import lm_eval
    from lm_eval.evaluator import simple_evaluate
    from lm_eval.tasks import TaskManager

    paths = {split: str(scratch / f"{split}.jsonl") for split in ("train", "validation", "test")}
    for split, path in paths.items():
        write_jsonl(Path(path), (shown or held.asked) if split == "train" else held.asked)
    name = f"local_{held.part}"
    config = {
        "include": str(Path(lm_eval.__file__).parent / "tasks" / f"{TEMPLATES[held.part]}.yaml"),
        "task": name,
        "dataset_path": "json",
        "dataset_name": None,
        "dataset_kwargs": {"data_files": paths},
        "fewshot_split": "train",
        "fewshot_config": {"sampler": "first_n"},
    }
    (scratch / f"{name}.yaml").write_text(json.dumps(config), encoding="utf-8")
    manager = TaskManager(include_defaults=False, include_path=str(scratch))
    loaded = manager.load([name])["tasks"][name]
    found = simple_evaluate(
        model=hf(lm),
        tasks=[loaded],
        num_fewshot=len(shown),
        task_manager=manager,
        bootstrap_iters=0,
        apply_chat_template=chat,
    )
    return found["results"][name], sorted(
        found["samples"][name], key=lambda document: document["doc_id"]
    )


def check(lm: LM, held: Files, scratch: Path, shots: int, chat: bool) -> None:
    """Every option of every document has lm-eval's log-likelihood, and every document its metrics."""
    keys, mine = ours(lm, held, scratch, shots)
    shown = [held.train[int(key.partition("/")[2])] for key in keys]
    means, documents = theirs(lm, held, shown, scratch, chat)
    assert len(mine) == len(documents) == len(held.asked)
    tied = set()
    for i, (sample, document) in enumerate(zip(mine, documents, strict=True)):
        expected = [logprob for logprob, _ in document["filtered_resps"]]
        assert list(sample.answer.logprobs) == pytest.approx(expected, abs=1e-4)
        best, second = sorted(expected, reverse=True)[:2]
        if best - second < 1e-4:  # which of the two is chosen, rounding decides
            tied.add(i)
    assert len(tied) <= 1
    metrics = [metric for metric in ("acc", "acc_norm") if f"{metric},none" in means]
    assert metrics == [
        metric for metric in ("acc", "acc_norm") if metric in load_card(held.card).metrics
    ]
    for metric in metrics:
        values = [sample.metrics[metric] for sample in mine]
        scores = [document[metric] for document in documents]
        assert [values[i] for i in range(len(values)) if i not in tied] == [
            scores[i] for i in range(len(scores)) if i not in tied
        ]
        assert sum(scores) / len(scores) == pytest.approx(means[f"{metric},none"])


@pytest.fixture(scope="module")
def lm(request: pytest.FixtureRequest) -> LM:
    return MODELS[request.param]()


@pytest.mark.parametrize(
    ("lm", "name"),
    [
        *(("bytes", name) for name in TEMPLATES),
        *(("merging", name) for name in ("copa", "openbookqa", "winogrande")),
    ],
    indirect=["lm"],
)
def test_scores_are_those_of_lm_eval(
    lm: LM, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    check(lm, files(name, tmp_path / "published"), tmp_path, SHOTS, chat=False)
