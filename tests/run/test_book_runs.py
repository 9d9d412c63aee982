"""Books through the loop: what is scored is what a sliding window scores, the future is not seen, tables are right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.conftest import Command
from tests.readers.test_book import SMALL, put
from tests.tiny import tiny_gpt2, tiny_llama
from tests.tiny_methods import tiny_method
from ttabench.core.types import Chunk, Episode, Score, wants_of_kind
from ttabench.lm.inference.scoring import token_logprobs
from ttabench.lm.model import LM
from ttabench.lm.patch import Patch
from ttabench.methods.base import Method
from ttabench.methods.eviction.window import WindowSettings
from ttabench.methods.eviction.window.method import SlidingWindow
from ttabench.methods.icl import InContextSettings
from ttabench.methods.icl.method import InContext
from ttabench.methods.trainable import training_item
from ttabench.readers import load
from ttabench.records.folder import RunFolder
from ttabench.records.samples import Sample
from ttabench.run.runner import RunContext, run_episodes
from ttabench.stats.metrics import metric

TEXT = "".join(chr(97 + (i * i * 7 + i // 3) % 26) for i in range(90))
WINDOW, STRIDE = 20, 8
NOISE = {"atol": 2e-5, "rtol": 1e-4}


def book(lm: LM, path: Path, **options: Any) -> Episode:
    (episode,) = load("pg19", source=str(path), options={**SMALL, **options}).episodes(lm)
    return episode


def sliding(lm: LM) -> SlidingWindow:
    """Windows of WINDOW tokens, STRIDE of them new."""
    return SlidingWindow(lm, WindowSettings(mode="stride", recent=WINDOW - STRIDE))


def logprobs(method: Method[Any], episode: Episode) -> torch.Tensor:
    """Every scored token, through the method's own verbs."""
    state, found = method.begin(1), []
    for step in episode.steps:
        if isinstance(step, Chunk):
            state = method.adapt(state, [[step]])
        else:
            found += token_logprobs(
                method.lm, method.patch(state, [step]), [training_item(method.lm, step)]
            )
    return torch.cat(found)


def run(lm: LM, method: Method[Any], path: Path, out: Path, **options: Any) -> list[Sample]:
    task = load("pg19", source=str(path), options={**SMALL, **options})
    folder = RunFolder(out, method.name)
    run_episodes(
        RunContext(lm=lm, method=method, metrics=tuple(map(metric, task.card.metrics))),
        task,
        folder,
        lambda *_: None,
    )
    return folder.samples


def end(sample: Sample) -> int:
    (want,) = wants_of_kind([sample.ask], Score)
    return want.position + sample.answer.tokens[0]


@pytest.mark.parametrize("lm", [tiny_llama(), tiny_gpt2()], ids=["llama-gqa", "gpt2"])
def test_the_sliding_window_is_a_rolling_score(lm: LM, tmp_path: Path) -> None:
    text = TEXT[:84]  # whole strides: at the end a rolling score fills its window with more context
    path = put(tmp_path, "a.txt", text)
    ids, starts = lm.encode(text), range(WINDOW, len(text), STRIDE)
    pairs = [
        (ids[start + STRIDE - WINDOW : start], ids[start : start + STRIDE]) for start in starts
    ]
    expected = torch.cat(token_logprobs(lm, Patch(), pairs))
    torch.testing.assert_close(logprobs(sliding(lm), book(lm, path)), expected, **NOISE)
    samples = run(lm, sliding(lm), path, tmp_path)
    sums = [float(part.sum()) for part in expected.split(STRIDE)]
    assert [sample.answer.logprobs[0] for sample in samples] == pytest.approx(sums, abs=1e-4)
    assert [sample.answer.tokens[0] for sample in samples] == [8] * 8
    assert [sample.context_tokens for sample in samples] == [
        end(sample) - sample.answer.tokens[0] - 1 for sample in samples
    ]


@pytest.mark.parametrize(
    "make",
    [
        sliding,
        lambda lm: InContext(lm, InContextSettings()),
        lambda lm: SlidingWindow(lm, WindowSettings(n_sink=2, recent=10)),
        lambda lm: tiny_method("templora", lm),
        lambda lm: tiny_method("streamadapter", lm),
    ],
    ids=["stride", "icl", "stream", "templora", "streamadapter"],
)
def test_an_edit_changes_no_stride_before_it(make: Any, tmp_path: Path) -> None:
    lm = tiny_llama()
    before = run(lm, make(lm), put(tmp_path, "a.txt", TEXT), tmp_path / "one")
    edited = TEXT[:46] + "#" + TEXT[47:]
    after = run(lm, make(lm), put(tmp_path, "a.txt", edited), tmp_path / "two")
    same = [
        one.answer.logprobs == other.answer.logprobs
        for one, other in zip(before, after, strict=True)
    ]
    first = next(i for i, sample in enumerate(before) if end(sample) > 46)
    assert all(same[:first])
    assert first > 0
    assert not any(same[first : first + 2]), "the stride itself, and the next one, which sees it"


def test_one_pass_gives_the_figures_of_every_length(
    ttabench: Command, tiny_base: Path, tmp_path: Path
) -> None:
    put(tmp_path, "books/1.txt", TEXT)
    put(tmp_path, "books/2.txt", TEXT[::-1][:40])
    common = [
        "eval",
        "--task",
        "pg19",
        "--source",
        tmp_path / "books",
        "--model",
        tiny_base,
        "--out",
        tmp_path / "runs",
        "--task-set",
        "window=20",
        "--task-set",
        "stride=8",
        "--set",
        "mode=stride",
        "--set",
        "recent=12",
        "--method",
        "window",
        "--json",
    ]
    record = ttabench(*common, "--task-set", "tokens=36,60,84").json()["runs"][0]
    rows = {(row["metric"], row["step"], row["subtask"]): row for row in record["rows"]}
    for length in (36, 60, 84):
        alone = ttabench(*common, "--task-set", f"tokens={length}").json()["runs"][0]
        for row in alone["rows"]:
            if row["subtask"] is None:
                assert row["step"] is None
                together = rows[row["metric"], length, None]
                assert together["value"] == pytest.approx(row["value"], rel=1e-5)
                assert together["n"] == row["n"]
    assert rows["ppl", None, None]["weight"] == 84 - 20 + 40 - 20
    books = [rows["ppl", None, part]["value"] for part in ("1", "2")]
    assert rows["ppl_book_mean", None, None]["value"] == pytest.approx(sum(books) / 2)
    assert rows["ppl", None, "mean"]["value"] == pytest.approx(sum(books) / 2)
    assert not any(row["subtask"] and row["step"] for row in record["rows"])
    assert record["task"]["chance"] is None
    assert rows["ppl", 84, None]["value"] == pytest.approx(rows["ppl", None, None]["value"])
