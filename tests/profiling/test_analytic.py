"""Tables of cost on paper: one row a method and length, for any architecture, at once."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from ttabench.core.architectures import model_names
from ttabench.methods.registry import methods
from ttabench.profiling.analytic import analytic_rows, break_even
from ttabench.profiling.job import Load

LENGTHS = (1, 100, 1024, 65_536)
ALL = [name for name, spec in methods().items() if spec.cost]


@pytest.mark.parametrize("model", model_names())
def test_every_method_has_a_row_a_length(model: str) -> None:
    found = analytic_rows(model, ALL, LENGTHS, Load(), dtype="bfloat16")
    assert [(row["method"], row["context_tokens"]) for row in found] == [
        (m, n) for m in ALL for n in LENGTHS
    ]
    columns = set(found[0])
    for row in found:
        assert set(row) == columns
        assert row["total_flops"] == row["adapt_flops"] + row["ask_flops"]
        assert all(
            row[key] >= 0
            for key in columns
            if key.endswith(("flops", "bytes", "floats", "parameters"))
        )
        assert row["ask_flops"] > 0


def test_what_grows_and_what_does_not() -> None:
    rows = {
        (row["method"], row["context_tokens"]): row
        for row in analytic_rows("llama-2-7b", ALL, LENGTHS, Load())
    }

    def grows(method: str, key: str) -> bool:
        return bool(rows[method, 65_536][key] > rows[method, 1024][key])

    constant = "none window snapkv lora templora streamadapter generative_adapter"
    for method in constant.split():
        assert not grows(method, "state_bytes"), method
        assert not grows(method, "ask_flops"), method
    for method in ("icl", "h2o", "mac", "ccm", "gisting", "rag"):
        assert grows(method, "state_bytes"), method
    slot = 32 * 2 * 4096 * 4
    assert rows["window", 65_536]["adapt_peak_kv_bytes"] <= (4 + 512 + 512) * slot
    assert rows["snapkv", 65_536]["adapt_peak_kv_bytes"] == 65_537 * slot
    assert rows["icl", 1024]["fits"] is True
    assert rows["icl", 65_536]["fits"] is False
    assert rows["window", 65_536]["fits"] is True


amounts = st.integers(0, 40)


@given(amounts, amounts, amounts, amounts)
def test_a_break_even_is_one(adapt: int, ask: int, full_adapt: int, full_ask: int) -> None:
    queries, cheaper = break_even(adapt, ask, full_adapt, full_ask)
    better = [adapt + q * ask <= full_adapt + q * full_ask for q in range(100)]
    if cheaper == "always":
        assert all(better)
        assert queries == 0
    elif cheaper == "from":
        assert queries is not None
        assert better.index(True) == queries > 0
    elif cheaper == "until":
        assert queries is not None
        assert better.index(False) == queries + 1
    else:
        assert queries is None
        assert not any(better[1:])
