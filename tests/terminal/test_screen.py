"""Tables on screens of any width: what must not be split never is, and what gives way is said."""

from __future__ import annotations

import io

import pytest
from hypothesis import given, settings, strategies as st
from rich.console import Console

from ttabench.core.amounts import format_number, format_with_stderr
from ttabench.terminal.render import draw_tables, print_wrapped
from ttabench.terminal.table import Table

WORD = st.text("abcdefghij0123456789.,-_:/%漢", min_size=1, max_size=20)
TEXT = st.lists(WORD, max_size=12).map(" ".join)
NAME = st.lists(WORD, min_size=1, max_size=2).map(" ".join)


def shown(tables: list[Table], width: int) -> str:
    screen = Console(file=io.StringIO(), width=width, highlight=False)
    draw_tables(tables, screen, narrow=True)
    assert isinstance(screen.file, io.StringIO)
    return screen.file.getvalue()


def lines(table: Table, width: int) -> list[str]:
    return shown([table], width).splitlines()


@st.composite
def tables(draw_: st.DrawFn) -> Table:
    """Columns of numbers, of names and of texts; some may be left out."""
    kinds = draw_(st.lists(st.sampled_from(["number", "name", "text"]), min_size=1, max_size=9))
    columns = tuple(
        f"{'#' if kind == 'number' else ''}column{place}" for place, kind in enumerate(kinds)
    )
    cells = [TEXT if kind == "text" else NAME for kind in kinds]
    return Table(
        title="title",
        columns=columns,
        rows=tuple(draw_(st.lists(st.tuples(*cells), min_size=1, max_size=4))),
        names=tuple(column for column, kind in zip(columns, kinds, strict=True) if kind == "name"),
        spare=tuple(draw_(st.lists(st.sampled_from(columns), unique=True, max_size=3))),
    )


@settings(deadline=None, max_examples=60)
@given(tables(), st.integers(60, 120))
def test_no_width_splits_a_word(table: Table, width: int) -> None:
    """Of a name or number, nor of a text; a column is there whole, or said to be left out."""
    seen = lines(table, width)
    words = set(" ".join(seen).replace("│", " ").replace(",", " , ").split())
    left_out = " ".join(seen).partition("Columns hidden (narrow screen)")[2]
    for place, column in enumerate(table.columns):
        if column.lstrip("#") in left_out:
            assert column in table.spare
            continue
        for row in table.rows:
            assert set(row[place].replace(",", " , ").split()) <= words, (row[place], seen)


RUNS = Table(
    title="runs",
    columns=("run", "what it is", "#score", "made"),
    rows=(
        ("3f0c2a9b71de", "one that has many words", "65.6 ± 8.5", "today"),
        ("aa11", "another", "1.0 ± 0.5", "today"),
    ),
    names=("run",),
)


def test_a_narrow_screen_loses_columns_then_the_table() -> None:
    table = Table(**{**vars(RUNS), "spare": ("made",)})
    at = {width: "\n".join(map(str.rstrip, lines(table, width))) for width in (80, 50, 30)}
    assert "┃" in at[80]
    assert "made" in at[80]
    assert "Columns hidden (narrow screen): made." in at[50]
    assert "today" not in at[50]
    assert (
        "run 3f0c2a9b71de\n  what it is  one that has\n              many words\n  score" in at[30]
    )


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("x" * 50, "x" * 50),
        (f"ttabench compare {'one ' * 9}", f"ttabench compare {'one ' * 9}"),
        ("one " * 12, f"{'one ' * 9}one\none one"),
    ],
)
def test_lines_wrap_between_words_but_not_what_is_for_pasting(text: str, shown: str) -> None:
    screen = Console(file=io.StringIO(), width=40, highlight=False)
    print_wrapped(text, screen, "", wrap=True)
    assert isinstance(screen.file, io.StringIO)
    assert screen.file.getvalue() == shown + "\n"


def test_what_rounds_to_nothing_has_no_sign() -> None:
    assert [
        format_number(-0.04),
        format_number(-0.06),
        format_number(-0.001, 2),
        format_number(-0.0, 0),
    ] == ["0.0", "-0.1", "0.00", "0"]
    assert format_with_stderr(-0.0004, 0.0001, 100.0) == "0.0 ± 0.0"
    assert format_number(-10, 0) == "-10"
