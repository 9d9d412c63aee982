"""What a fixture should hold, computed from its own inputs and weights by the plain references of this folder."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tests.parity.fixtures import Fixture
from tests.parity.reference import eviction
from tests.parity.reference.mac import Mac
from tests.parity.reference.streaming import stream

Numbers = dict[str, Tensor]

CONFIG = {
    "vocab": "vocab_size",
    "hidden": "hidden_size",
    "intermediate": "intermediate_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
}
"""What the models of `streamingllm` and transformers call the same number."""


def double(tensors: Numbers) -> Numbers:
    return {name: t.double() if t.is_floating_point() else t for name, t in tensors.items()}


def of_snapkv(case: Fixture) -> Numbers:
    """score and kept, for every layer."""
    q, k = case.tensors["q"].double(), case.tensors["k"].double()
    pairs = [eviction.snapkv(q[layer], k[layer], case.spec) for layer in range(len(q))]
    return {"score": torch.stack([score for score, _ in pairs]), "kept": torch.stack([kept for _, kept in pairs])}


def of_h2o(case: Fixture) -> Numbers:
    """kept and score at the end, and what is kept after every step (-1: an empty slot), for every layer and head."""
    spec, q, k = case.spec, case.tensors["q"].double(), case.tensors["k"].double()
    heavy, recent, group = spec["hh_size"], spec["recent_size"], spec["heads"] // spec["kv_heads"]
    ends = [spec["first_step_tokens"] + step * spec["step_tokens"] for step in range(spec["steps"])]
    ends[-1] = spec["tokens"]
    after_LSHP = torch.full((len(q), len(ends), k.shape[1], heavy + recent), -1)
    kept, scores = [], []
    for layer in range(len(q)):
        for head in range(k.shape[1]):
            queries = q[layer, head * group : (head + 1) * group]
            history = eviction.h2o(queries, k[layer, head], ends, heavy, recent)
            for step, places in enumerate(history):
                after_LSHP[layer, step, head, : len(places)] = torch.tensor(list(places))
            kept.append(list(history[-1]))
            scores.append(list(history[-1].values()))
    shape = (len(q), k.shape[1], -1)
    return {"kept": torch.tensor(kept).view(shape), "score": torch.tensor(scores).view(shape),
            "kept_after_step": after_LSHP}  # fmt: skip


def of_streamingllm(case: Fixture, config: dict[str, Any], weights: Numbers) -> Numbers:
    """logits, those of full attention, and what is left in the cache."""
    ids, named = case.tensors["input_ids"], {CONFIG.get(field, field): value for field, value in config.items()}
    logits, kept = stream(double(weights), named, ids, case.spec)
    full, _ = stream(double(weights), named, ids, {**case.spec, "recent": len(ids)})
    return {"logits": logits, "full_attention_logits": full, "kept_positions_end": torch.tensor(kept)}


def of_mac(fixture: Fixture) -> Numbers:
    """Everything that MAC gives on the way from ids to losses, and the gradients of both losses."""
    state = {name: t.requires_grad_() for name, t in double(fixture.under("state")).items()}
    config, inputs = fixture.spec["config"], fixture.under("input")
    mac = Mac(config, state, {kind: double(fixture.under(f"base_{kind}")) for kind in ("gpt2", "llama")})
    with torch.no_grad():
        numbers = {**_networks(mac, inputs), **_masked(mac, inputs)}
        numbers.update(_adapted(mac, inputs, numbers["latent"]))
        *levels, numbers["hier_final"] = mac.tree(numbers["cond_0"][:1], numbers["bank"])
        numbers.update({f"hier_level_{number + 1}": level for number, level in enumerate(levels)})
    found = {f"out/{name}": t for name, t in numbers.items()}
    for name, carrying in (("full", None), ("lift", max(1, int(len(inputs["qa_ids"]) * config["lift_ratio"])))):
        loss = found[f"out/loss_{name}"] = mac.loss(inputs, carrying)
        gradients = torch.autograd.grad(loss, list(state.values()), allow_unused=True)
        found.update({f"grad_{name}/{key}": t for key, t in zip(state, gradients, strict=True) if t is not None})
    return found


def _networks(mac: Mac, inputs: Numbers) -> Numbers:
    doc_hidden = mac.decoder_states("t5", inputs["text_ids_amort"], inputs["text_attention_amort"])
    q_hidden = mac.decoder_states("t5_q", inputs["gen_q_ids_amort"], inputs["gen_q_attn_mask_amort"])
    bank = mac.lifted("mlps", doc_hidden)
    states = mac.aggregated(mac.lifted("aggregator.mlps", q_hidden), bank)
    named = {f"cond_{number}": x for number, x in enumerate(states)}
    return {"doc_hidden": doc_hidden, "bank": bank, "q_hidden": q_hidden, **named, "latent": states[-1]}


def _masked(mac: Mac, inputs: Numbers) -> Numbers:
    ids, mask = inputs["text_ids_amort"], inputs["text_attention_amort"]
    doc_hidden = mac.decoder_states("t5", ids, mask, masked=True)
    ids, mask = inputs["gen_q_ids_amort"], inputs["gen_q_attn_mask_amort"]
    q_hidden, bank = mac.decoder_states("t5_q", ids, mask, masked=True), mac.lifted("mlps", doc_hidden)
    latent = mac.aggregated(mac.lifted("aggregator.mlps", q_hidden), bank)[-1]
    return {"masked_doc_hidden": doc_hidden, "masked_bank": bank, "masked_q_hidden": q_hidden, "masked_latent": latent}


def _adapted(mac: Mac, inputs: Numbers, latent: Tensor) -> Numbers:
    """Prefix, logits behind it and without it, and the greedy answer to question 0."""
    actual, (ids, mask) = mac.expanded(latent), (inputs["qa_ids"], inputs["qa_attention"])
    prompts = mac.prompts(actual)
    written = ids[:1, : int(mask[0].sum())]
    for _ in range(5):
        best = mac.logits("gpt2", written, torch.ones_like(written), prompts[:, :, :1])[:, -1:].argmax(-1)
        written = torch.cat([written, best], dim=1)
        if int(best) == mac.config["gpt2"]["eos_token_id"]:
            break
    return {
        "actual_tokens": actual,
        "prompts": prompts,
        "qa_logits": mac.logits("gpt2", ids, mask, prompts),
        "qa_logits_llama": mac.logits("llama", ids, mask, prompts),
        "qa_logits_noprompt": mac.logits("gpt2", ids, mask, prompts[..., :0, :]),
        "greedy": written,
    }


OF_CASES: dict[str, Callable[[Fixture], Numbers]] = {"snapkv": of_snapkv, "h2o": of_h2o}


def of(name: str, fixture: Fixture) -> Numbers:
    """All numbers of a fixture by their names in it, from its inputs and weights."""
    if name == "mac":
        return of_mac(fixture)
    found = {}
    for case in fixture.spec["cases"]:
        part = fixture.case(case)
        if name == "streamingllm":
            model = part.spec["model"]
            numbers = of_streamingllm(part, fixture.spec["models"][model], fixture.under(f"model_{model}"))
        else:
            numbers = OF_CASES[name](part)
        found.update({f"{case}/{key}": t for key, t in numbers.items()})
    return found
