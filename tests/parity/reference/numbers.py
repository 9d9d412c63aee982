"""What a fixture should hold, computed from its own inputs and weights by the plain references of this folder."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tests.parity.fixtures import Fixture
from tests.parity.reference import camels, eviction
from tests.parity.reference import generative_adapter as ga
from tests.parity.reference.ccm import Ccm
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
"""What the models of fixtures and transformers call the same number."""
SAME = ("head_dim", "rms_norm_eps", "rope_theta")
WAYS = ("concat_recur", "merge_recur")
NORMS = {"frobenius": "frobenius/", "svd": "svd/exact_"}
"""The norms of Generative Adapter, and where a fixture has the numbers of each."""

TRAINED = ("train/input_ids", "train/attention_mask")


def named(config: dict[str, Any]) -> dict[str, Any]:
    return {CONFIG.get(field, field): value for field, value in config.items()}


def llama_config(config: dict[str, Any], **more: Any) -> dict[str, Any]:
    """What transformers takes of a fixture's model, and more."""
    return {**named({field: config[field] for field in (*CONFIG, *SAME)}), **more}


def double(tensors: Numbers) -> Numbers:
    return {name: t.double() if t.is_floating_point() else t for name, t in tensors.items()}


def of_snapkv(case: Fixture) -> Numbers:
    """score and kept, for every layer; all is kept, and nothing scored, where it has room."""
    q, k, tokens = case.tensors["q"].double(), case.tensors["k"].double(), case.spec["tokens"]
    if tokens <= case.spec["capacity"]:
        sets = k.shape[1] if case.spec["gqa"] == "group_mean" else q.shape[1]
        return {"kept": torch.arange(tokens).expand(len(q), sets, -1)}
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
    ids, sizes = case.tensors["input_ids"], named(config)
    logits, kept = stream(double(weights), sizes, ids, case.spec)
    full, _ = stream(double(weights), sizes, ids, {**case.spec, "recent": len(ids)})
    return {"logits": logits, "full_attention_logits": full, "kept_positions_end": torch.tensor(kept)}


def of_ccm_model(fixture: Fixture) -> Numbers:
    """Memories, logits, the loss and its gradients of every model, and of those that have one a stream."""
    found = {}
    for name, told in fixture.spec["configs"].items():
        part, sizes = Fixture(told, fixture.under(name)), named(told)
        state = double(part.under("state"))
        trained = {key: t.requires_grad_() for key, t in state.items() if "lora" in key or "comp_embeddings" in key}
        ccm, pieces = Ccm(sizes, state), list(part.tensors["context_tokens"].split(told["context_lens"]))
        query, read = part.tensors["query_tokens"], sum(told["context_lens"])
        for way in WAYS:
            memories = ccm.memories(pieces, way)
            logits = ccm.read(query, read, memories[-1])[0]
            loss = ccm.answer_loss(logits, query)
            for number, memory in enumerate(memories, 1):
                both = torch.stack([torch.cat(layer) for layer in memory])
                found[f"{name}/recursive/{way}/memory_after_{number}"] = both
            found[f"{name}/recursive/{way}/query_logits"] = logits[None]
            found[f"{name}/train/{way}/loss"] = loss
            slopes = torch.autograd.grad(loss, list(trained.values()), allow_unused=True, materialize_grads=True)
            found.update({f"{name}/train/{way}/grad/{key}": t for key, t in zip(trained, slopes, strict=True)})
        if "stream" in told:
            text = part.tensors["stream/text"]
            logits, lengths, _ = ccm.stream(text[:-1], told["stream"])
            nll = torch.nn.functional.cross_entropy(logits, text[1:], reduction="none")
            numbers = {"logits": logits, "nll": nll, "kv_len_before": torch.tensor(lengths)}
            found.update({f"{name}/stream/{key}": t for key, t in numbers.items()})
    return found


def of_generative_adapter(fixture: Fixture) -> Numbers:
    """The generator alone, and whole models."""
    found = {}
    for name, told in fixture.spec["configs"].items():
        part = Fixture(named(told), double(fixture.under(name)))
        numbers = _generator(part) if name == "generator" else _adapted_by_sums(part)
        found.update({f"{name}/{key}": t for key, t in numbers.items()})
    return found


def _generator(part: Fixture) -> Numbers:
    state, given, found = part.under("state"), part.tensors, {}
    rows = zip(given["hidden_states"].flatten(1, 2), given["attention_mask"].flatten(1, 2).bool(), strict=True)
    sums = found["S_sum"] = torch.stack([ga.outer(state, row[mask]) for row, mask in rows])
    for norm, folder in NORMS.items():
        changes = torch.stack([ga.delta(state, each, norm, part.spec) for each in sums])
        found[f"{folder}delta_W"] = changes
        found[f"{folder}y"] = given["x"] @ (state["base_layer.weight"] + changes).mT
    found["svd/exact_norm"] = torch.stack([ga.normed(each, "svd", part.spec["max_rank"]) for each in sums])
    return found


def _adapted_by_sums(part: Fixture) -> Numbers:
    """Chunks, sums, deltas and logits of every context, the loss, and where it is exact its gradients."""
    told, given = part.spec, part.tensors
    maps = [f"layers.{layer}.base_layer.{told['target']}" for layer in range(told["num_hidden_layers"])]
    leaves = {key: t.requires_grad_() for key, t in part.under("ga_state").items()}
    starts = [f"base_model.model.model.{name}." for name in maps]
    generators = [{key.removeprefix(at): t for key, t in leaves.items() if key.startswith(at)} for at in starts]
    adapter = ga.Adapter(told, part.under("base_state"), generators)
    size = ga.chunk_len(told["context_lens"], told["window"])
    rows = zip(given["context"], told["context_lens"], strict=True)
    chunks, query = [list(row[:length].split(size)) for row, length in rows], given["query"]
    found: Numbers = {"base/query_logits": torch.stack([adapter.read(ids, None)[0] for ids in query])}
    sums = [adapter.sums(own)[0] for own in chunks]
    logits = [adapter.read(ids, own)[0] for ids, own in zip(query, sums, strict=True)]
    found["sequential/query_logits"] = torch.stack(logits)
    for folder, own in (("S_final", sums), ("sequential/delta_W", map(adapter.deltas, sums))):
        stacked = map(torch.stack, zip(*own, strict=True))
        found.update({f"{folder}/model.{key}": t for key, t in zip(maps, stacked, strict=True)})
    losses = [own for row, ids in zip(chunks, query, strict=True) for own in adapter.losses(row, ids)]
    found["train/loss"] = torch.cat(losses).mean()
    if told["norm"] != "svd":
        slopes = torch.autograd.grad(found["train/loss"], list(leaves.values()))
        found.update({f"train/grad/{key}": t for key, t in zip(leaves, slopes, strict=True)})
    return {**found, **_rows(chunks, query, size)}


def _rows(chunks: list[list[Tensor]], query: Tensor, size: int) -> Numbers:
    """Chunks, and chunks with the query behind them, as padded tensors."""
    most, found = max(map(len, chunks)), {}
    alone = [row + [query[0, :0]] * (most - len(row)) for row in chunks]
    asked = [[*row, ids] for row, ids in zip(alone, query, strict=True)]
    both = (alone, size, "chunks", "chunks_mask"), (asked, max(size, query.shape[1]), *TRAINED)
    for rows, length, name, mask in both:
        padded = [[torch.nn.functional.pad(ids, (0, length - len(ids))) for ids in row] for row in rows]
        found[name] = torch.stack([torch.stack(row) for row in padded])
        held = torch.tensor([[len(ids) for ids in row] for row in rows])
        found[mask] = (torch.arange(length) < held[..., None]).long()
    return found


def of_camels(case: Fixture, fixture: Fixture) -> Numbers:
    """Weights, losses, updated parameters and the gradient through all steps, of one case."""
    config, given = fixture.spec["config"], fixture.under("input")
    theta = {key: t.requires_grad_() for key, t in double(fixture.under("base")).items() if key != "lm_head.weight"}
    phi = {key: t.requires_grad_() for key, t in double(fixture.under("weight_model")).items()}
    weights = camels.token_weights(phi, config["weight_model"], given["text_ids"], given["text_attention"])
    rule = {**case.spec, "inner_lr": config["inner_lr"]}
    after, losses = camels.updated(theta, config["base"], given, weights, rule)
    answer, moved = camels.outer(theta, after, config["base"], given)
    total = answer + config["c_kl"] * moved
    slopes = torch.autograd.grad(total, list(phi.values()))
    return {
        "token_weights": weights, "inner_losses": torch.stack(losses), "qa_loss": answer, "kl": moved,
        "total_loss": total, **{f"updated_params/{key}": t for key, t in after.items()},
        **{f"meta_grad/{key}": t for key, t in zip(phi, slopes, strict=True)},
    }  # fmt: skip


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
        "greedy": written,
    }


OF_WHOLE: dict[str, Callable[[Fixture], Numbers]] = {
    "mac": of_mac, "ccm_model": of_ccm_model, "generative_adapter": of_generative_adapter,
}  # fmt: skip
OF_CASES: dict[str, Callable[[Fixture], Numbers]] = {"snapkv": of_snapkv, "h2o": of_h2o}


def of(name: str, fixture: Fixture) -> Numbers:
    """All numbers of a fixture by their names in it, from its inputs and weights."""
    if name in OF_WHOLE:
        return OF_WHOLE[name](fixture)
    found = {}
    for case, spec in fixture.spec["cases"].items():
        part = fixture.case(case)
        if spec.get("normalize") or spec.get("c_norm"):
            continue  # options of CaMeLS' code that are not ours
        if name == "camels":
            numbers = of_camels(part, fixture)
        elif name == "streamingllm":
            model = part.spec["model"]
            numbers = of_streamingllm(part, fixture.spec["models"][model], fixture.under(f"model_{model}"))
        else:
            numbers = OF_CASES[name](part)
        found.update({f"{case}/{key}": t for key, t in numbers.items()})
    return found
