"""The decoder written out equals transformers' own: every way of reading, architecture by architecture."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM, Qwen2Config, Qwen2ForCausalLM

from tests.lm.test_patching import close, full_patch, low_rank, random_prefix, text
from tests.tiny import POSITIONS, byte_tokenizer, tiny_gpt2, tiny_llama, tiny_opt
from ttabench.lm.attention.interface import Call, watched
from ttabench.lm.forward import cpu_decoder
from ttabench.lm.forward.cpu_decoder import CpuDecoder
from ttabench.lm.forward.patching import deltas_applied, encoded
from ttabench.lm.forward.ways import ways_of
from ttabench.lm.forward.window import Window
from ttabench.lm.model import LM
from ttabench.lm.patch import Dense, Patch, Prefix
from ttabench.lm.verbs.generation import generate
from ttabench.lm.verbs.scoring import choose


def made(model: type[Any], config: type[Any], **more: Any) -> LM:
    shape = {"vocab_size": 259, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": POSITIONS}
    with torch.random.fork_rng():
        torch.manual_seed(5)
        return LM(model(config(**shape, **heads, initializer_range=0.18, **more)), byte_tokenizer(), "made")


def rope(**parameters: Any) -> LM:
    return made(LlamaForCausalLM, LlamaConfig, rope_parameters={"rope_theta": 10000.0, **parameters})


LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
KNOWN: dict[str, Callable[[], LM]] = {
    "llama-gqa": tiny_llama,
    "llama": lambda: tiny_llama(gqa=False),
    "llama-biased": lambda: made(LlamaForCausalLM, LlamaConfig, attention_bias=True, mlp_bias=True, hidden_act="gelu"),
    "llama-own-head-size": lambda: made(LlamaForCausalLM, LlamaConfig, head_dim=16),
    "llama3-rope": lambda: rope(rope_type="llama3", **LLAMA3),
    "yarn": lambda: rope(rope_type="yarn", factor=4.0, original_max_position_embeddings=128),
    "mistral": lambda: made(MistralForCausalLM, MistralConfig, sliding_window=None),
    "qwen2": lambda: made(Qwen2ForCausalLM, Qwen2Config),
}
UNKNOWN: dict[str, Callable[[], LM]] = {
    "gpt2": tiny_gpt2,
    "opt": tiny_opt,
    "mistral-sliding": lambda: made(MistralForCausalLM, MistralConfig, sliding_window=8),
    "dynamic-rope": lambda: rope(rope_type="dynamic", factor=4.0),
}


def uneven(lm: LM) -> LM:
    """The same with drawn norms and biases: ones and zeros would hide what is left out."""
    for name, parameter in lm.model.named_parameters():
        if "norm" in name or "bias" in name:
            parameter.data.uniform_(0.5, 1.5, generator=torch.Generator().manual_seed(len(name)))
    return lm


@pytest.fixture(params=KNOWN.values(), ids=KNOWN)
def lm(request: pytest.FixtureRequest) -> LM:
    return uneven(request.param())


def both_ways(monkeypatch: pytest.MonkeyPatch, work: Callable[[], Any]) -> tuple[Any, Any]:
    """What the work gives by the lean decoder, which must have been used, and by transformers'."""
    runs: list[int] = []
    plain = CpuDecoder.run

    def counted(self: CpuDecoder, *arguments: Any) -> Tensor:
        runs.append(1)
        return plain(self, *arguments)

    with monkeypatch.context() as patched, torch.no_grad():
        patched.setattr(CpuDecoder, "run", counted)
        ours = work()
    assert runs, "the lean decoder was never used"
    with monkeypatch.context() as patched, torch.no_grad():
        patched.setattr(CpuDecoder, "of", classmethod(lambda _cls, _lm: None))
        return ours, work()


def prefix_of(lm: LM, kind: str, rows: int) -> Prefix | None:
    if kind == "none":
        return None
    found = random_prefix(lm, 1 if kind.startswith("shared") else rows, slots=7)
    if kind.endswith("masked"):
        mask = torch.ones(len(found.next_position_B), 7, dtype=torch.bool)
        mask[:, :2] = False
        found = replace(found, mask_BP=mask, next_position_B=mask.sum(1))
    return found


def deltas_of(lm: LM, rows: int) -> dict[str, Any]:
    found: dict[str, Any] = {name: low_rank(lm, name, rows, i) for i, name in enumerate(lm.linear_names())}
    for name in (
        "norm.weight",
        "layers.1.input_layernorm.weight",
        "layers.0.mlp.up_proj.weight",
        "embed_tokens.weight",
    ):
        weight = lm.model.get_parameter(f"model.{name}")
        found[f"model.{name}"] = Dense(torch.randn(1, *weight.shape, generator=torch.Generator().manual_seed(3)) * 0.1)
    return found


def check_reading(monkeypatch: pytest.MonkeyPatch, lm: LM, deltas: str, kind: str, padded: bool) -> None:
    """Read, decode three tokens, read on, decode one: hidden states, and what the window then holds."""
    rows = 3
    changes = {} if deltas == "none" else deltas_of(lm, 1 if deltas == "shared" else rows)
    mask = torch.ones(rows, 6, dtype=torch.bool)
    mask[0, :4] = mask[1, :1] = False

    def work() -> Tensor:
        window = Window(lm, prefix_of(lm, kind, rows), rows, room=0 if kind == "own" else 16)
        with deltas_applied(lm, changes, rows):
            hidden = [window.feed(text(rows, 6), mask if padded else None)[:, -1:]]
            hidden += [window.feed(text(rows, 1, seed)) for seed in range(3)]
            hidden.append(window.feed(text(rows, 4, 9)))
            hidden.append(window.feed(text(rows, 1, 10)))
        held = window.prefix()
        last = (
            torch.stack(held.keys_LBHPD)[:, :, :, -7:].flatten(),
            torch.stack(held.values_LBHPD)[:, :, :, -7:].flatten(),
        )
        return torch.cat([torch.cat(hidden, dim=1).flatten(), *last, held.next_position_B.float()])

    ours, theirs = both_ways(monkeypatch, work)
    close(ours, theirs, atol=2e-4)


@pytest.mark.parametrize("deltas", ["none", "shared", "own"])
@pytest.mark.parametrize("kind", ["none", "own", "own-masked", "shared", "shared-masked"])
@pytest.mark.parametrize("padded", [False, True], ids=["plain", "left-padded"])
def test_reading_and_decoding(monkeypatch: pytest.MonkeyPatch, deltas: str, kind: str, padded: bool) -> None:
    check_reading(monkeypatch, uneven(tiny_llama()), deltas, kind, padded)


@pytest.mark.parametrize("kind", ["none", "own-masked", "shared"])
def test_every_architecture(lm: LM, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    check_reading(monkeypatch, lm, "own", kind, padded=False)


def test_rows_that_are_selected(lm: LM, monkeypatch: pytest.MonkeyPatch) -> None:
    """As beams are."""

    def work() -> Tensor:
        window = Window(lm, random_prefix(lm, 1), 3, room=8)
        window.feed(text(3, 4))
        window.select(torch.tensor([2, 0, 0, 1]))
        found = window.feed(text(4, 1))
        window.select(torch.tensor([3, 1, 1, 0]))
        return torch.cat([found, window.feed(text(4, 1, 4))])

    close(*both_ways(monkeypatch, work))


@pytest.mark.parametrize("rows", [0, 1, 4])
def test_answers(lm: LM, monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    """Greedy, beams, options that fork from one prompt."""
    prompts = [[65, 66, 67], [70], [72, 73, 74, 75, 76, 77], [81, 82]]
    patch = encoded(lm, full_patch(lm, rows)) if rows else Patch()
    items = [(prompt, [[7], [8, 9, 10], [11, 12]]) for prompt in prompts]
    for beams in (1, 3):
        ours, theirs = both_ways(
            monkeypatch, lambda n=beams: generate(lm, patch, prompts, max_new_tokens=6, num_beams=n)
        )
        assert ours == theirs
    ours, theirs = both_ways(monkeypatch, lambda: torch.stack(choose(lm, patch, items)))
    close(ours, theirs)


def test_a_module_in_place_of_a_linear_map_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    lm = tiny_llama()
    layer: Any = lm.decoder.layers[0]  # type: ignore[index, union-attr]

    class Doubled(torch.nn.Linear):
        def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
            return 2 * super().forward(x)

    doubled = Doubled(*layer.mlp.up_proj.weight.shape[::-1], bias=False)
    doubled.load_state_dict(layer.mlp.up_proj.state_dict())
    before = Window(lm, None, 2).feed(text(2, 5))
    layer.mlp.up_proj = doubled
    ours, theirs = both_ways(monkeypatch, lambda: Window(lm, None, 2).feed(text(2, 5)))
    close(ours, theirs)
    assert (ours - before).abs().max() > 1e-2


@pytest.mark.parametrize("make", UNKNOWN.values(), ids=UNKNOWN)
def test_what_it_does_not_know_is_left_alone(make: Callable[[], LM]) -> None:
    assert not ways_of(make()).lean


def test_where_anything_looks_on_transformers_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    lm = tiny_llama()
    monkeypatch.setattr(cpu_decoder.CpuDecoder, "run", lambda *_: pytest.fail("the lean decoder ran"))
    Window(lm, None, 2).feed(text(2, 5))  # under gradients
    with torch.no_grad():
        seen: list[int] = []

        def look(call: Call) -> None:
            seen.append(call.layer)

        with watched(look):
            Window(lm, None, 2).feed(text(2, 5))
        assert seen == [0, 1]
        hooked = lm.model.get_submodule("model.layers.1.self_attn").register_forward_hook(lambda *_: seen.append(7))
        Window(lm, None, 2).feed(text(2, 5))
        assert seen[-1] == 7
        hooked.remove()
        monkeypatch.undo()
        assert not ways_of(LM(lm.model.to(torch.bfloat16), lm.tokenizer, "half")).lean


@pytest.mark.parametrize("rows", [0, 1, 2])
def test_padding_takes_part_in_no_product(monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    """Unless weight deltas differ from row to row: they find their rows by the shape."""
    lm = tiny_llama()
    deltas = {name: low_rank(lm, name, rows) for name in lm.linear_names()[:1]} if rows else {}
    items = [([65] * 9, [[70], [71, 72]]), ([66, 67, 68, 69], [[70], [71, 72]])]
    tokens: list[int] = []
    plain = cpu_decoder.linear
    monkeypatch.setattr(cpu_decoder, "linear", lambda x, *more: tokens.append(len(x)) or plain(x, *more))
    choose(lm, Patch(deltas=deltas), items)
    real, padded = (1 + 9 + 1) + (1 + 4 + 1), 2 * (1 + 9 + 1)
    assert set(tokens) == {padded if rows == 2 else real}
