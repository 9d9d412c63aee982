"""What the attacks found, each with the smallest input that showed it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Command, error_line
from tests.fuzz.test_fuzz import limited
from tests.readers.test_bad_sources import load_error, put

fifos = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="refused: no pipes with names here")


def sparse(path: Path, size: int, head: bytes = b"") -> Path:
    """A file that says it is so long, and takes no room."""
    path.write_bytes(head)
    os.truncate(path, size)
    return path


def suite(text: str) -> Callable[[Path, Path], list[object]]:
    """A suite that is planned, and not run."""
    return lambda at, _: [
        "sweep",
        put(at, "suite.yaml", text),
        "--out",
        at / "o",
        "--dry-run",
        "--json",
    ]


def model(name: str, change: Callable[[Path], object]) -> Callable[[Path, Path], list[object]]:
    """A copy of a model of which one file is changed."""

    def words(at: Path, base: Path) -> list[object]:
        shutil.copytree(base, at / "model")
        change(at / "model" / name)
        return [
            "eval",
            "--method",
            "none",
            "--model",
            at / "model",
            "--source",
            "mini",
            "--limit",
            1,
            "--chat-template",
            "--task-set",
            "max_new_tokens=1",
            "--out",
            at / "o",
        ]

    return words


def data(
    name: str, content: str | bytes, task: str = "streamingqa"
) -> Callable[[Path, Path], list[object]]:
    return lambda at, base: [
        "eval",
        "--method",
        "none",
        "--model",
        base,
        "--task",
        task,
        "--limit",
        1,
        "--source",
        put(at, name, content),
        "--out",
        at / "o",
    ]


def linked(at: Path, _: Path) -> list[object]:
    (at / "loop.parquet").symlink_to("loop.parquet")
    return ["compare", at / "loop.parquet", "--out", at]


def gguf(size: int) -> Callable[[Path, Path], list[object]]:
    return lambda at, _: [
        "eval",
        "--method",
        "none",
        "--source",
        "mini",
        "--out",
        at / "o",
        "--model",
        sparse(at / "m.gguf", size, b"GGUF"),
    ]


MANY = ", ".join(map(str, range(1, 1001)))
LOOP = "{% for i in range(10**9) %}{{ i }}{% endfor %}"
BAD_INPUTS: dict[str, tuple[Callable[[Path, Path], list[object]], str]] = {
    "suite: a grid": (
        suite(
            "methods: [none]\ntasks: [{task: streamingqa, task_set: "
            f"{{documents: [{MANY}], questions: [{MANY}], facts: [{MANY}]}}}}]"
        ),
        "than 10,000 runs",
    ),
    "data: 1 TiB": (
        lambda at, base: [
            "eval",
            "--method",
            "none",
            "--model",
            base,
            "--out",
            at / "o",
            "--task",
            sparse(at / "a.jsonl", 2**40),
        ],
        "1,024 GiB",
    ),
    "data: deep JSON": (
        data("a.json", "[" * 100_000),
        "a.json cannot be read: it is nested too deep",
    ),
    "template: without end": (
        model("chat_template.jinja", lambda path: path.write_text(LOOP)),
        "Range too big",
    ),
    "tokenizer: long": (
        model("tokenizer.json", lambda path: sparse(path, 2**40)),
        "tokenizer.json cannot be read",
    ),
    "model: a pickle": (
        model("model.safetensors", lambda path: path.rename(path.with_name("pytorch_model.bin"))),
        "could not be loaded",
    ),
    "GGUF: 1 TiB": (gguf(2**40), "m.gguf cannot be read: it has 1,024 GiB"),
    "submission: a link to itself": (linked, "loop.parquet"),
}
"""What reads a file, and what is wrong with it: a command, and a part of its line."""


@pytest.mark.parametrize("name", list(BAD_INPUTS))
def test_a_bad_file_is_one_line_that_names_it(
    ttabench: Command, tiny_base: Path, tmp_path: Path, name: str
) -> None:
    words, expected = BAD_INPUTS[name]
    with limited():
        assert expected in error_line(ttabench(*words(tmp_path, tiny_base)))


@fifos
def test_no_file_of_a_user_is_waited_for(
    ttabench: Command, tiny_base: Path, tmp_path: Path
) -> None:
    """A pipe that nobody writes, and a device that never ends."""
    for name in (
        "a.jsonl",
        "a.csv.gz",
        "a.parquet",
        "a.json",
        "model.gguf",
        "run/run.json",
        "state/state.json",
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        os.mkfifo(tmp_path / name)
        if name.startswith("a."):
            assert name in load_error("streamingqa", tmp_path / name)
    for words in (
        ["compare", tmp_path / "run"],
        ["eval", "--model", tmp_path / "model.gguf", "--method", "none"],
        ["ask", "Who?", "--state", tmp_path / "state"],
        ["ask", "Who?", "--context", "/dev/zero", "--model", tiny_base],
        [
            "adapt",
            "--context",
            tmp_path / "a.json",
            "--model",
            tiny_base,
            "--out",
            tmp_path / "made",
        ],
    ):
        assert "plain file" in error_line(ttabench(*words)), words
