"""A table of one's own texts, questions and answers is a task; a file of questions is read for `ask`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Command, error_line
from tests.qa_files import steps, write_csv, write_jsonl
from ttabench.cli.adapt import read_chunks
from ttabench.core.errors import UserError
from ttabench.readers import load
from ttabench.readers.formats import read_document
from ttabench.readers.qa_rows import read_questions

OPENS, CLOSES, GAVE = "When does it open?", "When does it close?", "Who gave the atlas?"
LIBRARY, ATLAS = "The library opens at nine and closes at six.", "Tom Reed gave the atlas."
SYNONYMS = [
    ("text", "question", "answers"),
    ("context", "query", "answer"),
    ("document", "question", "answer"),
]


def rows(text: str, question: str, answers: str) -> list[dict[str, Any]]:
    return [
        {text: LIBRARY, question: OPENS, answers: "nine"},
        {text: ATLAS, question: GAVE, answers: "Tom Reed"},
        {text: LIBRARY, question: CLOSES, answers: "six"},
    ]


@pytest.mark.parametrize("columns", SYNONYMS, ids=lambda columns: "-".join(columns))
def test_columns_are_found_by_any_of_their_names(
    tmp_path: Path, columns: tuple[str, str, str]
) -> None:
    task = load("qa", source=str(write_csv(tmp_path / "mine.csv", rows(*columns))))
    observed, asked = steps(task)
    assert observed == [LIBRARY, ATLAS], "in the order of the file, a text once"
    assert asked == [(OPENS, ("nine",)), (CLOSES, ("six",)), (GAVE, ("Tom Reed",))]
    assert task.notes == (), "all of a small file, whatever it is called"
    assert task.card.unit == "document"


@pytest.mark.parametrize(
    ("cell", "answers"),
    [
        ('["grey geese", "geese"]', ("geese", "grey geese")),
        ("['grey geese', 'geese']", ("geese", "grey geese")),
        ("{'text': array(['geese'], dtype=object), 'answer_start': array([7])}", ("geese",)),
        ("[sic] geese", ("[sic] geese",)),
        ("{x}", ("{x}",)),
        ("[9, 12]", ("9", "12")),
    ],
)
def test_a_list_in_a_cell_is_a_list(tmp_path: Path, cell: str, answers: tuple[str, ...]) -> None:
    table = [{"text": LIBRARY, "question": OPENS, "answers": cell}]
    assert steps(load("qa", source=str(write_csv(tmp_path / "mine.csv", table))))[1] == [
        (OPENS, answers)
    ]


@pytest.mark.parametrize(
    "cell", ["['geese' 'grey geese']", "['geese', os.getcwd()]", "['geese']]", "{'a': 1}"]
)
def test_a_cell_that_is_half_a_list_is_refused(tmp_path: Path, cell: str) -> None:
    table = [{"text": LIBRARY, "question": OPENS, "answers": cell}]
    with pytest.raises(UserError, match=r"mine\.csv line 2"):
        steps(load("qa", source=str(write_csv(tmp_path / "mine.csv", table))))


def test_answers_may_be_numbers(tmp_path: Path) -> None:
    table = [
        {"text": LIBRARY, "question": OPENS, "answers": value}
        for value in (9, 1999.0, [2.5, "nine"])
    ]
    asked = steps(load("qa", source=str(write_jsonl(tmp_path / "mine.jsonl", table))))[1]
    assert [answers for _, answers in asked] == [("9",), ("1999",), ("2.5", "nine")]


def test_a_data_file_may_be_named_as_the_task(
    ttabench: Command, tmp_path: Path, tiny_base: Path
) -> None:
    path = write_jsonl(tmp_path / "mine.jsonl", rows(*SYNONYMS[2]))
    words = f"--model {tiny_base} --method none --out {tmp_path / 'runs'} --task-set max_new_tokens=2".split()
    (record,) = ttabench(f"eval --task {path}", *words, "--json").json()["runs"]
    assert (record["config"]["task"], record["source"], record["n"]) == ("qa", f"file:{path}", 3)
    assert record["rows"][0]["stderr"] is not None
    again = ttabench(f"eval --task qa --source {path}", *words, "--json").json()["runs"][0]
    assert again["id"] == record["id"]
    assert "Remove --source" in error_line(ttabench(f"eval --task {path} --source {path}", *words))
    assert "'nope.jsonl' of qa" in error_line(ttabench("eval --task nope.jsonl", *words))


def test_rows_may_name_text_files(tmp_path: Path) -> None:
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_text(LIBRARY)
    (tmp_path / "b.txt").write_text(ATLAS)
    table = [
        {"file": file, **{key: value for key, value in row.items() if key != "text"}}
        for file, row in zip(
            ("texts/a.txt", "b.txt", "texts/a.txt"), rows(*SYNONYMS[0]), strict=True
        )
    ]
    path = write_csv(tmp_path / "mine.csv", table)
    with_texts = write_csv(tmp_path / "whole.csv", rows(*SYNONYMS[0]))
    named, whole = (load("qa", source=str(each)) for each in (path, with_texts))
    assert steps(named) == steps(whole)
    digest = named.describe()["digest"]
    assert digest == whole.describe()["digest"]
    (tmp_path / "b.txt").write_text("Ann Reed gave the atlas.")
    assert load("qa", source=str(path)).describe()["digest"] != digest, "part of the run id"
    (tmp_path / "b.txt").unlink()
    with pytest.raises(UserError, match=r"b\.txt"):
        load("qa", source=str(path))


@pytest.mark.parametrize("file", ["../outside.txt", "/etc/hostname", "", "."])
def test_rows_name_only_files_in_the_folder_of_the_table(tmp_path: Path, file: str) -> None:
    (tmp_path / "outside.txt").write_text(ATLAS)
    (tmp_path / "table").mkdir()
    row = {"file": file, "question": OPENS, "answers": "nine"}
    path = write_jsonl(tmp_path / "table" / "mine.jsonl", [row])
    with pytest.raises(UserError, match="line 1"):
        load("qa", source=str(path))


def test_a_row_with_its_own_text_reads_no_file(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(ATLAS)
    table = [{"file": "a.txt"}, {"file": "none.txt", "text": LIBRARY}, {"text": ATLAS}]
    common = {"question": OPENS, "answers": "nine"}
    path = write_jsonl(tmp_path / "mine.jsonl", [row | common for row in table])
    whole = [{"text": text} | common for text in (ATLAS, LIBRARY, ATLAS)]
    assert steps(load("qa", source=str(path))) == steps(
        load("qa", source=str(write_jsonl(tmp_path / "whole.jsonl", whole)))
    )


MESSAGES = [
    {"role": "user", "content": "Where is the atlas?\n\nI need it."},
    {
        "role": "assistant",
        "content": [{"type": "text", "text": "On the shelf."}, {"type": "image"}],
    },
    {"role": "tool", "content": None, "tool_calls": [{"name": "find"}]},
]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("chat.json", json.dumps(MESSAGES)),
        ("chat.json", json.dumps({"messages": MESSAGES})),
        ("chat.jsonl", "\n".join(map(json.dumps, MESSAGES))),
        (
            "chat.jsonl",
            json.dumps({"messages": MESSAGES[:2]}) + "\n" + json.dumps({"messages": MESSAGES[2:]}),
        ),
    ],
)
def test_a_chat_has_a_paragraph_per_message(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content)
    assert read_document(tmp_path / name).split("\n\n") == [
        "user: Where is the atlas?\nI need it.",
        "assistant: On the shelf.",
        'tool: [{"name": "find"}]',
    ]
    assert len(read_chunks([tmp_path / name], "paragraphs")) == 3


def test_a_chat_may_have_a_system_prompt_and_rare_line_separators(tmp_path: Path) -> None:
    chat = {"system": "Be kind.", "messages": [{"role": "user", "content": "one\u2028two"}]}
    (tmp_path / "chat.jsonl").write_text(json.dumps(chat, ensure_ascii=False), encoding="utf-8")
    assert read_document(tmp_path / "chat.jsonl") == "system: Be kind.\n\nuser: one\ntwo"


@pytest.mark.parametrize(
    "content",
    [
        '{"a": 1}',
        '[{"role": 1, "content": "x"}]',
        "[]",
        "{",
        '"x"',
        '[{"role": "user"}]',
        '[{"role": "user", "content": ["x"]}]',
        '[{"role": "user", "content": 0}]',
        "[" * 5000,
    ],
)
def test_other_json_is_read_as_it_is(tmp_path: Path, content: str) -> None:
    (tmp_path / "other.json").write_text(content)
    assert read_document(tmp_path / "other.json") == content


def test_questions_of_a_file(tmp_path: Path) -> None:
    table = [
        {"question": f" {OPENS} ", "answers": ["at nine", "nine"]},
        {"question": CLOSES, "answers": None},
    ]
    first, second = read_questions(write_jsonl(tmp_path / "q.jsonl", table))
    assert (first.question, first.answers) == (OPENS, ("nine", "at nine")), (
        "the shortest is the target, as in tasks"
    )
    assert (second.question, second.answers) == (CLOSES, ())
    assert first.key != second.key
    (tmp_path / "q.txt").write_text(f"{OPENS}\n\n  {CLOSES}\n")
    assert [each.question for each in read_questions(tmp_path / "q.txt")] == [OPENS, CLOSES]
