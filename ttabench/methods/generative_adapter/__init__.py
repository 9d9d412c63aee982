"""Generative Adapter: summed outer products of hidden states become low-rank weight deltas."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from ttabench.core.errors import require_at_least
from ttabench.core.types import Json
from ttabench.cost import FLOAT32_BYTES, Cost, LowRankFactors, Shape, Workload, closed_book_cost
from ttabench.methods.spec import MethodSpec, Recipe, Stage


@dataclass(frozen=True, kw_only=True)
class GenerativeAdapterSettings:
    """Settings of `generative_adapter`; the defaults are the paper's for Mistral-7B-Instruct."""

    inner: int = 1024
    """Width d_r of the summed outer products."""
    inner_keys: int | None = None
    """Width of keys and queries (B1, B2). None: `inner`, as in the paper."""
    rank: int = 128
    """Rank r of each delta: number of singular vectors kept (`norm=svd`)."""
    chunk: int = 1024
    """Maximum tokens of a chunk. A text is cut into as few chunks of equal length as possible."""
    scale: float = 1 / 16
    """Factor s of every delta."""
    norm: Literal["svd", "frobenius", "spectral"] = "svd"
    """Normalisation of the sum. svd: the first `rank` singular values are set to 1. frobenius and
    spectral: division by this norm, which gives deltas of rank `inner`."""
    gradient: Literal["released", "exact"] = "released"
    """Gradient of the decomposition in training (`norm=svd`). released: through a randomised
    decomposition, as in the released code. exact: through the full decomposition; it is also
    finite for contexts shorter than `rank`."""
    niter: int = 1
    """Power iterations of the randomised decomposition."""
    rank_tol: float = 1e-5
    """Singular values up to this share of the largest are dropped as noise. 0 keeps all, as the
    released code does."""
    buffer: bool = False
    """True to join the chunks between two queries into one text. False: each is split by itself."""
    objective: Literal["answer", "both", "reconstruction", "completion"] = "answer"
    """Training objective. answer: answers to the queries of the task. completion: each chunk of the
    text from the chunks before it. reconstruction: a span of the text from all of it. both: the
    mean over all tokens of the last two, as in the released code."""
    init: Literal["released", "aligned"] = "released"
    """Initialisation for training. released: random weights and A1 = 0, as in the paper. aligned:
    keys and queries share one space, values and outputs another (`networks.align`)."""
    seed: int = 0
    """Random seed of the initial weights and of the randomised decomposition."""

    def __post_init__(self) -> None:
        require_at_least(
            1, inner=self.inner, inner_keys=self.inner_keys, rank=self.rank, chunk=self.chunk
        )
        require_at_least(0, rank_tol=self.rank_tol, niter=self.niter)
        if self.norm == "svd" and self.rank > min(self.inner, self.keys):
            limits = f"{min(self.inner, self.keys)}, got {self.rank}"
            raise ValueError(
                f"rank must be no larger than the width of the outer products (inner), {limits}"
            )

    @property
    def keys(self) -> int:
        """Width of keys and queries."""
        return self.inner if self.inner_keys is None else self.inner_keys

    def chunk_lengths(self, tokens: int) -> list[int]:
        """Return the chunk lengths of a text; equal, except that the last may be shorter."""
        if not tokens:
            return []
        size = -(-tokens // -(-tokens // self.chunk))
        return [min(size, tokens - begin) for begin in range(0, tokens, size)]


def _with_first_stage(
    recipe: Recipe, objective: str, first: Recipe, **task_options: Json
) -> Recipe:
    """Return the recipe with a first stage that trains on texts without queries."""
    stage = Stage(
        method="generative_adapter",
        settings={"objective": objective},
        task_options=task_options,
        recipe=first,
    )
    return replace(recipe, first=stage)


_BASE_RECIPE = Recipe(schedule="cosine", beta2=0.98, clip=1.0, warmup=20)
# One document per episode comes first. With several, the deltas long learn only what all documents
# share.
_RECONSTRUCTION_RECIPE = replace(
    _BASE_RECIPE, documents=(1, 2, 4, 8), batch_documents=64, steps=400, lr=3e-3
)
_ANSWER_RECIPE = replace(
    _BASE_RECIPE, documents=(1, 2, 4, 8, 16), questions=2, batch_documents=64, steps=1200, lr=1e-3
)
_BOOK_RECIPE = replace(_BASE_RECIPE, documents=(1,), batch_documents=1)
_SMOLLM2_RECIPE = replace(
    _BASE_RECIPE, documents=(1,), batch_documents=4, steps=40, warmup=10, lr=1e-3
)
_PAPER_RECIPE = Recipe(documents=(1,), schedule="cosine", decay=0.01, warmup=100)


def _paper_recipe(lr: float) -> Recipe:
    """Return the paper's recipe: 10^9 tokens, 8 sequences of 8,192 a step; then 32 instructions."""
    texts = replace(_PAPER_RECIPE, batch_documents=8, steps=15_000, lr=lr)
    return _with_first_stage(replace(_PAPER_RECIPE, batch_documents=32, lr=5e-5), "both", texts)


def svd_flops(rows: int, columns: int) -> int:
    """Return the operations of a full singular value decomposition: 21 n^3 for a square matrix."""
    long, short = max(rows, columns), min(rows, columns)
    return 4 * long**2 * short + 8 * long * short**2 + 9 * short**3


def cost(settings: GenerativeAdapterSettings, shape: Shape, work: Workload) -> Cost | None:
    """Cost of Generative Adapter (arXiv 2411.05877).

    Later chunks are read by the weights adapted so far. The state is the sum and the deltas of
    every map, of constant size.
    """
    s, count, out = settings, shape.layers, shape.attention_linears[-1]
    if s.norm != "svd":
        return None
    deltas = LowRankFactors(shape, s.rank, [out])
    inputs = count * out.inputs
    outputs = count * out.outputs
    networks = s.inner * outputs + s.keys * inputs + count * (s.inner + s.keys + 1) * shape.hidden
    base = replace(closed_book_cost(shape, work), added_parameters=networks)
    sum_floats = count * s.inner * s.keys
    # the start tokens belong to the first
    texts = (work.tokens,) if s.buffer else work.chunk_tokens
    chunks = [
        size
        for index, text in enumerate(texts)
        for size in s.chunk_lengths(text + (0 if index else shape.bos_tokens))
    ]
    if not chunks:
        return base
    token_flops = 2 * (count * (s.inner + s.keys) * shape.hidden + sum_floats)
    delta_flops = count * svd_flops(s.inner, s.keys) + 2 * s.rank * (
        s.keys * inputs + s.inner * outputs
    )
    flops = sum(
        shape.forward_flops(size) + token_flops * size + delta_flops for size in chunks
    ) + deltas.forward_flops(sum(chunks[1:]))
    floats = deltas.size + sum_floats
    return replace(
        base,
        state_floats=floats,
        state_bytes=FLOAT32_BYTES * floats,
        adapt_slots=max(chunks),
        adapt_flops=flops,
        ask_flops=base.ask_flops + deltas.forward_flops(shape.bos_tokens + work.query_positions),
        positions=max(*chunks, base.positions),
    )


GENERATIVE_ADAPTER = MethodSpec(
    name="generative_adapter",
    summary="low-rank deltas from summed outer products of hidden states",
    import_path="ttabench.methods.generative_adapter.method:GenerativeAdapter",
    Settings=GenerativeAdapterSettings,
    presets={
        # The outer products are half as wide as the model (a quarter in the paper).
        "nano": GenerativeAdapterSettings(
            inner=64, rank=8, chunk=256, buffer=True, gradient="exact", init="aligned"
        ),
        "nano-book": GenerativeAdapterSettings(
            inner=64, rank=8, chunk=512, gradient="exact", init="aligned", objective="both"
        ),
        # 8.8 M weights; short chunks, so that a few hundred tokens make several.
        "smollm2-135m": GenerativeAdapterSettings(
            inner=128, rank=32, chunk=128, gradient="exact", init="aligned", objective="both"
        ),
        "mistral-7b-instruct": GenerativeAdapterSettings(),
        "llama-2-7b-chat": GenerativeAdapterSettings(scale=1 / 8),
    },
    # The paper tunes on instructions for 2 epochs: set `--steps` for your data.
    recipes={
        "nano": _with_first_stage(_ANSWER_RECIPE, "reconstruction", _RECONSTRUCTION_RECIPE),
        "nano-book": _with_first_stage(
            replace(_BOOK_RECIPE, steps=250, lr=1e-3),
            "reconstruction",
            replace(_BOOK_RECIPE, batch_documents=4, steps=150, lr=3e-3),
            sequence_tokens=2048,
        ),
        # On books: two chunks of 128 tokens at first, then one at a time.
        "smollm2-135m": _with_first_stage(
            _SMOLLM2_RECIPE,
            "reconstruction",
            _SMOLLM2_RECIPE,
            window=256,
            stride=128,
            sequence_tokens=640,
        ),
        "mistral-7b-instruct": _paper_recipe(5e-5),
        "llama-2-7b-chat": _paper_recipe(1e-4),
    },
    growth="constant",
    trainable=True,
    cost=cost,
    test_settings=GenerativeAdapterSettings(inner=8, rank=4, chunk=16, scale=1.0),
    paper="2411.05877",
    deprecated_settings={
        "chunk_len": None,
        "svd": "exact",
        "strategy": "sequential",
        "merge": False,
        "finalize": False,
        "loss_weighting": "tokens",
        "init_share": 0.1,
        "targets": [],
    },
)
METHODS = (GENERATIVE_ADAPTER,)
