"""How queries look at the piece that holds their answer, and that runs of methods that tell it keep this."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.conftest import Command
from tests.records.test_records import sample
from ttabench.methods.base import PieceShares
from ttabench.records.sample_files import read_samples
from ttabench.records.samples import Looked
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
