"""Whatever is typed, and whatever lies in a folder: one line and exit code 2, or success; no traceback, no hang.

A case is a good input that a generator of random numbers, seeded by the case's name, has damaged.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from tests import gguf_file
from tests.conftest import Command
from ttabench.cli import app as cli
from ttabench.readers.cards import cards_folder

EVERY = 17
"""One case of so many is run with the tests."""
LIMIT = 20
"""Seconds of a case of some ten milliseconds; more is a hang."""
OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""What a terminal would obey."""
HOSTILE: list[Any] = [
    None,
    True,
    -1,
    0,
    1.5,
    1e308,
    float("nan"),
    float("inf"),
    10**30,
    "",
    " ",
    "\x1b[2J\x07",
    "\u202ea",
    "é漢𝄞",
    "\x00",
    "x" * 3000,
    "../../etc/passwd",
    "~",
    "-1",
    [],
    {},
    [None],
    {"a": None},
    {"": 1},
    ["x"] * 50,
]
"""Values that fit nowhere, or look as if they did."""
TYPED = [
    "",
    " ",
    "-1",
    "0",
    "1.5",
    "x",
    "NaN",
    "inf",
    "1e9",
    "9" * 30,
    "9" * 5000,
    "../x",
    "/",
    ".",
    "~",
    "é漢",
    "\x1b[2J",
    "a=b",
    "=",
    "a=",
    ",",
    "1,,2",
    "--",
    "none",
    "auto",
    "mini",
    "x" * 300,
    "a\nb",
    "\ud800",
    "a**b",
    "[",
    "$(id)",
]
"""What somebody may type."""
pytestmark = pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="refused: no timers here")
Words = list[object]


class Hang(BaseException):
    """Nobody catches it."""


@contextmanager
def limited() -> Iterator[None]:
    def end(_number: int, _frame: FrameType | None) -> None:
        raise Hang

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, LIMIT)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def value_of(value: Any, random: Random) -> Any:
    """A JSON value with one place changed or dropped."""
    places, todo = list[tuple[Any, Any]](), [value]
    for at in todo:  # grows as it is read
        keys = list(at) if isinstance(at, dict) else range(len(at)) if isinstance(at, list) else ()
        places += [(at, key) for key in keys]
        todo += [at[key] for key in keys]
    if not places:
        return random.choice(HOSTILE)
    container, key = random.choice(places)
    if random.random() < 0.2:
        del container[key]
    else:
        container[key] = random.choice([*HOSTILE, [container[key]]])
    return value


def bytes_of(data: bytes, random: Random) -> bytes:
    """Bytes cut, overwritten, put in or turned over at a place."""
    at = random.randrange(len(data) + 1)
    put = random.choice(
        [b'"', b"\n", b",", b"\x00", b"\xff\xfe", b"{", b"\\", b"\x1b[2J", data[at : at + 50]]
    )
    return random.choice(
        [data[:at], data[:at] + put + data[at:], data[:at] + bytes(8) + data[at + 8 :]]
    )


def damage(path: Path, random: Random) -> None:
    """Damage one file by what it holds, or put something else where it was."""
    data, how = path.read_bytes(), random.random()
    if how < 0.1:
        path.unlink()
        (path.mkdir, lambda: os.mkfifo(path), lambda: path.symlink_to(path.name))[int(how * 30)]()
    elif how < 0.4 or path.suffix not in (".json", ".jsonl", ".yaml"):
        path.write_bytes(bytes_of(data, random))
    elif path.suffix == ".yaml":
        path.write_text(yaml.safe_dump(value_of(yaml.safe_load(data), random)), errors="replace")
    else:
        lines = data.splitlines() if path.suffix == ".jsonl" else [data]
        at = random.randrange(len(lines))
        lines[at] = json.dumps(value_of(json.loads(lines[at]), random), ensure_ascii=False).encode(
            "utf-8", "replace"
        )
        path.write_bytes(b"\n".join(lines) + b"\n")


def small(base: object, *more: object, method: str = "none") -> Words:
    """An evaluation that takes no time."""
    return [
        "eval",
        "--method",
        method,
        "--model",
        base,
        "--source",
        "mini",
        "--task-set",
        "documents=1",
        "--task-set",
        "max_new_tokens=1",
        "--limit",
        2,
        "--json",
        *more,
    ]


def training(base: object) -> Words:
    return [
        "train",
        "--method",
        "lora",
        "--set",
        "rank=1",
        "--model",
        base,
        "--source",
        "mini",
        "--steps",
        2,
        "--documents",
        1,
        "--questions",
        1,
        "--save-every",
        1,
    ]


@pytest.fixture(scope="module")
def good(tiny_base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of what is damaged by the cases, made once."""

    def made(*words: object) -> None:
        assert cli.run([str(word) for word in words]) == 0, words

    at = tmp_path_factory.mktemp("good")
    shutil.copytree(tiny_base, at / "model")
    shutil.copytree(cards_folder(), at / "cards", ignore=shutil.ignore_patterns("[!s]*"))
    made(*training(tiny_base), "--out", at / "lora", "--quiet")
    (at / "notes.txt").write_text("Ada Voss lives in Port Ansel.")
    made(
        "adapt",
        "--model",
        tiny_base,
        "--context",
        at / "notes.txt",
        "--quiet",
        "--out",
        at / "state",
    )
    made(*small(tiny_base), "--out", at / "runs")
    rows = [
        {"text": f"Ada {n} sails.", "question": f"What does Ada {n} do?", "answers": "sail"}
        for n in range(4)
    ]
    (at / "data").mkdir()
    lines = at / "data" / "rows.jsonl"
    lines.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (at / "data" / "rows.json").write_text(json.dumps({"data": rows}))
    table = "".join(",".join(row.values()) + "\n" for row in rows)
    (at / "data" / "rows.csv").write_text(f"text,question,answers\n{table}")
    pq.write_table(pa.Table.from_pylist(rows), at / "data" / "rows.parquet")
    (at / "gguf").mkdir()
    gguf_file.write(at / "gguf" / "model.gguf")
    return at


FILE, FOLDER, BASE = "{file}", "{folder}", "{base}"
"""In the words of a command: the damaged file, the copied folder that it lies in, the whole base model."""
DAMAGED: dict[str, tuple[str, int, list[Words]]] = {
    "cards": ("*", 160, [small(BASE, "--task", FILE)]),
    "data": ("*", 400, [[*small(BASE), "--task", "streamingqa", "--source", FILE]]),
    "lora": (
        "*",
        160,
        [
            [*small(BASE, method="lora"), "--checkpoint", FOLDER],
            [*small(BASE), "--base-checkpoint", FOLDER],
            [*training(BASE), "--steps", 3, "--out", FOLDER],
        ],
    ),
    "state": (
        "state*",
        160,
        [
            small(BASE, "--state", FOLDER, "--ask-only", method="icl"),
            ["ask", "?", "--state", FOLDER],
        ],
    ),
    "runs": (
        "*",
        160,
        [["compare", FOLDER], ["list", "runs", "--out", FOLDER], small(BASE, "--out", FOLDER)],
    ),
    "model": ("*", 160, [small(FOLDER)]),
    "gguf": ("*", 70, [small(FILE)]),
}
"""By the folder of good files: which of them are damaged, how many cases there are, and commands that read them."""
FLAGS: dict[str, str] = {
    "eval": "method task source split limit preset set task-set seed seeds checkpoint state device dtype batch-size "
    "bos threads memory-limit base-checkpoint model nonsense keep metric",
    "train": "lr warmup schedule beta2 clip decay save-every validate-every stored rounds documents "
    "questions preset set task split checkpoint memory-limit",
    "compare": "metric format task method size",
    "profile": "methods prefill generate dtype piece-tokens model preset set repeat format",
    "sweep": "methods tasks models seeds keep keep-tokens engine engine-set shard jobs",
}
"""Options that are typed."""


def options(good: Path, out: Path, random: Random) -> Words:
    """What is typed."""
    commands: dict[str, Words] = {
        "eval": small(good / "model", "--out", out / "o"),
        "train": [*training(good / "model"), "--out", out / "o"],
        "compare": ["compare", good / "runs"],
        "profile": ["profile", "--analytic", "--model", "llama-3-8b"],
        "sweep": [
            "sweep",
            "--methods",
            "none",
            "--tasks",
            "streamingqa",
            "--dry-run",
            "--out",
            out / "o",
        ],
    }
    name = random.choice(list(commands))
    flag, text = random.choice(FLAGS[name].split()), random.choice(TYPED)
    if flag in ("set", "task-set") and random.random() < 0.7:
        text = (
            f"{random.choice(['documents', 'max_new_tokens', 'prompt', 'rank', 'nope', ''])}={text}"
        )
    return [*commands[name], f"--{flag}", text]


def files(kind: str, good: Path, out: Path, random: Random) -> Words:
    """What lies in a folder: a copy of which one file is damaged."""
    pattern, _, commands = DAMAGED[kind]
    shutil.copytree(good / kind, out / kind)
    there = sorted(
        file for file in (out / kind).rglob(pattern) if file.is_file() and file.name != ".lock"
    )
    file = random.choice(there)
    damage(file, random)
    places = {FILE: file, FOLDER: out / kind, BASE: good / "model"}
    words = [places.get(str(word), word) for word in random.choice(commands)]
    return words if words[0] != "eval" or "--out" in words else [*words, "--out", out / "o"]


def fault(ttabench: Command, words: Words) -> str:
    """What is wrong with how a command ended; empty where nothing is."""
    try:
        with limited():
            ran = ttabench(*words)
    except BaseException:
        return traceback.format_exc()[-1500:]
    if ran.code == 0:
        return (
            f"obeyed: {ran.out + ran.err!r}"
            if OBEYED.search((ran.out + ran.err).replace("\r", ""))
            else ""
        )
    lines = [line for line in ran.err.splitlines() if line.strip()]
    if (
        ran.code != 2
        or len(lines) != 1
        or not lines[0].startswith("Error: ")
        or OBEYED.search(lines[0])
    ):
        return f"exit code {ran.code}, not one line: {lines}"
    return "too long a line" if len(lines[0]) > 2000 else ""


@pytest.mark.parametrize("kind", ["options", *DAMAGED])
def test_every_case_ends_well(
    kind: str,
    ttabench: Command,
    good: Path,
    tmp_path: Path,
    runs_all: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in (("HF_HUB_OFFLINE", "1"), ("TTABENCH_CACHE", str(tmp_path / "cache"))):
        monkeypatch.setenv(name, value)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    wrong = []
    for number in range(0, DAMAGED[kind][1] if kind in DAMAGED else 330, 1 if runs_all else EVERY):
        folder, random = tmp_path / f"{number}", Random(f"{kind} {number}")
        folder.mkdir()
        words = (
            files(kind, good, folder, random) if kind in DAMAGED else options(good, folder, random)
        )
        if told := fault(ttabench, words):
            wrong.append(
                f"{kind} {number} {' '.join(repr(str(word))[:90] for word in words)}\n    {told}"
            )
        shutil.rmtree(folder)
    assert not wrong, "\n".join(wrong)
