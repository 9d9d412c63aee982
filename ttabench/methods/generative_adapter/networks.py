"""The generators of all adapted linear maps of a base model, and what they read.

Shape letters: N adapted maps, one a layer · B rows · T tokens · R values · K keys · Q rank ·
    I/O features in and out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import repeat

import torch
from torch import Tensor, nn

from ttabench.core.errors import UserError
from ttabench.lm.forward.patching import Place, check_fits, deltas_applied, observe_inputs
from ttabench.lm.forward.tokens import pad
from ttabench.lm.forward.window import Window
from ttabench.lm.model import LM
from ttabench.lm.patch import LowRank
from ttabench.methods.generative_adapter import GenerativeAdapterSettings
from ttabench.methods.generative_adapter.generator import Generator, directions
from ttabench.methods.parts.lora import by_layer

OUT = ("o_proj", "out_proj", "c_proj", "dense")
"""Last parts of the names of the output projection of attention, by architecture."""
ATTENTION = ("self_attn", "attn", "attention")


class GenerativeAdapterNetworks(nn.Module):
    """One `Generator` a layer, of its output projection of attention, with weights drawn from `settings.seed`."""

    def __init__(self, lm: LM, settings: GenerativeAdapterSettings) -> None:
        super().__init__()
        self.lm, self.settings = lm, settings
        self.names = [name for (name,) in by_layer(lm, output_maps(lm))]
        if len({lm.linear_shape(name) for name in self.names}) > 1:
            fault = f"{lm.name} ({lm.config.model_type}) has output projections of unequal shapes in its layers"
            raise UserError(f"{fault}.", "Use templora.")
        with torch.random.fork_rng():
            torch.manual_seed(settings.seed)
            self.by_layer = [Generator(lm.hidden_size, *lm.linear_shape(name), settings) for name in self.names]
        self.generators = nn.ModuleList(self.by_layer).to(lm.device)
        self.eval()

    def read(
        self, rows: Sequence[list[int]], deltas: Mapping[str, LowRank], *, summed: bool = True
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Texts, each by itself, under weight deltas: their ids [B, T], padded behind, their last hidden states, and
        where `summed` the outer products [N, B, R, K] of what they are, map by map."""
        ids_BT, real_BT = (padded.to(self.lm.device) for padded in pad(rows, self.lm.pad_id, "right"))
        check_fits(self.lm, None, real_BT.sum(1), "Cut it: --set chunk=512, or fewer tokens.")
        sums: list[Tensor] = []

        def see(layer: Place, hidden_BTC: Tensor) -> None:
            assert isinstance(layer, int)
            sums.append(self.by_layer[layer].summed(hidden_BTC, real_BT))

        seen = range(self.lm.layers) if summed else ()
        with deltas_applied(self.lm, deltas, len(rows)), observe_inputs(self.lm, see, seen, len(rows)):
            # padding stands behind the text, where causal attention never looks
            hidden_BTC = Window(self.lm, None, len(rows), retain=False).feed(ids_BT)
        return ids_BT, hidden_BTC, torch.stack(sums) if summed else None

    def kept(self, sum_NBRK: Tensor) -> dict[str, Tensor]:
        """The sums, and with `norm=svd` the factors of their deltas, `a0` [N, B, Q, I] and `b0` [N, B, O, Q]; others
        are made anew when something is asked."""
        finite_N = torch.isfinite(sum_NBRK.sum((1, 2, 3))).tolist()
        if not all(finite_N):
            fault = f"What generative_adapter sums for {self.names[finite_N.index(False)]} is not finite"
            raise UserError(
                f"{fault} (NaN or infinity).", "Check its checkpoint and the weights, or try --dtype float32."
            )
        if self.settings.norm != "svd":
            return {"sum": sum_NBRK}
        made = self.made(sum_NBRK).values()
        a_NBQI, b_NBOQ = torch.stack([one.a_BRI for one in made]), torch.stack([one.b_BOR for one in made])
        return {"sum": sum_NBRK, "a0": a_NBQI, "b0": b_NBOQ}

    def deltas(self, tensors: Mapping[str, Tensor]) -> dict[str, LowRank]:
        """Deltas of all adapted maps, by name; none of a text of which nothing was read."""
        if not tensors or self.settings.norm != "svd":
            return self.made(tensors["sum"]) if tensors else {}
        return dict(zip(self.names, map(LowRank, tensors["a0"], tensors["b0"]), strict=True))

    def made(self, sum_NBRK: Tensor, *, learning: bool = False) -> dict[str, LowRank]:
        """The deltas that sums become; `learning`: by what gradients go through. Exact decompositions of all maps are
        one call, which a GPU does at once."""
        at_once = self.settings.norm == "svd" and not learning
        found = zip(*directions(sum_NBRK, self.settings), strict=True) if at_once else repeat(None)
        each = zip(self.names, self.by_layer, sum_NBRK, found, strict=False)
        return {name: generator.delta(own, learning=learning, found=known) for name, generator, own, known in each}


def output_maps(lm: LM) -> list[str]:
    """The output projection of attention of every layer."""
    parts = [(name, name.split(".")) for name in lm.linear_names()]
    return [name for name, (*_, owner, last) in parts if owner in ATTENTION and last in OUT]


VALUES = ("v_proj", "c_attn", "qkv_proj", "query_key_value")
"""Last parts of the names of what makes values; of a map that makes more they come last."""
SHARE = 0.1
"""How large deltas are when an aligned training begins, as a share of what their maps give."""


@torch.no_grad()
def align(networks: GenerativeAdapterNetworks, chunks: Sequence[list[int]]) -> None:
    """Begin with keys and queries, and values and outputs, in one space each, and deltas of `SHARE` of what their maps
    give."""
    lm = networks.lm
    with torch.random.fork_rng():
        torch.manual_seed(networks.settings.seed)
        for layer, generator in enumerate(networks.by_layer):
            generator.norm.copy_(_first_norm(lm, layer))
            nn.init.orthogonal_(generator.values)
            nn.init.orthogonal_(generator.queries)
            generator.outputs.copy_(generator.values.T)
            generator.keys.copy_(generator.queries @ _values_of(lm, layer, generator.queries.shape[1]))
    _scale(networks, chunks)


def _scale(networks: GenerativeAdapterNetworks, chunks: Sequence[list[int]]) -> None:
    """Set how large the deltas are."""
    lm, names = networks.lm, networks.names
    ids_BT, real_BT = (padded.to(lm.device) for padded in pad(chunks, lm.pad_id, "right"))
    kept: dict[Place, Tensor] = {}
    with observe_inputs(lm, kept.__setitem__, [*range(lm.layers), *names], len(chunks)):
        Window(lm, None, len(chunks), retain=False).feed(ids_BT)
    for layer, (name, generator) in enumerate(zip(names, networks.by_layer, strict=True)):
        delta, x_BTI = generator.delta(generator.summed(kept[layer], real_BT)), kept[name].float()
        added_BTO = x_BTI @ delta.a_BRI.mT @ delta.b_BOR.mT
        given_BTO = x_BTI @ _weight(lm, name).T
        ratio = given_BTO[real_BT].square().mean().sqrt() / added_BTO[real_BT].square().mean().sqrt()
        generator.outputs.mul_(SHARE * ratio)


def _first_norm(lm: LM, layer: int) -> Tensor:
    """The weight of the first norm of a layer."""
    sizes = (module._parameters.get("weight") for module in lm.blocks()[layer].modules())
    return next(size for size in sizes if size is not None and size.shape == (lm.hidden_size,)).float()


def _values_of(lm: LM, layer: int, features: int) -> Tensor:
    """[I, C]: what makes the values of a layer's attention, once a query head."""
    maps_a_layer = len(lm.linear_names()) // lm.layers
    own = lm.linear_names()[layer * maps_a_layer : (layer + 1) * maps_a_layer]
    name = next(name for name in own if name.rpartition(".")[2] in VALUES)
    weight_VC = _weight(lm, name)[-lm.kv_heads * lm.head_dim :]
    by_head = weight_VC.view(lm.kv_heads, lm.head_dim, -1)
    return by_head.repeat_interleave(lm.heads // lm.kv_heads, 0).reshape(features, -1)


def _weight(lm: LM, name: str) -> Tensor:
    """[O, I] of a linear map, float32."""
    module = lm.model.get_submodule(name)
    weight: Tensor | None = module._parameters["weight"]
    assert weight is not None
    return (weight if isinstance(module, nn.Linear) else weight.T).float()
