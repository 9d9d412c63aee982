"""Whatever is typed, and whatever lies in a folder: one line and exit code 2, or success; no traceback, no hang."""

from __future__ import annotations

import json
import re
import shutil
import signal
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from types import FrameType

import pytest

from tests.attack.cases import KINDS, Good, small
from tests.attack.conftest import Counted
from tests.conftest import Command, Ran
from ttabench.records.store import RunFolder

EVERY = 11
"""One case of so many is run with the tests."""
LIMIT = 20
"""Seconds of a case of some ten milliseconds; more is a hang."""
OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""What a terminal would obey."""
pytestmark = pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="refused: no timers here")


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


@pytest.fixture(scope="module")
def good(tiny_base: Path, tmp_path_factory: pytest.TempPathFactory) -> Good:
    """What is damaged by the cases, made once."""
    from ttabench.cli import app as cli

    def made(*words: object) -> None:
        assert cli.run([str(word) for word in words]) == 0, words

    at = tmp_path_factory.mktemp("good")
    found = Good(base=tiny_base, checkpoint=at / "lora", state=at / "states", runs=at / "runs", partial=at / "partial",
                 gguf=_gguf(at / "model.gguf"))  # fmt: skip
    made("train", "--method", "lora", "--set", "rank=1", "--model", tiny_base, "--source", "mini", "--steps", 2,
         "--documents", 1, "--questions", 1, "--save-every", 1, "--out", found.checkpoint, "--quiet")  # fmt: skip
    (at / "notes.txt").write_text("Ada Voss lives in Port Ansel.")
    for method, extra in (("icl", []), ("templora", ["--set", "rank=2", "--set", "prefix=0"])):
        made("adapt", "--method", method, *extra, "--model", tiny_base, "--context", at / "notes.txt", "--quiet",
             "--out", found.state / method)  # fmt: skip
    made(*small(found, found.runs))
    made(*small(found, found.runs), "--seed", 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunFolder, "end_episode", _die)
        words = [*small(found, found.partial), "--task-set", "questions=3", "--batch-size", 1]
        assert cli.run([str(word) for word in words]) == 130
    return found


def _die(*_given: object) -> None:
    raise KeyboardInterrupt


def _gguf(file: Path) -> Path:
    from tests import gguf_file

    gguf_file.write(file)
    return file


def fault(ran: Ran) -> str:
    """What is wrong with how a command ended; empty where nothing is."""
    if ran.code == 0:
        return f"obeyed: {ran.out + ran.err!r}" if OBEYED.search((ran.out + ran.err).replace("\r", "")) else ""
    lines = [line for line in ran.err.splitlines() if line.strip()]
    if ran.code != 2:
        return f"exit code {ran.code}: {lines}"
    if len(lines) != 1 or not lines[0].startswith("Error: ") or OBEYED.search(lines[0]):
        return f"not one line: {lines}"
    return "too long a line" if len(lines[0]) > 2000 else ""


def ended(ttabench: Command, words: list[object]) -> tuple[str, str]:
    """How a case ended, and what is wrong with that."""
    try:
        with limited():
            ran = ttabench(*words)
    except Hang:
        return "hangs", "".join(traceback.format_exc()[-1500:])
    except BaseException:
        return "tracebacks", traceback.format_exc()[-1500:]
    wrong = fault(ran)
    if wrong:
        return "others", wrong
    if ran.code == 0 and "--json" in words and words[0] == "eval":
        (record, *_) = json.loads(ran.out)["runs"]
        assert {"n", "dropped"} <= record.keys()
    return ("one line", "") if ran.code == 2 else ("success", "")


@pytest.mark.parametrize("kind", list(KINDS))
def test_every_case_ends_well(
    kind: str, ttabench: Command, good: Good, tmp_path: Path, all_of_it: bool, counted: Counted,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    for name, value in (("HF_HUB_OFFLINE", "1"), ("TTABENCH_CACHE", str(tmp_path / "cache"))):
        monkeypatch.setenv(name, value)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    make, count = KINDS[kind]
    ends: Counter[str] = Counter()
    wrong = []
    for number in range(0, count, 1 if all_of_it else EVERY):
        folder = tmp_path / f"{number}" / "in"
        folder.mkdir(parents=True)
        words = make(good, folder, Random(f"{kind} {number}"))
        end, told = ended(ttabench, words)
        ends[end] += 1
        if told:
            wrong.append(f"{kind} {number} {' '.join(repr(str(word))[:90] for word in words)}\n    {end}: {told}")
        shutil.rmtree(folder.parent)
    for end, times in ends.items():
        counted(f"cases of {kind}", end, times)
    assert not wrong, f"{len(wrong)} of {sum(ends.values())}\n" + "\n".join(wrong)
