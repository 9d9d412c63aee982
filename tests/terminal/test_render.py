"""Numbers as people read them."""

from __future__ import annotations

from ttabench.core.amounts import number, plus_minus


def test_what_rounds_to_nothing_has_no_sign() -> None:
    assert [number(-0.04), number(-0.06), number(-0.001, 2), number(-0.0, 0)] == ["0.0", "-0.1", "0.00", "0"]
    assert plus_minus(-0.0004, 0.0001, 100.0) == "0.0 ± 0.0"
    assert number(-10, 0) == "-10"
