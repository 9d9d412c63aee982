"""A context that a base model has no positions for is refused before it is asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Command, one_line
from ttabench.core.errors import UserError
from ttabench.run import evaluation
from ttabench.run.base_model import ModelCache
from ttabench.run.evaluation import execute
from ttabench.run.plan import Plan, make_plan
from ttabench.run.positions import refuse_by_tokens
from ttabench.run.request import RunRequest

METHODS = {
    "icl": ("icl", ()),
    "snapkv": ("snapkv", ()),
    "snapkv, moving": ("snapkv", ("positions=cache", "budget=64")),
    "h2o": ("h2o", ()),
    "window": ("window", ("recent=64",)),
    "streamadapter, kept": ("streamadapter", ("chunk=16", "down=8", "keep_cache=true")),
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
        told.append(bool(before))
    grows = name in ("icl", "snapkv", "h2o", "streamadapter, kept")
    assert told[0] is False
    assert told[-1] is grows


def test_a_book_is_refused_before_anything_is_answered(ttabench: Command, tiny_base: Path, tmp_path: Path) -> None:
    path = book(tmp_path, 700)
    asked = ["eval", "--method", "h2o", "--model", tiny_base, "--task", "pg19", "--source", path,
             "--out", tmp_path / "runs", "--task-set", "tokens=640"]  # fmt: skip
    for option in SMALL:
        asked += ["--task-set", option]
    told = one_line(ttabench(*asked))
    assert "has 512 positions" in told
    assert "--method window" in told
    assert not list((tmp_path / "runs").iterdir()), "no folder stays"
    assert ttabench(*asked, "--task-set", "tokens=256", "--json").code == 0
