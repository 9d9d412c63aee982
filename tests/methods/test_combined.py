"""States of two contexts put together: memories that add up, and methods whose do not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.conftest import Command, error_line
from tests.tiny import tiny_opt
from tests.tiny_methods import TINY_SETTINGS, set_nonzero_outputs, tiny_mac, tiny_method
from ttabench.core.errors import UserError
from ttabench.core.types import Chunk
from ttabench.lm.patch import State
from ttabench.methods.base import Method
from ttabench.methods.generative_adapter.method import GenerativeAdapter

TEXTS = (
    "Ada Voss lives in Port Ansel.",
    "Bo Lind collects blue stamps.",
    "Cy Marr repairs old clocks.",
)


def read(method: Method[Any], texts: tuple[str, ...], state: State | None = None) -> State:
    pieces = [[Chunk(text=text, key=text)] for text in texts]
    return method.adapt(state or method.begin(1), pieces)


def generator(**settings: Any) -> GenerativeAdapter:
    method = GenerativeAdapter(tiny_opt(), replace(TINY_SETTINGS["generative_adapter"], **settings))
    set_nonzero_outputs(method)
    return method


@pytest.mark.parametrize("norm", ["svd", "frobenius", "spectral"])
def test_sums_of_two_states_add_up(norm: str) -> None:
    method = generator(norm=norm)
    first, rest = read(method, TEXTS[:1]), read(method, TEXTS[1:])
    together = method.combine_states(first, rest)
    expected = first.tensors["sum"] + rest.tensors["sum"]
    torch.testing.assert_close(together.tensors["sum"], expected)
    made = method.networks.state_tensors(expected)
    for name, tensor in together.tensors.items():
        torch.testing.assert_close(tensor, made[name])


def test_two_banks_are_the_bank_of_all_documents() -> None:
    method = tiny_mac(tiny_opt())
    a, b, both = read(method, TEXTS[:2]), read(method, TEXTS[1:]), read(method, TEXTS)
    together = method.combine_states(a, b)  # the second document stands in both
    torch.testing.assert_close(together.tensors["bank"], both.tensors["bank"])
    assert together.meta["members"] == both.meta["members"]
    assert together.meta["read"] == both.meta["read"]


@pytest.mark.parametrize("name", ["icl", "templora", "rag", "ccm"])
def test_other_methods_refuse_in_a_line(name: str) -> None:
    method = tiny_method(name, tiny_opt())
    state = read(method, TEXTS[:1])
    with pytest.raises(UserError, match="--context"):
        method.combine_states(state, state)


def test_adapt_puts_a_state_to_another(ttabench: Command, tmp_path: Path) -> None:
    words = ["adapt", "--method", "mac", "--json"]
    for name, text in zip("ab", TEXTS, strict=False):
        (tmp_path / f"{name}.txt").write_text(text)
        assert (
            ttabench(*words, "--context", tmp_path / f"{name}.txt", "--out", tmp_path / name).code
            == 0
        )
    ran = ttabench(
        *words, "--state", tmp_path / "a", "--add", tmp_path / "b", "--out", tmp_path / "ab"
    )
    assert ran.code == 0, ran.err
    assert ran.json()["tokens"] == 0
    again = ttabench(
        f"adapt --json --add {tmp_path / 'a'} --add {tmp_path / 'b'} --out {tmp_path / 'same'}"
    )
    assert again.json()["state_bytes"] == ran.json()["state_bytes"]
    assert "nothing" in error_line(
        ttabench(*words, "--add", tmp_path / "nothing", "--out", tmp_path / "x")
    )
