"""What may be passed on of a run: no path of the machine, no text, and what tells runs apart stays."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as parquet
import pytest

from tests.conftest import Command
from tests.places import ROOT
from tests.records.test_records import record, sample, store_samples
from tests.records.test_scores import MARK, marked, texts_in
from ttabench.core.errors import UserError
from ttabench.records.local_paths import without_paths
from ttabench.records.packing import part_of, write_submission
from ttabench.records.samples import digest_of, has_samples, read_samples
from ttabench.records.schema import RUNS_FILE, load_record, save_record


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("file:/home/ada/data/dev.json", "file:dev.json"),
        ("folder:results/data/pg19/", "folder:pg19"),
        ("read /home/ada/x.json, then ~/y/z.txt", "read x.json, then z.txt"),
        ("HuggingFaceTB/SmolLM2-135M", "HuggingFaceTB/SmolLM2-135M"),
        ("https://example.org/a/b", "https://example.org/a/b"),
        ("<s>/x</s>", "<s>/x</s>"),
    ],
)
def test_of_a_path_its_last_part_stays_and_all_else_does(text: str, told: str) -> None:
    assert without_paths({"notes": [text], text: 1}) == {"notes": [told], told: 1}


def test_paths_that_the_configuration_names_or_that_are_here_are_found_in_every_text(tmp_path: Path) -> None:
    (tmp_path / "models" / "my model").mkdir(parents=True)
    config = {"source": "data/of mine/dev.json", "checkpoint": "runs/a/mac", "settings": {"encoder": str(tmp_path)}}
    found = without_paths({"config": config, "notes": ["data/of mine/dev.json is short"], "model": {"name": "x/y"}})
    assert found["config"] == {"source": "dev.json", "checkpoint": "mac", "settings": {"encoder": tmp_path.name}}
    assert found["notes"] == ["dev.json is short"]
    assert found["model"] == {"name": "x/y"}


def test_no_text_of_samples_and_no_words_of_the_chat_are_in_the_file(tmp_path: Path) -> None:
    marked(tmp_path / "aa11")
    plain = load_record(tmp_path / "aa11")
    store_samples(tmp_path / "aa11", [{**each, "a_new_column": 1.0} for each in _rows(tmp_path / "aa11")])
    words = {"start": f"{MARK}: be helpful", "chat_end": "", "name": "nano"}
    found = load_record(tmp_path / "aa11").model_copy(update={"model": words, "rows": plain.rows})
    save_record(found, tmp_path / "aa11")
    write_submission(tmp_path / "b.parquet", [part_of(tmp_path / "aa11", found)])
    table = parquet.read_table(tmp_path / "b.parquet")
    parquet.write_table(table, tmp_path / "plain", compression="none", use_dictionary=False)
    assert MARK.encode() not in (tmp_path / "plain").read_bytes()
    run = tmp_path / "b.parquet" / "aa11"
    again = load_record(run)
    assert again.model == {"start": digest_of(words["start"]), "chat_end": "", "name": "nano"}
    columns = read_samples(run, record=again)  # digests of texts are those of their digests
    assert set(columns) == set(again.sample_digests)
    assert columns["f1"] == [1.0] * 3


def _rows(folder: Path) -> list[dict[str, object]]:
    columns = read_samples(folder)
    columns.pop("a_new_column")
    return [dict(zip(columns, cells, strict=True)) for cells in zip(*columns.values(), strict=True)]


def test_runs_with_other_columns_and_without_answers_lie_in_one_file(tmp_path: Path) -> None:
    parts = []
    for run, more in (("aa11", {"em": 1.0}), ("bb22", {"rougeL": 0.5}), ("cc33", None)):
        (tmp_path / run).mkdir()
        save_record(record(run), tmp_path / run)
        if more is not None:
            store_samples(tmp_path / run, [{**sample("a").flat(), **more}])
        parts.append(part_of(tmp_path / run, load_record(tmp_path / run)))
    file = tmp_path / "b.parquet"
    write_submission(file, parts)
    for run, known in (("aa11", "em"), ("bb22", "rougeL")):
        columns = read_samples(file / run, record=load_record(file / run))
        assert {"em", "rougeL"} & columns.keys() == {known}
    assert not has_samples(file / "cc33")
    (tmp_path / "dd44").mkdir()
    save_record(record("dd44"), tmp_path / "dd44")
    store_samples(tmp_path / "dd44", [{**sample("a").flat(), "em": 1}])
    with pytest.raises(UserError, match="The column em of these runs holds double and int64"):
        write_submission(file, [*parts, part_of(tmp_path / "dd44", load_record(tmp_path / "dd44"))])


def test_committed_runs_lose_no_score_and_keep_no_path(ttabench: Command, tmp_path: Path) -> None:
    suite = ROOT / "results" / "english" / "msc"
    assert ttabench("export", suite, "-o", tmp_path / "b.parquet").code == 0
    found = ttabench("compare", tmp_path / "none", "--out", tmp_path, "--with", tmp_path / "b.parquet", "--json")
    assert found.code == 2, "a name that leads nowhere is still refused"
    theirs = ttabench("compare", "--out", tmp_path, "--with", tmp_path / "b.parquet", "--json").json()
    ours = ttabench("compare", suite, "--json").json()
    for name in ("value", "stderr", "n"):
        assert [row[name] for row in theirs["runs"]] == [row[name] for row in ours["runs"]]
    assert [row["p"] for row in theirs["differences"]] == [row["p"] for row in ours["differences"]]
    texts = [text for _, text in texts_in(parquet.read_table(suite / RUNS_FILE, columns=["record"]))]
    assert any("results/" in text for text in texts)
    for text in parquet.read_table(tmp_path / "b.parquet")["record"].drop_null().to_pylist():
        assert "results/" not in text
        assert json.loads(text)["code"]["commit"]
