"""Networks of Generative Adapter: a generator of low-rank deltas for every adapted linear map.

Chen et al., arXiv 2411.05877. Each hidden state gives a value and a key. The state is the sum of
their outer products. A low-rank factorisation of the sum gives the delta. The RMSNorm with a
learned weight is from the released code.

Shape letters: N adapted maps, one a layer · B rows · T tokens · C width of the model · R values · K
keys · Q rank · I/O features in and out. In functions of singular values, N is their number.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import repeat
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from ttabench.core.environment import isolated_rng
from ttabench.core.errors import UserError
from ttabench.lm.forward.patching import InputLocation, check_fits, deltas_applied, observe_inputs
from ttabench.lm.forward.tokens import pad
from ttabench.lm.forward.window import Window
from ttabench.lm.model import LM
from ttabench.lm.patch import LowRank
from ttabench.methods.generative_adapter import GenerativeAdapterSettings
from ttabench.methods.parts.lora import attention_linear_names, group_by_layer

OUTPUT_PROJECTIONS = ("o_proj", "out_proj", "c_proj", "dense")
"""Last parts of the names of the output projection of attention, by architecture."""


class GenerativeAdapterNetworks(nn.Module):
    """One `DeltaGenerator` per layer, for its output projection of attention.

    Weights are drawn from `settings.seed`.
    """

    def __init__(self, lm: LM, settings: GenerativeAdapterSettings) -> None:
        super().__init__()
        self.lm, self.settings = lm, settings
        maps = [
            name
            for name in attention_linear_names(lm)
            if name.rpartition(".")[2] in OUTPUT_PROJECTIONS
        ]
        self.names = [name for (name,) in group_by_layer(lm, maps)]
        with torch.random.fork_rng():
            torch.manual_seed(settings.seed)
            self.layer_generators = [
                DeltaGenerator(lm.hidden_size, *lm.linear_shape(name), settings)
                for name in self.names
            ]
        self.generators = nn.ModuleList(self.layer_generators).to(lm.device)
        self.eval()

    def read(
        self,
        rows: Sequence[list[int]],
        deltas: Mapping[str, LowRank],
        *,
        sum_outer_products: bool = True,
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Read one text per row under weight deltas.

        Returns ids [B, T], right-padded, last hidden states, and, with `sum_outer_products`, the
        summed outer products [N, B, R, K] of each map.
        """
        ids_BT, real_BT = pad(rows, self.lm.pad_id, "right", self.lm.device)
        check_fits(self.lm, None, real_BT.sum(1), "Use shorter chunks: --set chunk=512, or fewer.")
        sums: list[Tensor] = []

        def add_layer(layer: InputLocation, hidden_BTC: Tensor) -> None:
            assert isinstance(layer, int)
            sums.append(self.layer_generators[layer].sum_outer_products(hidden_BTC, real_BT))

        observed_layers = range(self.lm.layers) if sum_outer_products else ()
        with (
            deltas_applied(self.lm, deltas, len(rows)),
            observe_inputs(self.lm, add_layer, observed_layers, len(rows)),
        ):
            # causal attention never sees the padding on the right
            hidden_BTC = Window(self.lm, None, len(rows), retain=False).feed(ids_BT)
        return ids_BT, hidden_BTC, torch.stack(sums) if sums else None

    def state_tensors(self, sum_NBRK: Tensor) -> dict[str, Tensor]:
        """Return the tensors of a state: the sums, and with `norm=svd` the factors of the deltas.

        The factors are `a0` [N, B, Q, I] and `b0` [N, B, O, Q]. With another norm, deltas are
        computed from the sums for each query.
        """
        finite_N = torch.isfinite(sum_NBRK.sum((1, 2, 3))).tolist()
        if not all(finite_N):
            name = self.names[finite_N.index(False)]
            hint = "Check the checkpoint and the base model's weights, or use --dtype float32."
            raise UserError(f"The sum for {name} is not finite (NaN or infinity).", hint)
        if self.settings.norm != "svd":
            return {"sum": sum_NBRK}
        deltas = self.compute_deltas(sum_NBRK).values()
        a_NBQI = torch.stack([delta.a_BRI for delta in deltas])
        b_NBOQ = torch.stack([delta.b_BOR for delta in deltas])
        return {"sum": sum_NBRK, "a0": a_NBQI, "b0": b_NBOQ}

    def deltas(self, tensors: Mapping[str, Tensor]) -> dict[str, LowRank]:
        """Return the deltas of all adapted maps by name; none if nothing was read."""
        if not tensors or self.settings.norm != "svd":
            return self.compute_deltas(tensors["sum"]) if tensors else {}
        return dict(zip(self.names, map(LowRank, tensors["a0"], tensors["b0"]), strict=True))

    def compute_deltas(
        self, sum_NBRK: Tensor, *, differentiable: bool = False
    ) -> dict[str, LowRank]:
        """Compute the deltas of all maps from their sums.

        `differentiable`: use the decomposition that has gradients, for training. Otherwise one
        batched call decomposes all maps, which is faster on a GPU.
        """
        is_batched = self.settings.norm == "svd" and not differentiable
        known_vectors = (
            zip(*singular_vectors(sum_NBRK, self.settings), strict=True)
            if is_batched
            else repeat(None)
        )
        each = zip(self.names, self.layer_generators, sum_NBRK, known_vectors, strict=False)
        return {
            name: generator.delta(map_sum_BRK, differentiable=differentiable, known_vectors=vectors)
            for name, generator, map_sum_BRK, vectors in each
        }


VALUE_PROJECTIONS = ("v_proj", "c_attn", "qkv_proj", "query_key_value")
"""Last parts of the names of value projections; in fused projections the values come last."""
INITIAL_DELTA_RATIO = 0.1
"""Size of the deltas at the start of aligned training, relative to the outputs of their maps."""


@torch.no_grad()
def align(networks: GenerativeAdapterNetworks, chunks: Sequence[list[int]]) -> None:
    """Initialise the generators for `init=aligned`.

    Keys and queries share one space, and values and outputs share another. The deltas start
    at `INITIAL_DELTA_RATIO` of the outputs of their maps.
    """
    lm = networks.lm
    with torch.random.fork_rng():
        torch.manual_seed(networks.settings.seed)
        for layer, generator in enumerate(networks.layer_generators):
            norm_weights = (
                weight
                for name, weight in lm.blocks()[layer].named_parameters()
                if name.endswith(".weight") and weight.shape == (lm.hidden_size,)
            )
            generator.norm.copy_(next(norm_weights))
            nn.init.orthogonal_(generator.values)
            nn.init.orthogonal_(generator.queries)
            generator.outputs.copy_(generator.values.T)
            generator.keys.copy_(
                generator.queries @ _value_weight(lm, layer, generator.queries.shape[1])
            )
    _scale_outputs(networks, chunks)


def _scale_outputs(networks: GenerativeAdapterNetworks, chunks: Sequence[list[int]]) -> None:
    """Scale the `outputs` weights, so that deltas have `INITIAL_DELTA_RATIO` on these chunks."""
    lm, names = networks.lm, networks.names
    ids_BT, real_BT = pad(chunks, lm.pad_id, "right", lm.device)
    inputs: dict[InputLocation, Tensor] = {}
    with observe_inputs(lm, inputs.__setitem__, [*range(lm.layers), *names], len(chunks)):
        Window(lm, None, len(chunks), retain=False).feed(ids_BT)
    for layer, (name, generator) in enumerate(zip(names, networks.layer_generators, strict=True)):
        delta = generator.delta(generator.sum_outer_products(inputs[layer], real_BT))
        x_BTI = inputs[name].float()
        added_BTO = x_BTI @ delta.a_BRI.mT @ delta.b_BOR.mT
        output_BTO = x_BTI @ _map_weight(lm, name).T
        ratio = (
            output_BTO[real_BT].square().mean().sqrt() / added_BTO[real_BT].square().mean().sqrt()
        )
        generator.outputs.mul_(INITIAL_DELTA_RATIO * ratio)


def _value_weight(lm: LM, layer: int, features: int) -> Tensor:
    """Return the value projection of a layer [I, C], repeated for each query head."""
    layer_names = group_by_layer(lm, attention_linear_names(lm))[layer]
    name = next(name for name in layer_names if name.rpartition(".")[2] in VALUE_PROJECTIONS)
    weight_VC = _map_weight(lm, name)[-lm.kv_heads * lm.head_dim :]
    by_head = weight_VC.view(lm.kv_heads, lm.head_dim, -1)
    return by_head.repeat_interleave(lm.heads // lm.kv_heads, 0).reshape(features, -1)


def _map_weight(lm: LM, name: str) -> Tensor:
    """Return the weight [O, I] of a linear map in float32."""
    module = lm.model.get_submodule(name)
    weight: Tensor | None = module._parameters["weight"]
    assert weight is not None
    return (weight if isinstance(module, nn.Linear) else weight.T).float()


EPSILON = 1e-6
"""Epsilon of the RMSNorm and of divisions by a norm (released code)."""


class DeltaGenerator(nn.Module):
    """Network that computes the deltas of one linear map; the deltas are zero before training."""

    def __init__(
        self, width: int, features_in: int, features_out: int, settings: GenerativeAdapterSettings
    ) -> None:
        super().__init__()
        self.settings = settings
        self.norm = nn.Parameter(torch.ones(width))
        self.values = _kaiming(settings.inner, width)
        """A2 [R, C]."""
        self.keys = _kaiming(settings.keys, width)
        """B1, transposed [K, C]."""
        self.queries = _kaiming(settings.keys, features_in)
        """B2 [K, I]."""
        self.outputs = nn.Parameter(torch.zeros(features_out, settings.inner))
        """A1 [O, R]."""

    def sum_outer_products(self, hidden_BTC: Tensor, real_BT: Tensor | None = None) -> Tensor:
        """Sum the outer products of the tokens of every row: [B, R, K].

        Padding (`real_BT` false) adds nothing.
        """
        hidden_BTC = hidden_BTC.float()
        mean_square_BT1 = hidden_BTC.square().mean(-1, keepdim=True)
        normed_BTC = hidden_BTC * torch.rsqrt(mean_square_BT1 + EPSILON) * self.norm
        if real_BT is not None:
            normed_BTC = normed_BTC.masked_fill(~real_BT[..., None], 0.0)
        return (normed_BTC @ self.values.T).mT @ (normed_BTC @ self.keys.T)

    def delta(
        self,
        sum_BRK: Tensor,
        *,
        differentiable: bool = False,
        known_vectors: tuple[Tensor, Tensor] | None = None,
    ) -> LowRank:
        """Compute the delta of a sum, as factors. A sum of zero gives a delta of zero.

        The rank of the factors is `settings.rank` with `norm=svd`, and R otherwise.

        Args:
            differentiable: use the decomposition that has gradients, for training.
            known_vectors: `singular_vectors` of the sum, if they are already computed.
        """
        s = self.settings
        if s.norm == "svd":
            left_BRQ, right_BQK = known_vectors or (
                differentiable_singular_vectors if differentiable else singular_vectors
            )(sum_BRK, s)
            return LowRank(right_BQK @ self.queries, s.scale * self.outputs @ left_BRQ)
        if s.norm == "spectral":
            norm_B11 = torch.linalg.matrix_norm(sum_BRK, 2, keepdim=True) + EPSILON
        else:
            norm_B11 = (sum_BRK.square().sum((-2, -1), keepdim=True) + EPSILON).sqrt()
        normed_BRK = sum_BRK / norm_B11
        return LowRank(normed_BRK @ self.queries, s.scale * self.outputs[None])


def _kaiming(rows: int, columns: int) -> nn.Parameter:
    """Initialise as the released code does: normal, variance 1 / (3 columns)."""
    return nn.Parameter(torch.randn(rows, columns) / math.sqrt(3 * columns))


MIN_SINGULAR_GAP = 1e-7
"""Minimum gap of two kept singular values. Below it, the gradient of their vectors explodes. The
released code then omits the delta."""
TIE_TOLERANCE = 1e-6
"""Tolerance for a tie of a kept and a dropped singular value: the difference of their squares,
relative to the largest square. In a tie, the kept direction is arbitrary and has no useful
gradient."""
ZERO_TOLERANCE = 1e-6
"""Singular values up to this share of the largest count as zero; their vectors are noise."""


def singular_vectors(sum_BRK: Tensor, settings: GenerativeAdapterSettings) -> tuple[Tensor, Tensor]:
    """Return the first singular vectors, left [B, R, Q] and right [B, Q, K].

    Left vectors are zero where the singular value is noise (`rank_tol`).
    """
    left_BRN, values_BN, right_BNK = torch.linalg.svd(sum_BRK, full_matrices=False)
    rank = settings.rank
    return left_BRN[..., :rank] * _above_noise(values_BN[..., :rank], settings)[
        ..., None, :
    ], right_BNK[..., :rank, :]


def differentiable_singular_vectors(
    sum_BRK: Tensor, settings: GenerativeAdapterSettings
) -> tuple[Tensor, Tensor]:
    """Return `singular_vectors` with gradients, by the method of `settings.gradient`.

    exact: full decomposition. released: randomised decomposition, as in the released code. It gives
    zeros if two singular values are closer than `MIN_SINGULAR_GAP`, for example with fewer tokens
    than `rank`.
    """
    if settings.gradient == "exact":
        return _SingularVectors.apply(sum_BRK, settings)  # type: ignore[no-untyped-call]
    left_BRQ, values_BQ, right_BQK = _randomised_svd(sum_BRK, settings)
    is_distinct_B11 = ((values_BQ[..., :-1] - values_BQ[..., 1:]).detach() >= MIN_SINGULAR_GAP).all(
        -1
    )[..., None, None]
    if bool(is_distinct_B11.all()):
        return left_BRQ, right_BQK
    # A gradient of infinity or NaN times zero is NaN. Rows with too small a gap are therefore
    # replaced by a matrix with distinct singular values before their result is set to zero.
    safe_input_RK = torch.zeros_like(sum_BRK[0])
    safe_input_RK.diagonal().copy_(torch.arange(1, min(safe_input_RK.shape) + 1))
    left_BRQ, _, right_BQK = _randomised_svd(
        torch.where(is_distinct_B11, sum_BRK, safe_input_RK), settings
    )
    return left_BRQ * is_distinct_B11, right_BQK


class _SingularVectors(torch.autograd.Function):
    """First singular vectors, with the exact gradient of their product.

    Only the product U diag(h) V' of left and right vectors is used. Here S = U diag(s) V' is the
    sum, and h is 1 for kept singular values and 0 for dropped ones. With F = U' dS V:

        d(U diag(h) V') = U (a * F + b * F') V'
        a_ij = (h_i s_i - h_j s_j) / (s_i^2 - s_j^2)
        b_ij = (h_i s_j - h_j s_i) / (s_i^2 - s_j^2)

    Two kept values: a = 1 / (s_i + s_j), b = -a. Two dropped values: a = b = 0. In the null space
    of S, s_j = 0, so a = 1 / s_i and b = 0. The null space enters as a projection, without vectors.
    """

    @staticmethod
    def forward(
        ctx: Any, sum_BRK: Tensor, settings: GenerativeAdapterSettings
    ) -> tuple[Tensor, Tensor]:
        left_BRN, values_BN, right_BNK = torch.linalg.svd(sum_BRK, full_matrices=False)
        first_N = torch.arange(values_BN.shape[-1], device=values_BN.device) < settings.rank
        kept_BN = _above_noise(values_BN, settings) & first_N
        nonzero_BN = (values_BN > ZERO_TOLERANCE * values_BN[..., :1])[..., None]
        ctx.save_for_backward(left_BRN * nonzero_BN.mT, values_BN, kept_BN, right_BNK * nonzero_BN)
        return left_BRN[..., : settings.rank] * kept_BN[..., None, : settings.rank], right_BNK[
            ..., : settings.rank, :
        ]

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, left_gradient_BRQ: Tensor, right_gradient_BQK: Tensor
    ) -> tuple[Tensor, None]:
        left_BRN, values_BN, kept_BN, right_BNK = ctx.saved_tensors
        rank = left_gradient_BRQ.shape[-1]
        kept_BQ1 = kept_BN[..., :rank, None]
        left_gradient_BRQ, right_gradient_BQK = (
            left_gradient_BRQ * kept_BQ1.mT,
            right_gradient_BQK * kept_BQ1,
        )
        # the gradient in the basis of singular vectors; entries of two dropped vectors stay 0
        left_in_basis_BNQ, right_in_basis_BQN = (
            left_BRN.mT @ left_gradient_BRQ,
            right_gradient_BQK @ right_BNK.mT,
        )
        inner_gradient_BNN = nn.functional.pad(left_in_basis_BNQ, (0, values_BN.shape[-1] - rank))
        inner_gradient_BNN[..., :rank, :] = torch.where(
            kept_BQ1, right_in_basis_BQN, inner_gradient_BNN[..., :rank, :]
        )
        a_BNN, b_BNN = _gradient_weights(values_BN, kept_BN)
        inner_BNN = a_BNN * inner_gradient_BNN + (b_BNN * inner_gradient_BNN).mT
        inverse_values_BQ1 = kept_BQ1 / values_BN[..., :rank, None].masked_fill(~kept_BQ1, 1.0)
        null_left_BRQ = (left_gradient_BRQ - left_BRN @ left_in_basis_BNQ) * inverse_values_BQ1.mT
        null_right_BQK = (right_gradient_BQK - right_in_basis_BQN @ right_BNK) * inverse_values_BQ1
        null_space_BRK = (
            left_BRN[..., :rank] @ null_right_BQK + null_left_BRQ @ right_BNK[..., :rank, :]
        )
        return left_BRN @ inner_BNN @ right_BNK + null_space_BRK, None


def _gradient_weights(values_BN: Tensor, kept_BN: Tensor) -> tuple[Tensor, Tensor]:
    """Return a and b of `_SingularVectors`, [B, N, N]."""
    first, second = values_BN[..., :, None], values_BN[..., None, :]
    kept_first, kept_second = kept_BN[..., :, None], kept_BN[..., None, :]
    both_kept, one_kept = kept_first & kept_second, kept_first ^ kept_second
    value_sums = (first + second).masked_fill(~both_kept, 1.0)
    square_differences = first.square() - second.square()
    is_distinct = one_kept & (
        square_differences.abs() > TIE_TOLERANCE * values_BN[..., :1, None].square()
    )
    safe_differences = square_differences.masked_fill(~is_distinct, 1.0)
    mixed_a = (kept_first * first - kept_second * second) / safe_differences * is_distinct
    mixed_b = (kept_first * second - kept_second * first) / safe_differences * is_distinct
    return both_kept / value_sums + mixed_a, mixed_b - both_kept / value_sums


def _above_noise(values_BQ: Tensor, settings: GenerativeAdapterSettings) -> Tensor:
    """Return the mask of singular values above `settings.rank_tol`, bool [B, Q]."""
    return (values_BQ > settings.rank_tol * values_BQ[..., :1]) & (values_BQ > 0)


def _randomised_svd(
    sum_BRK: Tensor, settings: GenerativeAdapterSettings
) -> tuple[Tensor, Tensor, Tensor]:
    """Return left vectors, singular values and right vectors of a randomised decomposition.

    The random numbers depend only on the seed, and are the same for all rows.
    """
    with isolated_rng(sum_BRK.device):
        torch.manual_seed(settings.seed)
        left_BRQ, values_BQ, right_BKQ = torch.svd_lowrank(
            sum_BRK, q=settings.rank, niter=settings.niter
        )
    return left_BRQ, values_BQ, right_BKQ.mT
