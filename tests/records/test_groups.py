"""Tests of what may stand in a record: a wrong kind of value is one line, and never a traceback further on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.records.test_records import record
from ttabench.core.errors import UserError
from ttabench.records.schema import KINDS, RECORD_FILE, load_record

NAMES = [(group, name) for group, kinds in KINDS.items() for name in list(kinds)[:4]]


def changed(at: Path, group: str, name: str, value: Any) -> Path:
    content = record().model_dump(mode="json")
    content[group][name] = value
    at.mkdir()
    (at / RECORD_FILE).write_text(json.dumps(content))
    return at


@pytest.mark.parametrize(("group", "name"), NAMES)
def test_a_value_of_another_kind_is_refused(tmp_path: Path, group: str, name: str) -> None:
    value = -1.5 if name in ("settings", "task_options", "stands_on", "protocol", "arguments") else [{"a": [1]}]
    with pytest.raises(UserError, match=rf"cannot be read: {group}\.{name}"):
        load_record(changed(tmp_path / "run", group, name, value))


def test_names_that_are_not_known_hold_anything(tmp_path: Path) -> None:
    for group in KINDS:
        load_record(changed(tmp_path / group, group, "of_another_version", [{"a": 1}]))
