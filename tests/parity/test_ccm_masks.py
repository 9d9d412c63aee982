"""Who sees whom in training CCM, positions, and how memories are merged: exactly the numbers of the released code.

There every merged memory is a span of SUM tokens in the row; here it is a few further slots of every layer, so that
rows of SUM tokens have no counterpart, and their columns are compared with those slots.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from tests.parity.fixtures import Fixture, base_lm, load
from tests.places import fixture_file
from ttabench.core.types import Chunk, Episode, Query, Score
from ttabench.lm.attention import AttentionCall
from ttabench.lm.model import LM
from ttabench.methods.ccm import CcmSettings, GistingSettings
from ttabench.methods.ccm.method import Ccm, Gisting
from ttabench.methods.parts import one_forward
from ttabench.methods.parts.one_forward import Batch

CASES: dict[str, dict[str, Any]] = {
    case["case"]: case
    for case in json.loads(fixture_file("ccm_masks.json").read_text(encoding="utf-8"))["cases"]
}
MERGED = [name for name, case in CASES.items() if "merge" in case["attn_type"]]


@cache
def base(vocabulary: int, bos: int, pad: int) -> LM:
    """Of the fixture's ids; its weights do not matter."""
    sizes = {
        "hidden_size": 8,
        "intermediate_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
    }
    config = {
        **sizes,
        "vocab_size": vocabulary,
        "bos_token_id": bos,
        "eos_token_id": pad,
        "pad_token_id": pad,
    }
    lm = base_lm("llama", config, dict(LlamaForCausalLM(LlamaConfig(**config)).state_dict()))
    lm.bos_ids = (bos,)
    return lm


def words(ids: list[int]) -> str:
    return " ".join(f"w{token}" for token in ids)


@dataclass(frozen=True)
class Row:
    """A row of a case: the released code's tensors without their padding, and ours."""

    case: dict[str, Any]
    theirs: Fixture
    number: int

    @property
    def settings(self) -> CcmSettings:
        kind = self.case["attn_type"]
        return CcmSettings(
            update="merge" if "merge" in kind else "concat",
            recursive=kind.endswith("recur"),
            sink=self.case["sink"],
            comp_tokens=self.case["n_comp"],
        )

    @property
    def real(self) -> Tensor:
        """Places of the row's tokens."""
        return self.theirs.tensors["padding_mask"][self.number].nonzero()[:, 0]

    @property
    def sums(self) -> Tensor:
        """bool: which of them are SUM tokens."""
        return torch.isin(
            self.tensor("input_ids"), torch.tensor(self.case["sum_ids"], dtype=torch.int64)
        )

    def tensor(self, name: str) -> Tensor:
        """Of the row's tokens, [T] or [T, T]."""
        found = self.theirs.tensors[name][self.number]
        return found[self.real] if found.ndim == 1 else found[self.real][:, self.real]

    def pieces(self) -> tuple[list[list[int]], list[int]]:
        """Ids of each piece, and those of the question; what begins the text is of none."""
        spec = self.case["rows"][self.number]
        text = [
            token for token in self.tensor("input_ids").tolist() if token < self.case["comp_ids"][0]
        ]
        split = torch.tensor(text).split([1, *spec["context_lens"], spec["query_len"]])
        _, *context, query = [part.tolist() for part in split]
        return context, query

    @property
    def lm(self) -> LM:
        return base(self.case["comp_ids"][0], self.case["bos_id"], self.case["pad_id"])

    @property
    def gists(self) -> bool:
        return bool(self.case["attn_type"] == "gist")

    def method(self, **changes: Any) -> Ccm | Gisting:
        if self.gists and not changes:
            return Gisting(self.lm, GistingSettings(comp_tokens=self.case["n_comp"], rank=1))
        return Ccm(self.lm, replace(self.settings, rank=1, **changes))

    def ours(self, **changes: Any) -> tuple[one_forward.Row, Batch]:
        """The row as it is trained on; the answer is one more token, which is not read."""
        context, query = self.pieces()
        want = Score(continuation="w5", ids=(5,), prompt_ids=tuple(query))
        ask = Query(prompt=words(query), key="q", want=want)
        episode = Episode(
            key="one", steps=(*[Chunk(text=words(part), joiner="") for part in context], ask)
        )
        laid = self.method(**changes).episode_row(episode)
        return laid, Batch.of([laid], self.lm)


def rows() -> list[tuple[str, int]]:
    return [(name, number) for name, case in CASES.items() for number in range(len(case["rows"]))]


def row(name: str, number: int) -> Row:
    fixture = load("ccm_masks")
    return Row(CASES[name], Fixture(CASES[name], fixture.under(name)), number)


@pytest.mark.parametrize(("name", "number"), rows())
def test_tokens_positions_and_marks(name: str, number: int) -> None:
    asked = row(name, number)
    (_, batch), kept = asked.ours(), ~asked.sums
    assert batch.ids_BT[0].tolist() == asked.tensor("input_ids")[kept].tolist()
    if "position_ids" in asked.theirs.tensors:
        assert batch.delta_mask_BT[0].tolist() == asked.tensor("comp_mask")[kept].bool().tolist()
        assert batch.positions_BT[0].tolist() == asked.tensor("position_ids")[kept].tolist()


@pytest.mark.parametrize(("name", "number"), rows())
def test_who_sees_whom(name: str, number: int) -> None:
    asked = row(name, number)
    (_, batch), kept = asked.ours(), ~asked.sums
    wanted = asked.tensor("effective_mask").bool()[kept]
    ours = batch.sees_BTT[0]
    if asked.gists and asked.case["sink"]:  # an option of theirs that is none here
        ours[:, 0] = True
    assert torch.equal(ours, wanted[:, kept])
    _, changed = asked.ours(sink=not asked.case["sink"])
    assert not torch.equal(changed.sees_BTT[0], wanted[:, kept]), "a sink changes who is seen"


@pytest.mark.parametrize(
    ("name", "number"), [(name, number) for name, number in rows() if name in MERGED]
)
def test_who_sees_which_merged_memory_and_what_it_is_made_of(name: str, number: int) -> None:
    """A span of SUM tokens follows every piece, or, where pieces do not see the memory, the last one alone."""
    asked = row(name, number)
    (laid, batch), kept, method = asked.ours(), ~asked.sums, asked.method()
    assert isinstance(method, Ccm)
    make, sees_BTE = method.merge_slots([laid], batch)
    each_1TT = torch.eye(len(laid.ids))[None, None]
    mix_BET = make(AttentionCall(0, each_1TT, each_1TT, each_1TT, None, 1.0))[0][0]
    spans = int(asked.sums.sum()) // asked.case["n_comp"]
    assert spans == (len(asked.pieces()[0]) if asked.settings.recursive else 1)
    last = spans * asked.case["n_comp"]
    assert torch.equal(
        sees_BTE[0, :, -last:], asked.tensor("effective_mask").bool()[kept][:, asked.sums]
    )
    assert not sees_BTE[0, :, :-last].any(), "memories that have no span there are seen by nobody"
    if "merge_matrix" in asked.theirs.tensors:
        wanted = asked.tensor("merge_matrix")[asked.sums][:, kept]
        torch.testing.assert_close(mix_BET[0, -last:], wanted, atol=1e-6, rtol=0)
