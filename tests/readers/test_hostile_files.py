"""Files made to hurt: cards that expand without end or look elsewhere, cut archives, values that are none."""

from __future__ import annotations

import gzip
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Command, one_line
from tests.readers.test_bad_sources import put, refusal
from tests.readers.test_readers import own_card
from ttabench.core.errors import UserError
from ttabench.methods.kvpress.names import parse
from ttabench.readers import load
from ttabench.readers.cards import Card, cards_folder, load_card

ROW = '{"text": "t", "question": "q", "answers": "a"}\n'


def card_of(name: str) -> dict[str, Any]:
    import yaml

    found: dict[str, Any] = yaml.safe_load((cards_folder() / f"{name}.yaml").read_text(encoding="utf-8"))
    return found


@pytest.mark.parametrize(
    "bomb",
    [
        "a: &a [x, x, x, x, x, x, x, x, x]\n"
        + "".join(f"{new}: &{new} [{', '.join([f'*{old}'] * 9)}]\n" for old, new in pairwise("abcdefghi")),
        "a: &a {k: v}\n" + "b: &b {<<: [" + ", ".join(["*a"] * 9) + "]}\n",
        "a: &a [*a]\n",
    ],
    ids=["lists", "merges", "itself"],
)  # fmt: skip
def test_an_alias_bomb_is_refused_at_once(tmp_path: Path, bomb: str) -> None:
    path = put(tmp_path, "card.yaml", bomb)
    with pytest.raises(UserError, match=r"line \d: a task card may hold no alias"):
        load_card(str(path))


def test_a_long_card_is_refused_before_it_is_parsed(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="too long for a task card"):
        load_card(str(put(tmp_path, "card.yaml", "[" * 10**6)))
    for deep in ("[" * 10**5, "{a: " * 10**4, "- " * 10**4 + "a"):
        with pytest.raises(UserError, match="line 1: not a task card: nested deeper"):
            load_card(str(put(tmp_path, "card.yaml", deep)))


@pytest.mark.parametrize(
    ("task", "options"),
    [
        ("streamingqa", {"documents": 10**9}), ("streamingqa", {"documents": 20_000, "questions": 5_000}),
        ("squad_seq", {"documents": 10**9}), ("metaicl", {"tasks": 10**6}), ("metaicl", {"queries": 10**9}),
        ("superglue", {"task": "boolq", "queries": 10**9}), ("pg19", {"tokens": "900000m"}),
        ("pg19", {"books": 10**9}),
    ],
    ids=str,
)  # fmt: skip
def test_a_twin_makes_no_more_than_a_memory_holds(task: str, options: dict[str, object]) -> None:
    with pytest.raises(UserError, match="would make too much with"):
        load(task, options=options).describe()


def test_so_does_training(ttabench: Command, tiny_base: Path, tmp_path: Path) -> None:
    words = ["--model", tiny_base, "--source", "mini", "--out", tmp_path / "out", "--preset", "nano"]
    for flag in ("--documents", "--questions"):
        assert "is too long" in one_line(ttabench("train", *words, flag, "1000000000"))


@pytest.mark.parametrize("name", ["/etc", "../secret", "a/../../b", "C:\\secret", "..\\secret", "", "~/../x"])
@pytest.mark.parametrize("place", ["config", "files", "whole", "articles"])
def test_a_card_names_nothing_outside_its_source(place: str, name: str) -> None:
    data = card_of("streamingqa")
    if place == "config":
        data["source"]["hub"]["config"] = name
    elif place == "articles":
        data["source"]["articles"]["files"] = [name]
    else:
        data["splits"]["test"][place] = [name]
    with pytest.raises(ValueError, match="is no path below the folder"):
        Card.model_validate_json(json.dumps(data), strict=True)


def test_nor_do_its_parts() -> None:
    data = card_of("superglue")
    data["parts"]["boolq"]["folders"] = ["../BoolQ"]
    with pytest.raises(ValueError, match="is no path below the folder"):
        Card.model_validate_json(json.dumps(data), strict=True)


@pytest.mark.parametrize("name", ["../../secret", "/etc", "..", ""])
def test_a_configuration_names_nothing_outside_its_folder(tmp_path: Path, name: str) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "config").mkdir()
    put(tmp_path, "config/hr_to_lr.json", json.dumps({"test": [name], "train": []}))
    assert "has no list 'test' of tasks" in refusal("metaicl", tmp_path)


def test_a_configuration_nested_too_deep(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "config").mkdir()
    put(tmp_path, "config/hr_to_lr.json", "[" * 100_000)
    assert "has no list 'test' of tasks" in refusal("metaicl", tmp_path)


@pytest.mark.parametrize("content", [ROW.encode() * 2000 + b"\xff\xfe", b"\xff" + ROW.encode() * 2000])
@pytest.mark.parametrize("kept", [0.4, 0.9, 1.0])
def test_a_cut_archive_with_bytes_that_are_no_text(
    ttabench: Command, tiny_base: Path, tmp_path: Path, content: bytes, kept: float
) -> None:
    packed = gzip.compress(content, mtime=0)
    path = put(tmp_path, "test.jsonl.gz", packed[: int(len(packed) * kept)])
    line = one_line(ttabench("eval", "--method", "none", "--model", tiny_base, "--source", path, "--out", tmp_path))
    assert "test.jsonl.gz" in line


@pytest.mark.parametrize(
    "generator", ["ttabench.mini.nosuch:x", "ttabench.mini.qa:nosuch", "ttabench.mini.nano:main",
                  "ttabench.mini.qa:random", "ttabench.mini.figures:answering"]
)  # fmt: skip
def test_a_generator_that_is_none(tmp_path: Path, generator: str) -> None:
    with pytest.raises(UserError, match=r"there is no such function|it makes no rows from a split"):
        load(own_card(tmp_path, twin={"generator": generator}))


@pytest.mark.parametrize("name", ["demonstrations:metaicl", "demonstrations:unseen", "profiles:lamp"])
def test_a_generator_of_another_reader(tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError, match=r"it makes rows for another reader|does not fit this card"):
        load(own_card(tmp_path, twin={"generator": f"ttabench.mini.{name}"}))


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [({"questions": "many"}, "questions takes int, got 'many'"), ({"colour": 3}, "is no argument of ttabench.mini"),
     ({"questions": None}, "questions takes int, got None")],
)  # fmt: skip
def test_arguments_of_a_card_are_checked(tmp_path: Path, arguments: dict[str, object], expected: str) -> None:
    twin = {"generator": "ttabench.mini.qa:streamingqa", "arguments": arguments}
    with pytest.raises(UserError, match=expected):
        load(own_card(tmp_path, twin=twin))


HALF = r'"\ud800"'


@pytest.mark.parametrize(
    ("task", "name", "content"),
    [
        ("pg19", "test.jsonl", f'{{"id": "1", "text": {HALF}}}'),
        ("pg19", "test.jsonl", f'{{"id": {HALF}, "text": "words"}}'),
        ("pg19", "test.jsonl", f'{{"id": "1", "title": {HALF}, "text": "words"}}'),
    ],
)
def test_half_a_character_is_no_text(tmp_path: Path, task: str, name: str, content: str) -> None:
    assert "half of a surrogate pair" in refusal(task, put(tmp_path, name, content))


def test_half_a_character_in_an_article(tmp_path: Path) -> None:
    put(tmp_path, "articles.jsonl", f'{{"evidence_id": "e", "text": {HALF}}}')
    path = put(tmp_path, "test.jsonl", '{"question": "q", "answers": ["a"], "evidence_id": "e"}')
    assert "half of a surrogate pair" in refusal("streamingqa", path)


def test_half_a_character_in_an_id(tmp_path: Path) -> None:
    row = f'{{"question": "q", "passage": "p", "label": true, "idx": {HALF}}}\n'
    path = put(tmp_path, "val.jsonl", row * 3)
    assert "half of a surrogate pair" in refusal("superglue", path, task="boolq", shots=1)


def test_a_long_cell_in_the_list_of_books(tmp_path: Path) -> None:
    (tmp_path / "test").mkdir()
    put(tmp_path, "test/1.txt", "words " * 50)
    put(tmp_path, "metadata.csv", f"1,{'x' * 131_073},1900,u\n")
    assert load("pg19", source=str(tmp_path)).describe()["books"] == 1
    put(tmp_path, "metadata.csv", '1,"open\nx",1900,u\n2,a\x00b,1900,u\n1,"' + "x" * 17_000_000)
    assert "metadata.csv" in refusal("pg19", tmp_path)


@pytest.mark.parametrize("text", ["A(" * 2000, "A(" * 2000 + ")" * 2000, "A(" * 30 + "B" + ")" * 30])
def test_presses_nested_too_deep(text: str) -> None:
    with pytest.raises(UserError, match="has more than 20 presses"):
        parse(text)


def test_records_nested_too_deep(ttabench: Command, common: list[object], trained: Path, tmp_path: Path) -> None:
    deep = "[" * 100_000
    (trained / "adapter.json").write_text(deep)
    assert "is damaged" in one_line(ttabench("eval", "--method", "mac", *common, "--checkpoint", trained))
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "state.json").write_text(deep)
    assert "cannot be read" in one_line(ttabench("eval", *common, "--state", tmp_path / "state"))
