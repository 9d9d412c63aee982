"""The committed results get the ids of today, and what names them, too."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

from tests.places import ROOT
from tests.records.test_records import record
from tests.run.test_former import FIRST
from ttabench.records.schema import load_record


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("results_migrate", ROOT / "results" / "migrate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_runs_below_a_folder_and_their_index(script: ModuleType, tmp_path: Path) -> None:
    store = tmp_path / "english" / "squad-qa"
    (store / "00b8ee104900").mkdir(parents=True)
    content = record("00b8ee104900", config=FIRST).model_dump(mode="json")
    del content["formerly"]
    (store / "00b8ee104900" / "run.json").write_text(json.dumps({**content, "schema_version": 1}))
    index = {"a press": {"8 documents": ["00b8ee104900", "missing"]}}
    (store / "index.json").write_text(json.dumps(index))
    told = list(script.brought(tmp_path))
    assert told == [f"{store}: 1 renamed", f"{store / 'index.json'}: rewritten"]
    (folder,) = (path for path in store.iterdir() if path.is_dir())
    found = load_record(folder)
    assert (found.id, found.formerly) == (folder.name, "00b8ee104900")
    assert json.loads((store / "index.json").read_text()) == {"a press": {"8 documents": [folder.name, "missing"]}}
    assert list(script.brought(tmp_path)) == []
    (store / "index.json").write_text(json.dumps(index))  # as where the first call was stopped
    assert list(script.brought(tmp_path)) == [f"{store / 'index.json'}: rewritten"]
