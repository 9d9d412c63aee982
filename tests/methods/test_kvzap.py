"""kvzap: predicted scores, the closed form of a linear scorer, and released weights."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from tests.methods.reading import logits, read
from tests.methods.test_eviction import make
from tests.methods.test_kvzip import cache
from tests.tiny import tiny_gpt2, tiny_llama
from tests.tiny_methods import TEXTS, make_chunks
from tools.architectures import tiny_lm
from ttabench.core.errors import UserError
from ttabench.core.types import Episode
from ttabench.lm.forward.capabilities import get_capabilities
from ttabench.lm.model import LM
from ttabench.methods import checkpoints
from ttabench.methods.eviction.kvzap.method import MIN_SCORE, RIDGE_WEIGHT, KVzap
from ttabench.methods.eviction.kvzip.method import MUST_STAY_SCORE
from ttabench.methods.icl import InContextSettings
from ttabench.methods.icl.method import InContext
from ttabench.methods.released import convert
from ttabench.training.config import TrainConfig
from ttabench.training.loop import train

SCORERS = ("linear", "mlp", "gate")
EPISODES = [
    Episode(key="one", steps=make_chunks(*TEXTS[:2])),
    Episode(key="two", steps=make_chunks(*TEXTS[2:])),
]


def inputs(lm: LM, text: str) -> list[Tensor]:
    """Inputs of the attention of every layer [T, C], computed by the modules of Llama."""
    ids = torch.tensor([[*lm.start_ids, *lm.encode(text)]])
    hidden = lm.model(ids, output_hidden_states=True).hidden_states
    layers = lm.model.model.layers
    return [layer.input_layernorm(x)[0] for layer, x in zip(layers, hidden, strict=False)]


@torch.no_grad()
def test_scores_come_from_the_input_of_attention() -> None:
    lm = tiny_llama()
    method = make("kvzap", lm, budget=1.0)
    kept = cache(read(method, TEXTS[0]))
    found = kept.padded(kept.scores, 0)[:, 0]
    for layer, x_TC in enumerate(inputs(lm, TEXTS[0])):
        expected = method.layers[layer](x_TC).T
        torch.testing.assert_close(found[layer, :, 4:], expected[:, 4:], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("lm", [tiny_llama(), tiny_gpt2(), tiny_lm("gemma3_text")])
@pytest.mark.parametrize("scorer", SCORERS)
def test_a_full_budget_equals_full_context(scorer: str, lm: LM) -> None:
    full, method = InContext(lm, InContextSettings()), make("kvzap", lm, budget=1.0, scorer=scorer)
    expected = logits(full, read(full, TEXTS[0]))
    torch.testing.assert_close(
        logits(method, read(method, TEXTS[0])), expected, atol=2e-4, rtol=1e-3
    )


@torch.no_grad()
def test_the_linear_scorer_is_the_solution_of_a_ridge_regression() -> None:
    """The same by least squares on all tokens at once, with one more row for each penalty."""
    lm = tiny_llama()
    method, teacher = make("kvzap", lm), make("kvzip", lm, budget=1.0)
    train(method, ([episode] for episode in EPISODES), TrainConfig(steps=2))
    for layer in range(lm.layers):
        x, y = [], []
        for episode in EPISODES:
            state = teacher.adapt(teacher.begin(1), [[chunk] for chunk in episode.chunks()])
            kept = cache(state)
            y.append((kept.padded(kept.scores, 0)[layer, 0, :, 4:].T + MIN_SCORE).log())
            text = "\n\n".join(chunk.text for chunk in episode.chunks())
            x.append(inputs(lm, text)[layer][4:])
        x_TF = torch.cat([torch.cat(x), torch.ones(sum(map(len, x)), 1)], 1).double()
        penalty = (RIDGE_WEIGHT * x_TF.square().sum(0)).sqrt().diag()
        wanted = torch.cat([torch.cat(y).double(), torch.zeros(len(penalty), lm.kv_heads)])
        solution = torch.linalg.lstsq(torch.cat([x_TF, penalty]), wanted).solution
        scorer = method.layers[layer]
        torch.testing.assert_close(scorer.weight.T.double(), solution[:-1], atol=2e-3, rtol=2e-3)
        torch.testing.assert_close(scorer.bias.double(), solution[-1], atol=2e-3, rtol=2e-3)


@torch.no_grad()
def test_tokens_outside_a_window_of_the_model_have_no_weight() -> None:
    lm = tiny_lm("gemma3_text")
    method, other = make("kvzap", lm), make("kvzap", lm)
    ((x, y, seen),) = method._examples(EPISODES[:1])
    local = sorted(get_capabilities(lm).local_masks)
    assert seen.sum((1, 2)).tolist() == [
        lm.config.sliding_window - 1 if layer in local else x.shape[1] for layer in range(lm.layers)
    ]
    method._fit(x.double(), y.double(), seen.double())
    other._fit(x.double(), torch.where(seen > 0, y, 99.0).double(), seen.double())
    for own, same in zip(method.modules().parameters(), other.modules().parameters(), strict=True):
        assert torch.equal(own, same)


@pytest.mark.parametrize("scorer", SCORERS)
def test_training_lowers_the_error_and_resumes(scorer: str, tmp_path: Path) -> None:
    lm = tiny_llama()

    def trained(steps: Sequence[int], out: Path) -> KVzap:
        for number in steps:
            method = make("kvzap", lm, scorer=scorer)
            config = TrainConfig(
                steps=number, lr=1e-2, save_every=2, resume=out.exists(), out=out, fresh=True
            )
            train(method, iter([[EPISODES[0]], [EPISODES[1]]] * 4), config)
        loaded = checkpoints.load(KVzap, lm, out)
        assert isinstance(loaded, KVzap)
        return loaded

    whole = trained([8], tmp_path / "whole")
    resumed = trained([4, 8], tmp_path / "resumed")
    untrained = make("kvzap", lm, scorer=scorer)
    for own, other in zip(
        whole.modules().parameters(), resumed.modules().parameters(), strict=True
    ):
        torch.testing.assert_close(own, other)
    assert whole.validate(EPISODES)["loss"] < 0.7 * untrained.validate(EPISODES)["loss"]


def test_a_threshold_and_recent_tokens_decide_what_is_kept() -> None:
    lm = tiny_llama()
    method = make("kvzap", lm, threshold=0.1)
    kept = cache(read(method, *TEXTS))
    assert kept.scores is not None
    assert 0 < len(kept.scores) < int(kept.next) * lm.layers * lm.kv_heads
    assert (kept.scores >= 0.1).all()
    assert (kept.scores == MUST_STAY_SCORE).sum() == 4 * lm.layers * lm.kv_heads
    kept = cache(read(make("kvzap", lm, threshold=1e9, recent=5), *TEXTS))
    assert kept.index.view(-1, 9)[0].tolist() == [
        0,
        1,
        2,
        3,
        *range(int(kept.next) - 5, int(kept.next)),
    ]


def test_recent_tokens_take_at_most_the_budget() -> None:
    lm = tiny_llama()
    kept = cache(read(make("kvzap", lm, budget=7, recent=50), *TEXTS))
    assert (kept.counts == 7).all()
    assert (kept.index.view(-1, 7)[:, 4:] >= int(kept.next) - 3).all()


def test_a_text_without_tokens_is_refused() -> None:
    with pytest.raises(UserError, match="empty"):
        make("kvzap", tiny_llama()).loss_parts([Episode(key="empty", steps=())])


@pytest.mark.parametrize("hidden", [None, 7])
def test_released_weights_of_kvzap(tmp_path: Path, hidden: int | None) -> None:
    lm = tiny_llama()
    maps = [
        nn.Linear(lm.hidden_size, lm.kv_heads)
        if hidden is None
        else nn.Sequential(
            nn.Linear(lm.hidden_size, hidden), nn.GELU(), nn.Linear(hidden, lm.kv_heads)
        )
        for _ in range(lm.layers)
    ]
    weights = {
        f"layers.{number}.{name}": value.bfloat16()
        for number, each in enumerate(maps)
        for name, value in each.state_dict().items()
    }
    save_file(weights, tmp_path / "model.safetensors")
    config = {"model_type": "kvzap", "hidden_dim": hidden}
    (tmp_path / "config.json").write_text(json.dumps(config))
    convert(tmp_path / "model.safetensors", lm, tmp_path / "out")
    method = checkpoints.load(KVzap, lm, tmp_path / "out")
    assert isinstance(method, KVzap)
    x_TC = torch.randn(5, lm.hidden_size)
    for own, each in zip(method.layers, maps, strict=True):
        torch.testing.assert_close(own(x_TC), each.bfloat16().float()(x_TC))
    with pytest.raises(UserError, match="does not fit"):
        convert(tmp_path / "model.safetensors", tiny_gpt2(), tmp_path / "other")


@torch.no_grad()
def test_released_gates_of_fast_kvzip(tmp_path: Path) -> None:
    """A token's score: its share of a softmax over itself and the sinks, averaged over query heads."""
    lm = tiny_llama()
    heads, groups, size = lm.kv_heads, lm.heads // lm.kv_heads, 16
    layers = [
        {
            "q_proj.weight": torch.randn(heads * groups * size, lm.hidden_size),
            "q_proj.bias": torch.randn(heads * groups * size),
            "k_proj.weight": torch.randn(heads * size, lm.hidden_size),
            "q_norm.weight": torch.rand(size),
            "k_norm.weight": torch.rand(size),
            "k_base": torch.randn(heads, 1, size, size),
            "b": torch.randn(heads, 1, groups),
        }
        for _ in range(lm.layers)
    ]
    torch.save({"module": layers, "step": 3}, tmp_path / "q2_dim16_sink16.pt")
    convert(tmp_path / "q2_dim16_sink16.pt", lm, tmp_path / "out")
    method = checkpoints.load(KVzap, lm, tmp_path / "out")
    assert isinstance(method, KVzap)
    assert method.settings.recent == 0.02

    def normed(x: Tensor, weight: Tensor) -> Tensor:
        return x / (x.square().mean() + 1e-6).sqrt() * weight

    x_C, layer = torch.randn(lm.hidden_size), layers[1]
    found = method.layers[1](x_C[None])[0]
    query = (layer["q_proj.weight"] @ x_C + layer["q_proj.bias"]).view(heads, groups, size)
    key = (layer["k_proj.weight"] @ x_C).view(heads, size)
    for head in range(heads):
        shares = []
        for group in range(groups):
            q = normed(query[head, group], layer["q_norm.weight"])
            own = q @ normed(key[head], layer["k_norm.weight"]) / 4 + layer["b"][head, 0, group]
            scores = torch.cat([own[None], layer["k_base"][head, 0] @ q / 4])
            shares.append(scores.softmax(0)[0])
        torch.testing.assert_close(found[head], torch.stack(shares).mean().log())
