"""Doc-to-LoRA: the same factors as released weights give in the formulas of the released code, chunk by chunk."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile

import pytest
import torch
from torch import Tensor
from torch.nn.functional import layer_norm, silu

from tests.methods.reading import read, read_apart
from tests.tiny import tiny_gpt2, tiny_llama
from tests.tiny_methods import TEXTS
from ttabench.core.errors import UserError
from ttabench.lm.model import LM
from ttabench.lm.patch import LowRank
from ttabench.methods import checkpoints
from ttabench.methods.doc_to_lora import DocToLoraSettings
from ttabench.methods.doc_to_lora.method import DocToLora
from ttabench.methods.released import HEAD_DIM, convert, main

SMALL = DocToLoraSettings(
    rank=3,
    alpha=5.0,
    targets=("down_proj", "up_proj"),
    latent=8,
    latents=4,
    blocks=2,
    heads=4,
    kv_heads=2,
    head_dim=HEAD_DIM,
    chunk=512,
)


def drawn(lm: LM) -> dict[str, Tensor]:
    """Weights of such a network, none of them zero."""
    generator = torch.Generator().manual_seed(2)
    named = DocToLora(lm, SMALL).network.named_parameters()
    return {name: 0.3 * torch.randn(held.shape, generator=generator) for name, held in named}


@pytest.fixture
def theirs(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Classes of the released package, as far as a file names them."""
    module = ModuleType("ctx_to_lora")
    for name in ("HypernetConfig", "AggregatorConfig", "CtxEncoderArguments", "LoraConfig"):
        setattr(module, name, type(name, (), {"__module__": "ctx_to_lora"}))
    monkeypatch.setitem(sys.modules, "ctx_to_lora", module)

    def made(name: str, **fields: Any) -> Any:
        held = getattr(module, name)()
        held.__dict__.update(fields)
        return held

    return made


def saved(path: Path, weights: dict[str, Tensor], theirs: Any, **changed: Any) -> Path:
    """A file in the released layout."""
    aggregator = {"num_blocks": 2, "num_self_attn_per_block": 0, "shared_weights": False}
    lora = {"r": 3, "lora_alpha": 5.0, "target_modules": {"up_proj", "down_proj"}}
    told = {
        "latent_size": 8,
        "per_rank_gen": True,
        "per_layer_processing": True,
        "use_token_mixing": False,
        "num_pre_head_layers": 1,
        "use_bias": True,
        "extra_modules": None,
    }
    for fields in (aggregator, lora, told):
        fields |= {name: changed.pop(name) for name in list(changed) if name in fields}
    assert not changed
    config = theirs(
        "HypernetConfig",
        **told,
        lora_config=theirs("LoraConfig", **lora),
        aggregator_config=theirs("AggregatorConfig", **aggregator),
    )
    reader = theirs(
        "CtxEncoderArguments", ctx_encoder_type="per_layer_activations", ctx_encoder_last_layer=None
    )
    named = {f"_orig_mod.{name}": held for name, held in weights.items()}
    held = {
        **named,
        "base_model_name_or_path": "tiny",
        "hypernet_config": config,
        "ctx_encoder_args": reader,
    }
    torch.save(held, path)
    return path


def by_formula(
    lm: LM, weights: dict[str, Tensor], ids: list[int]
) -> dict[str, tuple[Tensor, Tensor]]:
    """Factors of every map of one chunk, layer by layer and head by head."""

    def rms(x: Tensor, name: str) -> Tensor:
        return weights[f"{name}.weight"] * x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt()

    def gated(x: Tensor, name: str) -> Tensor:
        gate, up, down = (weights[f"{name}.{kind}_proj.weight"] for kind in ("gate", "up", "down"))
        return (silu(x @ gate.T) * (x @ up.T)) @ down.T

    def looked(part: str, seen: Tensor, blocks: int) -> Tensor:
        latents = weights[f"aggregator.perceiver.{part}.latents_q"]
        for number in range(blocks):
            at = f"aggregator.perceiver.{part}.layers.{number}"
            before, context = (
                rms(latents, f"{at}.input_latents_layernorm"),
                rms(seen, f"{at}.input_context_layernorm"),
            )
            q, k, v = (
                x @ weights[f"{at}.self_attn.{kind}_proj.weight"].T
                for x, kind in ((before, "q"), (context, "k"), (context, "v"))
            )
            heads = []
            for head in range(SMALL.heads):
                own = slice(head * HEAD_DIM, (head + 1) * HEAD_DIM)
                shared = slice(head // 2 * HEAD_DIM, (head // 2 + 1) * HEAD_DIM)
                scores = q[:, own] @ k[:, shared].T / HEAD_DIM**0.5
                heads.append(scores.softmax(-1) @ v[:, shared])
            out = torch.cat(heads, 1) @ weights[f"{at}.self_attn.o_proj.weight"].T
            latents = latents + rms(out, f"{at}.post_attention_layernorm")
            more = gated(rms(latents, f"{at}.pre_ff_layernorm"), f"{at}.mlp")
            latents = latents + rms(more, f"{at}.post_ff_layernorm")
        return rms(latents, f"aggregator.perceiver.{part}.layernorm")

    whole = lm.model(torch.tensor([[*lm.start_ids, *ids]]), output_hidden_states=True).hidden_states
    factors: dict[str, tuple[Tensor, Tensor]] = {}
    for layer in range(lm.layers):
        hidden = whole[layer][0] if layer < lm.layers - 1 else lm.model.model.norm(whole[layer][0])
        entered = gated(hidden, "aggregator.perceiver.modality_projection")
        latents = looked("decoder", looked("encoder", entered, 2), 1)  # 2 maps of 3 ranks
        at = "layers.0.layers"
        x = layer_norm(latents, (8,), weights[f"{at}.0.weight"], weights[f"{at}.0.bias"])
        x = silu(x @ weights[f"{at}.1.weight"][layer] + weights[f"{at}.1.bias"][0, layer, 0])
        x = x @ weights[f"{at}.3.weight"][layer] + weights[f"{at}.3.bias"][0, layer, 0]
        latents = latents + layer_norm(x, (8,), weights[f"{at}.4.weight"], weights[f"{at}.4.bias"])
        latents = latents / latents.norm(dim=-1, keepdim=True)
        for number, kind in enumerate(("down_proj", "up_proj")):
            features_in, features_out = lm.linear_shape(f"model.layers.{layer}.mlp.{kind}")
            both = latents[3 * number : 3 * number + 3] @ weights["head.weight"][layer, number]
            a = both[:, :features_in] * weights[f"scaler_A.{kind}"][0, layer]
            b = (
                both[:, features_in : features_in + features_out]
                * weights[f"scaler_B.{kind}"][0, layer]
            )
            shared = weights[f"bias_A.{kind}"][layer], weights[f"bias_B.{kind}"][layer]
            factors[f"model.layers.{layer}.mlp.{kind}"] = (
                torch.cat([a, shared[0]]),
                torch.cat([b, shared[1]]),
            )
    return factors


@torch.no_grad()
def test_a_released_file_gives_the_deltas_of_its_formulas(tmp_path: Path, theirs: Any) -> None:
    lm = tiny_llama()
    weights = drawn(lm)
    convert(saved(tmp_path / "pytorch_model.bin", weights, theirs), lm, tmp_path / "out")
    method = checkpoints.load(DocToLora, lm, tmp_path / "out")
    assert method.settings == SMALL
    deltas = method.patch(read(method, TEXTS[0]), []).deltas
    wanted = by_formula(lm, weights, lm.encode(TEXTS[0]))
    assert deltas.keys() == wanted.keys()
    for name, (a, b) in wanted.items():
        delta = deltas[name]
        assert isinstance(delta, LowRank)
        torch.testing.assert_close(delta.a_BRI[0], a, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(delta.b_BOR[0], 5.0 * b.T, atol=1e-4, rtol=1e-4)


def test_another_network_or_base_is_refused_in_one_line(
    tmp_path: Path, theirs: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    weights = drawn(tiny_llama())
    path = saved(tmp_path / "other.bin", weights, theirs, per_rank_gen=False)
    assert main([str(path), str(tmp_path / "out"), "--model", "nano"]) == 2
    assert "per_rank_gen=False" in capsys.readouterr().err
    path = saved(tmp_path / "wide.bin", weights, theirs)
    assert main([str(path), str(tmp_path / "out"), "--model", "nano"]) == 2
    assert "does not fit nano" in capsys.readouterr().err
    (tmp_path / "text.bin").write_text("no weights")
    assert main([str(tmp_path / "text.bin"), str(tmp_path / "out"), "--model", "nano"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@torch.no_grad()
def test_chunks_stand_next_to_each_other_wherever_they_came_from() -> None:
    method = DocToLora(tiny_llama(), SMALL)
    for parameter in method.network.parameters():
        parameter += 0.1
    one, other, both = (
        read(method, TEXTS[0]),
        read(method, TEXTS[1]),
        read_apart(method, *TEXTS[:2]),
    )
    joined = method.combine_states(one, other)
    ranks = {name: len(tensor[0]) for name, tensor in both.tensors.items()}
    assert set(ranks.values()) == {2 * SMALL.rank}
    for name, tensor in joined.tensors.items():
        torch.testing.assert_close(tensor[:, : SMALL.rank], both.tensors[name][:, : SMALL.rank])
    lengths = [
        [part.stop - part.start for part in SMALL.chunk_slices(n)] for n in (0, 512, 513, 1100)
    ]
    assert lengths == [[], [512], [256, 257], [366, 367, 367]]


def test_a_base_without_the_map_is_refused() -> None:
    with pytest.raises(UserError, match="down_proj"):
        DocToLora(tiny_gpt2(), SMALL)


Weights = dict[str, Tensor]
SCALE = "scaler_A.down_proj"


def as_integers(weights: Weights) -> Weights:
    return weights | {SCALE: weights[SCALE].int()}


def as_complex(weights: Weights) -> Weights:
    return weights | {SCALE: weights[SCALE].to(torch.complex64)}


def as_sparse(weights: Weights) -> Weights:
    return weights | {SCALE: weights[SCALE].to_sparse()}


def as_quantised(weights: Weights) -> Weights:
    return weights | {SCALE: torch.quantize_per_tensor(weights[SCALE], 0.1, 0, torch.qint8)}


def not_finite(weights: Weights) -> Weights:
    return weights | {SCALE: weights[SCALE] * torch.nan}


def without_storage(weights: Weights) -> Weights:
    name = "aggregator.perceiver.encoder.latents_q"
    return weights | {name: torch.zeros(1, 1).expand(10**6, 10**6)}


@pytest.mark.parametrize(
    "damage", [as_integers, as_complex, as_sparse, as_quantised, not_finite, without_storage, list]
)
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
def test_released_tensors_that_are_not_plain_are_refused(
    tmp_path: Path, theirs: Any, damage: Callable[[Weights], Any]
) -> None:
    weights = damage(drawn(tiny_llama()))
    if isinstance(weights, dict):
        path = saved(tmp_path / "odd.bin", weights, theirs)
    else:
        torch.save(weights, path := tmp_path / "odd.bin")
    with pytest.raises(UserError, match=r"odd\.bin"):
        convert(path, tiny_llama(), tmp_path / "out")
    assert not (tmp_path / "out" / "adapter.json").exists()


@pytest.mark.parametrize(
    "changed",
    [
        {"r": 2.7},
        {"r": 10**30},
        {"r": True},
        {"r": None},
        {"lora_alpha": math.nan},
        {"lora_alpha": math.inf},
        {"num_blocks": 10**7},
        {"latent_size": 2**40},
        {"target_modules": 5},
        {"target_modules": {"none_such"}},
    ],
    ids=str,
)
def test_released_sizes_that_are_none_are_refused(
    tmp_path: Path, theirs: Any, changed: dict[str, Any]
) -> None:
    path = saved(tmp_path / "odd.bin", drawn(tiny_llama()), theirs, **changed)
    with pytest.raises(UserError):
        convert(path, tiny_llama(), tmp_path / "out")


def test_released_files_that_are_no_plain_zip_are_refused(tmp_path: Path) -> None:
    pipe, bomb = tmp_path / "pipe.bin", tmp_path / "bomb.bin"
    os.mkfifo(pipe)
    with ZipFile(bomb, "w", ZIP_DEFLATED) as parts:
        parts.writestr("archive/data.pkl", bytes(2**26))
    for path in (pipe, bomb, tmp_path / "none.bin", tmp_path):
        with pytest.raises(UserError, match=path.name):
            convert(path, tiny_llama(), tmp_path / "out")


def test_a_released_file_replaces_only_checkpoints_and_only_with_force(
    tmp_path: Path, theirs: Any
) -> None:
    lm, out = tiny_llama(), tmp_path / "out"
    path = saved(tmp_path / "pytorch_model.bin", drawn(lm), theirs)
    out.mkdir()
    (out / "adapter.json").write_text("mine")
    for force in (False, True):
        with pytest.raises(UserError, match=r"adapter\.json"):
            convert(path, lm, out, force=force)
    assert (out / "adapter.json").read_text() == "mine"
    (out / "adapter.json").unlink()
    convert(path, lm, out)
    with pytest.raises(UserError, match="--force"):
        convert(path, lm, out)
    convert(path, lm, out, force=True)


@pytest.mark.parametrize(
    "words", [[], ["x.bin", "", "--model", "nano"], ["x.bin", "out", "--modle", "nano"]]
)
def test_words_of_the_released_command_are_refused_in_one_line(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    assert capsys.readouterr().err.count("\n") == 1
