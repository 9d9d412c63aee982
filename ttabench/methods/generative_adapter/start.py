"""Where a training may begin: keys and queries in one space, values and outputs in another.

    A2 = P, A1 = g P'        what a value is written as is what it was in the residual stream
    B2 = Q, B1 = M' Q'       what a key is compared as is what it would be in front of the map

P and Q are drawn with orthonormal rows, n weighs as the first norm of the layer. M makes of a hidden state what enters
the map: the values of attention, once a query head, for its output projection; nothing for a map that reads the stream.
Where the map writes elsewhere than to the stream, A1 goes through it. g makes each delta a share of what its map gives
on the first texts. The equations stay as they are: this is where gradients begin, not what is computed.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ttabench.lm.forward.capture import inputs_kept
from ttabench.lm.forward.tokens import pad
from ttabench.lm.forward.window import Window
from ttabench.lm.model import LM
from ttabench.methods.generative_adapter.generator import Generator
from ttabench.methods.generative_adapter.networks import GenerativeAdapterNetworks, output_maps

VALUES = ("v_proj", "c_attn", "qkv_proj", "query_key_value")
"""Last parts of the names of what makes values; of a map that makes more they come last."""


@torch.no_grad()
def align(networks: GenerativeAdapterNetworks, chunks: Sequence[list[int]]) -> None:
    """Begin with aligned spaces, and deltas of `init_share` of what their maps give.

    Args:
        networks: fresh ones.
        chunks: ids of a few texts as they are read.
    """
    out = set(output_maps(networks.lm))
    with torch.random.fork_rng():
        torch.manual_seed(networks.settings.seed)
        for layer in range(networks.lm.layers):
            for name, generator in networks.generators_of(layer):
                _align(networks.lm, layer, name, generator, writes_attention=name in out)
    _scale(networks, chunks)


def _align(lm: LM, layer: int, name: str, generator: Generator, *, writes_attention: bool) -> None:
    width, (features_in, features_out) = lm.hidden_size, lm.linear_shape(name)
    generator.norm.copy_(_first_norm(lm, layer))
    nn.init.orthogonal_(generator.values)
    nn.init.orthogonal_(generator.queries)
    back_CR = generator.values.T
    generator.outputs.copy_(back_CR if features_out == width else _weight(lm, name) @ back_CR)
    if writes_attention:
        generator.keys.copy_(generator.queries @ _values_of(lm, layer, features_in))
    elif features_in == width:
        generator.keys.copy_(generator.queries)


def _scale(networks: GenerativeAdapterNetworks, chunks: Sequence[list[int]]) -> None:
    """Set how large the deltas are."""
    lm, names = networks.lm, [name for own in networks.names for name in own]
    ids_BT, real_BT = (padded.to(lm.device) for padded in pad(chunks, lm.pad_id, "right"))
    with inputs_kept(lm, len(chunks), blocks=range(lm.layers), maps=names) as kept:
        Window(lm, None, len(chunks), retain=False).feed(ids_BT, filled_BT=real_BT)
    for layer in range(lm.layers):
        for name, generator in networks.generators_of(layer):
            delta, x_BTI = generator.delta(generator.summed(kept[layer][0], real_BT)), kept[name][0].float()
            added_BTO = x_BTI @ delta.a_BRI.mT @ delta.b_BOR.mT
            given_BTO = x_BTI @ _weight(lm, name).T
            ratio = given_BTO[real_BT].square().mean().sqrt() / added_BTO[real_BT].square().mean().sqrt()
            generator.outputs.mul_(networks.settings.init_share * ratio)


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
