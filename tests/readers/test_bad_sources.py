"""Bad rows, files and cards: each is a `UserError` of one line that says where."""

from __future__ import annotations

import csv
import gzip
import io
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings, strategies as st

from ttabench.core.errors import UserError
from ttabench.readers import load
from ttabench.readers.cards import Card, cards_folder, load_card

SQUAD_HEADER = "id,title,context,question,answers\n"
CAMELS_HEADER = "text,question,answers\n"
relaxed = settings(
    deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
words = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=30)
filled = words.filter(lambda text: bool(text.strip()))


def load_error(name: str, path: Path, **options: Any) -> str:
    with pytest.raises(UserError) as caught:
        list(load(name, source=str(path), options=options).episodes())
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 700
    return message


def put(tmp_path: Path, name: str, content: str | bytes) -> Path:
    path = tmp_path / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


@pytest.mark.parametrize(
    ("task", "name", "content", "expected"),
    [
        ("streamingqa", "a.csv", "", "no rows"),
        ("streamingqa", "a.csv", "text,answers\nt,a\n", "'question'; it has 'text, answers'"),
        ("streamingqa", "a.csv", CAMELS_HEADER + "t,q,a\nt,q\n", "line 3 cannot be read: 2 cells"),
        (
            "streamingqa",
            "a.csv",
            CAMELS_HEADER + 't,q,"open\nt,q,a\n',
            "a.csv line 3 cannot be read: unexpected end",
        ),
        (
            "streamingqa",
            "a.csv",
            (CAMELS_HEADER + "t,q,a\n").encode() + b"t\xff,q,a\n",
            "line 3 cannot be read",
        ),
        (
            "streamingqa",
            "a.jsonl",
            '{"text": "t"\n',
            "a.jsonl line 1 cannot be read: not valid JSON",
        ),
        ("streamingqa", "a.jsonl", '{"text": 5, "question": "q", "answers": "a"}', "line 1: text"),
        (
            "streamingqa",
            "a.jsonl",
            '{"text": "\\ud800", "question": "q", "answers": "a"}',
            "half of a surrogate pair",
        ),
        (
            "squad_seq",
            "a.json",
            '{"data": [\n{"paragraphs": }]}',
            "not valid JSON (Expecting value at line 2",
        ),
        ("squad_seq", "a.csv", SQUAD_HEADER + "1,t,c,q,circle logo\n", "line 2: the answers"),
        (
            "streamingqa",
            "a.csv.gz",
            gzip.compress(b"text\n" + b"\xff" * 9999, mtime=0)[:-12],
            "a.csv.gz",
        ),
    ],
)
def test_bad_files(
    tmp_path: Path, task: str, name: str, content: str | bytes, expected: str
) -> None:
    message = load_error(task, put(tmp_path, name, content))
    assert expected in message
    assert name in message


# --- any text round-trips ---------------------------------------------------------------------------------------------

samples = st.lists(
    st.tuples(filled, filled, st.lists(filled, min_size=1, max_size=3)), min_size=1, max_size=5
)


def observed(name: str, path: Path) -> list[tuple[str, str, tuple[str, ...]]]:
    (episode,) = load(
        name, source=str(path), options={"order": "file", "capitalise": "false"}
    ).episodes()
    texts = {o.key: o.text for o in episode.chunks()}
    return sorted(
        (texts[a.source_key], a.prompt, tuple(sorted(a.answers))) for a in episode.queries()
    )


@relaxed
@given(samples)
def test_csv_and_json_round_trip(tmp_path: Path, sample: list[tuple[str, str, list[str]]]) -> None:
    expected = sorted(
        (t.rstrip() or t, q.strip(), tuple(sorted({a.strip() for a in own})))
        for t, q, own in sample
    )
    out = io.StringIO(newline="")
    writer = csv.writer(out)
    writer.writerow(["context", "question", "answers"])
    writer.writerows((t, q, str({"text": a, "answer_start": [0]})) for t, q, a in sample)
    assert observed("squad_seq", put(tmp_path, "x.csv", out.getvalue())) == expected
    paragraphs = [
        {"context": t, "qas": [{"question": q, "answers": [{"text": x} for x in a]}]}
        for t, q, a in sample
    ]
    nested = json.dumps({"data": [{"title": "T", "paragraphs": paragraphs}]})
    assert observed("squad_seq", put(tmp_path, "x.json", nested)) == expected


# --- cards that expand without end or look elsewhere ----------------------------------------------------------------


@pytest.mark.parametrize(
    "bomb",
    [
        "a: &a [x, x, x]\n"
        + "".join(f"{new}: &{new} [*{old}, *{old}]\n" for old, new in pairwise("abcdefghi")),
        "a: &a {k: v}\nb: &b {<<: [*a, *a]}\n",
        "a: &a [*a]\n",
    ],
    ids=["lists", "merges", "itself"],
)
def test_an_alias_bomb_is_refused_at_once(tmp_path: Path, bomb: str) -> None:
    with pytest.raises(UserError, match=r"line \d: .*alias.*\(\*"):
        load_card(str(put(tmp_path, "card.yaml", bomb)))


@pytest.mark.parametrize("place", [("source", "hub", "config"), ("splits", "test", "files")])
@pytest.mark.parametrize("name", ["/etc", "../secret", "a/../../b", "C:\\secret", "", "~/../x"])
def test_a_card_names_nothing_outside_its_source(place: tuple[str, ...], name: str) -> None:
    data: Any = yaml.safe_load((cards_folder() / "streamingqa.yaml").read_text(encoding="utf-8"))
    data[place[0]][place[1]][place[2]] = name if place[2] == "config" else [name]
    with pytest.raises(ValueError, match="below the source folder"):
        Card.model_validate_json(json.dumps(data), strict=True)


@pytest.mark.parametrize("task", ["babilong", "shared_context", "streamingqa", "msc"])
def test_a_text_longer_than_any_book_is_refused_with_its_row(tmp_path: Path, task: str) -> None:
    row = {"context": [{"nested": "a" * (2**24 + 1)}], "question": "q"}
    path = put(tmp_path, "a.jsonl", json.dumps({"context": "c"}) + "\n" + json.dumps(row))
    assert "a.jsonl" in load_error(task, path)
