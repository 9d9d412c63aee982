"""The kvpress plug-in: names, refusals, and what it makes of a press, all without kvpress itself."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests import fake_kvpress
from tests.conftest import Command, error_line
from tests.methods.reading import logits, read
from tests.tiny import tiny_llama
from tests.tiny_methods import TEXTS
from ttabench.core.errors import UserError
from ttabench.lm.model import LM
from ttabench.methods.icl import InContextSettings
from ttabench.methods.icl.method import InContext
from ttabench.methods.kvpress.method import INSTALL_COMMAND, Press, parse_press, removed_share
from ttabench.methods.registry import find_method
from ttabench.records.schema import load_record

NOISE = {"atol": 2e-5, "rtol": 1e-4}
ADA = "kvpress:AdaKVPress(LastPress)"


@pytest.fixture
def presses(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_kvpress.installed(monkeypatch)


def make(name: str, budget: int | float | None = None, lm: LM | None = None) -> Any:
    spec = find_method(name)
    return spec.load()(
        lm or tiny_llama(), spec.Settings() if budget is None else spec.Settings(budget=budget)
    )


def asked(method: Any, *texts: str) -> Tensor:
    return logits(method, read(method, *texts))


def test_names_are_parsed() -> None:
    assert parse_press("SnapKVPress") == Press(name="SnapKVPress")
    assert parse_press("A?x=1&y=a,b") == Press(name="A", arguments={"x": "1", "y": "a,b"})
    inner = Press(name="B", arguments={"x": "1"})
    assert parse_press("A(B?x=1)?z=2") == Press(name="A", wrapped=inner, arguments={"z": "2"})


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("kvpress", "--method"),
        ("kvpress:LastPres", "Did you mean 'LastPress'"),
        ("kvpress:AdaKVPress(LastPress", "--method"),
        ("kvpress:LastPress?leest=3", "Did you mean 'least'"),
        ("kvpress:LastPress?least=x", "least of LastPress takes int, got 'x'"),
        ("kvpress:LastPress?compression_ratio=0.5", r"compression_ratio=0\.5.*budget=0\.5"),
        ("kvpress:LastPress(LastPress)", "LastPress.*--method"),
        ("kvpress:AdaKVPress(LastPress,LastPress)", "--method"),
    ],
)
def test_bad_names_say_how_to_fix_them(presses: None, name: str, complaint: str) -> None:
    with pytest.raises(UserError, match=complaint):
        find_method(name)


def test_a_budget_is_met_exactly() -> None:
    for total in range(1, 300):
        for kept in range(1, total + 3):
            assert int(total * (1 - removed_share(kept, total))) == min(kept, total)


def test_a_full_budget_is_full_context_and_a_small_one_is_felt(presses: None) -> None:
    lm = tiny_llama()
    expected = asked(InContext(lm, InContextSettings()), *TEXTS)
    for name in ("kvpress:LastPress", ADA):
        torch.testing.assert_close(asked(make(name, 400, lm), *TEXTS), expected, **NOISE)
        assert (asked(make(name, 12, lm), *TEXTS) - expected).abs().max() > 1e-2


def test_heads_keep_slots_of_their_own(presses: None) -> None:
    method, counts = make(ADA, 12), [12, 11, 12, 11]
    state = read(method, *TEXTS)
    assert state.tensors["counts"].flatten().tolist() == counts
    assert state.tensors["index"].tolist() == [
        place for count in counts for place in range(123 - count, 123)
    ]
    slot_bytes = (2 * method.lm.head_dim + 1) * 4  # keys, values and its place
    assert state.nbytes == sum(counts) * slot_bytes + 4 * len(counts) + 8
    whole = (
        read(InContext(method.lm, InContextSettings()), *TEXTS).tensors["keys"][:, 0].flatten(0, 1)
    )
    kept = torch.cat([keys[len(keys) - count :] for keys, count in zip(whole, counts, strict=True)])
    torch.testing.assert_close(state.tensors["keys"], kept, **NOISE)


def test_a_run_is_recorded_and_a_state_is_asked(
    ttabench: Command, common: str, tiny_base: Path, presses: None, tmp_path: Path
) -> None:
    words = f"eval --method {ADA} --set budget=16 {common} --task-set documents=2"
    ran = ttabench(words)
    assert ran.code == 0, ran.err
    record = load_record(next((tmp_path / "runs").iterdir()))
    assert record.config["method"] == record.method["name"] == ADA
    assert "--force" in ttabench(words).err
    notes, state = tmp_path / "notes.txt", tmp_path / "state"
    notes.write_text("\n".join(TEXTS))
    method = f"--method kvpress:LastPress --set budget=16 --model {tiny_base}"
    assert ttabench(f"adapt {method} --pieces lines --context {notes} --out {state}").code == 0
    later = ttabench(f"eval {common} {method} --state {state}")
    assert "cannot read more" in error_line(later)
    assert ttabench(f"eval {common} {method} --state {state} --ask-only").code == 0
    assert "unknown" not in ttabench("list methods kvpress:LastPress").out


def test_a_missing_package_is_one_line_with_the_command_that_installs_it(
    ttabench: Command, common: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "kvpress", None)
    for words in (f"eval {common} --method", "profile --methods", "list methods"):
        assert error_line(ttabench(f"{words} kvpress:SnapKVPress")).endswith(INSTALL_COMMAND)
