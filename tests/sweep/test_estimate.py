"""`ttabench sweep --dry-run --gpu`: hours and memory from formulas, compared with those measured on an H200."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Command, error_line
from tests.places import ROOT

SIZES = {
    "contexts": 1,
    "chunks": 16,
    "chunk_tokens": 256,
    "queries": 1,
    "prompt_tokens": 1,
    "new_tokens": 1,
}
EXCEPTIONS = {
    "none": "nothing is read",
    "mac": "read by a T5",
    "generative_adapter": "decompositions are slow on a GPU",
}
"""Methods that read at other rates than the two that are assumed."""


def estimate(ttabench: Command, path: Path, *words: object) -> list[dict[str, Any]]:
    (rows,) = ttabench("sweep", path, "--dry-run", "--json", "--gpu", *words).json().values()
    return list(rows)


@pytest.fixture
def written(tmp_path: Path) -> Path:
    return tmp_path / "suite.json"


def write(path: Path, methods: list[Any], **changed: Any) -> Path:
    suite = {
        "models": ["llama-3-8b"],
        "dtype": "bfloat16",
        "methods": methods,
        "tasks": ["ruler"],
        "sizes": {"ruler": {**SIZES, **changed.pop("sizes", {})}},
        **changed,
    }
    path.write_text(json.dumps(suite), encoding="utf-8")
    return path


def test_measured_readings_and_memory_are_as_estimated(ttabench: Command, written: Path) -> None:
    measured = json.loads((ROOT / "results/gpu/costs.json").read_text())["rows"]
    for row in (row for row in measured if row["status"] == "ok"):
        name = row["method"]
        method = {"method": name}
        if name in ("snapkv", "h2o", "streamadapter"):
            method["preset"] = "stream"
        found, total = estimate(
            ttabench, write(written, [method], sizes={"chunks": row["tokens"] // 256}), "h200"
        )
        assert {key: found[key] for key in ("hours", "peak_bytes")} == {
            key: total[key] for key in ("hours", "peak_bytes")
        }
        if name not in EXCEPTIONS:
            seconds = row["read_seconds"] + (row["first_token_ms"]) / 1000
            assert 0.95 * 3600 * found["hours"] < seconds < 1.05 * 3600 * found["chunked_hours"]
        if name not in ("streamadapter", "generative_adapter", "kvzip"):
            assert found["peak_bytes"] < row["peak_bytes"] < 1.07 * found["peak_bytes"]


def test_a_total_sums_runs_and_leaves_out_those_without_a_formula(
    ttabench: Command, written: Path
) -> None:
    *runs, total = estimate(ttabench, write(written, ["none", "icl", "distill"]), "l4")
    assert [run["hours"] is None for run in runs] == [False, False, True]
    assert total["hours"] == runs[0]["hours"] + runs[1]["hours"]
    assert total["peak_bytes"] == runs[1]["peak_bytes"] > runs[0]["peak_bytes"]


def test_sizes_gpus_and_states_change_an_estimate(ttabench: Command, written: Path) -> None:
    def hours(gpu: str = "h100", **changed: Any) -> float:
        return float(estimate(ttabench, write(written, ["icl"], **changed), gpu)[0]["hours"])

    assert hours(sizes={"contexts": 10}) == pytest.approx(10 * hours())
    assert hours(sizes={"contexts": 10}, limit=3) == pytest.approx(3 * hours())
    assert hours("l4") > hours("a100") > hours()
    own, other, none, _ = estimate(ttabench, write(written, ["icl"], swap_state=True), "h100")
    assert own["hours"] == other["hours"] > none["hours"]


def test_what_cannot_be_estimated_is_refused(ttabench: Command, written: Path) -> None:
    suite = write(written, ["icl"])
    assert "h200" in error_line(ttabench("sweep", suite, "--dry-run", "--gpu", "h20"))
    assert "--dry-run" in error_line(ttabench("sweep", suite, "--gpu", "h200"))
    words = ("sweep", suite, "--dry-run", "--gpu", "h200")
    assert "sizes" in error_line(ttabench(*words, "--tasks", "squad_seq"))
    assert "llama-3-8b" in error_line(ttabench(*words, "--models", "llama-3-8c"))
    assert "contexts" in error_line(
        ttabench("sweep", write(written, ["icl"], sizes={"contexts": 0}), "--dry-run")
    )
