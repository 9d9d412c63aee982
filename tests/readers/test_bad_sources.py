"""Bad rows and files: each is a `UserError` of one line that says where; arbitrary bytes never end in another error."""

from __future__ import annotations

import csv
import gzip
import io
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ttabench.core.errors import UserError
from ttabench.readers import formats, load, qa_rows
from ttabench.readers.formats import rows

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
        ("streamingqa", "a.csv", "body,question,answers\nt,q,a\n", "lacks the column 'text' or 'context'"),
        ("streamingqa", "a.csv", CAMELS_HEADER + "t,q,a\nt,q\n", "line 3 cannot be read: 2 cells"),
        ("streamingqa", "a.csv", CAMELS_HEADER + '"t\nt",q,a\n"t"x,q,a\n', "a.csv line 4 cannot be read: ',' expected"),
        ("streamingqa", "a.csv", CAMELS_HEADER + 't,q,"open\nt,q,a\n', "a.csv line 3 cannot be read: unexpected end"),
        ("streamingqa", "a.csv", (CAMELS_HEADER + "t,q,a\n").encode() + b"t\xff,q,a\n", "line 3 cannot be read"),
        ("streamingqa", "a.csv", CAMELS_HEADER + " ,q,a\nt, ,a\nt,q,\\ \n", "no text: 1, no question: 1, no answer: 1"),
        ("streamingqa", "a.jsonl", '{"text": "t"\n', "a.jsonl line 1 cannot be read: not valid JSON"),
        ("streamingqa", "a.jsonl", "[1]\n", "line 1: a JSON object was expected, not list"),
        ("streamingqa", "a.jsonl", '{"text": "t", "question": "q", "answers": ""}\n{}', "2 lacks the column"),
        ("streamingqa", "a.jsonl", '{"text": 5, "question": "q", "answers": "a"}', "line 1: text is 5, no text"),
        ("streamingqa", "a.jsonl", '{"text": "t", "question": "q", "answers": ["a", [1]]}', "answer is [1], no text"),
        ("streamingqa", "a.jsonl", '{"text": "\\ud800", "question": "q", "answers": "a"}', "half of a surrogate pair"),
        ("squad_seq", "a.json", '{"data": [\n{"paragraphs": }]}', "not valid JSON (Expecting value at line 2"),
        ("squad_seq", "a.json", '{"rows": []}', "neither a list of rows nor SQuAD's"),
        ("squad_seq", "a.json", '{"data": 3}', "a.json cannot be read: TypeError"),
        ("squad_seq", "a.json", '{"data": [{"title": "t"}]}', "a.json cannot be read: KeyError: 'paragraphs'"),
        ("squad_seq", "a.json", '{"data": [{"paragraphs": [{"context": "c", "qas": [{}]}]}]}', "no question: 1"),
        ("squad_seq", "a.csv", SQUAD_HEADER + "1,t,c,q,circle logo\n", "line 2: the answers are no Python dict"),
        ("squad_seq", "a.csv", SQUAD_HEADER + "1,t,c,q,\"{'text': \"\n", "the answers are no Python literal"),
        ("squad_seq", "a.csv", SQUAD_HEADER + f"1,t,c,q,{'[' * 90_000}\n", "the answers are no Python literal"),
        ("squad_seq", "a.csv", SQUAD_HEADER + f"1,t,c,q,['{'a' * 200_000}']\n", "literal of 200004 characters"),
        ("streamingqa", "a.csv", "text,question,answers,text\nt,q,a,u\n", "two columns are called 'text'"),
        ("streamingqa", "a.csv", CAMELS_HEADER + 't,q,a\nt,q,"the ans', "line 3 cannot be read: unexpected end"),
        ("streamingqa", "a.csv.gz", gzip.compress(b"text\n" + b"\xff" * 9999, mtime=0)[:-12], "a.csv.gz"),
        ("streamingqa", "a.xlsx", "x", "Cannot tell the format"),
        ("streamingqa", "a.jsonl.gz", gzip.compress(b'{"a": 1}\n' * 999, mtime=0)[:-20], "a.jsonl.gz"),
    ],
)  # fmt: skip
def test_bad_files(tmp_path: Path, task: str, name: str, content: str | bytes, expected: str) -> None:
    message = refusal(task, put(tmp_path, name, content))
    assert expected in message
    assert name in message


@pytest.mark.parametrize("content", [b'{"text": ' + b" " * 200_000, b'{"a": 1}\n' * 20_000])
def test_a_file_that_unpacks_to_much_more_is_refused(
    tmp_path: Path, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = put(tmp_path, "a.jsonl.gz", gzip.compress(content, mtime=0))
    assert "100 times its length" not in refusal("streamingqa", path), "short enough whatever it is packed to"
    monkeypatch.setattr(formats, "LEAST", 100)
    assert "it unpacks to more than 100 times its length" in refusal("streamingqa", path)


def test_two_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    columns = {"text": ["t"], "question": ["q"], "answers": ["a"]}
    path = tmp_path / "a.parquet"
    parquet.write_table(pa.table(columns), path)
    assert load("streamingqa", source=str(path)).n_observes == 1
    parquet.write_table(pa.table([*columns.values(), ["b"]], names=[*columns, "answers"]), path)
    assert "two columns are called 'answers'" in refusal("streamingqa", path)


def test_parquet_that_unpacks_without_end_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    texts = pa.array(["x" * 2**24] * 20)
    parquet.write_table(pa.table({"text": texts}), path, compression="zstd", use_dictionary=False)
    assert path.stat().st_size < 2**20
    message = refusal("streamingqa", path)
    assert "it says that it unpacks to more than 100 times" in message


def test_oversized_cells_are_refused_but_long_articles_are_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = put(tmp_path, "long.csv", CAMELS_HEADER + "t" * 500_000 + ",q,a\n")
    assert load("streamingqa", source=str(long)).n_observes == 1
    monkeypatch.setattr("ttabench.readers.formats.MAX_CELL", 1000)
    assert "line 2 cannot be read: field larger than field limit" in refusal("streamingqa", long)


@pytest.mark.parametrize("stamp", ["yesterday", "inf", "2020-13-01", "1e999", "[]"])
def test_bad_timestamps_name_their_line(tmp_path: Path, stamp: str) -> None:
    path = put(tmp_path, "a.csv", f"text,question,answers,evidence_ts\nt,q,a,\nt,q,a,{stamp}\n")
    assert "line 3: timestamp" in refusal("streamingqa", path)


@pytest.mark.parametrize(
    ("stamp", "seconds"), [("1970-01-02", 86400), ("86400", 86400), ("1970-01-02T01:00:00+01:00", 86400)]
)
def test_timestamps(stamp: str, seconds: float) -> None:
    assert qa_rows._timestamp("", stamp) == seconds
    assert qa_rows._timestamp("", "nan") is None


def test_missing_sources(tmp_path: Path) -> None:
    assert "No file or folder" in refusal("streamingqa", tmp_path / "none")
    message = refusal("streamingqa", tmp_path)
    assert "No file of split 'test'" in message
    assert "streaminqa_eval" in message
    put(tmp_path, "test.csv", CAMELS_HEADER + "t,q,a\n")
    put(tmp_path, "test.jsonl", "{}")
    assert "test.jsonl lacks the column 'question'" in refusal("streamingqa", tmp_path)


def test_unreadable_file_names_the_reason(tmp_path: Path) -> None:
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(UserError, match="Is a directory"):
        list(rows(tmp_path / "folder.csv"))


def test_missing_shards(tmp_path: Path) -> None:
    put(tmp_path, "validation-00000-of-00003.parquet", b"")
    assert "holds 1 of 3 shards" in refusal("squad_seq", tmp_path)


def test_broken_saved_data_set(tmp_path: Path) -> None:
    import datasets

    put(tmp_path, "state.json", "{}")
    assert "cannot be read" in refusal("squad_seq", tmp_path)
    datasets.DatasetDict({"train": datasets.Dataset.from_list([{"a": 1}])}).save_to_disk(tmp_path / "d")
    assert "has no split 'test': it has 'train'" in refusal("squad_seq", tmp_path / "d")


def test_articles_without_their_columns(tmp_path: Path) -> None:
    path = put(tmp_path, "x.jsonl", json.dumps({"question": "q", "answers": ["a"], "evidence_id": "k"}))
    put(tmp_path, "articles.csv", "key,text\nk,t\n")
    assert "articles.csv line 2: needs a column 'evidence_id'" in refusal("streamingqa", path)


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


def rows_or_one_line(task: str, path: Path) -> None:
    message = ""
    try:
        loaded = load(task, source=str(path))
        json.dumps(loaded.describe())
        assert loaded.n_asks > 0
    except UserError as error:
        message = str(error)
    assert "\n" not in message


openings = st.sampled_from([b'{"text": "t"', b'"data": [', b"\n", b',"', b"\x1f\x8b\x08"])
pieces = st.one_of(st.binary(max_size=80), words.map(str.encode), openings)


@relaxed
@given(
    st.sampled_from([".csv", ".jsonl", ".json", ".parquet", ".csv.gz", ".jsonl.gz"]),
    st.lists(pieces, max_size=6),
    st.booleans(),
)
def test_arbitrary_bytes_are_rows_or_a_user_error(
    tmp_path: Path, suffix: str, parts: list[bytes], packed: bool
) -> None:
    content = b"".join(parts)
    path = put(tmp_path, f"x{suffix}", gzip.compress(content) if packed and suffix.endswith(".gz") else content)
    for task in ("streamingqa", "squad_seq"):
        rows_or_one_line(task, path)


json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(["text", "answer_start", "x"]), inner, max_size=3)
    ),
    max_leaves=8,
)


@relaxed
@given(
    st.fixed_dictionaries(
        {name: st.one_of(filled, json_values) for name in ("text", "question", "answers")},
        optional=dict.fromkeys(("qa_id", "answers_additional", "evidence_ts"), json_values),
    )
)
def test_arbitrary_cells_are_rows_or_a_user_error(tmp_path: Path, row: dict[str, Any]) -> None:
    path = put(tmp_path, "x.jsonl", json.dumps(row))
    rows_or_one_line("streamingqa", path)


@relaxed
@given(st.one_of(st.text(max_size=60), st.text("[](){}'\"-+*,:0123456789jf \\", max_size=60)))
def test_literals_are_values_or_a_user_error(text: str) -> None:
    try:
        answers = qa_rows.answers_of("x line 1", "[" + text, "literal")
    except UserError:
        return
    assert all(isinstance(answer, str) and answer.strip() == answer != "" for answer in answers)
