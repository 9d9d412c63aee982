"""States with keys and values as packed integers (`--bits`)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.conftest import Command, error_line
from tests.tiny import tiny_llama
from ttabench.core.errors import UserError
from ttabench.core.types import Chunk
from ttabench.lm.patch import State
from ttabench.methods.quantised import GROUP_SLOTS, pack_state, quantise_states, unpack_state
from ttabench.methods.registry import find_method
from ttabench.methods.states import load_state, save_state

TEXT = "Mira Tolen keeps nine grey geese by the mill, and a heron. " * 3


def random_state(*shape: int, counts: Tensor | None = None) -> State:
    generator = torch.Generator().manual_seed(len(shape))
    keys, values = (torch.randn(shape, generator=generator) for _ in range(2))
    more = {} if counts is None else {"counts": counts}
    return State(1, {"keys": keys, "values": values, "next": torch.tensor([3]), **more})


RAGGED = torch.tensor([[[70, 1]], [[0, 40]]], dtype=torch.int32)


@pytest.mark.parametrize("bits", [8, 4, 2])
@pytest.mark.parametrize(
    "state",
    [random_state(3, 2, 2, 75, 8), random_state(111, 6, counts=RAGGED), random_state(1, 2, 1, 8)],
    ids=["dense", "ragged", "one slot"],
)
def test_numbers_are_rounded_to_the_steps_of_their_group(state: State, bits: int) -> None:
    packed = pack_state(state, bits, torch.bfloat16)
    found = unpack_state(packed, torch.float32)
    assert found.tensors.keys() == state.tensors.keys()
    for name in ("keys", "values"):
        assert found.tensors[name].shape == state.tensors[name].shape
        error = (found.tensors[name] - state.tensors[name]).abs().max()
        widest = state.tensors[name].max() - state.tensors[name].min()
        assert error <= widest / (2**bits - 1) / 2 + 0.02
    again = unpack_state(pack_state(found, bits, torch.bfloat16), torch.float32)
    torch.testing.assert_close(again.tensors["keys"], found.tensors["keys"], atol=1e-6, rtol=0)


def test_channels_of_keys_and_tokens_of_values_have_scales_of_their_own() -> None:
    """A large channel does not change the others, nor a large token."""
    state = random_state(1, 1, 1, 1 + 2 * GROUP_SLOTS, 8)
    large = {name: tensor.clone() for name, tensor in state.tensors.items()}
    large["keys"][..., 0] *= 1000
    large["values"][..., 5, :] *= 1000
    plain, outlier = (
        unpack_state(pack_state(State(1, tensors), 4, torch.bfloat16), torch.float32).tensors
        for tensors in (state.tensors, large)
    )
    assert torch.equal(plain["keys"][..., 1:], outlier["keys"][..., 1:])
    others = [slot for slot in range(1 + 2 * GROUP_SLOTS) if slot != 5]
    assert torch.equal(plain["values"][..., others, :], outlier["values"][..., others, :])


@pytest.mark.parametrize("bits", [8, 4, 2])
def test_bytes_are_those_of_bits_and_scales(bits: int) -> None:
    groups, width = 4, 64
    state = random_state(2, 1, 3, 1 + groups * GROUP_SLOTS, width)
    packed = pack_state(state, bits, torch.bfloat16)
    heads, slots = 6, groups * GROUP_SLOTS
    codes = 2 * slots * width * bits // 8
    scales = groups * width * 2 * 2 + slots * 2 * 2
    exact = 2 * width * 2
    layouts = 2 * 6 * 8
    assert (
        packed.nbytes == heads * (codes + scales + exact) + layouts + state.tensors["next"].nbytes
    )


@pytest.mark.parametrize("method", ["icl", "snapkv", "kvzip", "h2o", "attention_matching"])
def test_a_packed_state_is_read_on_and_answers_after_it_was_stored(
    method: str, tmp_path: Path
) -> None:
    lm, spec = tiny_llama(), find_method(method)
    settings = spec.test_settings or spec.Settings()
    plain = spec.load()(lm, settings)
    packed = quantise_states(spec.load()(lm, settings), 8)
    states = []
    for each in (plain, packed):
        state = each.adapt(each.begin(1), [[Chunk(text=TEXT)]])
        if each is packed:
            save_state(tmp_path, state, {})
            state = load_state(tmp_path, {})
        states.append(each.adapt(state, [[Chunk(text="Ada Voss lives in Port Ansel.")]]))
    prefixes = [m.patch(s, []).prefix for m, s in zip((plain, packed), states, strict=True)]
    assert prefixes[0] is not None
    assert prefixes[1] is not None
    assert states[1].nbytes < states[0].nbytes
    if method == "icl":  # evictions may choose other slots
        for exact, rounded in zip(*(p.keys_LBHPD for p in prefixes), strict=True):
            assert 0 < (exact - rounded).abs().max() < 0.02 * exact.abs().max()


def test_the_file_of_a_state_has_the_reported_bytes(ttabench: Command, tmp_path: Path) -> None:
    text = tmp_path / "notes.txt"
    text.write_text(TEXT * 3)
    for bits in (8, 4, 2):
        out = tmp_path / str(bits)
        ran = ttabench(f"adapt --method icl --bits {bits} --context", text, "--out", out)
        assert ran.code == 0, ran.err
        header = json.loads((out / "state.json").read_text())
        file = out / "state.safetensors"
        names = int.from_bytes(file.read_bytes()[:8], "little") + 8  # the header of the format
        assert file.stat().st_size - names == pytest.approx(header["bytes"], rel=0.01)
        answered = ttabench("ask --state", out, "Who keeps geese?")
        assert answered.code == 0, answered.err
        assert "--bits" in error_line(ttabench("ask --state", out, "Who?", "--bits", 10 - bits))


@pytest.mark.parametrize("more", ["--method icl --bits 3", "--method templora --bits 4"])
def test_other_bits_and_states_without_keys_are_refused(
    ttabench: Command, tmp_path: Path, more: str
) -> None:
    ran = ttabench(f"eval {more} --task streamingqa --limit 1 --out {tmp_path}")
    assert ran.code == 2
    assert "--bits" in error_line(ran)


def test_bits_in_the_analytic_cost(ttabench: Command) -> None:
    words = "profile --analytic --model llama-2-7b --prefill 8k --json --methods"
    (plain,), (packed,) = (
        next(iter(ttabench(f"{words} icl --dtype bfloat16{bits}").json().values()))
        for bits in ("", " --bits 4")
    )
    assert packed["state_bytes"] / plain["state_bytes"] == pytest.approx(0.28, abs=0.02)
    assert packed["total_flops"] == plain["total_flops"]
    assert "mac" in error_line(ttabench(f"{words} icl,mac --bits 4"))


def test_a_sweep_names_the_bits_of_a_run(ttabench: Command, tmp_path: Path) -> None:
    words = f"sweep --methods icl --tasks streamingqa --bits 4 --dry-run --json --out {tmp_path}"
    (row,) = ttabench(words).json()["runs"]
    assert "bits=4" in row["method"]


def test_the_kept_share_is_that_of_16_bits(ttabench: Command, tmp_path: Path) -> None:
    shares = []
    for bits in (8, 4):
        words = f"eval --method icl --bits {bits} --task streamingqa --limit 2 --json --out"
        (record,) = ttabench(words, tmp_path).json()["runs"]
        shares.append(record["cost"]["kept_share"])
    assert 0.2 < shares[1] < 0.45 < shares[0] < 0.75


def test_the_kept_share_of_a_pair_is_unknown(ttabench: Command, tmp_path: Path) -> None:
    words = "eval --method icl+templora --set templora_epochs=0 --bits 4 --limit 1"
    (record,) = ttabench(f"{words} --json --out", tmp_path).json()["runs"]
    assert record["cost"].get("kept_share") is None


def test_padding_of_a_batch_is_not_quantised() -> None:
    spec = find_method("icl")
    with pytest.raises(UserError, match="icl"):
        quantise_states(spec.load()(tiny_llama(), spec.Settings()), 4).begin(2)
