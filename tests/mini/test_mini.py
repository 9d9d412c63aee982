"""The miniature world: disjoint splits, published schemas, seeds that mean something, lengths that can be set."""

from __future__ import annotations

import json
from itertools import combinations, pairwise
from typing import Any

import pytest

from results.nano_recipe import corpus
from ttabench.mini import books, demonstrations, dialogue, profiles, qa
from ttabench.mini.relations import RELATIONS
from ttabench.mini.world import CATEGORIES, KINDS, SPLITS, entities, name_pieces, rng

QA = {"streamingqa": qa.streamingqa, "squad_seq": qa.squad_seq, "archivalqa": qa.archivalqa}


def names_in(text: str) -> set[str]:
    """Every entity of the world that a text names, of any kind and split."""
    known = {name for kind in KINDS for split in SPLITS for name in entities(kind, split)}
    words = text.replace("_", " ").translate(str.maketrans(",.?!:\"'()[]{}\\", " " * 14)).split()
    return {f"{a} {b}" for a, b in pairwise(words)} & known


@pytest.mark.parametrize("kind", KINDS)
def test_entities_of_the_splits_are_disjoint_and_share_their_pieces(kind: str) -> None:
    for one, other in combinations(SPLITS, 2):
        assert not set(entities(kind, one)) & set(entities(kind, other))
    for position in (0, 1):
        pieces = [{name.split()[position] for name in entities(kind, split)} for split in ("train", "test")]
        assert pieces[0] == pieces[1] == set(name_pieces(kind)[position])


def everything(split: str) -> dict[str, object]:
    """A sample of every family in one split."""
    return {
        **{name: make(split, 0, 12) for name, make in QA.items()},
        "superglue": [demonstrations.superglue(task, split, 0, 8, 8) for task in demonstrations.LABELS],
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


@pytest.mark.parametrize("size", [2, 3, 4])
def test_rules_of_the_splits_are_disjoint_and_cover_all_groups(size: int) -> None:
    groups = [group for split in SPLITS for group in demonstrations.groups(split, size)]
    assert len(groups) == len(set(groups)) == len(list(combinations(CATEGORIES, size)))


@pytest.mark.parametrize("split", SPLITS)
def test_the_same_seed_gives_the_same_rows_and_another_seed_others(split: str) -> None:
    for make in (*QA.values(), dialogue.msc, dialogue.dailydialog, profiles.lamp):
        assert make(split, 3, 4) == make(split, 3, 4)
        assert make(split, 3, 4) != make(split, 4, 4)


@pytest.mark.parametrize("name", QA)
def test_every_answer_stands_in_its_document_once_as_a_fact_of_the_entity_asked_for(name: str) -> None:
    for row in QA[name]("test", 0, 30, questions=4):
        text = str(row.get("context") or row.get("ans_paragraph") or row["text"])
        gold = row.get("answer") or row["answers"]
        answer = gold["text"][0] if isinstance(gold, dict) else str(gold)
        start = gold["answer_start"][0] if isinstance(gold, dict) else row.get("answer_start", text.index(answer))
        assert text[start : start + len(answer)] == answer
        (asked,) = names_in(str(row["question"]))
        assert names_in(text) == {asked}


def test_demonstrations_leave_every_label_equally_likely() -> None:
    for task in demonstrations.LABELS:
        labels = [row["label"] for row in demonstrations.superglue(task, "test", 1, 32, 60)["validation"]]
        counts = {labels.count(label) for label in set(labels)}
        assert max(counts) - min(counts) <= 1


def _groups(rows: list[dict[str, object]]) -> dict[object, set[str]]:
    """Categories by label of rows that hold one word of a category."""
    of_word = {word: name for name, words in CATEGORIES.items() for word in words}
    found: dict[object, set[str]] = {}
    for row in rows:
        text = str(row.get("sentence") or row.get("passage") or row.get("premise") or row.get("input"))
        (category,) = {of_word[word] for word in text.strip(".").split() if word in of_word}
        found.setdefault(row.get("label", row.get("output")), set()).add(category)
    return found


@pytest.mark.parametrize(
    ("task", "categories", "sizes"), [("sst2", 12, [6, 6]), ("cb", 8, [2, 3, 3]), ("rte", 2, [1, 1])]
)
def test_a_rule_shares_its_categories_out_among_the_labels(task: str, categories: int, sizes: list[int]) -> None:
    made = demonstrations.superglue(task, "validation", 1, 200, 200, categories=categories)
    rule = _groups(made["train"])
    assert sorted(map(len, rule.values())) == sizes
    assert len(set().union(*rule.values())) == categories, "no category has two labels"
    assert _groups(made["validation"]) == rule
    fixed = demonstrations.superglue(task, "validation", 1, 200, 200, "fixed", categories)["train"]
    assert _groups(fixed) == _groups(demonstrations.superglue(task, "test", 2, 200, 200, "fixed", categories)["train"])


def _asked(row: dict[str, object]) -> tuple[str, str, int]:
    """(question, right option, its place) of a row of the unseen tasks whose options are label words."""
    if "goal" in row:
        place = int(str(row["label"]))
        return str(row["goal"]), str(row[("sol1", "sol2")[place]]), place
    choices: Any = row["choices"]
    place = choices["label"].index(row["answerKey"])
    return str(row.get("question") or row["question_stem"]), choices["text"][place], place


@pytest.mark.parametrize("task", ["openbookqa", "arc_easy", "arc_challenge", "piqa"])
def test_demonstrations_tell_the_label_word_of_every_category(task: str) -> None:
    of_word = {word: name for name, words in CATEGORIES.items() for word in words}
    made = demonstrations.unseen(task, "validation", 2, 40, 40)
    rule: dict[str, str] = {}
    for row in made["train"]:
        question, right, _ = _asked(row)
        (category,) = {of_word[word] for word in question.split() if word in of_word}
        assert rule.setdefault(category, right) == right
    assert tuple(sorted(rule)) in demonstrations.groups("validation", demonstrations.UNSEEN[task])
    places = []
    for row in made["validation"]:
        question, right, place = _asked(row)
        (category,) = {of_word[word] for word in question.split() if word in of_word}
        assert rule[category] == right
        places.append(place)
    assert max(places.count(i) for i in set(places)) - min(places.count(i) for i in set(places)) <= 1
    assert {_asked(row)[0] for row in made["train"]}.isdisjoint(_asked(row)[0] for row in made["validation"])


def test_books_have_the_length_asked_for_and_facts_that_return_late() -> None:
    text = str(books.pg19("test", 0, 1, 8000)[0]["text"])
    sentences = text.replace("\n", " ").split(". ")
    assert 0.8 * 8000 <= 9 * len(sentences) <= 1.2 * 8000
    first: dict[tuple[str, str], int] = {}
    gaps = []
    values = {value for relation in RELATIONS["person"] for value in relation.values}
    for place, sentence in enumerate(sentences):
        for name in names_in(sentence):
            for value in set(sentence.split()) & values:
                gaps.append(place - first.setdefault((name, value), place))
    assert max(gaps) * 9 > 1024


def test_a_longer_book_goes_on_from_a_shorter_one() -> None:
    long = str(books.pg19("test", 3, 1, 60_000)[0]["text"])
    for tokens in (100, 4_000, 20_000):
        assert long.startswith(str(books.pg19("test", 3, 1, tokens)[0]["text"]))


def test_new_people_keep_appearing_in_a_book() -> None:
    text = str(books.pg19("test", 0, 1, 60_000)[0]["text"])
    fifths = [names_in(text[: len(text) * part // 5]) for part in range(6)]
    assert all(len(after - before) > 10 for before, after in pairwise(fifths))
    whole = names_in(books.book(rng("validation"), "validation", 400_000, growing=True))
    assert whole == set(entities("person", "validation")), "until the split has no more"


def _rule_of(rows: list[dict[str, object]]) -> dict[object, str]:
    """Category by label of rows of `sst2`."""
    of_word = {word: name for name, words in CATEGORIES.items() for word in words}
    return {row["label"]: of_word[next(w for w in str(row["sentence"]).split() if w in of_word)] for row in rows}


def test_a_fixed_rule_is_the_same_for_every_seed_and_split_and_mixed_ones_are_so_half_of_the_time() -> None:
    fixed = {
        tuple(sorted(_rule_of(demonstrations.superglue("sst2", split, seed, 8, 8, "fixed")[part]).items(), key=str))
        for split in SPLITS
        for seed in range(4)
        for part in ("train", "validation")
    }
    (rule,) = fixed
    mixed = [_rule_of(demonstrations.superglue("sst2", "train", seed, 8, 8, "mixed")["train"]) for seed in range(200)]
    assert 70 < sum(each == dict(rule) for each in mixed) < 130
    assert len({tuple(each.values()) for each in mixed}) > 20
    fresh = demonstrations.superglue("sst2", "train", 3, 8, 8)
    assert fresh == demonstrations.superglue("sst2", "train", 3, 8, 8, "fresh")
