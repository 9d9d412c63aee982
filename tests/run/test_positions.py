"""A context that a base model has no positions for is refused before the model is loaded, or before it is asked."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Command, one_line
from ttabench.core.errors import UserError
from ttabench.core.types import Ask, Choose, Episode, Generate, Observe
from ttabench.cost import Workload, shape_of, workload
from ttabench.methods.registry import cost_of
from ttabench.run import evaluation
from ttabench.run.base_model import ModelCache
from ttabench.run.evaluation import execute
from ttabench.run.plan import Plan, make_plan
from ttabench.run.positions import refuse_by_tokens, refuse_on_paper
from ttabench.run.request import RunRequest

METHODS = {
    "icl": ("icl", ()),
    "icl, newest": ("icl", ("truncate=left", "max_tokens=200")),
    "snapkv": ("snapkv", ()),
    "snapkv, moving": ("snapkv", ("positions=cache", "budget=64")),
    "snapkv, moving, all": ("snapkv", ("positions=cache",)),
    "h2o": ("h2o", ()),
    "window": ("window", ("recent=64",)),
    "window, afterwards": ("window", ("mode=postprefill", "recent=64")),
    "streamadapter": ("streamadapter", ("chunk=16", "down=8")),
    "streamadapter, kept": ("streamadapter", ("chunk=16", "down=8", "keep_cache=true")),
    "none": ("none", ()),
}
SMALL = ("window=64", "stride=32")


def book(folder: Path, letters: int) -> Path:
    path = folder / "book.txt"
    path.write_text("".join(chr(97 + i * i % 26) for i in range(letters)), encoding="utf-8")
    return path


def planned(model: object, path: Path, method: str, settings: tuple[str, ...], *options: str) -> Plan:
    return make_plan(
        RunRequest(
            method=method, model=str(model), task="pg19", source=str(path), settings=settings,
            task_options=(*SMALL, *options),
        ),
        seed=0,
    )  # fmt: skip


def refusal(work: Any, *arguments: Any) -> str:
    try:
        work(*arguments)
    except UserError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("name", METHODS)
def test_what_is_refused_before_is_what_would_be_refused_on_the_way(
    name: str, tiny_base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The base model has 512 positions, a token a letter."""
    models, told = ModelCache(), []
    for letters in (200, 512, 513, 700):
        plan = planned(tiny_base, book(tmp_path, letters), *METHODS[name], "tokens=640")
        before = refusal(refuse_by_tokens, plan, models.get(plan.request))
        with monkeypatch.context() as patch:
            patch.setattr(evaluation, "refuse_by_tokens", lambda *_: None)
            on_the_way = refusal(execute, plan, models, tmp_path / "runs")
        assert bool(before) == bool(on_the_way), (letters, before, on_the_way)
        assert not refusal(refuse_on_paper, plan) or before, "never refused where it would fit"
        told.append(bool(before))
    grows = name in ("icl", "snapkv", "snapkv, moving, all", "h2o", "window, afterwards", "streamadapter, kept")
    assert told[0] is False
    assert told[-1] is grows


@pytest.mark.parametrize("method", ["icl", "snapkv", "h2o"])
def test_a_book_is_refused_before_the_model_is_loaded(
    method: str, ttabench: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def loading(*_: Any, **__: Any) -> None:
        raise AssertionError("the model is loaded")

    monkeypatch.setattr(ModelCache, "get", loading)
    asked = ["eval", "--method", method, "--task", "pg19", "--out", tmp_path / "runs"]
    told = one_line(ttabench(*asked))
    assert one_line(ttabench(*asked, "--dry-run")) == told
    assert "nano has 8,192 positions" in told
    assert "documents" not in told
    assert not (tmp_path / "runs").exists()
    ways = told.partition("Give ")[2].rstrip(".\n").replace(" or ", ", ").split(", ")
    assert "--method window" in ways
    for way in ways:  # all that is advised fits
        assert ttabench(*asked, *shlex.split(way), "--dry-run", "--json").code == 0, way


def test_a_book_is_refused_before_anything_is_answered(ttabench: Command, tiny_base: Path, tmp_path: Path) -> None:
    path = book(tmp_path, 700)  # fewer than 512 tokens, if each were eight letters
    asked = ["eval", "--method", "h2o", "--model", tiny_base, "--task", "pg19", "--source", path,
             "--out", tmp_path / "runs", "--task-set", "tokens=640"]  # fmt: skip
    for option in SMALL:
        asked += ["--task-set", option]
    assert "tiny" in one_line(ttabench(*asked))
    assert not list((tmp_path / "runs").iterdir()), "no folder stays"
    assert ttabench(*asked, "--task-set", "tokens=256", "--json").code == 0


@pytest.mark.parametrize(
    ("words", "advice"),
    [("--task streamingqa --task-set documents=2000", "--task-set documents=N"),
     ("--task superglue --task-set task=boolq --task-set shots=96 --source mini --model gpt2 --random-weights",
      "--task-set shots=N")],
)  # fmt: skip
def test_documents_and_demonstrations_get_advice_of_their_own(ttabench: Command, words: str, advice: str) -> None:
    assert advice in one_line(ttabench("eval", "--method", "icl", "--dry-run", *words.split()))


def test_a_text_that_is_asked_about_in_between_is_several_runs() -> None:
    def read(letters: int) -> Observe:
        return Observe(text="a" * letters)

    def asked(key: str) -> Ask:
        return Ask(prompt="b" * 40, key=key, want=Generate(max_new_tokens=3))

    episode = Episode(key="e", steps=(asked("0"), read(400), read(200), asked("1"), asked("2"), read(80), asked("3")))
    work = workload(episode, "auto")
    assert work.pieces == (100, 50, 20)
    assert work.runs == (150, 20)
    assert Workload(pieces=(100, 50, 20), prompt_tokens=1, new_tokens=1).runs == (170,)
    shape = shape_of("llama-2-7b")
    assert shape is not None
    kept = {"positions": "cache", "budget": 10, "window": 5}
    found = cost_of("snapkv", kept, shape, work)
    assert found is not None
    assert found.positions == shape.starts + 150
    choosing = Episode(key="c", steps=(Ask(prompt="q", key="q", want=Choose(options=(" a", " b"))),))
    assert workload(choosing, "auto").runs == (0,)
