"""The miniature world: disjoint splits, seeds that mean something, and answers that stand in their documents."""

from __future__ import annotations

import json
from itertools import combinations, pairwise

import pytest

from tools.nano import corpus
from ttabench.mini import books, demonstrations, dialogue, profiles, qa
from ttabench.mini.world import (
    CATEGORIES,
    KINDS,
    RELATIONS,
    RELATIONS_BY_WORDING,
    SPLITS,
    Wording,
    entities,
    name_parts,
    rng,
)

QA = {"streamingqa": qa.streamingqa, "squad_seq": qa.squad_seq, "archivalqa": qa.archivalqa}


CONTEXTS = {
    "longhealth": qa.longhealth,
    "quality": qa.quality,
    "fact_consolidation": qa.fact_consolidation,
}


def names_in(text: str) -> set[str]:
    """Every entity of the world that a text names, of any kind and split."""
    known = {name for kind in KINDS for split in SPLITS for name in entities(kind, split)}
    words = text.replace("_", " ").translate(str.maketrans(",.?!:\"'()[]{}\\", " " * 14)).split()
    return {f"{a} {b}" for a, b in pairwise(words)} & known


@pytest.mark.parametrize("kind", KINDS)
def test_entities_of_the_splits_are_disjoint_and_share_their_chunks(kind: str) -> None:
    for one, other in combinations(SPLITS, 2):
        assert not set(entities(kind, one)) & set(entities(kind, other))
    for position in (0, 1):
        pieces = [
            {name.split()[position] for name in entities(kind, split)}
            for split in ("train", "test")
        ]
        assert pieces[0] == pieces[1] == set(name_parts(kind)[position])


def everything(split: str) -> dict[str, object]:
    """A sample of every family in one split."""
    return {
        **{name: make(split, 0, 12) for name, make in QA.items()},
        **{name: make(split, 0, 4) for name, make in CONTEXTS.items()},
        "superglue": [
            demonstrations.superglue(task, split, 0, 8, 8)
            for task in demonstrations.LABELS_PER_TASK
        ],
        "metaicl": demonstrations.metaicl(split, 0, 4),
        "msc": dialogue.msc(split, 0, 4),
        "dailydialog": dialogue.dailydialog(split, 0, 4),
        "lamp": profiles.lamp(split, 0, 4),
        "pg19": books.pg19(split, 0, 2, 2000),
    }


@pytest.mark.parametrize("split", SPLITS)
def test_rows_name_only_entities_of_their_split(split: str) -> None:
    allowed = {name for kind in KINDS for name in entities(kind, split)}
    for family, rows in everything(split).items():
        named = names_in(json.dumps(rows))
        assert named <= allowed, f"{family} names {sorted(named - allowed)[:3]}"
        assert named or family in {"metaicl", "lamp"}, f"{family} names nobody"


def test_training_text_of_the_nano_lm_names_training_entities_only() -> None:
    allowed = {name for kind in KINDS for name in entities(kind, "train")}
    for name, family in corpus.FAMILIES.items():
        for seed in range(5):
            text = "".join(segment.text for segment in family(rng("test", name, seed), 400))
            assert names_in(text) <= allowed


@pytest.mark.parametrize("split", SPLITS)
def test_the_same_seed_gives_the_same_rows_and_another_seed_others(split: str) -> None:
    for make in (
        *QA.values(),
        *CONTEXTS.values(),
        dialogue.msc,
        dialogue.dailydialog,
        profiles.lamp,
    ):
        assert make(split, 3, 4) == make(split, 3, 4)
        assert make(split, 3, 4) != make(split, 4, 4)


@pytest.mark.parametrize("name", QA)
def test_every_answer_stands_in_its_document_once_as_a_fact_of_the_entity_asked_for(
    name: str,
) -> None:
    for row in QA[name]("test", 0, 30, questions=4):
        text = str(row.get("context") or row.get("ans_paragraph") or row["text"])
        gold = row.get("answer") or row["answers"]
        assert (gold["text"][0] if isinstance(gold, dict) else str(gold)) in text
        (asked,) = names_in(str(row["question"]))
        assert names_in(text) == {asked}


def test_options_of_hard_questions_are_all_in_the_context() -> None:
    for patient in qa.longhealth("test", 0, 4):
        text = " ".join(patient["texts"].values())
        for choice in patient["questions"]:
            options = [choice[f"answer_{letter}"] for letter in "abcde"]
            assert len({*options, choice["correct"]}) == 5
            assert choice["correct"] in text
    for article in qa.quality("test", 0, 4):
        assert {choice["difficult"] for choice in article["questions"]} == {0, 1}
        for choice in article["questions"]:
            stated = [option in article["article"] for option in choice["options"]]
            assert stated[choice["gold_label"] - 1]
            assert sum(stated) == (4 if choice["difficult"] else 1)


def test_the_answer_is_the_newer_of_two_facts() -> None:
    for pool in qa.fact_consolidation("test", 0, 4):
        lines = pool["context"].splitlines()
        assert [line.partition(".")[0] for line in lines] == [*map(str, range(len(lines)))]
        for question, (answer,) in zip(pool["questions"], pool["answers"], strict=True):
            (person,) = names_in(question)
            (relation,) = (one for one in RELATIONS["person"] if answer in one.values)
            stated = [
                value
                for line in lines
                for value in relation.values
                if person in line and f" {value}." in line
            ]
            assert len(set(stated)) == 2
            assert stated[-1] == answer


def test_demonstrations_leave_every_label_equally_likely() -> None:
    for task in demonstrations.LABELS_PER_TASK:
        labels = [
            row["label"] for row in demonstrations.superglue(task, "test", 1, 32, 60)["validation"]
        ]
        counts = {labels.count(label) for label in set(labels)}
        assert max(counts) - min(counts) <= 1


@pytest.mark.parametrize("name", QA)
def test_other_wording_states_the_same_facts_in_other_sentences(name: str) -> None:
    by_wording: dict[Wording, list[dict[str, object]]] = {
        wording: QA[name]("test", 0, 12, questions=4, wording=wording)
        for wording in ("trained", "held_out_sentences", "held_out")
    }
    for rows in zip(*by_wording.values(), strict=True):
        answers = [row.get("answer") or row["answers"] for row in rows]
        questions = [row["question"] for row in rows]
        texts = [row.get("context") or row.get("ans_paragraph") or row["text"] for row in rows]
        assert answers == answers[:1] * 3
        assert questions[0] == questions[1] != questions[2]
        assert len({*texts}) == 2
        assert texts[1] == texts[2]


@pytest.mark.parametrize("kind", KINDS)
def test_held_out_sentences_are_none_of_training(kind: str) -> None:
    trained, sentences, questions = RELATIONS_BY_WORDING[kind].values()
    for known, stated, asked in zip(trained, sentences, questions, strict=True):
        assert known.values == stated.values == asked.values
        assert known.questions == stated.questions
        assert stated.statements == asked.statements
        assert not {*known.statements} & {*stated.statements}
        assert not {*known.questions} & {*asked.questions}
        for statement in stated.statements:
            assert statement.index("{e}") < statement.index("{v}")


@pytest.mark.parametrize("wording", ["held_out_sentences", "held_out"])
def test_held_out_demonstrations_share_no_sentence_with_training(wording: Wording) -> None:
    trained, held_out = (
        [
            row
            for rows in demonstrations.metaicl("test", 0, 8, wording=each).values()
            for row in rows
        ]
        for each in ("trained", wording)
    )
    words = {word for own in CATEGORIES.values() for word in own}
    scenes = [
        {" ".join(sorted({*str(row["input"]).split()} - words)) for row in rows}
        for rows in (trained, held_out)
    ]
    assert not scenes[0] & scenes[1]
    known = {bool({*str(row["input"]).split()} & words) for row in held_out}
    assert known == {wording == "held_out_sentences"}
