"""The reader of contexts that many questions share: published rows, its two modes, pieces, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.qa_files import write_jsonl
from tests.tiny import tiny_llama
from ttabench.core.errors import UserError
from ttabench.core.types import Choose, Chunk, Episode, Query, wants_of_kind
from ttabench.readers import load
from ttabench.readers.shared_context import SUB_TASKS

LM = tiny_llama()
KV = {
    "id": 7,
    "context": '{"a1": "x9", "b2": "y8"}\nNothing else.',
    "multi_turns": [{"input": 'Key "a1":', "answer": "x9"}, {"input": 'Key "b2":', "answer": "y8"}],
}
OTHER = {
    "id": 8,
    "context": '{"c3": "z7"}',
    "multi_turns": [{"input": 'Key "c3":', "answer": "z7"}],
}


def bound(folder: Path, rows: list[dict[str, Any]], name: str = "test", **options: Any) -> Any:
    return load(
        "shared_context", source=str(write_jsonl(folder / f"{name}.jsonl", rows)), options=options
    )


def shown(episode: Episode) -> list[str]:
    return [step.text if isinstance(step, Chunk) else f"? {step.prompt}" for step in episode.steps]


def test_questions_are_asked_alone_or_after_the_turns_before_them_with_their_right_answers(
    tmp_path: Path,
) -> None:
    (short, _) = bound(tmp_path, [KV, OTHER], tokens=9).episodes(LM)
    assert [piece.text for piece in short.chunks()] == [KV["context"][:5], KV["context"][-4:]], (
        "both ends"
    )
    (alone, _) = bound(tmp_path, [KV, OTHER]).episodes(LM)
    assert shown(alone) == [KV["context"], '? Key "a1":', '? Key "b2":']
    assert {ask.at.count for ask in alone.queries()} == {0}
    (later, _) = bound(tmp_path, [KV, OTHER], mode="turns").episodes(LM)
    assert shown(later) == [KV["context"], '? Key "a1":', 'Key "a1": x9', '? Key "b2":']
    assert [ask.at.count for ask in later.queries()] == [1, 2]
    assert [(a.key, a.prompt, a.want) for a in alone.queries()] == [
        (a.key, a.prompt, a.want) for a in later.queries()
    ]


def test_a_sub_task_has_its_words_length_and_metrics(tmp_path: Path) -> None:
    for name, task in SUB_TASKS.items():
        turn = {"input": "Which?", "answer": "B" if name == "choice_eng" else "3"}
        options = {"options": ["Ada", "Bo"]} if name == "choice_eng" else {}
        rows = [{"id": 0, "context": "Text.", "multi_turns": [turn | options]}]
        made = bound(tmp_path, rows, f"scbench_{name}")
        ((piece, ask),) = (episode.steps for episode in made.episodes(LM))
        assert isinstance(piece, Chunk)
        assert isinstance(ask, Query)
        assert piece.text == f"{task.lead}Text."
        assert made.card.main_metric == task.metrics[0]
        if name != "choice_eng":
            assert ask.want.max_new_tokens == task.max_new_tokens  # type: ignore[union-attr]
    assert bound(tmp_path, [KV], task="scbench_vt").card.main_metric == "string_match"
    (episode,) = bound(tmp_path, [KV], task="qa_eng").episodes(LM)
    assert episode.queries()[0].prompt == 'Question: Key "a1":\nAnswer:'


@pytest.mark.parametrize("answer", ["Bo", "B"])
def test_options_are_chosen_by_their_letters(tmp_path: Path, answer: str) -> None:
    turns = [{"input": "Who sat?", "options": ["Ada", "Bo", "Cy", "Di"], "answer": answer}] * 2
    rows = [{"id": 0, "context": "Bo sat.", "multi_turns": turns}]
    made = bound(tmp_path, rows, task="choice_eng", mode="turns")
    (episode,) = made.episodes(LM)
    asks = episode.queries()
    words = "Question: Who sat?\nA. Ada\nB. Bo\nC. Cy\nD. Di\n\nThe letter of the correct answer is"
    assert asks[0].prompt == words
    assert wants_of_kind(asks[:1], Choose)[0].options == (" A", " B", " C", " D")
    assert wants_of_kind(asks[:1], Choose)[0].gold == 1
    assert episode.chunks()[1].text == f"{words} B"
    assert made.card.metrics[0] == "acc"


def test_rows_of_memoryagentbench(tmp_path: Path) -> None:
    row = {
        "context": "Bo sat in Yarm.",
        "questions": ["Who sat?", "Where?"],
        "answers": [["Bo", "Bo Lind"], ["Yarm"]],
        "metadata": {"source": "eventqa_full", "qa_pair_ids": ["a", "b"]},
    }
    pq.write_table(
        pa.Table.from_pylist([row]), tmp_path / "Accurate_Retrieval-00000-of-00001.parquet"
    )
    task = load(
        "shared_context", source=str(tmp_path / "Accurate_Retrieval-00000-of-00001.parquet")
    )
    (episode,) = task.episodes(LM)
    assert shown(episode) == ["Bo sat in Yarm.", "? Who sat?", "? Where?"]
    assert [ask.answers for ask in episode.queries()] == [("Bo", "Bo Lind"), ("Yarm",)]
    assert {ask.subtask for ask in episode.queries()} == {"eventqa_full"}
    assert task.card.main_metric == "contains_em"


def test_another_context_brings_its_own_turns(tmp_path: Path) -> None:
    task = bound(tmp_path, [KV, OTHER], mode="turns")
    (first, second) = task.swapped_episodes(LM)
    assert shown(first) == [OTHER["context"], '? Key "a1":', 'Key "c3": z7', '? Key "b2":']
    assert shown(second) == [KV["context"], '? Key "c3":']


@pytest.mark.parametrize(
    ("row", "fault"),
    [
        ({"context": 3, "multi_turns": []}, "context must be text, got 3"),
        ({"context": "T.", "multi_turns": [{"input": "Q?"}]}, "a turn has no answer"),
        ({"context": "T.", "multi_turns": [{"input": "Q?", "answer": {"a": 1}}]}, "list of texts"),
        (
            {
                "context": "T.",
                "multi_turns": [{"input": "Q?", "answer": "E", "options": ["a", "b"]}],
            },
            "its 2 options",
        ),
        ({"context": "T."}, "lacks the column"),
    ],
)
def test_a_row_that_is_none_is_reported_in_a_line(
    tmp_path: Path, row: dict[str, Any], fault: str
) -> None:
    with pytest.raises(UserError, match=fault):
        bound(tmp_path, [row])


def test_what_else_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="sub-task"):
        bound(tmp_path, [KV], task="kvv")
    with pytest.raises(UserError, match="no other context"):
        list(bound(tmp_path, [KV]).swapped_episodes(LM))
    some = {
        "id": 1,
        "context": "T.",
        "multi_turns": [{"input": "Q?", "answer": "a", "options": ["a", "b"]}],
    }
    with pytest.raises(UserError, match="with options and others without"):
        bound(tmp_path, [KV, some])
    with pytest.raises(UserError, match="1 people with 1 facts"):
        load("shared_context", options={"people": 1, "facts": 1})


def test_babilong_and_longmemeval_load_as_published(tmp_path: Path) -> None:
    rows = [
        {
            "input": f"Mary went to the {place}. It rained.",
            "question": "Where is Mary? ",
            "target": place,
        }
        for place in ("kitchen", "garden")
    ]
    bound = load("babilong", source=str(write_jsonl(tmp_path / "4k.jsonl", rows)))
    one, two = bound.episodes(LM)
    assert shown(one) == [
        "Mary went to the kitchen. It rained.",
        "? Question: Where is Mary?\nAnswer:",
    ]
    assert [step.text for step in next(iter(bound.swapped_episodes(LM))).chunks()] == [
        step.text for step in two.chunks()
    ]
    chat = [
        [
            {"role": "user", "content": f"My cat is {name}."},
            {"role": "assistant", "content": "Noted."},
        ]
        for name in ("Tom", "Kit")
    ]
    asked = {
        "question": "What is my cat called?",
        "answer": "Tom",
        "haystack_sessions": chat,
        "haystack_dates": ["2023/05/01", "2023/05/02"],
    }
    kinds = {"1": "multi-session", "2_abs": "multi-session", "3": "single-session-preference"}
    rows = [asked | {"question_id": key, "question_type": kind} for key, kind in kinds.items()]
    bound = load("longmemeval", source=str(write_jsonl(tmp_path / "longmemeval_s.jsonl", rows)))
    (episode,) = bound.episodes(LM)
    text = "2023/05/01\nuser: My cat is Tom.\nassistant: Noted.\n\n2023/05/02\nuser: My cat is Kit.\nassistant: Noted."
    assert "".join(step.text for step in episode.chunks()) == text
    assert [ask.subtask for ask in episode.queries()] == ["multi-session"]
    assert bound.dropped == {"judged by a language model": 2}


PATIENTS = {
    f"patient_{number:02d}": {
        "name": name,
        "birthday": "1970-01-01",
        "diagnosis": "Cough",
        "texts": {
            "text_0": f"**Dear colleague,**\n{name} coughs.",
            "text_1": f"{name} took {drug}.",
        },
        "questions": [
            {
                "No": 0,
                "question": f"What did {name} take?",
                **{
                    f"answer_{letter}": option
                    for letter, option in zip("abcde", DRUGS, strict=True)
                },
                "correct": f"{drug} ",
                "answer_location": {"text_1": {"start": [0.1], "end": [0.9]}},
            }
        ],
    }
    for DRUGS in [("Aspirin", "Codeine", "Honey", "Ibuprofen", "Tea")]
    for number, (name, drug) in enumerate([("Bo Lind", "Codeine"), ("Ada Voss", "Tea")], start=1)
}


def test_longhealth_reads_a_document_per_chunk(tmp_path: Path) -> None:
    (tmp_path / "LongHealth").mkdir()
    (tmp_path / "LongHealth" / "benchmark_v5.json").write_text(json.dumps(PATIENTS))
    task = load("longhealth", source=str(tmp_path))
    one, two = task.episodes(LM)
    assert [episode.key for episode in (one, two)] == [
        f"longhealth/test/{name}" for name in PATIENTS
    ]
    texts = PATIENTS["patient_01"]["texts"]
    assert [chunk.text.strip() for chunk in one.chunks()] == list(texts.values())
    assert "".join(chunk.text for chunk in one.chunks()) == "\n\n".join(texts.values())
    (query,) = one.queries()
    assert query.prompt == (
        "What did Bo Lind take?\nA. Aspirin\nB. Codeine\nC. Honey\nD. Ibuprofen\nE. Tea\n\n"
        "The correct answer is"
    )
    wants = wants_of_kind([query, *two.queries()], Choose)
    assert [(want.options, want.gold) for want in wants] == [
        ((" A", " B", " C", " D", " E"), gold) for gold in (1, 4)
    ]
    assert (task.card.main_metric, task.card.chance, task.unit) == ("acc", 0.2, "context")
    (swapped, _) = task.swapped_episodes(LM)
    assert [chunk.text for chunk in swapped.chunks()] == [chunk.text for chunk in two.chunks()]
    halves = load("longhealth", source=str(tmp_path), options={"tokens": 40, "piece": 30})
    sizes = [len(LM.encode(chunk.text)) for chunk in next(halves.episodes(LM)).chunks()]
    assert sum(sizes) == 40
    assert max(sizes) <= 30


ARTICLES = [
    {
        "article_id": "20007",
        "set_unique_id": f"20007_{writer}",
        "writer_id": writer,
        "title": "A Town",
        "article": "Bo sat in Yarm.\nAda stood.",
        "questions": [
            {
                "question": question,
                "options": ["Ada", "Bo", "Cy", "Di"],
                "gold_label": label,
                "writer_label": label,
                "difficult": difficult,
            }
        ],
    }
    for writer, question, label, difficult in (("1", "Who sat?", 2, 0), ("2", "Who stood?", 1, 1))
]


@pytest.mark.parametrize("place", ["", "QuALITY.v1.0.1.htmlstripped.dev"])
def test_the_two_rows_of_an_article_are_one_context(tmp_path: Path, place: str) -> None:
    write_jsonl(tmp_path / "QuALITY.v1.0.1.htmlstripped.dev", ARTICLES)
    write_jsonl(tmp_path / "QuALITY.v1.0.1.htmlstripped.train", ARTICLES[:1])
    source = str(tmp_path / place)
    task = load("quality", source=source)
    (episode,) = task.episodes(LM)
    assert shown(episode)[0] == ARTICLES[0]["article"]
    assert [query.subtask for query in episode.queries()] == ["easy", "hard"]
    assert [want.gold for want in wants_of_kind(episode.queries(), Choose)] == [1, 0]
    (hard,) = load("quality", source=source, options={"kinds": "hard"}).episodes(LM)
    assert [query.question for query in hard.queries()] == ["Who stood?"]
    if not place:
        (train,) = load("quality", source=source, split="train").episodes(LM)
        assert len(train.queries()) == 1
    options = {"choices": "texts", "mode": "turns", "prompt": "bare"}
    (texts,) = load("quality", source=source, options=options).episodes(LM)
    assert shown(texts)[1:] == ["? Who sat?", "Who sat? Bo", "? Who stood?"]
    assert wants_of_kind(texts.queries(), Choose)[0].options == (" Ada", " Bo", " Cy", " Di")


@pytest.mark.parametrize(
    ("name", "change", "fault"),
    [
        ("quality", {"gold_label": 5}, "test.jsonl line 1: a turn has no answer"),
        ("quality", {"gold_label": 0}, "a turn has no answer"),
        ("quality", {"options": "Ada"}, "not among its 1 options"),
        ("longhealth", {"correct": "Milk"}, "'Milk' is not among its 5 options"),
        ("longhealth", {"answer_c": {}}, "neither a text nor a list"),
        ("longhealth", {"question": None}, "a turn has no question"),
    ],
)
def test_a_question_that_cannot_be_scored_is_refused(
    tmp_path: Path, name: str, change: dict[str, Any], fault: str
) -> None:
    row = ARTICLES[0] if name == "quality" else PATIENTS["patient_01"]
    (question,) = row["questions"]
    changed = {**row, "questions": [{**question, **change}]}
    with pytest.raises(UserError, match=fault):
        load(name, source=str(write_jsonl(tmp_path / "test.jsonl", [changed])))


def test_documents_must_be_texts_and_kinds_must_be_known(tmp_path: Path) -> None:
    row = {**PATIENTS["patient_01"], "texts": {"text_0": 5}}
    with pytest.raises(UserError, match="text_0 must be text"):
        load("longhealth", source=str(write_jsonl(tmp_path / "a.jsonl", [row])))
    path = write_jsonl(tmp_path / "b.jsonl", ARTICLES)
    with pytest.raises(UserError, match="'difficult'"):
        load("quality", source=str(path), options={"kinds": "difficult"})


def test_fact_consolidation_loads_as_published(tmp_path: Path) -> None:
    rows = [
        {
            "context": f"Here is a list of facts:\n0. Bo sat in Yarm.\n1. Bo sat in {place}.",
            "questions": ["where did Bo sit?"],
            "answers": [[place]],
            "metadata": {"source": f"factconsolidation_sh_{size}"},
        }
        for place, size in (("Selby", "6k"), ("Kelby", "32k"))
    ]
    folder = tmp_path / "MemoryAgentBench" / "data"
    folder.mkdir(parents=True)
    pq.write_table(
        pa.Table.from_pylist(rows), folder / "Conflict_Resolution-00000-of-00001.parquet"
    )
    options = {"kinds": "factconsolidation_sh_32k"}
    task = load("fact_consolidation", source=str(tmp_path), options=options)
    (episode,) = task.episodes(LM)
    (query,) = episode.queries()
    assert query.prompt.endswith(
        "Based on the provided Knowledge Pool, where did Bo sit? \nAnswer:"
    )
    assert (query.answers, query.want.max_new_tokens) == (("Kelby",), 10)  # type: ignore[union-attr]
    assert task.card.main_metric == "contains_em"
