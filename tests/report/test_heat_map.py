"""The heat map of `ask --attention`: what is drawn, what is named, and what is left out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ttabench.core.errors import UserError
from ttabench.report.heat_map import APART, LETTERS, MOST_PIECES, MOST_QUESTIONS, HeatMap, draw, drawn


def a_map(questions: int, pieces: int, peak: int = 0) -> HeatMap:
    """Every question looks at one piece more than at the others."""
    shares = np.full((questions, pieces), 0.5 / pieces, dtype=np.float32)
    shares[:, peak] += 0.5
    names = [f"notes.txt#{number}" for number in range(pieces)]
    return HeatMap(title="mac", questions=["Who? $x$"] * questions, pieces=names, shares_QK=shares)


@pytest.mark.parametrize("pieces", [1, 60, 1000])
def test_names_that_are_there_can_be_read_and_the_largest_share_has_one(pieces: int) -> None:
    figure = drawn(a_map(3, pieces, peak=pieces // 2))
    axes = figure.axes[0]
    places, names = axes.get_xticks(), [label.get_text() for label in axes.get_xticklabels()]
    columns = axes.images[0].get_array().shape[1]  # type: ignore[union-attr]
    column = figure.get_figwidth() / columns
    assert columns == min(pieces, MOST_PIECES)
    assert f"notes.txt#{pieces // 2}" in names
    assert all(np.diff(places) * column >= APART - 1e-9)
    assert figure.get_figwidth() <= 15
    assert (len(names) == pieces) == (pieces <= 60)


def test_of_many_pieces_those_with_the_largest_shares_are_drawn_and_that_is_said() -> None:
    axes = drawn(a_map(MOST_QUESTIONS + 1, 3 * MOST_PIECES, peak=3 * MOST_PIECES - 1)).axes[0]
    image = axes.images[0].get_array()
    assert image.shape == (MOST_QUESTIONS, MOST_PIECES)
    assert image[:, -1].min() > 0.5
    title = axes.get_title(loc="left")
    assert f"{MOST_PIECES} of {3 * MOST_PIECES:,} pieces" in title
    assert f"the first {MOST_QUESTIONS} of {MOST_QUESTIONS + 1} questions" in title


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_any_text_is_drawn_and_long_ones_are_cut(tmp_path: Path) -> None:
    texts = ["a" * 500, "two\nlines\x1b[2J", "漢字", "$5 and \\$x_{"]
    found = HeatMap(title="$", questions=texts, pieces=texts, shares_QK=np.eye(4, dtype=np.float32))
    names = [label.get_text() for label in drawn(found).axes[0].get_xticklabels()]
    assert names == ["a" * (LETTERS - 1) + "…", "two lines\\x1b[2J", "漢字", "$5 and \\$x_{"]
    for suffix, begins in (("png", b"\x89PNG"), ("svg", b"<?xml")):
        draw(found, tmp_path / f"p.{suffix}")
        assert (tmp_path / f"p.{suffix}").read_bytes().startswith(begins)
    with pytest.raises(UserError, match=r"--attention .*p\.gif is no picture"):
        draw(found, tmp_path / "p.gif")
