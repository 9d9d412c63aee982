"""CCM against the numbers of its authors' released code on tiny Llamas, with and without grouped queries."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.parity.fixtures import base_lm, llama_config, load
from tests.places import fixture_file
from ttabench.core.types import Chunk, Episode, Query, Score
from ttabench.lm.forward.patching import forward
from ttabench.lm.model import LM
from ttabench.lm.patch import Patch
from ttabench.methods.ccm import CcmSettings
from ttabench.methods.ccm.method import Ccm

CONFIGS: dict[str, dict[str, Any]] = json.loads(
    fixture_file("ccm_model.json").read_text(encoding="utf-8")
)["configs"]
ANSWER = 3
"""Last tokens of a question, which are what is learned."""
WAYS = {"concat_recur": {}, "merge_recur": {"update": "merge"}}
TWICE = [(name, way) for name in CONFIGS for way in WAYS]


@cache
def base(name: str) -> LM:
    """The fixture's model; its head has rows for COMP tokens, too, which count in the losses."""
    told, state = CONFIGS[name], load("ccm_model").under(f"{name}/state")
    weights = {
        key: tensor
        for key, tensor in state.items()
        if "lora" not in key and "embeddings" not in key
    }
    rows = [
        state[f"model.embed_tokens.{part}.weight"] for part in ("embeddings", "comp_embeddings")
    ]
    weights["model.embed_tokens.weight"] = torch.cat(rows)
    ends = {
        "bos_token_id": told["bos_id"],
        "eos_token_id": told["pad_id"],
        "pad_token_id": told["pad_id"],
    }
    config = {**llama_config(told), "vocab_size": len(state["lm_head.weight"]), **ends}
    lm = base_lm("llama", config, weights)
    lm.bos_ids = (told["bos_id"],)
    return lm


def method(name: str, way: str, **settings: Any) -> Ccm:
    """CCM with the fixture's factors and embeddings."""
    told, state = CONFIGS[name], load("ccm_model").under(f"{name}/state")
    made = Ccm(
        base(name),
        CcmSettings(
            rank=told["lora_r"],
            alpha=told["lora_alpha"],
            targets=tuple(told["lora_targets"]),
            comp_tokens=told["n_comp"],
            **WAYS[way],
            **settings,
        ),
    )
    for place, key in enumerate(made.names):
        made.a[place].data.copy_(state[f"{key}.lora_A.default.weight"])
        made.b[place].data.copy_(state[f"{key}.lora_B.default.weight"])
    rows = state["model.embed_tokens.comp_embeddings.weight"]
    made.embeddings.weight.data.copy_(rows[: told["n_comp"]])
    return made


def words(ids: Tensor) -> str:
    return " ".join(f"w{token}" for token in ids.tolist())


def pieces(name: str) -> list[Chunk]:
    """The context, piece by piece; what begins the first is not among its words."""
    parts = load("ccm_model").tensors[f"{name}/context_tokens"].split(CONFIGS[name]["context_lens"])
    return [
        Chunk(text=words(part if number else part[1:]), joiner="")
        for number, part in enumerate(parts)
    ]


@pytest.mark.parametrize(("name", "way"), TWICE)
@torch.no_grad()
def test_memory_after_every_chunk_and_logits_of_the_question(name: str, way: str) -> None:
    fixture, made = load("ccm_model"), method(name, way)
    allowed, state = fixture.spec["tolerance"], made.begin(1)
    for number, piece in enumerate(pieces(name), 1):
        state = made.adapt(state, [[piece]])
        both = torch.stack([state.tensors["keys"][:, 0], state.tensors["values"][:, 0]], 1)
        wanted = fixture.tensors[f"{name}/recursive/{way}/memory_after_{number}"]
        torch.testing.assert_close(both, wanted.view(both.shape), **numbers(allowed["memory"]))
    ids_BT = fixture.tensors[f"{name}/query_tokens"][None]
    logits_BTV, _ = forward(made.lm, made.patch(state, []), ids_BT)
    wanted = fixture.tensors[f"{name}/recursive/{way}/query_logits"]
    torch.testing.assert_close(logits_BTV, wanted, **numbers(allowed["logits"]))


def numbers(told: dict[str, Any]) -> dict[str, float]:
    return {"atol": told["atol"], "rtol": told.get("rtol", 0.0)}


@pytest.mark.parametrize(("name", "way"), TWICE)
def test_loss_and_gradients_of_one_forward(name: str, way: str) -> None:
    fixture, made = load("ccm_model"), method(name, way)
    *_, prompt, answer = fixture.tensors[f"{name}/query_tokens"].tensor_split([0, -ANSWER])
    want = Score(
        continuation=words(answer), ids=tuple(answer.tolist()), prompt_ids=tuple(prompt.tolist())
    )
    episode = Episode(
        key="one", steps=(*pieces(name), Query(prompt=words(prompt), key="q", want=want))
    )
    loss = made.loss_parts([episode])["answer"]
    numbers_of_loss = {"atol": fixture.spec["tolerance"]["loss"]["atol"], "rtol": 0.0}
    torch.testing.assert_close(loss, fixture.tensors[f"{name}/train/{way}/loss"], **numbers_of_loss)
    loss.backward()
    for place, key in enumerate(made.names):
        for letter, parameter in (("A", made.a[place]), ("B", made.b[place])):
            wanted = fixture.tensors[f"{name}/train/{way}/grad/{key}.lora_{letter}.default.weight"]
            found = torch.zeros_like(wanted) if parameter.grad is None else parameter.grad
            assert (found - wanted).abs().max() <= 1e-3 * wanted.abs().max() + 1e-6, key
    rows = fixture.tensors[f"{name}/train/{way}/grad/model.embed_tokens.comp_embeddings.weight"]
    found = made.embeddings.weight.grad
    assert found is not None
    assert (found - rows[: len(found)]).abs().max() <= 1e-3 * rows.abs().max() + 1e-6


@pytest.mark.parametrize("name", [name for name, told in CONFIGS.items() if "stream" in told])
@torch.no_grad()
def test_a_stream_token_by_token(name: str) -> None:
    """Logits behind every token, their likelihoods, and how much is held before each."""
    fixture = load("ccm_model")
    told, given = CONFIGS[name]["stream"], fixture.under(f"{name}/stream")
    sizes = {"window": "window", "piece": "comp_size", "memory": "comp_cache", "n_sink": "sink"}
    made = method(name, "concat_recur", **{ours: told[theirs] for ours, theirs in sizes.items()})
    assert made.stream is not None
    ids = given["text"].tolist()
    kept, done, lengths, logits = None, 0, [], []
    for token in ids[:-1]:
        patch = Patch() if kept is None else Patch(prefix=kept.prefix(made.stream.rotary))
        logits.append(forward(made.lm, patch, torch.tensor([[token]]))[0][0, -1])
        lengths.append(0 if kept is None else kept.index.shape[-1])
        kept, done = made.stream.read(kept, [token], done)
    assert lengths == given["kv_len_before"].tolist()
    assert done == int((given["kv_len_before"] >= told["window"]).sum())
    found = torch.stack(logits)
    torch.testing.assert_close(
        found, given["logits"], **numbers(fixture.spec["tolerance"]["logits"])
    )
    nll = torch.nn.functional.cross_entropy(found, given["text"][1:], reduction="none")
    torch.testing.assert_close(
        nll, given["nll"], atol=fixture.spec["tolerance"]["nll"]["atol"], rtol=0.0
    )
