"""CaMeLS against the numbers of its authors' released code on a tiny GPT-2 (shared/fixtures/camels)."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.parity.fixtures import Fixture, base_lm, cases, load
from ttabench.lm.model import LM
from ttabench.methods.online.settings import OnlineSettings
from ttabench.methods.online.token_weights import TokenWeights
from ttabench.methods.online.unrolled import Document, answers_loss, moved, stepped
from ttabench.methods.parts.trained import Weights

CORE = cases("camels", core=True)
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


def weigher() -> TokenWeights:
    fixture = load("camels")
    own, sizes = fixture.under("weight_model"), dict(fixture.spec["config"]["weight_model"])
    sizes.pop("head")
    body = {f"transformer.{name.removeprefix('gpt_base.')}": each for name, each in own.items() if "gpt_base" in name}
    there = {
        "vocab_size": body["transformer.wte.weight"].shape[0],
        "n_positions": body["transformer.wpe.weight"].shape[0],
    }
    made = TokenWeights(base_lm("gpt2", {**sizes, **there, **ENDS, **QUIET}, body))
    for theirs, ours in HEAD.items():
        for leaf in ("weight", "bias"):
            getattr(getattr(made, ours), leaf).data.copy_(own[f"{theirs}.{leaf}"])
    return made.eval()


def named(theirs: str, made: TokenWeights) -> torch.nn.Parameter:
    """Our parameter of that name of theirs."""
    first, _, rest = theirs.partition(".")
    found = f"decoder.{rest}" if first == "gpt_base" else f"{HEAD[first]}.{rest}"
    return made.get_parameter(found)


def given(name: str) -> Tensor:
    return load("camels").tensors[f"input/{name}"]


def real(name: str) -> list[list[int]]:
    """The rows of ids without padding."""
    return [
        ids[mask.bool()].tolist() for ids, mask in zip(given(f"{name}_ids"), given(f"{name}_attention"), strict=True)
    ]


def asked() -> list[tuple[list[int], list[int]]]:
    items = []
    for ids, targets in zip(given("qa_ids"), given("qa_target_ids"), strict=True):
        places = (targets != -100).nonzero()[:, 0]
        items.append((ids[: places[0]].tolist(), ids[places].tolist()))
    return items


def steps(case: Fixture, weights_BT: Tensor) -> list[list[Document]]:
    """One step a document, or one for all, as often as the case says."""
    documents = [(ids, weights[: len(ids)]) for ids, weights in zip(real("text"), weights_BT, strict=True)]
    batches = [[document] for document in documents] if case.spec["sequential"] else [documents]
    return batches * int(case.spec["num_inner_steps"])


@pytest.mark.parametrize("name", CORE)
def test_inner_steps_the_outer_loss_and_its_gradient_are_theirs(name: str) -> None:
    fixture, case = load("camels"), load("camels").case(name)
    config, spec, allowed = fixture.spec["config"], case.tensors, fixture.spec["tolerance"]
    lm, made = base(), weigher()
    weights_BT = made(given("text_ids"), given("text_attention"))
    torch.testing.assert_close(weights_BT, spec["token_weights"], rtol=0, **allowed["token_weights"])
    trained = Weights(lm)
    before = {key: weight.detach().clone().requires_grad_() for key, weight in lm.model.named_parameters()}
    settings = OnlineSettings(pad_len=config["text_len"])
    after, losses = stepped(lm, trained, before, steps(case, weights_BT), settings, config["inner_lr"])
    torch.testing.assert_close(torch.stack(losses), spec["inner_losses"], rtol=0, **allowed["losses"])
    for key, value in after.items():
        theirs = spec[f"updated_params/{key}"]
        torch.testing.assert_close(value, theirs, rtol=0, **allowed["updated_params"])
    answer = answers_loss(lm, trained, after, asked())
    locality = moved(lm, trained, before, after, real("loc")[0])
    for ours, key in ((answer, "qa_loss"), (locality, "kl"), (answer + config["c_kl"] * locality, "total_loss")):
        torch.testing.assert_close(ours, spec[key], rtol=0, **allowed["losses"])
    (answer + config["c_kl"] * locality).backward()
    gradients = case_gradients(spec)
    assert gradients
    for key, theirs in gradients.items():
        ours = named(key, made).grad
        assert ours is not None
        assert float((ours - theirs).abs().max()) <= 1e-3 * float(theirs.abs().max()) + 1e-7, key


def case_gradients(tensors: dict[str, Tensor]) -> dict[str, Any]:
    start = "meta_grad/"
    return {key.removeprefix(start): each for key, each in tensors.items() if key.startswith(start)}


def test_without_the_second_order_the_gradient_is_another() -> None:
    """The guard of the one above."""
    case, config = load("camels").case("sequential"), load("camels").spec["config"]
    lm, made = base(), weigher()
    trained = Weights(lm)
    before = {key: weight.detach().clone().requires_grad_() for key, weight in lm.model.named_parameters()}
    documents = steps(case, made(given("text_ids"), given("text_attention")))
    settings = OnlineSettings(pad_len=config["text_len"])
    after, losses = stepped(lm, trained, before, documents, settings, config["inner_lr"], first_order=True)
    torch.testing.assert_close(torch.stack(losses), case.tensors["inner_losses"], rtol=0, atol=1e-5)
    answers_loss(lm, trained, after, asked()).backward()  # type: ignore[no-untyped-call]
    theirs = case.tensors["meta_grad/fc2.weight"]
    ours = made.mix.weight.grad
    assert ours is not None
    assert float((ours - theirs).abs().max()) > 1e-2 * float(theirs.abs().max())


def test_a_weight_depends_on_no_later_token() -> None:
    made, ids_BT = weigher(), given("text_ids")[:1]
    changed = ids_BT.clone()
    changed[0, 8:] = (changed[0, 8:] + 1) % 80
    with torch.no_grad():
        one, other = made(ids_BT), made(changed)
    torch.testing.assert_close(one[:, :8], other[:, :8])
    assert not torch.allclose(one[:, 8:], other[:, 8:])
