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
    "shorter than the window": {"layers": 1, "heads": 4, "kv_heads": 2, "head_dim": 8, "tokens": 7, "window": 9,
                                "capacity": 12, "kernel": 3, "pooling": "avg", "gqa": "per_query_head"},
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
CCM = {
    "two sinks": {**LLAMAS["wide"], "pad_id": 0, "bos_id": 1, "n_comp": 3, "lora_r": 2, "lora_alpha": 5,
                  "lora_targets": ["q_proj", "v_proj"], "context_lens": [3, 5, 1, 4], "query_len": 6,
                  "stream": {"window": 15, "comp_size": 6, "comp_cache": 6, "sink": 2, "tokens": 41}},
    "one piece": {**LLAMAS["single"], "pad_id": 0, "bos_id": 1, "n_comp": 1, "lora_r": 3, "lora_alpha": 6,
                  "lora_targets": ["q_proj", "k_proj", "v_proj", "o_proj"], "context_lens": [6], "query_len": 4,
                  "stream": {"window": 9, "comp_size": 4, "comp_cache": 1, "sink": 0, "tokens": 20}},
    "no stream": {**LLAMAS["single"], "pad_id": 0, "bos_id": 1, "n_comp": 2, "lora_r": 1, "lora_alpha": 2,
                  "lora_targets": ["k_proj", "o_proj"], "context_lens": [2, 3], "query_len": 5},
}  # fmt: skip
ADAPTERS = {
    "generator": {"hidden": 14, "in_features": 22, "out_features": 9, "inter_size": 8, "r": 11, "max_rank": 3,
                  "scaling": 1.5, "batch": 3, "chunks": 2, "chunk_len": 5},
    "by the longest": {**LLAMAS["wide"], "pad_id": 0, "target": "self_attn.q_proj", "norm": "frobenius", "r": 7,
                       "inter_size": 5, "max_rank": 4, "scaling": 0.7, "window": 10, "chunk_len": 9,
                       "context_lens": [25, 20, 8], "query_len": 12},
    "full rank": {**LLAMAS["single"], "pad_id": 0, "target": "self_attn.o_proj", "norm": "svd", "r": 4, "inter_size": 4,
                  "max_rank": 4, "scaling": 0.4, "window": 8, "chunk_len": 7, "context_lens": [10, 13],
                  "query_len": 5},
}  # fmt: skip
CAMELS = {
    "base": {"vocab": 47, "n_positions": 30, "n_embd": 20, "n_layer": 3, "n_head": 2},
    "weight_model": {"n_embd": 12, "n_layer": 2, "n_head": 3, "head": "as theirs"},
    "inner_lr": 0.03, "c_kl": 0.4, "batch": 4, "text_len": 11, "qa_len": 9, "loc": 3, "loc_len": 8,
}  # fmt: skip
"""Three rows of texts of no document, of other lengths, whose first tokens do not count."""
UPDATES: dict[str, dict[str, Any]] = {
    "together": {"sequential": False, "num_inner_steps": 1, "normalize": False, "c_norm": 0},
    "twice": {"sequential": True, "num_inner_steps": 2, "normalize": False, "c_norm": 0},
}
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
    "ccm_model": {
        "logits": {"atol": 2e-4, "rtol": 1e-4},
        "memory": {"atol": 5e-5, "rtol": 1e-4},
        "nll": {"atol": 1e-3},
        "loss": {"atol": 1e-4},
    },
    "generative_adapter": {
        **{name: {"atol": 1e-4, "rtol": 1e-4} for name in ("logits", "generator", "S")},
        "loss": {"atol": 1e-5},
        "svd_full_rank": {"atol": 1e-3, "rtol": 1e-3},
    },
    "camels": {"token_weights": {"atol": 1e-5}, "losses": {"atol": 1e-5}, "updated_params": {"atol": 2e-6}},
}
SMALLEST_MARGIN = 1e-4
"""Relative gap between scores that decide; far above the error of single precision."""


def write(folder: Path) -> None:
    """Write every fixture, JSON and tensors, into a folder that is there."""
    for made in (snapkv, h2o, streamingllm, mac, ccm_model, generative_adapter, camels):
        name, (spec, inputs) = made.__name__, made()
        tensors = {**inputs, **numbers.of(name, Fixture(spec, inputs))}
        stored = {key: (t.float() if t.is_floating_point() else t).detach().contiguous() for key, t in tensors.items()}
        save_file(stored, folder / f"{name}.safetensors")
        layout = {key: [str(t.dtype).removeprefix("torch."), list(t.shape)] for key, t in stored.items()}
        told = {"fixture": name, **spec, "tolerance": TOLERANCE[name], "given": sorted(inputs), "tensors": layout}
        text = json.dumps(told, indent=1)
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
            score = numbers.of_snapkv(Fixture(case, drawn)).get("score", torch.zeros(1, 1, 0))
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
        inputs.update({f"model_{name}/{key}": t for key, t in weights(llama(model), generator).items()})
    for name, case in STREAMS.items():
        vocabulary = int(LLAMAS[str(case["model"])]["vocab"])
        inputs[f"{name}/input_ids"] = torch.randint(2, vocabulary, (int(str(case["tokens"])),), generator=generator)
    return {"models": LLAMAS, "cases": STREAMS}, inputs


def llama(model: dict[str, Any]) -> dict[str, Tensor]:
    """A tensor for every weight of a Llama, by its name."""
    config = LlamaConfig(**numbers.llama_config(model), tie_word_embeddings=False)
    return dict(LlamaForCausalLM(config).state_dict())


def tokens(generator: Generator, vocabulary: int, *shape: int) -> Tensor:
    return torch.randint(2, vocabulary, shape, generator=generator)


def ccm_model() -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Models, texts and streams of CCM."""
    generator, inputs = torch.Generator().manual_seed(1300), {}
    for name, told in CCM.items():
        shapes, width, more = llama(told), told["hidden"], 2 * told["n_comp"]
        shapes["model.embed_tokens.embeddings.weight"] = shapes.pop("model.embed_tokens.weight")
        shapes["model.embed_tokens.comp_embeddings.weight"] = torch.empty(more, width)
        shapes["lm_head.weight"] = torch.empty(told["vocab"] + more, width)
        for key in [key for key in shapes if key.split(".")[-2] in told["lora_targets"]]:
            outputs, reads = shapes[key].shape
            start = key.removesuffix(".weight")
            shapes[f"{start}.lora_A.default.weight"] = torch.empty(told["lora_r"], reads)
            shapes[f"{start}.lora_B.default.weight"] = torch.empty(outputs, told["lora_r"])
        given = {f"state/{key}": t for key, t in weights(shapes, generator).items()}
        context = tokens(generator, told["vocab"], sum(told["context_lens"]))
        context[0] = told["bos_id"]
        given |= {"context_tokens": context, "query_tokens": tokens(generator, told["vocab"], told["query_len"])}
        if "stream" in told:
            given["stream/text"] = tokens(generator, told["vocab"], told["stream"]["tokens"])
        inputs.update({f"{name}/{key}": t for key, t in given.items()})
    return {"configs": CCM}, inputs


def generative_adapter() -> tuple[dict[str, Any], dict[str, Tensor]]:
    """A generator, and models with one in every layer."""
    generator, inputs = torch.Generator().manual_seed(1500), {}

    def parts(told: dict[str, Any], hidden: int, reads: int, outputs: int) -> dict[str, Tensor]:
        shapes = {"fastlora_hidden_state_norm": (hidden,), "fastlora_A1": (told["inter_size"], reads),
                  "fastlora_A2": (told["inter_size"], hidden), "fastlora_A3": (told["r"], hidden),
                  "fastlora_B": (outputs, told["r"])}  # fmt: skip
        return weights({f"{name}.weight": torch.empty(shape) for name, shape in shapes.items()}, generator)

    for name, told in ADAPTERS.items():
        if name == "generator":
            hidden, reads, outputs = told["hidden"], told["in_features"], told["out_features"]
            state = parts(told, hidden, reads, outputs)
            state |= weights({"base_layer.weight": torch.empty(outputs, reads)}, generator)
            shape = (told["batch"], told["chunks"], told["chunk_len"])
            given = {f"state/{key}": t for key, t in state.items()}
            given["hidden_states"] = torch.randn(*shape, hidden, generator=generator)
            given["attention_mask"] = (torch.rand(shape, generator=generator) < 0.8).long()
            given["x"] = torch.randn(told["batch"], 4, reads, generator=generator)
        else:
            state, lengths = weights(llama(told), generator), torch.tensor(told["context_lens"])
            given = {f"base_state/{key}": t for key, t in state.items()}
            for layer in range(told["layers"]):
                outputs, reads = state[f"model.layers.{layer}.{told['target']}.weight"].shape
                start = f"ga_state/base_model.model.model.layers.{layer}.base_layer.{told['target']}"
                made = parts(told, told["hidden"], reads, outputs)
                given.update({f"{start}.{key}": t for key, t in made.items()})
            given["context_mask"] = (torch.arange(int(lengths.max())) < lengths[:, None]).long()
            given["context"] = tokens(generator, told["vocab"], *given["context_mask"].shape) * given["context_mask"]
            given["query"] = tokens(generator, told["vocab"], len(lengths), told["query_len"])
        inputs.update({f"{name}/{key}": t for key, t in given.items()})
    return {"configs": ADAPTERS}, inputs


def camels() -> tuple[dict[str, Any], dict[str, Tensor]]:
    """A base, a model that weighs tokens, documents, questions and other texts."""
    generator, config, inputs = torch.Generator().manual_seed(1700), CAMELS, {}
    vocabulary, width = config["base"]["vocab"], config["weight_model"]["n_embd"]
    for kind in ("base", "weight_model"):
        sizes = {key: size for key, size in config[kind].items() if key.startswith("n_")}
        sizes = {"n_positions": config["base"]["n_positions"], "vocab_size": vocabulary, **ENDS, **sizes}
        state = GPT2LMHeadModel(GPT2Config(**sizes)).state_dict()
        shapes = {key: t for key, t in state.items() if key != "lm_head.weight"}
        if kind == "weight_model":
            shapes = {key.replace("transformer", "gpt_base"): t for key, t in shapes.items()}
            shapes |= {"fc1.weight": torch.empty(128, width), "fc1.bias": torch.empty(128)}
            shapes |= {"fc2.weight": torch.empty(1, 128), "fc2.bias": torch.empty(1)}
        inputs.update({f"{kind}/{key}": t for key, t in weights(shapes, generator).items()})
    for name, rows, length in (("text", config["batch"], config["text_len"]), ("qa", config["batch"], config["qa_len"]),
                               ("loc", config["loc"], config["loc_len"])):  # fmt: skip
        held = torch.randint(length // 2 + 2, length + 1, (rows, 1), generator=generator)
        mask = (torch.arange(length) < held).long()
        ids = tokens(generator, vocabulary, rows, length)
        inputs |= {f"input/{name}_ids": ids, f"input/{name}_attention": mask}
    asked = inputs["input/qa_attention"]
    answers = asked.bool() & (torch.arange(config["qa_len"]) >= asked.sum(1, keepdim=True) - 2)
    inputs["input/qa_target_ids"] = inputs["input/qa_ids"].masked_fill(~answers, -100)
    inputs["input/loc_mask"] = inputs["input/loc_attention"] * (torch.arange(config["loc_len"]) > 0)
    return {"config": config, "cases": UPDATES}, inputs


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
