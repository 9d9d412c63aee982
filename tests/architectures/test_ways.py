"""What is found out about a model: each part of it on models that differ in that part alone, and its opposite."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
)

from tests.tiny import TINY_SIZES, byte_tokenizer, tiny_gpt2, tiny_llama
from tools.tiny_architectures import SIZES as SIZES_BY_RULE, tiny_model
from ttabench.contract.models import QUERIES, check_method, session_answers
from ttabench.core.errors import UserError
from ttabench.core.types import Chunk
from ttabench.lm.forward.capabilities import get_capabilities, get_rotary
from ttabench.lm.forward.capability_probe import reference_logprobs
from ttabench.lm.forward.patching import prefill
from ttabench.lm.forward.window import Layout, Window
from ttabench.lm.inference.scoring import token_logprobs
from ttabench.lm.model import LM
from ttabench.lm.patch import Patch
from ttabench.methods.registry import find_method
from ttabench.methods.session import Session

SIZES = TINY_SIZES | {"max_position_embeddings": 256}


def made(cls: type[Any], config: type[Any], **more: Any) -> LM:
    torch.manual_seed(0)
    return LM(cls(config(**{**SIZES, **more})), byte_tokenizer(), cls.__name__, random_weights=True)


def text(tokens: int, seed: int = 0) -> list[int]:
    return torch.randint(0, 256, (tokens,), generator=torch.Generator().manual_seed(seed)).tolist()


@torch.no_grad()
def plain(lm: LM, prompt: list[int], target: list[int]) -> float:
    """By transformers alone."""
    logprobs = reference_logprobs(lm, torch.tensor([[*lm.start_ids, *prompt, *target]]))
    return float(logprobs[-len(target) - 1 : -1].gather(1, torch.tensor(target)[:, None]).sum())


def test_a_plain_model_is_run_in_the_usual_way_and_reports_nothing() -> None:
    for lm in (tiny_llama(), tiny_gpt2()):
        capabilities = get_capabilities(lm)
        assert capabilities.attention == "sdpa"
        assert all(
            (
                capabilities.has_linear_head,
                capabilities.supports_batching,
                capabilities.takes_positions,
                capabilities.supports_gaps,
                capabilities.supports_embeddings,
            )
        )
        assert "ways" not in lm.describe()


def test_weights_as_transformers_draws_them_do_not_hide_that_positions_count() -> None:
    lm = made(LlamaForCausalLM, LlamaConfig)
    with torch.no_grad():
        for parameter in lm.model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(0.02 / parameter.std())
    assert get_capabilities(lm).supports_gaps


def test_distances_in_a_sliding_window_are_those_of_positions() -> None:
    lm = made(MistralForCausalLM, MistralConfig, sliding_window=12)
    assert sorted(get_capabilities(lm).local_masks) == [0, 1]
    items = [(text(30), text(4, 1)), (text(5, 2), text(2, 3))]
    for together in (items, items[:1], items[1:]):
        for item, values in zip(together, token_logprobs(lm, Patch(), together), strict=True):
            assert float(values.sum()) == pytest.approx(plain(lm, *item), abs=1e-3)
    with torch.no_grad():
        prefix = prefill(lm, Patch(), torch.tensor([text(30)]))
    questions = [(text(7, 5), [9]), (text(3, 6), [8])]
    behind = token_logprobs(lm, Patch(prefix=prefix), questions)
    for (prompt, target), values in zip(questions, behind, strict=True):
        assert float(values.sum()) == pytest.approx(plain(lm, text(30) + prompt, target), abs=1e-3)
    wide = made(MistralForCausalLM, MistralConfig, sliding_window=200)
    assert abs(plain(wide, *items[0]) - plain(lm, *items[0])) > 1e-2


@pytest.mark.parametrize("method", ["snapkv", "h2o", "window"])
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_evicting_under_a_sliding_window_is_the_same_in_a_batch(method: str, kv_heads: int) -> None:
    lm = made(MistralForCausalLM, MistralConfig, sliding_window=12, num_key_value_heads=kv_heads)
    spec = find_method(method)
    session = Session(lm, spec.load()(lm, spec.test_settings))
    session.read([Chunk(text="Mira Tolen keeps nine grey geese by the mill, and a heron.")])
    together = session_answers(session, QUERIES)
    for ask, batch in zip(QUERIES, together, strict=True):
        (alone,) = session_answers(session, [ask])
        assert batch[1] == alone[1]
        assert batch[0] == pytest.approx(alone[0], abs=1e-3)


@pytest.mark.parametrize("kind", ["llama", "glm", "cohere", "gpt_neox", "nanochat"])
@torch.no_grad()
def test_keys_are_moved_as_the_model_rotates_them(kind: str) -> None:
    """Keys of tokens that stand alone, by the model itself at either place."""
    lm = LM(tiny_model(kind), byte_tokenizer(), kind)
    rotary, at_B1 = get_rotary(lm), torch.arange(6)[:, None]

    def keys(shift: int) -> torch.Tensor:
        window = Window(lm, None, 6)
        window.feed(torch.tensor(text(6))[:, None], layout=Layout(positions_BT=at_B1 + shift))
        return torch.stack(window.prefix().keys_LBHPD)

    here, there = keys(0), keys(7)
    bare = rotary.rotate(here, at_B1, inverse=True)
    torch.testing.assert_close(
        rotary.rotate(bare, at_B1 + 7, inverse=False), there, atol=1e-4, rtol=1e-4
    )
    assert (here - there).abs().max() > 0.1


LONG = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "short_factor": [1.0, 1.1, 1.2, 1.3],
    "long_factor": [2.0, 3.0, 4.0, 5.0],
    "original_max_position_embeddings": 64,
}


@pytest.mark.parametrize(
    "rope", [LONG, {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}]
)
def test_texts_end_where_angles_of_what_was_read_would_change(rope: dict[str, Any]) -> None:
    kind = (Phi3ForCausalLM, Phi3Config) if rope is LONG else (LlamaForCausalLM, LlamaConfig)
    more = {
        "max_position_embeddings": 256,
        "original_max_position_embeddings": 64,
        "eos_token_id": 257,
    }
    lm = made(
        *kind, rope_parameters=rope, **(more if rope is LONG else {"max_position_embeddings": 64})
    )
    assert lm.max_positions == 64
    item = (text(20), text(3, 1))
    (values,) = token_logprobs(lm, Patch(), [item])
    assert float(values.sum()) == pytest.approx(plain(lm, *item), abs=2e-3)
    with pytest.raises(UserError, match=r"64 positions.*--max-context"):
        token_logprobs(lm, Patch(), [(text(70), [1])])


@pytest.mark.parametrize("window", [40, 256])
def test_rows_are_read_one_by_one_where_a_window_counts_slots(
    window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GPT-Neo's window is a table that is made with the model, and longer than the text that a model is tried on."""
    monkeypatch.setitem(SIZES_BY_RULE, "window_size", window)
    lm = LM(tiny_model("gpt_neo"), byte_tokenizer(), "gpt_neo")
    assert not get_capabilities(lm).supports_batching
    assert check_method("icl", lm) == "right"


def test_a_model_that_cannot_be_run_is_refused_in_one_line() -> None:
    lm = made(LlamaForCausalLM, LlamaConfig)
    lm.model.model.layers[0].register_forward_hook(lambda *_: 1 / 0)
    with pytest.raises(UserError, match="cannot read a text: division by zero"):
        get_capabilities(lm)
