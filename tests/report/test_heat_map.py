"""The heat map of `ask --attention`: what is drawn, and what is left out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ttabench.report.pictures import LETTERS, MOST_PIECES, MOST_QUESTIONS, heat_map, write_chart

pytest.importorskip("altair")


def test_of_many_pieces_those_with_the_largest_shares_are_drawn_and_that_is_said() -> None:
    questions, pieces = MOST_QUESTIONS + 1, 3 * MOST_PIECES
    shares = np.full((questions, pieces), 0.5 / pieces, dtype=np.float32)
    shares[:, -1] += 0.5
    names = [f"notes.txt#{number}" for number in range(pieces)]
    spec = heat_map("mac", ["Who?"] * questions, names, shares)
    (cells,) = spec["datasets"].values()
    assert len(cells) == MOST_QUESTIONS * MOST_PIECES
    assert all(cell["share"] > 0.5 for cell in cells if cell["piece"] == f"{pieces}: notes.txt#{pieces - 1}")
    assert spec["title"] == ["mac", f"{MOST_PIECES} of {pieces:,} pieces: those with the largest shares",
                             f"the first {MOST_QUESTIONS} of {questions} questions"]  # fmt: skip


def test_any_text_is_drawn_and_long_ones_are_cut(tmp_path: Path) -> None:
    texts = ["a" * 500, "two\nlines\x1b[2J", "漢字", "$5 and \\$x_{"]
    spec = heat_map("$", texts, texts, np.eye(4, dtype=np.float32))
    (cells,) = spec["datasets"].values()
    names = [cell["piece"] for cell in cells[:4]]
    assert names == [f"1: {'a' * (LETTERS - 1)}…", "2: two lines\\x1b[2J", "3: 漢字", "4: $5 and \\$x_{"]
    for suffix, begins in (("png", b"\x89PNG"), ("svg", b"<svg")):
        write_chart(spec, tmp_path / f"p.{suffix}")
        assert (tmp_path / f"p.{suffix}").read_bytes().startswith(begins)
