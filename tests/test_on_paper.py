"""`ttabench profile --analytic`: the numbers of `analytic.table`, what can be typed, and nothing heavy imported."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.conftest import Command, one_line
from ttabench.analytic import AnalyticLoad, table
from ttabench.cost import FORMULAS

ANALYTIC = ("profile", "--analytic")


def test_shows_every_formula_at_every_length(ttabench: Command) -> None:
    (rows,) = ttabench(*ANALYTIC, "--model", "llama-3-8b", "--prefill", "1k,64k", "--json").json().values()
    assert [(row["method"], row["context_tokens"]) for row in rows] == [
        (name, length) for name in FORMULAS for length in (1024, 65536)
    ]
    wanted = table("llama-3-8b", list(FORMULAS), [1024, 65536], AnalyticLoad(new_tokens=128))
    assert rows == wanted


def test_people_see_what_is_only_a_formula(ttabench: Command) -> None:
    ran = ttabench(*ANALYTIC, "--methods", "icl,ccm", "--prefill", "1k", "--format", "markdown")
    assert "| ccm * |" in ran.out
    assert "| icl |" in ran.out
    assert "a formula only" in ran.out
    assert "a formula only" not in ttabench(*ANALYTIC, "--methods", "icl", "--format", "markdown").out


def test_settings_and_presets_reach_the_formulas(ttabench: Command) -> None:
    words = (*ANALYTIC, "--methods", "snapkv,h2o,icl", "--prefill", "64k", "--json")

    def slots(*more: str) -> dict[str, int]:
        (rows,) = ttabench(*words, *more).json().values()
        return {row["method"]: row["state_floats"] for row in rows}

    whole = slots()
    assert slots("--set", "snapkv.budget=512")["snapkv"] == 2 * whole["snapkv"]
    assert slots("--set", "snapkv.budget=512")["h2o"] == whole["h2o"]
    streamed = slots("--preset", "stream")
    assert streamed["h2o"] < whole["h2o"] / 10
    assert streamed["icl"] == whole["icl"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--model", "llamma-7b"], "llama-7b"),
        (["--methods", "icll"], "icl"),
        (["--prefill", "3x"], "16k or 1m"),
        (["--prefill", "0"], "16k or 1m"),
        (["--set", "budgt=3"], "budget"),
        (["--set", "snapkv.budget=0"], "Give 1 or more"),
        (["--set", "icll.max_tokens=3"], "icl"),
        (["--preset", "stram"], "stream"),
        (["--dtype", "float8"], "float"),
        (["--generate", "0"], "--generate is 0"),
        (["--format", "yaml"], "format"),
        (["--plot", "x.png"], "--plot has no part in --analytic"),
        (["--throughput"], "three profiles"),
    ],
)
def test_what_cannot_be_computed_is_refused(ttabench: Command, words: list[str], told: str) -> None:
    assert told in one_line(ttabench(*ANALYTIC, *words))


def test_it_imports_nothing_heavy() -> None:
    code = (
        "import sys; from ttabench.cli import run; code = run(['profile', '--analytic', '--prefill', '1m', '--json']); "
        "sys.exit(code or ('torch' in sys.modules) or ('transformers' in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
