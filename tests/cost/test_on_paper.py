"""`ttabench profile --analytic`: the numbers of `cost.table`, what can be typed, and nothing heavy imported."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import Command, error_line
from tools.tiny_architectures import tiny_model
from ttabench.methods.registry import methods
from ttabench.profiling.analytic import analytic_rows
from ttabench.profiling.job import STREAM_PRESET, Load

ANALYTIC = ("profile", "--analytic")
WITH_COST = [name for name, spec in methods().items() if spec.cost]


def test_shows_every_formula_at_every_length(ttabench: Command) -> None:
    (rows,) = (
        ttabench(*ANALYTIC, "--model", "llama-3-8b", "--prefill", "1k,64k", "--json")
        .json()
        .values()
    )
    assert [(row["method"], row["context_tokens"]) for row in rows] == [
        (name, length) for name in WITH_COST for length in (1024, 65536)
    ]
    streams = {
        name: STREAM_PRESET for name in WITH_COST if STREAM_PRESET in methods()[name].presets
    }
    assert set(streams) == {
        *("snapkv", "h2o", "keydiff", "expected_attention", "random_slots", "streamadapter")
    }
    wanted = analytic_rows("llama-3-8b", WITH_COST, [1024, 65536], Load(), presets=streams)
    assert rows == wanted


@pytest.mark.parametrize(
    "kind",
    "qwen3_5_text lfm2 granitemoehybrid gemma3n_text gemma4_text mamba2 deepseek_v3 mixtral".split(),
)
def test_an_architecture_without_a_formula_is_refused(
    ttabench: Command, kind: str, tmp_path: Path
) -> None:
    tiny_model(kind).config.save_pretrained(tmp_path)
    assert str(tmp_path) in error_line(ttabench(*ANALYTIC, "--model", tmp_path))


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--model", "llamma-7b"], "llama-7b"),
        (["--prefill", "3x"], "--prefill"),
        (["--set", "snapkv.budget=0"], "budget"),
        (["--methods", "icl,,none"], "--methods"),
        (["--throughput"], "--throughput"),
    ],
)
def test_what_cannot_be_computed_is_refused(ttabench: Command, words: list[str], told: str) -> None:
    assert told in error_line(ttabench(*ANALYTIC, *words))
