"""Bad rows and files: each is a `UserError` of one line that says where; arbitrary bytes never end in another error."""

from __future__ import annotations

import csv
import gzip
import io
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ttabench.core.errors import UserError
from ttabench.readers import load

SQUAD_HEADER = "id,title,context,question,answers\n"
CAMELS_HEADER = "text,question,answers\n"
relaxed = settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
words = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=30)
filled = words.filter(lambda text: bool(text.strip()))


def refusal(name: str, path: Path, **options: Any) -> str:
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
        ("streamingqa", "a.csv", "", "holds no rows"),
        ("streamingqa", "a.csv", CAMELS_HEADER, "holds no rows"),
        ("streamingqa", "a.csv", "text,answers\nt,a\n", "lacks the column 'question'; it has 'text, answers'"),
        ("streamingqa", "a.csv", CAMELS_HEADER + "t,q,a\nt,q\n", "line 3 cannot be read: 2 cells"),
        ("streamingqa", "a.csv", CAMELS_HEADER + 't,q,"open\nt,q,a\n', "a.csv line 3 cannot be read: unexpected end"),
        ("streamingqa", "a.csv", (CAMELS_HEADER + "t,q,a\n").encode() + b"t\xff,q,a\n", "line 3 cannot be read"),
        ("streamingqa", "a.jsonl", '{"text": "t"\n', "a.jsonl line 1 cannot be read: not valid JSON"),
        ("streamingqa", "a.jsonl", '{"text": 5, "question": "q", "answers": "a"}', "line 1: text is 5, no text"),
        ("streamingqa", "a.jsonl", '{"text": "t", "question": "q", "answers": ["a", [1]]}', "answer is [1], no text"),
        ("streamingqa", "a.jsonl", '{"text": "\\ud800", "question": "q", "answers": "a"}', "half of a surrogate pair"),
        ("squad_seq", "a.json", '{"data": [\n{"paragraphs": }]}', "not valid JSON (Expecting value at line 2"),
        ("squad_seq", "a.json", '{"rows": []}', "neither a list of rows nor SQuAD's"),
        ("squad_seq", "a.csv", SQUAD_HEADER + "1,t,c,q,circle logo\n", "line 2: the answers are no Python dict"),
        ("streamingqa", "a.csv.gz", gzip.compress(b"text\n" + b"\xff" * 9999, mtime=0)[:-12], "a.csv.gz"),
    ],
)  # fmt: skip
def test_bad_files(tmp_path: Path, task: str, name: str, content: str | bytes, expected: str) -> None:
    message = refusal(task, put(tmp_path, name, content))
    assert expected in message
    assert name in message


# --- any text round-trips, any bytes are rows or one clear line -----------------------------------------------------


def observed(name: str, path: Path) -> list[tuple[str, str, tuple[str, ...]]]:
    (episode,) = load(name, source=str(path), options={"order": "file", "capitalise": "false"}).episodes()
    texts = {o.key: o.text for o in episode.observes()}
    return sorted((texts[a.source_key], a.prompt, tuple(sorted(a.answers))) for a in episode.asks())


samples = st.lists(st.tuples(filled, filled, st.lists(filled, min_size=1, max_size=3)), min_size=1, max_size=5)


def expected_of(sample: list[tuple[str, str, list[str]]]) -> list[tuple[str, str, tuple[str, ...]]]:
    return sorted((t.rstrip() or t, q.strip(), tuple(sorted({a.strip() for a in answers}))) for t, q, answers in sample)


@relaxed
@given(samples)
def test_camels_csv_round_trip(tmp_path: Path, sample: list[tuple[str, str, list[str]]]) -> None:
    plain = [(t, q, [a.replace("\\", "/") for a in answers]) for t, q, answers in sample]
    out = io.StringIO(newline="")
    writer = csv.writer(out)
    writer.writerow(["text", "question", "answers"])
    writer.writerows((t, q, "\\".join(answers)) for t, q, answers in plain)
    path = put(tmp_path, "x.csv", out.getvalue())
    assert observed("streamingqa", path) == expected_of(plain)


@relaxed
@given(samples)
def test_squad_csv_and_json_round_trip(tmp_path: Path, sample: list[tuple[str, str, list[str]]]) -> None:
    out = io.StringIO(newline="")
    writer = csv.writer(out)
    writer.writerow(["context", "question", "answers"])
    writer.writerows((t, q, str({"text": a, "answer_start": [0]})) for t, q, a in sample)
    assert observed("squad_seq", put(tmp_path, "x.csv", out.getvalue())) == expected_of(sample)
    paragraphs = [{"context": t, "qas": [{"question": q, "answers": [{"text": x} for x in a]}]} for t, q, a in sample]
    nested = json.dumps({"data": [{"title": "T", "paragraphs": paragraphs}]})
    assert observed("squad_seq", put(tmp_path, "x.json", nested)) == expected_of(sample)
