"""How queries look at the piece that holds their answer, and that runs of methods that tell it keep this."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.conftest import Command
from tests.records.test_records import sample
from ttabench.methods.base import PieceShares
from ttabench.methods.session import Session
from ttabench.records.sample_files import read_samples
from ttabench.records.samples import Looked
from ttabench.run import runner
from ttabench.run.runner import looked_at

SHARES = PieceShares(names=("a", "b + c", "d"), shares_QK=torch.tensor([[0.5, 0.3, 0.2]] * 5), meaning="attention")


def test_share_rank_and_age_of_the_piece_with_the_answer() -> None:
    asks = [replace(sample("q").ask, source_key=key) for key in ("a", "c", "d", "e", "")]
    found = looked_at(SHARES, asks)
    assert [each.gold_rank for each in found] == [1, 2, 3, 0, 0]
    assert [each.gold_age for each in found] == [2, 1, 0, 0, 0]
    assert [each.kept_pieces for each in found] == [3, 3, 3, 3, 0], "of a piece that was dropped, too"
    assert [each.gold_share for each in found] == pytest.approx([0.5, 0.3, 0.2, 0.0, 0.0])
    assert looked_at(None, asks) == [Looked()] * 5


def test_where_pieces_are_chosen_by_scores_these_rank_them() -> None:
    chosen = replace(SHARES, shares_QK=torch.tensor([[1.0, 0.0, 0.0]]), scores_QK=torch.tensor([[3.0, 1.0, 2.0]]))
    (found,) = looked_at(chosen, [replace(sample("q").ask, source_key="d")])
    assert (found.gold_rank, found.gold_share) == (2, 0.0)


def test_of_many_pieces_nothing_is_told(ttabench: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise AssertionError("it takes longer than the answers")

    monkeypatch.setattr(runner, "MOST_PIECES", 7)
    monkeypatch.setattr(Session, "piece_shares", refuse)
    words = ("--task", "streamingqa", "--task-set", "documents=8", "--limit", "4", "--out", tmp_path, "--json")
    ran = ttabench("eval", "--method", "mac", *words)
    assert ran.code == 0, ran.err
    (stored,) = tmp_path.glob("*/run.json")
    assert read_samples(stored.parent, ("kept_pieces",))["kept_pieces"] == [0] * 4


def test_runs_keep_it(ttabench: Command, tmp_path_factory: pytest.TempPathFactory) -> None:
    out = tmp_path_factory.mktemp("runs")
    kept = {}
    for method, more in (("rag", ()), ("mac", ()), ("icl", ()), ("mac", ("--set", "hierarchy=4"))):
        words = ("--task", "streamingqa", "--task-set", "documents=8", "--task-set", "questions=1", "--limit", "4")
        ran = ttabench("eval", "--method", method, *more, *words, "--out", out, "--json")
        assert ran.code == 0, ran.err
        newest = max(out.glob("*/run.json"), key=lambda file: file.stat().st_mtime_ns).parent
        kept[method, bool(more)] = read_samples(newest, ("gold_rank", "gold_share", "gold_age", "kept_pieces"))
    for method in ("rag", "mac"):
        assert kept[method, False]["kept_pieces"] == [8] * 4
        assert all(1 <= rank <= 8 for rank in kept[method, False]["gold_rank"])
    assert sum(kept["mac", False]["gold_share"]) > 2, "it attends to the right document"
    assert kept["icl", False]["kept_pieces"] == kept["mac", True]["kept_pieces"] == [0] * 4
