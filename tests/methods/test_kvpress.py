"""The kvpress plug-in: names, refusals, and what it makes of a press, all without kvpress itself."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests import fake_kvpress
from tests.conftest import Command, one_line
from tests.methods.reading import QUESTION, read
from tests.places import ROOT
from tests.tiny import tiny_llama
from tests.tiny_methods import TEXTS
from ttabench.core.errors import UserError
from ttabench.lm.forward.patching import encoded, forward
from ttabench.lm.model import LM
from ttabench.lm.patch import Patch
from ttabench.methods.eviction.settings import WindowSettings
from ttabench.methods.eviction.window import SlidingWindow
from ttabench.methods.icl import InContextSettings
from ttabench.methods.icl.method import InContext
from ttabench.methods.kvpress import KvPressSettings
from ttabench.methods.kvpress.method import INSTALL, Press, parse, removed_share
from ttabench.methods.registry import find
from ttabench.records.schema import load_record

NOISE = {"atol": 2e-5, "rtol": 1e-4}
ADA = "kvpress:AdaKVPress(LastPress)"
ZIP = "kvpress:KVzipPress"


@pytest.fixture
def presses(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_kvpress.installed(monkeypatch)


def make(name: str, budget: int | float | None = None, lm: LM | None = None) -> Any:
    spec = find(name)
    return spec.load()(lm or tiny_llama(), spec.Settings() if budget is None else spec.Settings(budget=budget))


@torch.no_grad()
def logits(lm: LM, patch: Patch, rows: int = 1) -> Tensor:
    return forward(lm, patch, torch.tensor([lm.encode(QUESTION[0].prompt)] * rows))[0]


def asked(method: Any, *texts: str) -> Tensor:
    return logits(method.lm, method.patch(read(method, *texts), QUESTION))


def test_names_are_parsed() -> None:
    assert parse("SnapKVPress") == Press(name="SnapKVPress")
    assert parse("A?x=1&y=a,b") == Press(name="A", arguments={"x": "1", "y": "a,b"})
    inner = Press(name="B", arguments={"x": "1"}), Press(name="C", wrapped=(Press(name="D"),))
    assert parse("A(B?x=1, C(D))?z=2") == Press(name="A", wrapped=inner, arguments={"z": "2"})


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("kvpress", "is not the name of a press"),
        ("kvpress:LastPres", "Did you mean 'LastPress'"),
        ("kvpress:AdaKVPress(LastPress", "is not the name of a press"),
        ("kvpress:LastPress?leest=3", "Did you mean 'least'"),
        ("kvpress:LastPress?least=x", "least of LastPress takes int, got 'x'"),
        (
            "kvpress:LastPress?compression_ratio=0.5",
            r"no compression_ratio here \(got 0.5\): .*budget=0.5",
        ),
        ("kvpress:AdaKVPress(LastPress,LastPress)", "takes 1 press in its brackets, got 2"),
        ("kvpress:TwicePress", "TwicePress reads in a way of its own"),
        ("kvpress:BothPress(KVzipPress)", "KVzipPress reads in a way of its own"),
    ],
)
def test_bad_names_say_how_to_mend_them(presses: None, name: str, complaint: str) -> None:
    with pytest.raises(UserError, match=complaint):
        find(name)


def test_a_budget_is_met_exactly() -> None:
    for total in range(1, 300):
        for kept in range(1, total + 3):
            assert int(total * (1 - removed_share(kept, total))) == min(kept, total)
            for layers, heads in (
                (2, 2),
                (3, 1),
                (28, 8),
            ):  # counted by head, by layer, of all heads or layers together
                more, fewer = (
                    removed_share(kept, total, layers * heads, counts_removed=down) for down in (False, True)
                )
                for slots in {total, total * heads, total * layers, total * layers * heads}:
                    assert int(slots * (1 - more)) == slots * min(kept, total) // total
                    assert slots - int(slots * fewer) == slots * min(kept, total) // total
    with pytest.raises(ValueError, match=r"share of the context must lie in \(0, 1\], got 1.5"):
        KvPressSettings(budget=1.5)


def test_a_full_budget_is_full_context_and_a_small_one_is_felt(presses: None) -> None:
    lm = tiny_llama()
    expected = asked(InContext(lm, InContextSettings()), *TEXTS)
    for name in ("kvpress:LastPress", ADA, "kvpress:ObservedAttentionPress", ZIP):
        torch.testing.assert_close(asked(make(name, 400, lm), *TEXTS), expected, **NOISE)
        assert (asked(make(name, 12, lm), *TEXTS) - expected).abs().max() > 1e-2


@pytest.mark.parametrize("lm", [tiny_llama(), tiny_llama(gqa=False)], ids=["gqa", "mha"])
def test_the_last_tokens_are_the_window_that_drops_the_middle(presses: None, lm: LM) -> None:
    window = SlidingWindow(lm, WindowSettings(n_sink=0, recent=12, mode="postprefill"))
    for budget in (12, 12.4 / 125):
        method = make("kvpress:LastPress", budget, lm)
        torch.testing.assert_close(asked(method, *TEXTS), asked(window, *TEXTS), **NOISE)


def test_the_state_says_what_stayed_and_goes_on_behind_what_was_read(presses: None) -> None:
    for name, following, needs_eager in (
        ("kvpress:LastPress", 123, False),
        ("kvpress:ObservedAttentionPress", 123, True),
        ("kvpress:KeyRerotationPress", 12, False),
    ):
        method = make(name, 12)
        state = read(method, *TEXTS)
        assert (method.name, method.growth) == (name, "constant")
        assert state.labels == {"cache_reduced": True, "needs_eager": needs_eager}
        assert state.tensors["keys"].shape == (2, 1, 2, 12, 8)
        assert state.tensors["next"].tolist() == [following]
        assert state.meta["tokens_read"] == [122]
    assert make("kvpress:LastPress", 0.5).growth == "linear"
    assert make("kvpress:BothPress(LastPress?compression_ratio=0.9,LastPress)").budget is None
    state = read(make("kvpress:BothPress(LastPress?compression_ratio=0.9,LastPress)"), *TEXTS)
    assert state.tensors["keys"].shape[3] == 12
    for name in ("kvpress:LastPress", ADA, ZIP):
        assert read(make(name, 400), *TEXTS).labels["cache_reduced"] is False


@pytest.mark.parametrize(
    ("name", "counts"),
    [(ADA, [12, 11, 12, 11]), (ZIP, [0, 0, 0, 48]), ("kvpress:UnevenPress", [12, 12, 13, 13])],
)
def test_heads_and_layers_keep_slots_of_their_own(presses: None, name: str, counts: list[int]) -> None:
    method = make(name, 12)
    state = read(method, *TEXTS)
    assert method.growth == "constant"
    assert state.labels == {"cache_reduced": True, "needs_eager": False}
    assert state.tensors["counts"].flatten().tolist() == counts
    assert state.tensors["index"].tolist() == [place for count in counts for place in range(123 - count, 123)]
    assert state.tensors["next"].tolist() == [123]
    slot_bytes = (2 * method.lm.head_dim + 1) * 4  # keys, values and its place
    assert state.nbytes == sum(counts) * slot_bytes + 4 * len(counts) + 8
    whole = read(InContext(method.lm, InContextSettings()), *TEXTS).tensors["keys"][:, 0].flatten(0, 1)
    kept = torch.cat([keys[len(keys) - count :] for keys, count in zip(whole, counts, strict=True)])
    torch.testing.assert_close(state.tensors["keys"], kept, **NOISE)


@pytest.mark.parametrize("name", [ADA, ZIP])
def test_what_is_hidden_from_a_head_is_as_if_it_were_hidden_from_the_whole_cache(presses: None, name: str) -> None:
    """... also for many rows on one prefix, and when more text is read on top."""
    method = make(name, 12)
    lm, state = method.lm, read(method, *TEXTS)
    whole = InContext(lm, InContextSettings())
    prefix = whole.patch(read(whole, *TEXTS), QUESTION).prefix
    assert prefix is not None
    counts_LH = state.tensors["counts"][:, 0]
    hidden = tuple(torch.arange(123) < 123 - counts_H[None, :, None] for counts_H in counts_LH)

    def answers(patch: Patch) -> Tensor:
        with torch.no_grad():
            on_top = encoded(lm, Patch(prefix=patch.prefix, tokens_BT=torch.tensor([lm.encode("And then?")])))
        return torch.cat([logits(lm, patch), logits(lm, patch, 3), logits(lm, on_top)])

    expected = answers(Patch(prefix=replace(prefix, hidden_LBHP=hidden)))
    torch.testing.assert_close(answers(method.patch(state, QUESTION)), expected, **NOISE)
    assert (answers(Patch(prefix=prefix)) - expected).abs().amax((1, 2)).min() > 1e-2


def test_a_run_is_recorded_with_its_labels(
    ttabench: Command, common: list[object], presses: None, tmp_path: Path
) -> None:
    words = ["eval", "--method", ADA, "--set", "budget=16", *common, "--task-set", "documents=2"]
    ran = ttabench(*words)
    assert ran.code == 0, ran.err
    note = f"{ADA} removed slots from the cache"
    assert note in " ".join(ran.err.split())
    record = load_record(next((tmp_path / "runs").iterdir()))
    assert record.method["labels"] == {"cache_reduced": True, "needs_eager": False}
    assert record.config["method"] == record.method["name"] == ADA
    assert note in record.notes
    assert "is stored already" in ttabench(*words).err
    assert "No analytic cost is known" in ttabench(*words, "--dry-run").err
    notes, state = tmp_path / "notes.txt", tmp_path / "state"
    notes.write_text("\n".join(TEXTS))
    method = ["--method", "kvpress:LastPress", "--set", "budget=16", "--model", common[5]]
    assert ttabench("adapt", *method, "--pieces", "lines", "--context", notes, "--out", state).code == 0
    later = ttabench("eval", *common, *method, "--state", state)
    assert "cannot read more" in one_line(later)
    assert ttabench("eval", *common, *method, "--state", state, "--ask-only").code == 0
    assert "unknown" not in ttabench("list", "methods", "kvpress:LastPress").out


def test_a_missing_package_is_one_line_with_the_command_that_installs_it(
    ttabench: Command, common: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "kvpress", None)
    for words in (["eval", *common], ["profile"], ["list", "methods", "kvpress:SnapKVPress"]):
        if words[0] == "list":
            assert one_line(ttabench(*words)).endswith(f"Install it: {INSTALL}")
            continue
        flag = "--methods" if words[0] == "profile" else "--method"
        assert one_line(ttabench(*words, flag, "kvpress:SnapKVPress")).endswith(f"Install it: {INSTALL}")
    pins = re.findall(r"(\S+)==(\S+)", INSTALL)
    constraints = (ROOT / "constraints.txt").read_text().splitlines()
    assert all(f"{package}=={version}" in constraints for package, version in pins)
    assert INSTALL in (ROOT / "ttabench/methods/kvpress/kvpress.md").read_text()
    session = (ROOT / "noxfile.py").read_text()
    assert all(f'"{package}"' in session for package, _ in pins)
