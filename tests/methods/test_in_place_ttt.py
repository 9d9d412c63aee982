"""In-Place TTT: the same as a plain model whose weights are changed by hand between chunks."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from itertools import chain

import pytest
import torch
from torch import Tensor

from tests.methods.reading import read
from tests.tiny import tiny_llama
from tests.tiny_methods import TEXTS, make_chunks
from ttabench.lm.forward.patching import forward, text_start
from ttabench.lm.forward.tokens import chunk_ids
from ttabench.methods.in_place_ttt import InPlaceSettings
from ttabench.methods.in_place_ttt.method import InPlaceTraining

TINY = InPlaceSettings(chunk=16, rate=0.05, every=1)


def by_hand(method: InPlaceTraining, ids: list[int], asked: list[int]) -> Tensor:
    """Logits of `asked` after all chunks, by transformers alone."""
    s, model = method.settings, deepcopy(method.lm.model)
    starts, seen = list(method.lm.start_ids), dict[str, Tensor]()
    downs = [model.get_submodule(name) for name in method.names]
    for number, (down, layer) in enumerate(zip(downs, model.model.layers, strict=True)):
        source = layer.mlp if s.made_of == "hidden" else model.model.layers[0]
        source.register_forward_pre_hook(
            lambda _, args, at=number: seen.update({f"x{at}": args[0]})
        )
        down.register_forward_pre_hook(lambda _, args, at=number: seen.update({f"z{at}": args[0]}))
    cache = None
    for begin in range(0, len(ids), s.chunk):
        chunk = ids[begin : begin + s.chunk]
        first = starts if cache is None else []
        whole = model(torch.tensor([[*first, *chunk]]), past_key_values=cache, use_cache=True)
        cache = whole.past_key_values if s.cache else None
        for number, down in enumerate(downs):
            x_TO, z_TI = (seen[f"{kind}{number}"][0, -len(chunk) :] for kind in "xz")
            taps_OK, reach = method.convolutions[number][:, 0], s.kernel // 2
            for place in range(len(chunk)):
                near = range(max(0, place - reach), min(len(chunk), place + reach + 1))
                mixed_O = sum(taps_OK[:, other - place + reach] * x_TO[other] for other in near)
                down.weight.data += s.rate * torch.outer(method.maps[number] @ mixed_O, z_TI[place])
    first = starts if cache is None else []
    logits: Tensor = model(torch.tensor([[*first, *asked]]), past_key_values=cache).logits[0]
    return logits


@torch.no_grad()
@pytest.mark.parametrize("made_of", ["hidden", "embedding"])
@pytest.mark.parametrize("cache", [True, False])
def test_it_is_a_model_whose_weights_are_changed_between_chunks(made_of: str, cache: bool) -> None:
    lm = tiny_llama()
    method = InPlaceTraining(lm, replace(TINY, made_of=made_of, cache=cache))
    for parameter in method.modules().parameters():
        parameter += 0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1))
    pieces = make_chunks(*TEXTS)
    ids = list(
        chain(*(chunk_ids(lm, piece, first=not number) for number, piece in enumerate(pieces)))
    )
    assert len(ids) % TINY.chunk, "the last chunk is a shorter one"
    patch, asked = (
        method.patch(read(method, *TEXTS), []),
        lm.encode("Who lives in Selby?", is_continuation=True),
    )
    asked = [*text_start(lm, patch), *asked]
    ours, _ = forward(lm, patch, torch.tensor([asked]))
    theirs = by_hand(method, ids, asked if cache else asked[len(lm.start_ids) :])
    torch.testing.assert_close(ours[0], theirs, atol=1e-4, rtol=1e-4)
    bare, _ = forward(lm, replace(patch, deltas={}), torch.tensor([asked]))
    assert (bare - ours).abs().max() > 1e-2


def test_the_change_of_a_chunk_is_clipped_to_a_norm() -> None:
    method = InPlaceTraining(tiny_llama(), replace(TINY, chunk=10_000, clip=1e-3))
    norms = read(method, *TEXTS).tensors["changes"].flatten(2).norm(dim=2)
    torch.testing.assert_close(norms, torch.full_like(norms, 1e-3))


def test_a_kernel_without_a_middle_is_refused() -> None:
    with pytest.raises(ValueError, match="kernel must be odd, got 4"):
        InPlaceSettings(kernel=4)
