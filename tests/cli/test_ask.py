"""`ttabench ask`: one's own questions about one's own files, of a state or of files read now."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from safetensors.torch import load_file

from tests.conftest import Command, error_line

TEXT = "The usual transport of Dadel Hurov is the taxi. The home of Sinio Dorard is in Redmoor."
ASKED = {"How does Dadel Hurov travel?": "taxi", "Where does Sinio Dorard live?": "Redmoor"}
"""Words of nano's world, and what MAC answers after reading."""


@pytest.fixture
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file to read, in the folder that commands run in."""
    monkeypatch.chdir(tmp_path)
    path = Path("notes.txt")
    path.write_text(TEXT)
    return path


@pytest.fixture
def state(ttabench: Command, notes: Path) -> Path:
    """What `adapt` made of it with MAC, where it writes by default."""
    ran = ttabench(f"adapt --context {notes} --method mac")
    assert ran.code == 0, ran.err
    assert ran.out.rstrip().endswith('ttabench ask "..."')
    return Path("state")


def test_a_state_brings_its_model_and_method(ttabench: Command, state: Path) -> None:
    found = ttabench("ask", *ASKED, "--json").json()
    assert (found["model"], found["method"], found["state"]) == ("nano", "mac", "state")
    (told,) = found["methods"]
    assert [each["answer"] for each in told["answers"]] == list(ASKED.values())
    assert told["cost"]["adapt_seconds"] is None, "it was read before"
    assert told["cost"]["state_bytes"] == json.loads((state / "state.json").read_text())["bytes"]
    assert told["cost"]["tokens_read"] > 10
    assert told["scores"] is None
    assert [note for note in found["notes"] if not note.startswith("nano knows")] == []
    assert ttabench("ask", *ASKED, "--quiet").out.split() == list(ASKED.values())


def test_a_file_of_rows_is_reported_to_be_read_as_text(ttabench: Command, notes: Path) -> None:
    Path("rows.json").write_text(json.dumps([{"question": TEXT}]))
    for command in (("adapt", "--method", "icl"), ("ask", "Who?")):
        for file in (notes, "rows.json"):
            ran = ttabench(
                *command, "--context", file, "--quiet", *(["--force"] if "adapt" in command else [])
            )
            assert ran.code == 0, ran.err
            assert ("rows.json" in ran.err) == (file != notes)


def test_files_may_be_read_now(ttabench: Command, notes: Path) -> None:
    Path("more.txt").write_text("The pet of Mudun Prarov is a goat.")
    (question, answer), *_ = ASKED.items()
    found = ttabench(
        "ask", question, "--context", notes, "--context", "more.txt", "--method", "mac", "--json"
    ).json()
    (told,) = found["methods"]
    assert found["state"] is None
    assert told["answers"][0]["answer"] == answer
    assert told["cost"]["adapt_seconds"] > 0
    told_again = ttabench(
        "ask", question, "--context", notes, "more.txt", "--method", "mac", "--json"
    ).json()["methods"]
    assert told_again[0]["cost"]["tokens_read"] == told["cost"]["tokens_read"], (
        "names that follow are files, too"
    )
    Path("asked.txt").write_text(question)
    in_file = ttabench(f"ask --questions asked.txt --context {notes} more.txt --method mac --quiet")
    assert in_file.out.strip() == answer
    both = ttabench(f"ask --questions asked.txt --context {notes} gone.txt")
    assert (both.code, "gone.txt" in both.err, "--context" in both.err) == (2, True, True)
    alone = ttabench("ask", question, "--context", notes, "--method", "mac", "--json").json()[
        "methods"
    ][0]
    assert told["cost"]["tokens_read"] > alone["cost"]["tokens_read"]
    assert "mistyped.txt cannot be read" in error_line(
        ttabench("ask", question, "--context", "mistyped.txt")
    )


def test_no_context_and_full_context_stand_next_to_it(ttabench: Command, state: Path) -> None:
    ran = ttabench("ask", *ASKED, "--compare")
    assert ran.code == 0, ran.err
    assert all(name in ran.out for name in ("mac", "none", "icl", "before"))
    own, floor, ceiling = ttabench("ask", *ASKED, "--compare", "--json").json()["methods"]
    assert [own["method"], floor["method"], ceiling["method"]] == ["mac", "none", "icl"]
    assert [each["answer"] for each in ceiling["answers"]] == list(ASKED.values())
    assert floor["cost"]["tokens_read"] == 0
    assert ceiling["cost"]["state_bytes"] > own["cost"]["state_bytes"]


def test_a_state_that_read_on_names_all_its_files(
    ttabench: Command, state: Path, tmp_path: Path
) -> None:
    (tmp_path / "more.txt").write_text("The pet of Mudun Prarov is a goat.")
    ran = ttabench(f"adapt --context more.txt --method mac --state {state} --out deep/both")
    assert ran.code == 0, ran.err
    read = json.loads((tmp_path / "deep/both/state.json").read_text())["read"]
    assert [each["file"] for each in read] == ["../../notes.txt", "../../more.txt"]
    untold = ttabench(f"adapt --context more.txt --state {state} --out untold --json")
    assert untold.json()["method"] == "mac", "without --method it is the state's own"
    one, other = (
        load_file(tmp_path / name / "state.safetensors") for name in ("deep/both", "untold")
    )
    assert all(tensor.equal(other[name]) for name, tensor in one.items())
    asked = "ask Who? --state deep/both --compare --json".split()
    assert [each["method"] for each in ttabench(*asked).json()["methods"]] == ["mac", "none", "icl"]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        (
            "q.jsonl",
            "".join(json.dumps({"query": q, "answer": a}) + "\n" for q, a in ASKED.items()),
        ),
        ("q.csv", "question,answers\n" + "".join(f"{q},{a}\n" for q, a in ASKED.items())),
    ],
)
def test_answers_that_are_known_are_scored(
    ttabench: Command, state: Path, name: str, content: str
) -> None:
    Path(name).write_text(content)
    (told,) = ttabench("ask --questions", name, "--json").json()["methods"]
    assert told["scores"] == {"n": 2, "em": 1.0, "f1": 1.0}
    assert "n = 2 questions" in ttabench("ask --questions", name).out
