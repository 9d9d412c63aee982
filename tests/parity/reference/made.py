"""Fixtures of the same layout as those of tests/fixtures, with other names, sizes, lengths, heads and seeds.

Inputs and weights are drawn from a seed; the numbers are those of the plain references, see `numbers`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Generator, Tensor
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, T5Config, T5Model

from tests.parity.fixtures import Fixture
from tests.parity.reference import numbers
from tests.parity.reference.eviction import margin

SNAPKV = {
    "one-kv-head": {"layers": 1, "heads": 6, "kv_heads": 1, "head_dim": 10, "tokens": 71, "window": 5, "capacity": 23,
                    "kernel": 3, "pooling": "avg", "gqa": "group_mean"},
    "three-layers": {"layers": 3, "heads": 3, "kv_heads": 3, "head_dim": 6, "tokens": 50, "window": 12, "capacity": 13,
                     "kernel": 9, "pooling": "max", "gqa": "per_query_head"},
    "nothing to evict": {"layers": 2, "heads": 4, "kv_heads": 2, "head_dim": 8, "tokens": 20, "window": 4,
                         "capacity": 32, "kernel": 5, "pooling": "max", "gqa": "group_mean"},
}  # fmt: skip
H2O = {
    "one-kv-head": {"layers": 3, "heads": 3, "kv_heads": 1, "head_dim": 6, "tokens": 37, "hh_size": 3, "recent_size": 9,
                    "first_step_tokens": 5, "step_tokens": 1, "steps": 33},
    "uneven-chunks": {"layers": 1, "heads": 6, "kv_heads": 3, "head_dim": 10, "tokens": 45, "hh_size": 11,
                      "recent_size": 2, "first_step_tokens": 9, "step_tokens": 14, "steps": 4},
}  # fmt: skip
LLAMAS = {
    "wide": {"vocab": 41, "hidden": 24, "intermediate": 36, "layers": 3, "heads": 6, "kv_heads": 1, "head_dim": 6,
             "rope_theta": 500.0, "rms_norm_eps": 1e-5},
    "single": {"vocab": 30, "hidden": 20, "intermediate": 28, "layers": 1, "heads": 2, "kv_heads": 2, "head_dim": 10,
               "rope_theta": 20000.0, "rms_norm_eps": 1e-6},
}  # fmt: skip
STREAMS = {
    "sinks-first": {"model": "wide", "tokens": 31, "n_sink": 3, "recent": 5, "evict": "before", "positions": "original",
                    "tokens_equal_to_full_attention": 8},
    "narrow": {"model": "single", "tokens": 26, "n_sink": 1, "recent": 3, "evict": "after", "positions": "cache",
               "tokens_equal_to_full_attention": 5},
    "never-full": {"model": "wide", "tokens": 9, "n_sink": 2, "recent": 11, "evict": "before", "positions": "cache",
                   "tokens_equal_to_full_attention": 9},
}  # fmt: skip
T5 = {"d_kv": 6, "d_ff": 18, "relative_attention_num_buckets": 6, "relative_attention_max_distance": 12,
      "dropout_rate": 0.0, "pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0}  # fmt: skip
ENDS = {"bos_token_id": 3, "eos_token_id": 3}
MAC = {
    "t5": {**T5, "vocab_size": 37, "d_model": 24, "num_layers": 1, "num_decoder_layers": 2, "num_heads": 4,
           "feed_forward_proj": "relu"},
    "t5_q": {**T5, "vocab_size": 33, "d_model": 10, "num_layers": 2, "num_decoder_layers": 1, "num_heads": 2,
             "feed_forward_proj": "gated-gelu"},
    "gpt2": {**ENDS, "vocab_size": 45, "n_positions": 40, "n_embd": 24, "n_layer": 3, "n_head": 3, "resid_pdrop": 0.0,
             "embd_pdrop": 0.0, "attn_pdrop": 0.0},
    "llama": {**ENDS, "vocab_size": 45, "hidden_size": 24, "intermediate_size": 30, "num_hidden_layers": 3,
              "num_attention_heads": 3, "num_key_value_heads": 3, "max_position_embeddings": 40, "rms_norm_eps": 1e-5,
              "rope_theta": 300.0, "tie_word_embeddings": False},
    "mac": {"num_virtual_tokens": 5, "layer_num_virtual_tokens": 3, "num_cross_attention_blocks": 3},
    "batch": 10, "text_len": 13, "q_len": 7, "qa_len": 11, "lift_ratio": 0.2, "hier_window": 3,
}  # fmt: skip
"""18 tokens of expansion from 5 latent ones; 10 documents in groups of 3 make two levels; 2 of them carry gradient."""
TOLERANCE: dict[str, Any] = {
    "snapkv": {"score": {"atol": 1e-6, "rtol": 1e-4}},
    "h2o": {"score": {"atol": 1e-4, "rtol": 1e-4}},
    "streamingllm": {"logits": {"atol": 1e-4, "rtol": 1e-4}},
    "mac": {"outputs": {"atol": 1e-5, "rtol": 1e-4}, "losses": {"atol": 1e-5}},
}
SMALLEST_MARGIN = 1e-4
"""Relative gap between scores that decide; far above the error of single precision."""


def write(folder: Path) -> None:
    """Write every fixture, JSON and tensors, into a folder that is there."""
    for name, (spec, inputs) in {
        "snapkv": snapkv(),
        "h2o": h2o(),
        "streamingllm": streamingllm(),
        "mac": mac(),
    }.items():
        tensors = {**inputs, **numbers.of(name, Fixture(spec, inputs))}
        stored = {key: (t.float() if t.is_floating_point() else t).detach().contiguous() for key, t in tensors.items()}
        save_file(stored, folder / f"{name}.safetensors")
        layout = {key: [str(t.dtype).removeprefix("torch."), list(t.shape)] for key, t in stored.items()}
        text = json.dumps({"fixture": name, **spec, "tolerance": TOLERANCE[name], "tensors": layout}, indent=1)
        (folder / f"{name}.json").write_text(text, encoding="utf-8")


def queries_and_keys(case: dict[str, Any], seed: int) -> dict[str, Tensor]:
    generator, rest = torch.Generator().manual_seed(seed), (case["tokens"], case["head_dim"])
    return {
        "q": torch.randn(case["layers"], case["heads"], *rest, generator=generator),
        "k": torch.randn(case["layers"], case["kv_heads"], *rest, generator=generator),
    }


def snapkv() -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Cases of SnapKV, each drawn again until no choice is a close one."""
    inputs, cases = {}, {}
    for name, case in SNAPKV.items():
        for seed in range(500, 600):
            drawn = queries_and_keys(case, seed)
            score = numbers.of_snapkv(Fixture(case, drawn))["score"]
            room = int(case["capacity"]) - int(case["window"])
            if min(margin(row.tolist(), room) for row in score.flatten(0, 1)) > SMALLEST_MARGIN:
                break
        inputs.update({f"{name}/{key}": t for key, t in drawn.items()})
        cases[name] = {**case, "seed": seed}
    return {"cases": cases}, inputs


def h2o() -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Cases of H2O, each drawn again until single precision makes the same choices."""
    inputs, cases = {}, {}
    for name, case in H2O.items():
        for seed in range(700, 800):
            drawn = queries_and_keys(case, seed)
            if _stays_under_noise(case, drawn):
                break
        inputs.update({f"{name}/{key}": t for key, t in drawn.items()})
        cases[name] = {**case, "seed": seed}
    return {"cases": cases}, inputs


def _stays_under_noise(case: dict[str, Any], drawn: dict[str, Tensor]) -> bool:
    """Whether a change a hundred times that of single precision moves no choice."""
    noise = torch.Generator().manual_seed(0)
    moved = {key: t * (1 + 1e-5 * torch.randn(t.shape, generator=noise)) for key, t in drawn.items()}
    one, other = (numbers.of_h2o(Fixture(case, each))["kept_after_step"] for each in (drawn, moved))
    return torch.equal(one, other)


def weights(names: dict[str, Tensor], generator: Generator) -> dict[str, Tensor]:
    """Random weights of these shapes: norms near one, biases small, matrices by their width, embeddings of size one."""
    found = {}
    for name, like in names.items():
        drawn = torch.randn(like.shape, generator=generator)
        if like.ndim == 1:
            found[name] = 0.2 * drawn + (0.0 if name.endswith("bias") else 1.0)
        else:
            embeds = any(part in name for part in ("embed", "shared", "wte", "relative", "prompts"))
            found[name] = drawn if embeds else drawn * like.shape[-1] ** -0.5
    return found


def streamingllm() -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Models and texts of StreamingLLM."""
    generator, inputs = torch.Generator().manual_seed(900), {}
    for name, model in LLAMAS.items():
        config = {numbers.CONFIG.get(field, field): value for field, value in model.items()}
        state = LlamaForCausalLM(LlamaConfig(**config, tie_word_embeddings=False)).state_dict()
        inputs.update({f"model_{name}/{key}": t for key, t in weights(state, generator).items()})
    for name, case in STREAMS.items():
        vocabulary = int(LLAMAS[str(case["model"])]["vocab"])
        inputs[f"{name}/input_ids"] = torch.randint(2, vocabulary, (int(str(case["tokens"])),), generator=generator)
    return {"models": LLAMAS, "cases": STREAMS}, inputs


def mac() -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Networks, base models and a batch of MAC."""
    generator, config = torch.Generator().manual_seed(1100), MAC
    found = {f"state/{name}": t for name, t in weights(_mac_shapes(config), generator).items()}
    bases = {"gpt2": GPT2LMHeadModel(GPT2Config(**config["gpt2"])),
             "llama": LlamaForCausalLM(LlamaConfig(**config["llama"]))}  # fmt: skip
    for kind, model in bases.items():
        state = {name: t for name, t in model.state_dict().items() if kind != "gpt2" or name != "lm_head.weight"}
        found.update({f"base_{kind}/{name}": t for name, t in weights(state, generator).items()})
    found.update({f"input/{name}": t for name, t in _mac_batch(config, generator).items()})
    return {"config": config, "dims": {"Lv": config["mac"]["layer_num_virtual_tokens"]}}, found


def _mac_shapes(config: dict[str, Any]) -> dict[str, Tensor]:
    """An empty tensor for every weight of the networks, by its name in the fixture."""
    width, layers, sizes = config["gpt2"]["n_embd"], config["gpt2"]["n_layer"], config["mac"]
    slots, shapes = sizes["num_virtual_tokens"], {}
    for kind, folder, lifts in (
        ("t5", "enc_decoder", "mlps"),
        ("t5_q", "aggregator.question_encoder", "aggregator.mlps"),
    ):
        inner = config[kind]["d_model"]
        shapes[f"{folder}.learnable_prompts"] = (1, slots, inner)
        state = T5Model(T5Config(**config[kind])).state_dict()
        shapes.update({f"{folder}.{name}": tuple(t.shape) for name, t in state.items() if "embed_tokens" not in name})
        for slot in range(slots):
            parts = {"mlp.0": (inner,), "mlp.1": (width, inner), "mlp.3": (width, width)}
            shapes.update(_layers(f"{lifts}.{slot}", parts if inner == width else {**parts, "skip": (width, inner)}))
    for block in range(sizes["num_cross_attention_blocks"]):
        folder = f"aggregator.cross_attention_list.{block}"
        shapes.update({f"{folder}.attn.to_{part}.weight": (768, width) for part in "qkv"})
        norms = dict.fromkeys(("norm1", "norm_context", "norm2"), (width,))
        feed = {"mlp.net.0": (min(width, 768), width), "mlp.net.3": (width, min(width, 768))}
        shapes.update(_layers(folder, {**norms, "attn.to_out.0": (width, 768), **feed}))
    for place in range(2 * layers * sizes["layer_num_virtual_tokens"]):
        parts = {"net.0": (width,), "net.1": (768, width), "net.4": (width, 768)}
        shapes.update(_layers(f"token_SA.mlp_layers.{place}", parts))
    return {name: torch.empty(shape) for name, shape in shapes.items()}


def _layers(folder: str, parts: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """Weights and biases of layers whose weights have these shapes."""
    found = {f"{folder}.{name}.weight": shape for name, shape in parts.items()}
    return found | {f"{folder}.{name}.bias": shape[:1] for name, shape in parts.items()}


def _mac_batch(config: dict[str, Any], generator: Generator) -> dict[str, Tensor]:
    """Documents padded to the right, questions to the left, question and answer to the right."""
    rows, eos = config["batch"], config["gpt2"]["eos_token_id"]

    def ids(length: int, vocabulary: int) -> tuple[Tensor, Tensor]:
        held = torch.randint(length // 2, length + 1, (rows, 1), generator=generator)
        mask = (torch.arange(length) < held).long()
        return torch.randint(4, vocabulary, (rows, length), generator=generator), mask

    document, document_mask = ids(config["text_len"], config["t5"]["vocab_size"])
    question, question_mask = ids(config["q_len"], config["t5_q"]["vocab_size"])
    qa, qa_mask = ids(config["qa_len"], config["gpt2"]["vocab_size"])
    qa = qa.masked_fill(qa_mask == 0, eos)
    answers = qa_mask.bool() & (torch.arange(config["qa_len"]) >= qa_mask.sum(1, keepdim=True) - 3)
    return {
        "text_ids_amort": document * document_mask,
        "text_attention_amort": document_mask,
        "gen_q_ids_amort": (question * question_mask).flip(1),
        "gen_q_attn_mask_amort": question_mask.flip(1),
        "qa_ids": qa,
        "qa_attention": qa_mask,
        "qa_target_ids": qa.masked_fill(~answers, -100),
    }
