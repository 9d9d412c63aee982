"""The generators of all adapted linear maps of a base model, and what they read.

    with networks.reading(rows, real_BT) as sums: ...forward...          S of every map, from what enters its layer
    tensors = networks.kept(sum_NBRK)                                    the sums and what is kept of their deltas
    networks.deltas(tensors)                                             weight deltas by the name of their map

Shape letters: N adapted maps · L layers · M maps of a layer · B rows · T tokens · R values · K keys · Q rank ·
    I/O features in and out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from ttabench.core.errors import UserError
from ttabench.lm.forward.capture import Place, observe_inputs
from ttabench.lm.model import LM
from ttabench.lm.patch import LowRank
from ttabench.methods.generative_adapter.generator import Generator
from ttabench.methods.generative_adapter.settings import GenerativeAdapterSettings
from ttabench.methods.parts.lora import by_layer, target_names

OUT = ("o_proj", "out_proj", "c_proj", "dense")
"""Last parts of the names of the output projection of attention, by architecture."""
ATTENTION = ("self_attn", "attn", "attention")


class GenerativeAdapterNetworks(nn.Module):
    """One `Generator` a map, with weights drawn from `settings.seed`.

    Args:
        lm: the base model.
        settings: sizes.

    Attributes:
        names: names of the adapted linear maps, by layer.

    Raises:
        UserError: the base has none of the linear maps that `targets` names.
    """

    def __init__(self, lm: LM, settings: GenerativeAdapterSettings) -> None:
        super().__init__()
        self.lm, self.settings = lm, settings
        self.names = by_layer(lm, target_names(lm, settings.targets) if settings.targets else output_maps(lm))
        if any(len({lm.linear_shape(name) for name in place}) > 1 for place in zip(*self.names, strict=True)):
            fault = f"{lm.name} ({lm.config.model_type}) has linear maps of one name and unequal shapes"
            raise UserError(f"{fault} in its layers.", "Use templora, or other --set targets.")
        with torch.random.fork_rng():
            torch.manual_seed(settings.seed)
            made = [[Generator(lm.hidden_size, *lm.linear_shape(name), settings) for name in own] for own in self.names]
        self.generators = nn.ModuleList(own_map for own in made for own_map in own).to(lm.device)
        self._layers = made
        self.eval()

    def generators_of(self, layer: int) -> Sequence[tuple[str, Generator]]:
        """The maps of a layer, each with its generator."""
        return list(zip(self.names[layer], self._layers[layer], strict=True))

    @contextmanager
    def reading(self, rows: int, real_BT: Tensor | None) -> Iterator[list[Tensor]]:
        """Sum the outer products of what the forward of the block reads: [B, R, K] of every map, in order.

        Args:
            rows: batch rows of the forward.
            real_BT: false where padded; None where nothing is.
        """
        sums: list[Tensor] = []

        def see(layer: Place, hidden_BTC: Tensor) -> None:
            assert isinstance(layer, int)
            sums.extend(generator.summed(hidden_BTC, real_BT) for _, generator in self.generators_of(layer))

        with observe_inputs(self.lm, see, rows, blocks=range(self.lm.layers)):
            yield sums

    def checked(self, sum_NBRK: Tensor) -> Tensor:
        """The same sums.

        Raises:
            UserError: one is not finite; the message names its map.
        """
        finite_N = torch.isfinite(sum_NBRK.sum((1, 2, 3)))
        if not bool(finite_N.all()):
            name = [name for own in self.names for name in own][int(finite_N.logical_not().nonzero()[0, 0])]
            fault = f"What generative_adapter sums for {name} is not finite (NaN or infinity)."
            raise UserError(fault, "Check its checkpoint and the weights, or try --dtype float32.")
        return sum_NBRK

    def kept(self, sum_NBRK: Tensor) -> dict[str, Tensor]:
        """The sums, and with `norm=svd` the factors of their deltas, `a0` [L, B, Q, I] and `b0` [L, B, O, Q] of the
        first map of every layer, `a1` and `b1` of the second; the others are made anew when something is asked."""
        if self.settings.norm != "svd":
            return {"sum": sum_NBRK}
        made = self._made(sum_NBRK)
        tensors = {"sum": sum_NBRK}
        for place in range(len(self.names[0])):
            own = [deltas[place] for deltas in made]
            tensors[f"a{place}"] = torch.stack([delta.a_BRI for delta in own])
            tensors[f"b{place}"] = torch.stack([delta.b_BOR for delta in own])
        return tensors

    def deltas(self, tensors: Mapping[str, Tensor]) -> dict[str, LowRank]:
        """Deltas of all adapted maps, by name; none of a text of which nothing was read."""
        if not tensors:
            return {}
        if self.settings.norm != "svd":
            made = self._made(tensors["sum"])
            return {name: delta for own in zip(self.names, made, strict=True) for name, delta in zip(*own, strict=True)}
        return {
            name: LowRank(tensors[f"a{place}"][layer], tensors[f"b{place}"][layer])
            for layer, own in enumerate(self.names)
            for place, name in enumerate(own)
        }

    def _made(self, sum_NBRK: Tensor) -> list[list[LowRank]]:
        """Deltas by layer."""
        sums = iter(sum_NBRK)
        return [[generator.delta(next(sums)) for generator in own] for own in self._layers]


def output_maps(lm: LM) -> list[str]:
    """The output projection of attention of every layer."""
    parts = [(name, name.split(".")) for name in lm.linear_names()]
    return [name for name, (*_, owner, last) in parts if owner in ATTENTION and last in OUT]
