"""Metrics of other people, in a file: shown, paired, compared, checked, and refused in one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Command, error_line
from ttabench.records.samples import read_samples
from ttabench.records.schema import load_record
from ttabench.stats.metrics import metric_or_default

FILE = '''
import math
import random
from ttabench.stats.metrics import Metric

def closeness(prediction, ask):
    """How near the length of the answer is to that of the right one."""
    return 1 / (1 + abs(len(prediction) - len(ask.answers[0])))

def letters(prediction, ask):
    return abs(len(prediction) - len(ask.answers[0]))

def alone(prediction): return 1.0
def words(prediction, ask): return 1.0
def nothing(prediction, ask): return math.nan
def several(prediction, ask): return [1.0, 2.0]
def beyond(prediction, ask): return 2
def broken(prediction, ask): return 1 / 0
def leaving(prediction, ask): raise SystemExit(0)
def closing(prediction, ask): raise GeneratorExit
def stopping(prediction, ask): raise StopIteration
def endless(prediction, ask): return endless(prediction, ask)
def huge(prediction, ask): return 10**400
async def later(prediction, ask): return 1.0
def unsteady(prediction, ask): return random.random()
def f1(prediction, ask): return 1.0

LETTERS = Metric(name="letters", summary="too many or too few", function=letters, scale=1.0, digits=2, most=None,
                 higher_is_better=False)
CHOSEN = Metric(name="chosen", summary="log-probability of the first", of_choice=lambda scored, ask: scored.logprobs[0],
                scale=1.0, least=None, most=0.0)
PPL = Metric(name="mine", summary="of no single answer")
LARGE = Metric(name="large", summary="a square that overflows", function=lambda *_: 1e308, most=None)
'''
TASK = ("--task", "streamingqa", "--task-set", "documents=4")


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(FILE, encoding="utf-8")
    return tmp_path / "mine.py"


def runs_of(ttabench: Command, *words: object) -> list[dict[str, Any]]:
    runs: list[dict[str, Any]] = ttabench("eval", *TASK, "--out", "runs", "--json", *words).json()[
        "runs"
    ]
    return runs


def test_a_function_in_a_file_is_the_main_metric_and_is_compared(
    ttabench: Command, mine: Path
) -> None:
    for method in ("none", "icl"):
        (run,) = runs_of(ttabench, "--method", method, "--metric", "./mine.py:closeness")
        record = load_record(Path("runs") / run["id"])
        columns = read_samples(Path("runs") / run["id"], record=record)
        answered = zip(columns["prediction"], columns["answers"], columns["closeness"], strict=True)
        assert all(
            value == 1 / (1 + abs(len(text) - len(right[0]))) for text, right, value in answered
        )
        assert record.value("closeness") is not None
    assert (record.main_metric, record.task["chance"]) == ("closeness", None)
    assert record.task["metrics"][:2] == ["closeness", "em"], "those of the task stay"
    assert record.task["declared"]["closeness"]["summary"].startswith("How near the length")
    told = ttabench("compare --out runs --json").json()
    (pair,) = told["differences"]
    assert (pair["metric"], pair["left"], pair["right"], pair["n"]) == (
        "closeness",
        "icl",
        "none",
        4,
    )
    assert "closeness" in ttabench("show", run["id"], "--out", "runs").out
    assert ttabench("report runs -o page.html").code == 0
    assert "closeness" in Path("page.html").read_text(encoding="utf-8")


def test_what_a_metric_declares_is_how_its_figures_are_read(ttabench: Command, mine: Path) -> None:
    for method in ("none", "icl"):
        (run,) = runs_of(ttabench, "--method", method, "--metric", "./mine.py:letters")
    compared = ttabench("compare --out runs")
    assert "icl (0.00) is 0.50 [-0.26, 0.93] better than none (0.50)" in compared.out, (
        "fewer are better"
    )
    assert metric_or_default("letters").digits == 2
    file = Path("runs") / run["id"] / "run.json"
    said = json.loads(file.read_text())
    said["task"]["declared"]["letters"]["higher_is_better"] = True
    file.write_text(json.dumps(said))
    told = ttabench("compare --out runs").err
    assert all(word in told for word in ("letters", "higher_is_better", run["id"])), (
        "which run, and why"
    )
    said["task"]["declared"]["letters"]["higher_is_better"] = "yes"
    file.write_text(json.dumps(said))
    assert "declared.letters.higher_is_better" in ttabench("compare --out runs").err


def test_runs_whose_metric_has_other_code_are_not_paired(ttabench: Command, mine: Path) -> None:
    (mine.parent / "edited.py").write_text(FILE.replace("1 / (1", "1 / (2"), encoding="utf-8")
    runs_of(ttabench, "--method", "none", "--metric", "./mine.py:closeness")
    runs_of(ttabench, "--method", "icl", "--metric", "./edited.py:closeness")
    told = ttabench("compare --out runs --json").json()
    assert "differences" not in told
    assert len({run["block"] for run in told["runs"]}) == 2
    same = ttabench("compare --out runs --metric f1 --json").json()
    assert len(same["differences"]) == 1, "what ttabench's own metric says of them is comparable"


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("./mine.py:closenes", "Did you mean 'closeness'?"),
        ("./mine.py:alone", "mine.py: TypeError: alone() takes 1 positional argument"),
        ("./mine.py:words", "words"),
        ("./mine.py:nothing", "nan"),
        ("./mine.py:beyond", "mini-test-0-0-home-0"),
        ("./mine.py:leaving", "mine.py, line 19: SystemExit: 0"),
        ("./mine.py:closing", "mine.py, line 20: GeneratorExit"),
        ("./mine.py:stopping", "mine.py, line 21: StopIteration"),
        ("./mine.py:endless", "mine.py, line 22: RecursionError"),
        ("./mine.py:huge", "mine.py: OverflowError"),
        ("./mine.py:later", "later"),
        ("./mine.py:f1", "mine.py: f1"),
        ("./mine.py:mine", "mine.py: mine"),
        ("./mine.py:large", "1e+308"),
        ("./mine.py:chosen", "em_prefix"),
        ("./mine.py", "mine.py:letters"),
    ],
)
def test_bad_ones_are_refused_in_one_line(
    name: str, told: str, ttabench: Command, mine: Path
) -> None:
    assert told in error_line(ttabench("eval", *TASK, "--method", "none", "--metric", name))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("scale", value) for value in ("math.nan", "0", "None", "'x'", "True", "1e308", "-1.0")),
        *(("digits", value) for value in ("-1", "1.5", "1e9", "'x'", "None")),
        *(("higher_is_better", value) for value in ("'no'", "None")),
        *(("summary", value) for value in ("None", "{1}", "b'x'")),
        *(("name", value) for value in ("5", "None", "[]")),
        *((end, value) for end in ("least", "most") for value in ("'x'", "math.nan", "True")),
        ("function", "5"),
    ],
)
def test_a_field_of_a_wrong_kind_is_refused(
    field: str, value: str, ttabench: Command, mine: Path
) -> None:
    fields = {"name": "'own'", "summary": "''", "function": "closeness", field: value}
    text = ", ".join(f"{name}={text}" for name, text in fields.items())
    mine.write_text(f"{FILE}\nOWN = Metric({text})\n", encoding="utf-8")
    line = error_line(ttabench("eval", *TASK, "--method", "none", "--metric", "./mine.py:own"))
    assert "mine.py" in line
    assert field in line


def test_what_a_metric_prints_is_not_on_standard_output(ttabench: Command, mine: Path) -> None:
    mine.write_text(
        "def loud(prediction, ask):\n    print('noise')\n    return 1.0\n", encoding="utf-8"
    )
    words = ("eval", *TASK, "--method", "none", "--out", "runs", "--metric", "./mine.py:loud")
    done = ttabench(*words, "--json")
    assert done.json()["runs"]
    assert "noise" in done.err
    assert "noise" not in ttabench(*words, "--quiet", "--force").out
