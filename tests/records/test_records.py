"""Records: atomic, complete, refused when damaged; partial results survive a kill and two processes."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from ttabench.core.errors import UserError
from ttabench.core.types import Answer, Episode, Generate, Json, Query, StreamPosition
from ttabench.records.folder import RunFolder
from ttabench.records.samples import EpisodeCost, Sample, write_samples
from ttabench.records.schema import (
    RECORD_FILE,
    RECORD_TYPES,
    SAMPLES_FILE,
    Row,
    RunRecord,
    load_record,
    save_record,
)


def record(run: str = "0123456789ab", **changes: object) -> RunRecord:
    row = Row(
        run=run,
        method="icl",
        task="t",
        source="mini",
        model="nano",
        seed=0,
        metric="f1",
        value=0.5,
        n=2,
    )
    values: dict[str, object] = {
        "id": run,
        "created": "2025-01-01T00:00:00+00:00",
        "config": {"method": "icl", "task": "t", "model": "nano", "seed": 0},
        "method": {},
        "model": {},
        "task": {"main_metric": "f1"},
        "source": "mini",
        "seeds": {"run": 0},
        "n": 2,
        "rows": (row,),
        "cost": {"ask_ms": 1.5},
        "dropped": {},
        "versions": {},
        "hardware": {},
        "determinism": {},
        "code": {},
    }
    return RunRecord.model_validate(values | changes)


def sample(key: str, episode: str = "e", value: float = 1.0) -> Sample:
    ask = Query(
        prompt="Who?",
        key=key,
        want=Generate(answers=("Ada",)),
        source_key="d",
        at=StreamPosition(1),
    )
    answer = Answer(prediction="Ada", logprobs=(-1.5,), tokens=(2,))
    return Sample(
        episode=episode, ask=ask, answer=answer, metrics={"f1": value}, context_tokens=5, ask_ms=2.0
    )


def store_samples(folder: Path, rows: Sequence[Mapping[str, Json]]) -> None:
    """Write the samples of a run whose record lies there, as its own."""
    digests = write_samples(folder / SAMPLES_FILE, rows)
    own = {"n": len(rows), "sample_digests": digests}
    save_record(load_record(folder).model_copy(update=own), folder)


def episode_cost(episode: str = "e") -> EpisodeCost:
    return EpisodeCost(
        episode=episode,
        pieces=1,
        tokens_read=5,
        adapt_seconds=0.1,
        encode_seconds=0.0,
        state_bytes=8,
        patch_bytes=8,
        adapt_peak_bytes=9,
        ask_peak_bytes=9,
    )


@pytest.mark.parametrize("text", ["", "[]", '{"schema_version": 1}'])
def test_a_damaged_record_is_one_clear_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "run.json").write_text(text, encoding="latin-1")
    with pytest.raises(UserError) as caught:
        load_record(tmp_path)
    assert "run.json" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_killed_run_keeps_every_finished_query(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path, "r")
    folder.append([sample("a"), sample("b")])
    partial = folder.path / "partial.jsonl"
    with partial.open("a") as file:
        file.write('{"kind": "samples", "value": [{"epi')  # killed in the middle of a line
    episode = Episode(key="e", steps=tuple(sample(key).ask for key in "abc"))
    again = RunFolder(tmp_path, "r")
    assert again.resume() == 2
    assert again.resume_episodes([episode], ["f1"]) == ([sample("a"), sample("b")], False)
    again.append([sample("c")])
    again.finish_episode(episode_cost())
    third = RunFolder(tmp_path, "r")
    assert third.resume() == 3
    assert third.resume_episodes([episode], ["f1"]) == (again.samples, True)
    assert third.costs == again.costs


def test_the_second_process_waits_and_finds_the_run(tmp_path: Path) -> None:
    first, second = RunFolder(tmp_path, "r"), RunFolder(tmp_path, "r")
    heard: list[str] = []
    waiting, found = threading.Event(), []

    def log(line: str) -> None:
        heard.append(line)
        waiting.set()

    def other() -> None:
        with second.locked(log):
            found.append(load_record(second.path))

    with first.locked(heard.append):
        thread = threading.Thread(target=other)
        thread.start()
        assert waiting.wait(10)
        first.append([sample("a")])
        first.finish(record("r"))
    thread.join(10)
    assert len(heard) == 1
    assert "waiting" in heard[0]
    assert found == [load_record(tmp_path / "r")]


NAMES = [(group, name) for group, kinds in RECORD_TYPES.items() for name in list(kinds)[:4]]


def changed(at: Path, group: str, name: str, value: Any) -> Path:
    content = record().model_dump(mode="json")
    content[group][name] = value
    at.mkdir()
    (at / RECORD_FILE).write_text(json.dumps(content))
    return at


@pytest.mark.parametrize(("group", "name"), NAMES)
def test_a_value_of_another_kind_is_refused(tmp_path: Path, group: str, name: str) -> None:
    value = (
        -1.5
        if name in ("settings", "task_options", "stands_on", "protocol", "arguments")
        else [{"a": [1]}]
    )
    with pytest.raises(UserError, match=rf"cannot be read: {group}\.{name}"):
        load_record(changed(tmp_path / "run", group, name, value))
