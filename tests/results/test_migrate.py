"""The committed runs get the ids of today where the card they were made with is today's, and what names them, too."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.places import ROOT
from tests.records.test_records import record
from ttabench.readers.cards import cards_folder, load_card
from ttabench.readers.content import content_digest
from ttabench.records import suite_archive
from ttabench.records.packing import pack
from ttabench.records.schema import load_record
from ttabench.run.plan import make_plan
from ttabench.run.request import RunRequest

OLD = "00b8ee104900"
CARD = (cards_folder() / "streamingqa.yaml").read_text()
CARDS = {
    "today's": CARD,
    "in other words of the same": CARD.replace("title: StreamingQA", "title: News").replace(
        "files: [qa_val]", "files: [v]"
    ),
    "before the unit": CARD.replace("unit: document\n", ""),
    "with other stops": CARD.replace('stops: ["\\n"]', "stops: []"),
    "with a field of then": CARD + "colour: red\n",
}


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "results"))
    for name in ("migrate", "cards_then"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return importlib.import_module("migrate")


@pytest.fixture
def commits(script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """A history in which the card was each of `CARDS` in turn: their commits."""
    root = tmp_path / "checkout"
    card = root / "tasks" / "streamingqa.yaml"
    card.parent.mkdir(parents=True)
    monkeypatch.setattr(sys.modules["cards_then"], "ROOT", root)

    def git(*words: str) -> str:
        own = ("-c", "user.name=me", "-c", "user.email=me@example.org", "-c", "commit.gpgsign=false")
        return subprocess.run(["git", "-C", str(root), *own, *words], capture_output=True, text=True, check=True).stdout

    git("init", "-q")
    found = {}
    for name, text in CARDS.items():
        card.write_text(text)
        git("add", ".")
        git("commit", "-q", "-m", name)
        found[name] = git("rev-parse", "HEAD").strip()
    return found


def stored(store: Path, commit: str, **task: Any) -> dict[str, Any]:
    """A record as it was before a run's id told of its card; returns the configuration of today."""
    plan = make_plan(RunRequest(method="icl", task="streamingqa", task_options=("documents=2",)), 0)
    config = plan.config.to_json()
    before = {**config, "inputs": {key: value for key, value in config["inputs"].items() if key != "card"}}
    code = {"commit": commit, "changed": False} if commit else {}
    content = record(OLD, config=before, code=code).model_dump(mode="json")
    said = {**plan.task_record, **task}
    content["task"] = {key: value for key, value in said.items() if key != "unit" or value}
    (store / OLD).mkdir(parents=True)
    (store / OLD / "run.json").write_text(json.dumps(content))
    (store / "index.json").write_text(json.dumps({"a press": {"8 documents": [OLD, "missing"]}}))
    return {"id": plan.config.identity(), **config}


@pytest.mark.parametrize("name", list(CARDS)[:3])
@pytest.mark.parametrize("whole", [False, True], ids=["folders", "packed"])
def test_runs_below_a_folder_and_their_index(
    script: ModuleType, commits: dict[str, str], tmp_path: Path, name: str, whole: bool
) -> None:
    store = tmp_path / "english" / "squad-qa"
    now = stored(store, commits[name])
    if whole:
        samples = {"key": ["a", "b"], "prediction": ["1", "2"]}
        pq.write_table(pa.table(samples), store / OLD / "samples.parquet")
        pack(store, scores=True)
    told = list(script.brought(tmp_path / "english"))
    assert told == [f"{store}: 1 renamed", f"{store / 'index.json'}: rewritten"]
    assert (store / "runs.parquet").exists() is whole
    assert list(suite_archive.runs(store)) == ([now["id"]] if whole else [])
    if whole:
        assert suite_archive.sample_table(store / now["id"]).to_pydict() == samples
        (store / "samples.parquet").rename(store / "aside")
        assert suite_archive.sample_table(store / now["id"]).to_pydict()["key"] == samples["key"]
    found = load_record(store / now["id"])
    assert (found.id, found.formerly) == (now["id"], OLD)
    assert {row.run for row in found.rows} == {now["id"]}
    assert found.config["inputs"] == {**now["inputs"], "card": content_digest(load_card("streamingqa"))}
    assert json.loads((store / "index.json").read_text()) == {"a press": {"8 documents": [now["id"], "missing"]}}
    assert list(script.brought(tmp_path / "english")) == []
    (store / "index.json").write_text(json.dumps({"a press": [OLD]}))  # as where the first call was stopped
    assert list(script.brought(tmp_path / "english")) == [f"{store / 'index.json'}: rewritten"]


@pytest.mark.parametrize(
    ("name", "why"),
    [("with other stops", "the card of streamingqa was another at {}: prompt.stops"),
     ("with a field of then", "the card of streamingqa at its commit is none of today"),
     ("of nowhere", "the card of streamingqa at {} is not in the history here")],
)  # fmt: skip
def test_a_run_of_another_card_keeps_its_id(
    script: ModuleType, commits: dict[str, str], tmp_path: Path, name: str, why: str
) -> None:
    store, commit = tmp_path / "suite", commits.get(name, "0" * 40)
    stored(store, commit)
    before = (store / OLD / "run.json").read_bytes()
    assert list(script.brought(store)) == [f"{store}: 1 left as they are: {why.format(commit[:7])}"]
    assert (store / OLD / "run.json").read_bytes() == before


def test_of_a_run_without_a_commit_all_cards_that_fit_it_must_agree(
    script: ModuleType, commits: dict[str, str], tmp_path: Path
) -> None:
    stored(tmp_path / "any", "")
    (told,) = script.brought(tmp_path / "any")
    assert "another at some commit: prompt.stops" in told or "none of today" in told
    now = stored(tmp_path / "before", "", unit=None)
    assert next(script.brought(tmp_path / "before")).endswith("1 renamed"), "one card alone had no unit"
    assert (tmp_path / "before" / now["id"]).is_dir()
    stored(tmp_path / "none", "", chance=0.3)
    (told,) = script.brought(tmp_path / "none")
    assert told.endswith("no committed card of streamingqa says what its record says of it")


def test_a_digest_of_the_ends_of_a_file_becomes_that_of_all(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = sys.modules["cards_then"]
    file = tmp_path / "model.gguf"
    with file.open("wb") as handle:
        handle.truncate(100 * 10**6)
    monkeypatch.setattr(module, "find_source", lambda _: str(file))
    ends, whole = module._of_ends(file), module.digest(file)
    assert ends != whole
    with file.open("r+b") as handle:
        handle.seek(50 * 10**6)
        handle.write(b"x")
    assert module._of_ends(file) == ends
    assert module.digest(file) != whole
    said = {"model": "smollm2-135m", "inputs": {"model": ends}}
    assert module.model_digest(said) == module.digest(file)
    with pytest.raises(module.Unknown, match="is not here"):
        module.model_digest({**said, "inputs": {"model": "0" * 16}})


def test_the_committed_runs_have_the_ids_of_their_configurations(script: ModuleType) -> None:
    """So that the commands of their suites find them, where their cards are today's."""
    checked = 0
    for store in script.stores(ROOT / "results", script.RUNS):
        for name, run in suite_archive.runs(store).items():
            config = json.loads(run.record)["config"]
            if "card" in config["inputs"]:
                assert script.run_id(config) == name
                checked += 1
    assert checked
