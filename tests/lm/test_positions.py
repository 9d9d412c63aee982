"""Texts beyond the length at which transformers changes rotary frequencies, under `--max-context`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    PhimoeConfig,
    PreTrainedModel,
)

from tests.conftest import Command, error_line
from tests.tiny import TINY_SIZES, byte_tokenizer
from ttabench.contract.models import METHOD_SETTINGS
from ttabench.core.errors import UserError
from ttabench.core.types import Chunk, Generate, Query
from ttabench.lm.forward.capabilities import get_rotary
from ttabench.lm.forward.tokens import chunk_ids, prompt_ids
from ttabench.lm.forward.window import Layout, Window
from ttabench.lm.inference.scoring import token_logprobs
from ttabench.lm.model import LM
from ttabench.lm.patch import Patch
from ttabench.lm.positions import position_limits
from ttabench.methods.registry import find_method
from ttabench.methods.session import Session
from ttabench.profiling.job import Job
from ttabench.sweep.suite import expand_suite

ORIGINAL, LONGEST = 64, 256
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "short_factor": [1.0, 1.1, 1.2, 1.3],
    "long_factor": [2.0, 3.0, 4.0, 5.0],
    "original_max_position_embeddings": ORIGINAL,
}
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}
YARN = {**DYNAMIC, "rope_type": "yarn", "original_max_position_embeddings": ORIGINAL}
SIZES = TINY_SIZES | {"head_dim": 8, "bos_token_id": 256, "eos_token_id": 257}
LAYER_TYPES = ("sliding_attention", "full_attention")


def by_layer(rope: Mapping[str, Any]) -> dict[str, Any]:
    """Scaled frequencies in one type of layers only."""
    plain = {"rope_type": "default", "rope_theta": 10000.0}
    types = dict(zip(LAYER_TYPES, (plain, dict(rope)), strict=True))
    return {"rope_parameters": types, "layer_types": [*LAYER_TYPES], "sliding_window": 16}


KINDS: dict[str, tuple[type[Any], type[Any], dict[str, Any]]] = {
    "longrope": (
        Phi3ForCausalLM,
        Phi3Config,
        {"rope_parameters": LONGROPE, "original_max_position_embeddings": ORIGINAL},
    ),
    "dynamic": (
        LlamaForCausalLM,
        LlamaConfig,
        {"rope_parameters": DYNAMIC, "max_position_embeddings": ORIGINAL},
    ),
    "yarn": (LlamaForCausalLM, LlamaConfig, {"rope_parameters": YARN}),
    "longrope by layer": (Gemma3ForCausalLM, Gemma3TextConfig, by_layer(LONGROPE)),
    "dynamic by layer": (
        Gemma3ForCausalLM,
        Gemma3TextConfig,
        {**by_layer(DYNAMIC), "max_position_embeddings": ORIGINAL},
    ),
}
CHANGING = [kind for kind in KINDS if kind != "yarn"]
CHUNKS = ("Ada Voss lives in Port Ansel. ", "Bo Lind collects blue stamps. ") * 2


def make_model(kind: str) -> PreTrainedModel:
    """Equal weights in every call, and frequencies that no text has changed yet."""
    cls, config, more = KINDS[kind]
    torch.manual_seed(0)
    model: PreTrainedModel = cls(
        config(**{**SIZES, "max_position_embeddings": LONGEST, **more})
    ).eval()
    return model


def make_lm(kind: str, max_context: int | None = LONGEST) -> LM:
    return LM(
        make_model(kind), byte_tokenizer(), kind, random_weights=True, max_context=max_context
    )


def text(tokens: int, seed: int = 0) -> list[int]:
    made = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (tokens,), generator=made).tolist()


@torch.no_grad()
def reference(kind: str, ids: list[int], target: list[int]) -> Tensor:
    """Log-probabilities of the target, from one forward of a new model on the whole text."""
    logits = make_model(kind)(torch.tensor([[*ids, *target]]), use_cache=False).logits[0]
    own = logits[len(ids) - 1 : -1].log_softmax(-1)
    return own.gather(1, torch.tensor(target)[:, None])[:, 0]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("max_context", [ORIGINAL, 100, LONGEST])
def test_a_text_of_all_tokens_equals_transformers(kind: str, max_context: int) -> None:
    lm = make_lm(kind, max_context)
    prompt, target = text(max_context - 11), text(10, 1)
    (own,) = token_logprobs(lm, Patch(), [(prompt, target)])
    expected = reference(kind, [*lm.start_ids, *prompt], target)
    torch.testing.assert_close(own, expected, atol=1e-4, rtol=1e-4)
    assert bool(lm.frequencies) == (kind in CHANGING and max_context > ORIGINAL)
    with pytest.raises(UserError):
        token_logprobs(lm, Patch(), [(prompt, [*target, 5, 5])])


@pytest.mark.parametrize("kind", KINDS)
def test_short_texts_have_the_frequencies_of_the_longest(kind: str) -> None:
    prompt, target = text(30), text(10, 1)
    lm = make_lm(kind)
    (before,) = token_logprobs(lm, Patch(), [(prompt, target)])
    token_logprobs(lm, Patch(), [(text(200), target)])
    (after,) = token_logprobs(lm, Patch(), [(prompt, target)])
    assert torch.equal(before, after)
    short = reference(kind, [*lm.start_ids, *prompt], target)
    assert bool((before - short).abs().max() > 1e-2) == (kind in CHANGING)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", ["icl", "window", "snapkv", "h2o"])
def test_a_context_in_parts_equals_the_whole_text(kind: str, method: str) -> None:
    lm, spec = make_lm(kind), find_method(method)
    session = Session(lm, spec.load()(lm, spec.Settings(**METHOD_SETTINGS[method])))
    for chunk in CHUNKS:
        session.read([Chunk(text=chunk)])
        session.flush()
    query = Query(prompt="Where does Ada live?", key="q", want=Generate(answers=("x",)))
    prompt = prompt_ids(lm, query, is_continuation=True)
    context = list(lm.start_ids)
    for number, chunk in enumerate(CHUNKS):
        context += chunk_ids(lm, Chunk(text=chunk), first=number == 0)
    # as many tokens as the model has positions: dynamic NTK has these frequencies then
    target = text(LONGEST - len(context) - len(prompt), 1)
    (own,) = token_logprobs(lm, session.patch([query]), [(prompt, target)])
    assert len(context) > ORIGINAL
    torch.testing.assert_close(
        own, reference(kind, [*context, *prompt], target), atol=1e-3, rtol=1e-3
    )


@pytest.mark.parametrize("kind", ["longrope", "dynamic", "yarn"])
@torch.no_grad()
def test_keys_are_moved_beyond_the_original_length(kind: str) -> None:
    lm = make_lm(kind)
    rotary, at_B1 = get_rotary(lm), torch.arange(6)[:, None]

    def keys(shift: int) -> Tensor:
        window = Window(lm, None, 6)
        window.feed(torch.tensor(text(6))[:, None], layout=Layout(positions_BT=at_B1 + shift))
        return torch.stack(window.prefix().keys_LBHPD)

    bare = rotary.rotate(keys(0), at_B1, inverse=True)
    moved = rotary.rotate(bare, at_B1 + 200, inverse=False)
    torch.testing.assert_close(moved, keys(200), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_the_limit_without_the_option_and_its_largest_value(kind: str) -> None:
    assert make_lm(kind, None).max_positions == (ORIGINAL if kind in CHANGING else LONGEST)
    with pytest.raises(UserError, match=str(LONGEST)):
        make_lm(kind, LONGEST + 1)


def test_phimoe_keeps_its_limit() -> None:
    """Its code chooses the scale of sine and cosine by the length of each forward."""
    rope = {**LONGROPE, "short_mscale": 1.0, "long_mscale": 1.2}
    config = PhimoeConfig(max_position_embeddings=LONGEST, rope_parameters=rope)
    assert position_limits(config) == (ORIGINAL, ORIGINAL)


def test_suites_take_it_and_profiles_keep_their_ids_without_it() -> None:
    (cell,) = expand_suite({"methods": ["icl"], "tasks": ["streamingqa"], "max_context": "4k"})
    assert cell.request.max_context == 4096
    assert "max_context" not in Job().config()
    assert Job(max_context=4096).config()["max_context"] == 4096


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("base") / "longrope"
    make_model("longrope").save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder


def test_the_command_line(
    ttabench: Command, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("notes.txt").write_text(" ".join(CHUNKS))
    run = f"eval --model {base} --task streamingqa --source mini --task-set documents=1 --limit 1"
    run += " --set max_tokens=200"
    for command in (run, f"ask Who? --model {base} --context notes.txt"):
        refused = ttabench(command)
        assert refused.code == 2
        assert "--max-context" in error_line(refused)
    folder = ttabench(f"{run} --max-context 256 --quiet").out.strip()
    record = json.loads((Path(folder) / "run.json").read_text())
    assert record["config"]["max_context"] == LONGEST
    assert record["model"]["positions"] == LONGEST
    for wrong in ("257", "1m", "12", "many"):
        ran = ttabench(f"{run} --max-context {wrong}")
        assert (ran.code, "--max-context" in ran.err) == (2, True), ran.err
    read = ttabench(f"adapt --model {base} --context notes.txt --max-context 256 --out state")
    assert read.code == 0, read.err
    assert ttabench("ask Who? --state state").code == 0, "the state brings the option"
    assert ttabench("ask Who? --state state --max-context 200").code == 0, "the factors are equal"
    other = ttabench("ask Who? --state state --max-context 64")
    assert (other.code, "--max-context" in error_line(other)) == (2, True)
