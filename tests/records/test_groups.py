"""Tests of what may stand in a record: a wrong kind of value is one line, and never a traceback further on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ttabench.cli import app
from ttabench.core.errors import UserError
from ttabench.records.schema import KINDS, RECORD_FILE, load_record

NAMES = [(group, name) for group, kinds in KINDS.items() for name in list(kinds)[:4]]


@pytest.fixture(scope="module")
def record(tiny_base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs")
    words = ["eval", "--method", "none", "--task", "streamingqa", "--source", "mini", "--task-set", "documents=2",
             "--limit", 1, "--model", tiny_base, "--out", out, "--quiet"]  # fmt: skip
    assert app.run([str(word) for word in words]) == 0
    (found,) = (path for path in out.iterdir() if (path / RECORD_FILE).exists())
    return found


def changed(record: Path, at: Path, group: str, name: str, value: Any) -> Path:
    told = json.loads((record / RECORD_FILE).read_text())
    told[group][name] = value
    at.mkdir()
    (at / RECORD_FILE).write_text(json.dumps(told))
    return at


@pytest.mark.parametrize(("group", "name"), NAMES)
def test_a_value_of_another_kind_is_refused(record: Path, tmp_path: Path, group: str, name: str) -> None:
    for number, value in enumerate(([], {"a": [1]}, -1.5)):
        if isinstance(value, dict) and name in ("settings", "task_options", "stands_on", "protocol", "arguments"):
            continue
        if isinstance(value, float) and name == "chance":
            continue
        with pytest.raises(UserError, match=rf"cannot be read: {group}\.{name}"):
            load_record(changed(record, tmp_path / str(number), group, name, value))


def test_names_that_are_not_known_hold_anything(record: Path, tmp_path: Path) -> None:
    for number, group in enumerate(KINDS):
        load_record(changed(record, tmp_path / str(number), group, "of_another_version", [{"a": 1}]))
