"""The reader of demonstration tasks: protocol and sources."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.qa_files import load_error, write_jsonl
from tests.tiny import tiny_llama
from ttabench.core.types import Choose, StreamPosition, wants_of_kind
from ttabench.methods.icl import InContextSettings
from ttabench.methods.icl.method import InContext
from ttabench.readers import load
from ttabench.readers.cards import load_card
from ttabench.records.folder import RunFolder
from ttabench.run.runner import RunContext, run_episodes
from ttabench.stats.metrics import METRICS

SMALL = {"demonstrations": 6, "queries": 4, "shots": 3}


def test_under_full_context_every_ratio_gives_the_same_numbers(tmp_path: Path) -> None:
    lm = tiny_llama()
    found = []
    for ratio in (1.0, 0.6, 0.0):
        task = load(
            "superglue", options={**SMALL, "task": "sst2", "shots": 2, "ratio": ratio, "queries": 3}
        )
        sink = RunFolder(tmp_path, f"ratio{ratio}")
        context = RunContext(
            lm=lm,
            method=InContext(lm, InContextSettings()),
            metrics=tuple(METRICS[name] for name in ("acc", "acc_norm", "acc_mean")),
        )
        run_episodes(context, task, sink, lambda *_: None)
        found.append({sample.key: sample.answer.logprobs for sample in sink.samples})
        assert all(
            sample.ask.subtask == "sst2" and min(sample.answer.tokens) > 0
            for sample in sink.samples
        )
    for other in found[1:]:
        for key, values in found[0].items():
            assert values == pytest.approx(other[key], abs=1e-3)


UNSEEN = ("hellaswag", "winogrande", "openbookqa", "arc_easy", "arc_challenge", "piqa")


def rte(count: int, tag: str = "") -> list[dict[str, Any]]:
    names = ["entailment", "not_entailment"]
    return [
        {"premise": f"P{tag}{i}.", "hypothesis": f"H{i}.", "label": names[i % 2], "idx": i}
        for i in range(count)
    ]


def folder(tmp_path: Path, train: list[dict[str, Any]], val: list[dict[str, Any]]) -> Path:
    (tmp_path / "RTE").mkdir()
    write_jsonl(tmp_path / "RTE" / "train.jsonl", train)
    write_jsonl(tmp_path / "RTE" / "val.jsonl", val)
    return tmp_path


# --- protocol ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["superglue", *UNSEEN])
def test_every_sub_task_shows_k_rows_and_asks_the_others(name: str) -> None:
    task = load(name, seed=1, options=SMALL)
    assert list(task.episodes()) == list(load(name, seed=1, options=SMALL).episodes())
    for episode, part in zip(task.episodes(), load_card(name).parts, strict=True):
        assert episode.key == f"{name}/{part}/test/seed1"
        assert len(episode.chunks()) == 3
        assert len(episode.queries()) == 4
        for ask in episode.queries():
            assert (ask.mode, ask.at, ask.subtask) == ("choose", StreamPosition(3), part)
            (want,) = wants_of_kind([ask], Choose)
            assert want.gold is not None
            prefix = want.option_prefixes[want.gold] if want.option_prefixes else ""
            assert all(
                ask.prompt + prefix + want.options[want.gold] != piece.text
                for piece in episode.chunks()
            )


def test_seeds_draw_other_demonstrations_and_more_shots_begin_with_fewer(tmp_path: Path) -> None:
    source = str(folder(tmp_path, rte(20), rte(5, "v")))

    def shown(seed: int, shots: int) -> list[str]:
        task = load("superglue", source=source, seed=seed, options={"task": "rte", "shots": shots})
        return [piece.key for episode in task.episodes() for piece in episode.chunks()]

    assert shown(0, 4) == shown(0, 12)[:4]
    assert shown(0, 12) != shown(1, 12)
    assert len(set(shown(0, 20))) == 20
    assert shown(0, 0) == []


@pytest.mark.parametrize(("ratio", "kept"), [(1.0, 0), (0.8, 1), (0.5, 2), (0.1, 4), (0.0, 5)])
def test_ratio_splits_the_demonstrations(ratio: float, kept: int) -> None:
    options = {**SMALL, "task": "rte", "shots": 5}
    whole = next(load("superglue", options=options).episodes())
    split = next(load("superglue", options={**options, "ratio": ratio}).episodes())
    assert [*split.chunks(), *split.queries()[0].window] == whole.chunks()
    assert len(split.queries()[0].window) == kept
    assert {ask.at for ask in split.queries()} == {StreamPosition(5)}


# --- sources -------------------------------------------------------------------------------------------------------


def test_rows_of_the_pool_that_are_asked_are_not_shown(tmp_path: Path) -> None:
    task = load(
        "superglue",
        source=str(folder(tmp_path, rte(6), rte(2) + rte(2, "v"))),
        options={"task": "rte", "shots": 4},
    )
    assert task.dropped == {"rte: demonstration equal to a query": 2}
    message = load_error("superglue", source=str(tmp_path), options={"task": "rte", "shots": 5})
    assert "shots=5" in message
    assert "4 rows of rte" in message
