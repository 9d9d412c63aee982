"""CaMeLS against the numbers of its authors' released code on a tiny GPT-2 (shared/fixtures/camels)."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from torch import Tensor

from tests.parity.fixtures import Fixture, base_lm, cases, load
from ttabench.lm.model import LM
from ttabench.methods.online import OnlineSettings
from ttabench.methods.online.camels import (
    TokenWeightNetwork,
    WeightedDocument,
    next_token_kl,
    target_loss,
    unroll_steps,
)

OURS = cases("camels", normalize=False, c_norm=0)
"""Other cases are options of their code that are none here."""
HEAD = {"fc1": "lift", "fc2": "mix"}


@cache
def base() -> LM:
    fixture = load("camels")
    config = fixture.spec["config"]
    sizes = {**config["base"], "vocab_size": config["base"]["vocab"], **ENDS, **QUIET}
    sizes.pop("vocab")
    return base_lm("gpt2", sizes, fixture.under("base"))


ENDS = {"bos_token_id": 1, "eos_token_id": 1}
QUIET = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}


def weigher() -> TokenWeightNetwork:
    fixture = load("camels")
    own, sizes = fixture.under("weight_model"), dict(fixture.spec["config"]["weight_model"])
    sizes.pop("head")
    body = {
        f"transformer.{name.removeprefix('gpt_base.')}": each
        for name, each in own.items()
        if "gpt_base" in name
    }
    there = {
        "vocab_size": body["transformer.wte.weight"].shape[0],
        "n_positions": body["transformer.wpe.weight"].shape[0],
    }
    made = TokenWeightNetwork(base_lm("gpt2", {**sizes, **there, **ENDS, **QUIET}, body))
    for theirs, ours in HEAD.items():
        for leaf in ("weight", "bias"):
            getattr(getattr(made, ours), leaf).data.copy_(own[f"{theirs}.{leaf}"])
    return made.eval()


def named(theirs: str, made: TokenWeightNetwork) -> torch.nn.Parameter:
    """Our parameter of that name of theirs."""
    first, _, rest = theirs.partition(".")
    found = f"decoder.{rest}" if first == "gpt_base" else f"{HEAD[first]}.{rest}"
    return made.get_parameter(found)


def given(name: str) -> Tensor:
    return load("camels").tensors[f"input/{name}"]


def real(name: str) -> list[list[int]]:
    """The rows of ids without padding."""
    return [
        ids[mask.bool()].tolist()
        for ids, mask in zip(given(f"{name}_ids"), given(f"{name}_attention"), strict=True)
    ]


def asked() -> list[tuple[list[int], list[int]]]:
    items = []
    for ids, targets in zip(given("qa_ids"), given("qa_target_ids"), strict=True):
        places = (targets != -100).nonzero()[:, 0]
        items.append((ids[: places[0]].tolist(), ids[places].tolist()))
    return items


def steps(case: Fixture, weights_BT: Tensor) -> list[list[WeightedDocument]]:
    """One step a document, or one for all, as often as the case says."""
    documents = [
        (ids, weights[: len(ids)]) for ids, weights in zip(real("text"), weights_BT, strict=True)
    ]
    batches = [[document] for document in documents] if case.spec["sequential"] else [documents]
    return batches * int(case.spec["num_inner_steps"])


def learned(case: Fixture) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """What the fixture has of a case, and the gradient of the total loss by their names of the parameters."""
    config, lm, made = load("camels").spec["config"], base(), weigher()
    weights_BT = made(given("text_ids")) * given("text_attention")
    before = {
        key: weight.detach().clone().requires_grad_() for key, weight in lm.model.named_parameters()
    }
    settings = OnlineSettings(pad_len=config["text_len"])
    documents = steps(case, weights_BT)
    after, losses = unroll_steps(lm, before, documents, settings, config["inner_lr"])
    answer = target_loss(lm, after, asked())
    moves = [next_token_kl(lm, before, after, ids)[mask] for ids, mask in elsewhere()]
    locality = torch.cat(moves).mean()
    total = answer + config["c_kl"] * locality
    total.backward()  # type: ignore[no-untyped-call]
    found = {
        "token_weights": weights_BT,
        "inner_losses": torch.stack(losses),
        "qa_loss": answer,
        "kl": locality,
    }
    updated = {f"updated_params/{key}": value for key, value in after.items()}
    gradients = {key: named(key, made).grad for key in load("camels").under("weight_model")}
    assert all(each is not None for each in gradients.values())
    return {**found, "total_loss": total, **updated}, gradients


def elsewhere() -> list[tuple[list[int], Tensor]]:
    """Texts of no document, and which of their tokens count."""
    rows = zip(real("loc"), given("loc_mask").bool(), given("loc_attention").bool(), strict=True)
    return [(ids, counts[there]) for ids, counts, there in rows]


def worst(ours: Tensor, theirs: Tensor) -> float:
    """Largest error of a gradient, as a share of what is allowed."""
    return float((ours - theirs).abs().max()) / (1e-3 * float(theirs.abs().max()) + 1e-7)


@pytest.mark.parametrize("name", OURS)
def test_inner_steps_the_outer_loss_and_its_gradient_are_theirs(name: str) -> None:
    case, allowed = load("camels").case(name), load("camels").spec["tolerance"]
    found, gradients = learned(case)
    for key in found.keys() & case.tensors.keys():
        tolerance = allowed.get(key.partition("/")[0], allowed["losses"])
        torch.testing.assert_close(
            found[key], case.tensors[key], rtol=0, **tolerance, msg=lambda m, key=key: f"{key}: {m}"
        )
    assert {"total_loss", "inner_losses"} < found.keys() & case.tensors.keys()
    assert (
        max(worst(gradients[key], theirs) for key, theirs in case.under("meta_grad").items()) <= 1
    )
