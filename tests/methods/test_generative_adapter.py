"""Generative Adapter: its invariants, chunks cut anywhere, training in one forward, starts, refusals, exports."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from torch import Tensor

from tests.conftest import Command
from tests.tiny import tiny_gpt2, tiny_llama, tiny_opt
from tests.tiny_methods import PROMPTS, TEXTS, episode, observes
from ttabench.core.errors import UserError
from ttabench.core.types import Episode, Observe
from ttabench.cost import Workload, shape_from
from ttabench.lm.forward.deltas import merged
from ttabench.lm.forward.patching import encoded, forward, text_start
from ttabench.lm.model import LM
from ttabench.lm.patch import Dense, LowRank, Patch, State
from ttabench.methods import checkpoints
from ttabench.methods.generative_adapter import GenerativeAdapterSettings, released
from ttabench.methods.generative_adapter.generator import by_eigenvectors, directions, learned_directions
from ttabench.methods.generative_adapter.method import GenerativeAdapter
from ttabench.methods.generative_adapter.parallel import Row, Rows, row_logprobs
from ttabench.methods.peft_weights import save_lora
from ttabench.methods.registry import cost_of
from ttabench.methods.trainable import answer_loss
from ttabench.profiling.counting import Counter

TINY = GenerativeAdapterSettings(inner=8, rank=4, chunk=16, scale=1.0)
CLOSE = {"atol": 1e-5, "rtol": 1e-5}
NORMS: list[dict[str, Any]] = [{}, {"svd": "lowrank"}, {"norm": "frobenius"}, {"norm": "spectral"}]


def taught(lm: LM, **changes: Any) -> GenerativeAdapter:
    """One whose deltas are not zero."""
    method = GenerativeAdapter(lm, replace(TINY, **changes))
    with torch.no_grad(), torch.random.fork_rng():
        torch.manual_seed(1)
        for name, parameter in method.modules().named_parameters():
            if "outputs" in name:
                parameter.normal_(std=0.1)
    return method


def read(method: GenerativeAdapter, *texts: str) -> State:
    return method.adapt(method.begin(1), [[piece] for piece in observes(*texts)])


@torch.no_grad()
def logits(lm: LM, patch: Patch, text: str = PROMPTS[0]) -> Tensor:
    patch = encoded(lm, patch)
    ids = torch.tensor([[*text_start(lm, patch), *lm.encode(text)]])
    return forward(lm, patch, ids)[0][0]


def changes_of(patch: Patch) -> list[Tensor]:
    deltas = [delta for delta in patch.deltas.values() if isinstance(delta, LowRank)]
    assert deltas
    assert len(deltas) == len(patch.deltas)
    return [delta.b_BOR @ delta.a_BRI for delta in deltas]


# --- what is summed and what it becomes ------------------------------------------------------------------------------


@pytest.mark.parametrize("tokens", [0, 1, 15, 16, 17, 33, 160, 161, 1000])
def test_chunks_are_as_few_as_can_be_and_of_one_length(tokens: int) -> None:
    cut = TINY.cut(tokens)
    assert sum(cut) == tokens
    assert len(cut) == -(-tokens // 16)
    assert len(set(cut[:-1])) <= 1
    assert not cut or max(cut) - cut[-1] < len(cut)
    assert replace(TINY, strategy="concat").cut(tokens) == [tokens] * bool(tokens)
    assert replace(TINY, chunk_len=7).cut(tokens) == [7] * (tokens // 7) + [tokens % 7] * bool(tokens % 7)


@torch.no_grad()
def test_sums_of_chunks_that_the_base_reads_add_up_in_any_order() -> None:
    method = taught(tiny_llama(), strategy="parallel", buffer=False)
    first, second = method.lm.encode(TEXTS[0])[:16], method.lm.encode(TEXTS[1])[:16]
    one, two, both, turned = (
        method._read_chunks({}, [chunks])["sum"] for chunks in ([first], [second], [first, second], [second, first])
    )
    torch.testing.assert_close(one + two, both, **CLOSE)
    torch.testing.assert_close(both, turned, **CLOSE)
    in_turn = taught(tiny_llama())
    ahead, back = (in_turn._read_chunks({}, [chunks])["sum"] for chunks in ([first, second], [second, first]))
    assert float((ahead - back).abs().max()) > 1e-3
    assert float((ahead - both).abs().max()) > 1e-3


@pytest.mark.parametrize("changes", NORMS)
def test_nothing_read_is_no_delta_and_an_empty_piece_is_nothing(changes: dict[str, Any]) -> None:
    lm = tiny_llama()
    method = taught(lm, **changes)
    sums = torch.zeros(1, 8, 8)
    with torch.no_grad():
        assert not changes_of(Patch(deltas={"one": method.networks.generators_of(0)[0][1].delta(sums)}))[0].any()
    empty = method.adapt(method.begin(1), [[Observe(text="")]])
    assert not empty.tensors
    assert not method.patch(empty, []).deltas
    state = read(method, TEXTS[0])
    again = method.adapt(state, [[Observe(text="", joiner="")]])
    assert all(torch.equal(again.tensors[name], each) for name, each in state.tensors.items())


@pytest.mark.parametrize("tokens", [1, 3, 16])
@torch.no_grad()
def test_singular_values_are_one_and_as_many_as_there_were_tokens(tokens: int) -> None:
    """A context shorter than the rank has directions for its own tokens, none for noise, unless noise is wanted."""
    lm = tiny_llama()
    ids = lm.encode(TEXTS[0])[:tokens]
    for tol, wanted in ((1e-5, min(4, tokens)), (0.0, 4)):
        method = taught(lm, rank_tol=tol)
        left, right = directions(method._read_chunks({}, [[ids]])["sum"][0], method.settings)
        values = torch.linalg.svdvals(left @ right)[0]
        torch.testing.assert_close(values[:wanted], torch.ones(wanted), **CLOSE)
        assert float(values[wanted:].abs().max()) < 1e-5


def test_eigenvectors_give_the_singular_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products of left and right vectors are told whatever their signs; of noise and of nothing, zeros."""
    settings = GenerativeAdapterSettings(inner=24, inner_keys=32, rank=16)
    draws = torch.Generator().manual_seed(0)
    few, many, none = (torch.randn(24, n, generator=draws) @ torch.randn(n, 32, generator=draws) for n in (3, 40, 0))
    sums = torch.stack([few, many, none])
    left, right = directions(sums, settings)
    monkeypatch.setattr(torch.linalg, "svd", by_eigenvectors)
    again, to_right = directions(sums, settings)
    torch.testing.assert_close(again @ to_right, left @ right, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("changes", [*NORMS, {"targets": ("q_proj", "v_proj", "down_proj")}, {"inner_keys": 6}])
def test_hooked_is_merged_is_the_equation(changes: dict[str, Any]) -> None:
    lm = tiny_llama()
    method, dense = taught(lm, **changes), taught(lm, **changes, merge=True)
    state = read(method, *TEXTS)
    patch, summed = method.patch(state, []), dense.patch(state, [])
    assert all(isinstance(delta, Dense) for delta in summed.deltas.values())
    wanted = logits(lm, patch)
    torch.testing.assert_close(logits(lm, summed), wanted, atol=1e-4, rtol=1e-4)
    with merged(lm, patch) as rest:
        torch.testing.assert_close(logits(lm, rest), wanted, atol=1e-4, rtol=1e-4)
    assert float((wanted - logits(lm, Patch())).abs().max()) > 1e-2


@pytest.mark.parametrize("make", [tiny_llama, tiny_gpt2, tiny_opt])
def test_by_default_the_output_projection_of_attention_is_adapted(make: Any) -> None:
    lm = make()
    names = [name for own in GenerativeAdapter(lm, TINY).networks.names for name in own]
    assert len(names) == lm.layers
    assert all(name.endswith(("attn.o_proj", "attn.c_proj", "attn.out_proj")) for name in names)


def test_a_run_is_one_text_where_it_is_buffered() -> None:
    """Two short pieces in one chunk; and a later run goes on."""
    lm = tiny_llama()
    buffered, apart = taught(lm, buffer=True, chunk=400), taught(lm, chunk=400)
    whole = read(apart, TEXTS[0] + "\n\n" + TEXTS[1])
    together = read(buffered, *TEXTS[:2])
    torch.testing.assert_close(together.tensors["sum"], whole.tensors["sum"], **CLOSE)
    assert float((read(apart, *TEXTS[:2]).tensors["sum"] - whole.tensors["sum"]).abs().max()) > 1e-3
    on = buffered.adapt(together, [observes(TEXTS[2])])
    assert on.meta["tokens_read"] == [sum(together.meta["tokens_read"]) + len(lm.encode("\n\n" + TEXTS[2]))]


def test_finalized_deltas_are_those_of_the_whole_state_and_read_no_more() -> None:
    lm = tiny_llama()
    method, whole = taught(lm, finalize=True), taught(lm)
    state, kept = read(method, *TEXTS), read(whole, *TEXTS)
    for one, other in zip(*(changes_of(m.patch(s, [])) for m, s in ((method, state), (whole, kept))), strict=True):
        assert torch.equal(one, other)
    assert state.nbytes == kept.nbytes - 2 * 8 * 8 * 4
    with pytest.raises(UserError, match="finalize=true"):
        method.adapt(state, [observes(TEXTS[0])])


def test_reading_takes_the_memory_of_a_chunk() -> None:
    def peak(texts: int) -> int:
        method = taught(tiny_llama())
        with torch.no_grad(), Counter() as counter:
            read(method, " ".join(TEXTS * texts))
        return counter.peak_tensor_bytes

    assert peak(12) <= 1.1 * peak(3)


# --- training --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("changes", NORMS)
@pytest.mark.parametrize("make", [tiny_llama, tiny_gpt2])
@torch.no_grad()
def test_chunks_in_one_forward_are_chunks_one_by_one(make: Any, changes: dict[str, Any]) -> None:
    """NLL of every token of every chunk, and of texts behind all of them: layer by layer as in use, for two readers."""
    method = taught(make(), **changes)
    lm, chunks, asked, wanted = method.lm, list[Row](), list[Row](), list[Tensor]()
    for owner, texts in enumerate((TEXTS, TEXTS[:2])):
        read_in = method._chunks([lm.encode(text) for text in texts], False)
        tensors: dict[str, Tensor] = {}
        for at, ids in enumerate(read_in):
            chunks.append(Row(ids, owner, at, first=1, part="text"))
            wanted.append(_nll(lm, Patch(deltas=method.networks.deltas(tensors)), ids))
            tensors = method._read_chunks(tensors, [[ids]])
        asked.append(Row(lm.encode(PROMPTS[0]), owner, len(read_in), first=1, part="text"))
        wanted.append(_nll(lm, Patch(deltas=method.networks.deltas(tensors)), asked[-1].ids))
    found = row_logprobs(method.networks, Rows(chunks, asked))
    first = sum(row.owner == 0 for row in chunks)
    in_order = [*found[:first], found[len(chunks)], *found[first : len(chunks)], found[-1]]
    for ours, theirs in zip(in_order, wanted, strict=True):
        torch.testing.assert_close(ours, theirs, atol=2e-6, rtol=2e-6)


def _nll(lm: LM, patch: Patch, ids: list[int]) -> Tensor:
    out = forward(lm, patch, torch.tensor([ids]))[0][0, :-1].log_softmax(-1)
    return out.gather(1, torch.tensor(ids[1:])[:, None])[:, 0]


@pytest.mark.parametrize("changes", [*NORMS, {"strategy": "parallel"}, {"buffer": True}, {"strategy": "concat"}])
@torch.no_grad()
def test_the_loss_of_answers_is_that_of_use(changes: dict[str, Any]) -> None:
    """Also where questions stand between pieces."""
    method = taught(tiny_llama(), **changes)
    whole, other = episode("a", 3), episode("b", 2)
    mixed = Episode(key="m", steps=(*whole.observes(), *other.asks(), *other.observes(), *whole.asks()))
    for one in ([whole], [other], [mixed], [whole, other, mixed]):
        wanted = answer_loss(method, one)
        torch.testing.assert_close(method.loss_parts(one)["answer"], wanted, atol=1e-5, rtol=1e-5)
    assert method.validate([whole, other])["answer_own"] == pytest.approx(float(answer_loss(method, [whole, other])))


def test_two_objectives_are_weighed_by_tokens_or_summed() -> None:
    episodes = [episode("a", 3), episode("b", 2)]

    def parts(**changes: Any) -> dict[str, Tensor]:
        torch.manual_seed(3)
        return taught(tiny_llama(), **changes).loss_parts(episodes)

    whole, summed = parts(objective="both"), parts(objective="both", loss_weighting="sum")
    assert set(whole) == set(summed) == {"completion", "reconstruction"}
    completion, again = parts(objective="completion"), parts(objective="reconstruction")
    assert set(completion) | set(again) == set(whole)
    torch.testing.assert_close(summed["completion"], completion["completion"], **CLOSE)
    torch.testing.assert_close(summed["reconstruction"], again["reconstruction"], **CLOSE)
    shares = {name: float((whole[name] / summed[name]).detach()) for name in whole}
    assert sum(shares.values()) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("objective", ["answer", "both", "reconstruction", "completion"])
def test_a_part_of_the_episodes_at_a_time_gives_the_same_gradient(objective: Any) -> None:
    episodes, found = [episode("a", 3), episode("b", 2)], []
    for parts in (1, 2):
        method = taught(tiny_llama(), objective=objective, norm="frobenius", chunk=400)
        torch.manual_seed(0)
        method.accumulate_gradients(episodes, parts)
        found.append([parameter.grad for parameter in method.modules().parameters()])
    if objective in ("answer", "completion"):  # a stretch is drawn anew
        for one, other in zip(*found, strict=True):
            torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-4)


def test_nothing_to_predict_is_refused() -> None:
    method = taught(tiny_llama(), objective="completion", buffer=True, chunk=400)
    with pytest.raises(UserError, match="nothing is learned"):
        method.accumulate_gradients([episode("a", 3)])


def test_singular_values_too_near_to_tell_apart_leave_the_delta_out() -> None:
    method = taught(tiny_llama())
    generator = method.networks.generators_of(0)[0][1]
    sums = torch.stack([torch.eye(8), torch.diag(torch.arange(1.0, 9.0))]).requires_grad_()
    delta = generator.delta(sums, learning=True)
    change = delta.b_BOR @ delta.a_BRI
    assert not change[0].any()
    assert change[1].any()
    change.sum().backward()  # type: ignore[no-untyped-call]
    assert sums.grad is not None
    assert bool(sums.grad.isfinite().all())


@pytest.mark.parametrize("shape", [(5, 5), (7, 4), (4, 7)])
@pytest.mark.parametrize("tokens", [2, 9])
def test_the_exact_gradient_is_that_of_the_decomposition(shape: tuple[int, int], tokens: int) -> None:
    """Of sums of many tokens, and of fewer than the rank; two rows at once."""
    settings = replace(TINY, rank=3, inner=8, gradient="exact")
    drawn = torch.Generator().manual_seed(0)
    values, keys = (torch.randn(2, tokens, size, generator=drawn, dtype=torch.float64) for size in shape)

    def product(values: Tensor, keys: Tensor) -> Tensor:
        left, right = learned_directions(values.mT @ keys, settings)
        return left @ right

    wanted = torch.linalg.svd(values.mT @ keys)
    rank = min(3, tokens)
    torch.testing.assert_close(product(values, keys), wanted[0][..., :rank] @ wanted[2][..., :rank, :])
    inputs = (values.requires_grad_(), keys.requires_grad_())
    assert torch.autograd.gradcheck(product, inputs, eps=1e-6, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("targets", [(), ("q_proj", "v_proj", "up_proj", "down_proj")])
def test_an_aligned_start_gives_deltas_of_a_share_of_their_maps(targets: tuple[str, ...]) -> None:
    lm = tiny_llama()
    method = GenerativeAdapter(lm, replace(TINY, init="aligned", targets=targets, chunk=400))
    before = [parameter.clone() for parameter in lm.model.parameters()]
    method.prepare_training([episode("a", 3), episode("b", 2)])
    assert all(torch.equal(one, other) for one, other in zip(before, lm.model.parameters(), strict=True))
    moved = float((logits(lm, method.patch(read(method, *TEXTS), [])) - logits(lm, Patch())).abs().max())
    assert 1e-2 < moved < 10
    again = GenerativeAdapter(lm, method.settings)
    again.prepare_training([episode("a", 3), episode("b", 2)])
    for one, other in zip(method.modules().parameters(), again.modules().parameters(), strict=True):
        assert torch.equal(one, other)


def test_an_aligned_start_on_nothing_that_is_read_is_refused() -> None:
    method = GenerativeAdapter(tiny_llama(), replace(TINY, init="aligned", objective="reconstruction"))
    with pytest.raises(UserError, match="read nothing, and an aligned training"):
        method.prepare_training([Episode(key="a", steps=episode("a", 1).asks())])


@pytest.mark.parametrize("make", [tiny_llama, tiny_gpt2, tiny_opt])
def test_a_released_start_is_the_base_model_and_an_aligned_one_is_not(make: Any) -> None:
    lm = make()
    for init, wanted in (("released", False), ("aligned", True)):
        method = GenerativeAdapter(lm, replace(TINY, init=init))
        method.prepare_training([episode("a", 3)])
        assert any(bool(change.any()) for change in changes_of(method.patch(read(method, *TEXTS), []))) == wanted


# --- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "wrong"),
    [
        ({"rank": 9}, r"rank must be no larger than the width of the outer products \(inner\), 8, got 9"),
        ({"inner_keys": 3}, r"\(inner\), 3, got 4"),
        ({"inner": 0}, "inner must be at least 1, got 0"),
        ({"chunk": 0}, "chunk must be at least 1, got 0"),
        ({"rank_tol": -1.0}, "rank_tol must be at least 0, got -1.0"),
        ({"norm": "frobenius", "finalize": True}, "give norm=svd, got frobenius"),
    ],
)
def test_impossible_settings(changes: dict[str, Any], wrong: str) -> None:
    with pytest.raises(ValueError, match=wrong):
        replace(TINY, **changes)
    assert replace(TINY, norm="frobenius", rank=9).delta_rank == 8


def test_a_sum_that_is_not_finite_names_its_map() -> None:
    method = taught(tiny_llama())
    with torch.no_grad():
        method.networks.generators_of(1)[0][1].values.fill_(1e38)
    with pytest.raises(UserError, match=r"model\.layers\.1\.self_attn\.o_proj is not finite"):
        read(method, *TEXTS)


def test_a_chunk_that_does_not_fit_the_model_says_what_helps() -> None:
    method = taught(tiny_llama(), strategy="concat")
    with pytest.raises(UserError, match="--set chunk=512"):
        read(method, "x" * 600)


# --- out of here, and in ---------------------------------------------------------------------------------------------


def test_weights_in_the_released_names_are_taken_and_others_named() -> None:
    theirs, method = taught(tiny_llama()), GenerativeAdapter(tiny_llama(), TINY)
    names = [name for own in theirs.networks.names for name in own]
    ours = {part: name for name, part in released.PARTS.items()}
    tensors = {"model.embed_tokens.weight": torch.zeros(3)}
    for key, parameter in theirs.networks.named_parameters():
        _, place, part = key.split(".")
        name = names[int(place)].replace(".self_attn", ".base_layer.self_attn")
        tensors[f"base_model.model.{name}.{ours[part]}.weight"] = parameter.detach()
    released.take(method.networks, tensors)
    one, other = (changes_of(each.patch(read(each, *TEXTS), [])) for each in (theirs, method))
    assert all(torch.equal(*pair) for pair in zip(one, other, strict=True))
    some = dict(list(tensors.items())[:-1])
    with pytest.raises(UserError, match=r"generators\.1\.outputs is missing"):
        released.take(method.networks, some)
    with pytest.raises(UserError, match="not"):
        released.take(GenerativeAdapter(tiny_llama(), replace(TINY, inner=6)).networks, tensors)


@torch.no_grad()
def of_peft(base: LM, folder: Path) -> Tensor:
    """Logits of the prompt under the adapter in a folder, as peft loads it."""
    base.model.set_attn_implementation("sdpa")
    loaded = PeftModel.from_pretrained(base.model, folder)
    found: Tensor = loaded(input_ids=torch.tensor([[*base.start_ids, *base.encode(PROMPTS[0])]])).logits[0]
    return found


@pytest.mark.parametrize("changes", [*NORMS, {"targets": ("c_proj",)}, {"targets": ("v_proj", "up_proj")}])
@pytest.mark.parametrize("make", [tiny_llama, tiny_gpt2])
def test_peft_loads_what_was_adapted(make: Any, changes: dict[str, Any], tmp_path: Path) -> None:
    lm = make()
    names = {name.rpartition(".")[2] for name in lm.linear_names()}
    if not names.issuperset(changes.get("targets", ())):
        return
    method = taught(lm, **changes)
    patch = method.patch(read(method, *TEXTS), [])
    save_lora(lm, patch, tmp_path)
    torch.testing.assert_close(of_peft(make(), tmp_path), logits(lm, patch), atol=1e-5, rtol=1e-5)
    assert float((logits(lm, patch) - logits(lm, Patch())).abs().max()) > 1e-2


def test_an_exported_state_has_the_numbers_of_its_cost_and_goes_on(
    ttabench: Command, tiny_base: Path, tmp_path: Path
) -> None:
    """Two files, one after the other, and peft's reading of the second state."""
    method = taught(tiny_llama(), rank=3)
    checkpoints.save(method, tmp_path / "trained")
    for number, text in enumerate(TEXTS[:2]):
        (tmp_path / f"{number}.txt").write_text(text)
    words: list[object] = ["--method", "generative_adapter", "--model", tiny_base, "--checkpoint", tmp_path / "trained"]
    first = ttabench("adapt", *words, "--context", tmp_path / "0.txt", "--out", tmp_path / "one", "--json").json()
    second = ttabench(
        "adapt",
        *words,
        "--state",
        tmp_path / "one",
        "--context",
        tmp_path / "1.txt",
        "--out",
        tmp_path / "two",
        "--json",
    ).json()
    assert first["state_bytes"] == second["state_bytes"]
    state = method.adapt(method.adapt(method.begin(1), [observes(TEXTS[0])]), [observes(TEXTS[1])])
    ours = logits(method.lm, method.patch(state, []))
    torch.testing.assert_close(of_peft(tiny_llama(), Path(second["peft"])), ours, atol=1e-5, rtol=1e-5)
    stored = load_file(Path(second["peft"]) / "adapter_model.safetensors")
    work = Workload(pieces=(len(TEXTS[0]), len(TEXTS[1])), prompt_tokens=1, new_tokens=1)
    shape = shape_from(method.lm.config.to_dict(), "llama")
    paper = cost_of("generative_adapter", {**asdict(method.settings), "finalize": True}, shape, work)
    assert paper is not None
    assert sum(each.numel() for each in stored.values()) == paper.state_floats == 2 * 3 * (32 + 32)
