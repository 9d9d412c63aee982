"""Every recipe runs from end to end, under a tiny model of the same architecture, on synthetic tasks."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig, AutoModelForCausalLM

from tests.conftest import Command
from tests.places import ROOT
from tests.tiny import TINY_SIZES, byte_tokenizer
from tools.small_tasks import SMALL_TASKS
from ttabench.core.architectures import ARCHITECTURES
from ttabench.core.declared import parse_assignments
from ttabench.methods.registry import find_method
from ttabench.readers.cards import load_card
from ttabench.records.schema import load_record
from ttabench.sweep import engines
from ttabench.sweep.engines import run_job
from ttabench.sweep.suite import check_suite, read_suite

RECIPES = sorted((ROOT / "results/recipes").glob("*.yaml"))
SMALL_READERS = {load_card(task).reader: small for task, small in SMALL_TASKS.items()} | {
    "demonstrations": ["shots=2"],
    "lm_eval": SMALL_TASKS["shared_context"],
    "qa_stream": ["documents=2", "max_new_tokens=2"],
    "ruler": ["length=2k", "contexts=1", "tasks=niah_single_1"],
}
CONFIG = {
    **TINY_SIZES,
    "vocab_size": 260,  # the tokenizer of Qwen2 adds a token
    "head_dim": 8,
    "max_position_embeddings": 4096,
    "bos_token_id": 256,
    "eos_token_id": 257,
}


def first_values(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options with the first value of each list."""
    return {
        key: value[0] if isinstance(value, list) else value
        for key, value in options.items()
        if key not in ("checkpoint", "source")
    }


def small_method(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return a method with the sizes of its test settings, untrained, at the first of its budgets."""
    spec = find_method(entry["method"])
    defaults, small = asdict(spec.Settings()), asdict(spec.test_settings or spec.Settings())
    budget = spec.keep(64) if spec.keep else {}
    changed = {
        key: ",".join(value) if isinstance(value, tuple) else value
        for key, value in small.items()
        if value != defaults[key] and key not in budget
    }
    local = {key: value for key, value in entry.get("set", {}).items() if "/" not in str(value)}
    return {**first_values(entry), "set": {**local, **changed}}


def small_suite(recipe: Path, model: Path) -> dict[str, Any]:
    """Return a recipe under another model, with one synthetic task of each of its readers."""
    suite = check_suite(read_suite(recipe))
    tasks = {}
    for entry in suite["tasks"]:
        reader = load_card(entry["task"]).reader
        small = parse_assignments(SMALL_READERS[reader], "--task-set")
        task_set = {**entry.get("task_set", {}), **small}
        tasks.setdefault(reader, {**first_values(entry), "task_set": task_set})
    replaced = {
        "models": [str(model)],
        "methods": [small_method(entry) for entry in suite["methods"]],
        "tasks": list(tasks.values()),
        "source": "mini",
        "dtype": "float32",
        "limit": 2,
    }
    lists = ("methods", "tasks", "models", "seeds", "sizes")
    top = {key: value for key, value in suite.items() if key not in lists}
    return {**first_values(top), **replaced}


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_runs_under_a_tiny_model(
    recipe: Path, ttabench: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = check_suite(read_suite(recipe))["models"][0]["model"]
    config = AutoConfig.for_model(ARCHITECTURES[name].model_type, **CONFIG)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "model")
    byte_tokenizer().save_pretrained(tmp_path / "model")
    suite = small_suite(recipe, tmp_path / "model")
    (tmp_path / "suite.json").write_text(json.dumps(suite), encoding="utf-8")
    monkeypatch.setattr(engines, "find_engine", lambda *_: lambda jobs, _: map(run_job, jobs))
    ran = ttabench("sweep", tmp_path / "suite.json", "--out", tmp_path / "runs", "--json")
    runs = ran.json()["runs"]
    assert len(runs) >= len(suite["methods"]) * len(suite["tasks"])
    for run in runs:
        record = load_record(Path(run["folder"]))
        assert record.rows
        assert all(math.isfinite(row.value) for row in record.rows), run


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_has_an_estimate(recipe: Path, ttabench: Command) -> None:
    words = ("sweep", recipe, "--dry-run", "--gpu", "h200", "--json")
    (rows,) = ttabench(*words).json().values()
    assert rows[-1]["hours"] > 0
    assert rows[-1]["peak_bytes"] < 141e9
