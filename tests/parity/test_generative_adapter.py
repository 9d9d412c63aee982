"""Generative Adapter against the numbers of its authors' released code: a generator alone, and whole tiny Llamas."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.parity import released
from tests.parity.fixtures import base_lm, llama_config, load
from tests.places import fixture_file
from ttabench.core.types import Chunk
from ttabench.lm.forward.patching import forward
from ttabench.lm.model import LM
from ttabench.lm.patch import LowRank, Patch, State
from ttabench.methods.generative_adapter import GenerativeAdapterSettings
from ttabench.methods.generative_adapter.method import GenerativeAdapter, Row, row_logprobs
from ttabench.methods.generative_adapter.networks import DeltaGenerator, singular_vectors

FIXTURE = "generative_adapter"
CONFIGS: dict[str, dict[str, Any]] = json.loads(
    fixture_file(f"{FIXTURE}.json").read_text(encoding="utf-8")
)["configs"]
NORMS = {"frobenius": "frobenius/", "spectral": "spectral/", "svd": "svd/exact_"}
"""Where the fixture has the numbers of each norm."""
WHOLE = [name for name in CONFIGS if name != "generator"]


def close(ours: Tensor, theirs: Tensor, kind: str) -> None:
    allowed = load(FIXTURE).spec["tolerance"][kind]
    torch.testing.assert_close(ours, theirs, atol=allowed["atol"], rtol=allowed.get("rtol", 0.0))


def sizes(told: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {
        "inner": told["r"],
        "inner_keys": told["inter_size"],
        "rank": told["max_rank"],
        "scale": told["scaling"],
        "rank_tol": 0.0,
        **changes,
    }


# --- the generator ---------------------------------------------------------------------------------------------------


def generator(norm: Any, **changes: Any) -> DeltaGenerator:
    told, state = CONFIGS["generator"], load(FIXTURE).under("generator/state")
    settings = GenerativeAdapterSettings(norm=norm, **sizes(told, **changes))
    made = DeltaGenerator(told["hidden"], told["in_features"], told["out_features"], settings)
    with torch.no_grad():
        for theirs, ours in released.PARTS.items():
            getattr(made, ours).copy_(state[f"{theirs}.weight"])
    return made


@torch.no_grad()
def test_the_sum_of_outer_products() -> None:
    given = load(FIXTURE).under("generator")
    hidden, mask = (given[name].flatten(1, 2) for name in ("hidden_states", "attention_mask"))
    close(generator("frobenius").sum_outer_products(hidden, mask.bool()).mT, given["S_sum"], "S")


@pytest.mark.parametrize(("norm", "folder"), NORMS.items())
@torch.no_grad()
def test_the_delta_of_a_sum(norm: str, folder: str) -> None:
    given = load(FIXTURE).under("generator")
    delta = generator(norm).delta(given["S_sum"].mT)
    change = delta.b_BOR @ delta.a_BRI
    close(change, given[f"{folder}delta_W"], "generator")
    y = given["x"] @ (given["state/base_layer.weight"] + change).mT
    close(y, given[f"{folder}y"], "generator")


@torch.no_grad()
def test_the_truncated_decomposition() -> None:
    given = load(FIXTURE).under("generator")
    left, right = singular_vectors(given["S_sum"].mT, generator("svd").settings)
    close((left @ right).mT, given["svd/exact_norm"], "generator")


# --- whole models ----------------------------------------------------------------------------------------------------


@cache
def base(name: str) -> LM:
    told = CONFIGS[name]
    config = llama_config(told, eos_token_id=told["pad_id"], pad_token_id=told["pad_id"])
    return base_lm("llama", config, load(FIXTURE).under(f"{name}/base_state"))


def method(name: str, **changes: Any) -> GenerativeAdapter:
    told = CONFIGS[name]
    changes = {"norm": told["norm"], "chunk": told["window"], **changes}
    made = GenerativeAdapter(base(name), GenerativeAdapterSettings(**sizes(told, **changes)))
    released.take(made.networks, load(FIXTURE).under(f"{name}/ga_state"))
    return made


def contexts(name: str) -> list[Chunk]:
    given = load(FIXTURE).under(name)
    rows = zip(given["context"], given["context_mask"].bool(), strict=True)
    return [Chunk(text=" ".join(f"w{token}" for token in row[mask].tolist())) for row, mask in rows]


def read(made: GenerativeAdapter, name: str) -> State:
    rows = contexts(name)
    return made.adapt(made.begin(len(rows)), [rows])


def kind(name: str, usual: str) -> str:
    return "svd_full_rank" if CONFIGS[name]["norm"] == "svd" else usual


@pytest.mark.parametrize("name", WHOLE)
def test_contexts_are_cut_as_they_are(name: str) -> None:
    """Into as few chunks as the window allows, of one length."""
    lengths, mask = CONFIGS[name]["context_lens"], load(FIXTURE).tensors[f"{name}/chunks_mask"]
    cuts = [[count for count in row.tolist() if count] for row in mask.sum(2)]
    assert [method(name).settings.chunk_lengths(length) for length in lengths] == cuts


@pytest.mark.parametrize("name", WHOLE)
@torch.no_grad()
def test_sums_and_deltas_after_the_context(name: str) -> None:
    made, given = method(name), load(FIXTURE).under(name)
    state = read(made, name)
    for place, name_of_map in enumerate(made.networks.names):
        key = name_of_map.replace(f"layers.{place}.", f"layers.{place}.base_layer.")
        close(state.tensors["sum"][place].mT, given[f"S_final/{key}"], kind(name, "S"))
        delta = made.patch(state, []).deltas[name_of_map]
        assert isinstance(delta, LowRank)
        wanted = given[f"sequential/delta_W/{key}"]
        close(delta.b_BOR @ delta.a_BRI, wanted, kind(name, "generator"))


@pytest.mark.parametrize("name", WHOLE)
@torch.no_grad()
def test_logits_of_the_question(name: str) -> None:
    made, given = method(name), load(FIXTURE).under(name)
    logits, _ = forward(made.lm, made.patch(read(made, name), []), given["query"])
    close(logits, given["sequential/query_logits"], kind(name, "logits"))
    bare, _ = forward(made.lm, Patch(), given["query"])
    close(bare, given["base/query_logits"], "logits")


def training_rows(name: str) -> list[Row]:
    """[c1..cm, question] of every context, each row adapted to the chunks before it."""
    given = load(FIXTURE).under(f"{name}/train")
    chunks, asked = [], []
    for owner, (rows, masks) in enumerate(
        zip(given["input_ids"], given["attention_mask"].bool(), strict=True)
    ):
        *read_rows, question = [row[mask].tolist() for row, mask in zip(rows, masks, strict=True)]
        own = [ids for ids in read_rows if ids]
        chunks += [
            Row(ids, owner, at, first=1, part="text", chunk=at) for at, ids in enumerate(own)
        ]
        asked.append(Row(question, owner, len(own), first=1, part="text"))
    return [*chunks, *asked]


@pytest.mark.parametrize("name", WHOLE)
def test_the_training_loss_and_its_gradients(name: str) -> None:
    made, given = method(name, niter=20), load(FIXTURE).under(f"{name}/train")
    loss = -torch.cat(row_logprobs(made.networks, training_rows(name))).mean()
    close(loss.detach(), given["loss"], kind(name, "loss"))
    loss.backward()  # type: ignore[no-untyped-call]
    gradients = load(FIXTURE).under(f"{name}/train/grad")
    for key, wanted in gradients.items():
        matched = released.KEY.fullmatch(key)
        assert matched is not None
        place = made.networks.names.index(matched["map"].replace(".base_layer.", "."))
        ours = made.networks.get_parameter(
            f"generators.{place}.{released.PARTS[matched['part']]}"
        ).grad
        assert ours is not None
        assert float((ours - wanted).abs().max()) <= 2e-3 * float(wanted.abs().max()) + 1e-7, key
    assert gradients or CONFIGS[name]["norm"] == "svd"
