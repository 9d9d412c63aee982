"""Settings, presets and analytic cost of MAC, Memory of Amortized Contexts.

Paper: Tack et al., arXiv 2403.04317, appendix A; released code: jihoontack/MAC.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from ttabench.core.errors import UserError, require_at_least
from ttabench.cost import INT64_BYTES, Cost, Shape, Workload, answer_flops, closed_book_cost
from ttabench.methods.spec import MethodSpec, Recipe


@dataclass(frozen=True, kw_only=True)
class MacSettings:
    """Settings of `mac`; the defaults are the paper's (GPT2-large)."""

    amortiser: str = "t5-base"
    """T5 that reads documents: t5-small, t5-base, t5-large, a folder, a hub id, or
    scratch:WIDTH,LAYERS,HEADS,FF."""
    input_encoder: str = "t5-base"
    """T5 that reads queries."""
    num_virtual_tokens: int = 24
    """Number T of latent tokens of a document and of a query."""
    prefix_length: int = 2
    """Key/value positions filled in each layer (released code; the paper does not state it)."""
    blocks: int = 4
    """Cross-attention blocks of the aggregator."""
    heads: int = 8
    """Heads of each block."""
    head_dim: int = 96
    """Size of each head, independent of the base model's width."""
    expansion_hidden: int = 768
    """Inner width of the feed-forward networks of the expansion."""
    document_tokens: int = 512
    """Maximum T5 tokens of a document; its start is kept."""
    question_tokens: int = 128
    """Maximum T5 tokens of a query; its end is kept. In training this also limits the base model's
    tokens."""
    mask_pads: bool = True
    """False lets the T5 decoders attend to padding, as the released code does."""
    bank_dtype: Literal["bfloat16", "float32"] = "bfloat16"
    """Number format of the stored latents; aggregation computes in float32."""
    bank_cap: int | None = None
    """Maximum entries in the bank (1,250 in Figure 7). None: no limit."""
    bank_reduce: Literal["random", "average_random", "average_nearest"] = "average_nearest"
    """Rule for appends beyond `bank_cap`: an entry is dropped, or two are averaged."""
    hierarchy: int | None = None
    """Group size M of tree aggregation (Algorithm 3). None: attend to all documents at once."""
    hierarchy_by: Literal["aggregated", "attended"] = "aggregated"
    """Entry of a group at the next level of the tree: the latent aggregated from it (the paper), or
    its most attended document; see `aggregate_hierarchy`."""
    backprop_dropout: float = 0.0
    """Share p of the documents of a training episode without a gradient through the amortiser."""
    lite: Literal["random", "released"] = "random"
    """Documents with a gradient. random: a random subset, and all queries count. released: the
    first, and only as many queries count."""
    seed: int = 0
    """Random seed of the initial weights and of random bank reductions."""
    embeddings_from_base: bool = False
    """Beyond the paper: initialise a scratch T5 with the base model's word embeddings (same width
    and vocabulary)."""
    retrieval_aux: float = 0.0
    """Beyond the paper: weight of a contrastive loss of query and document latents (needs
    `Query.source_key`)."""
    attention_aux: float = 0.0
    """Beyond the paper: weight of -log(attention of the aggregator to the query's document)."""
    words_aux: float = 0.0
    """Beyond the paper: weight of a loss that trains a document's latents to predict its words."""

    def __post_init__(self) -> None:
        sizes = "num_virtual_tokens prefix_length blocks heads head_dim expansion_hidden document_tokens".split()
        require_at_least(
            1, question_tokens=self.question_tokens, **{name: getattr(self, name) for name in sizes}
        )
        if self.hierarchy is not None and self.hierarchy < 2:
            raise ValueError(f"hierarchy must be at least 2, got {self.hierarchy}")
        require_at_least(2, bank_cap=self.bank_cap)
        if not 0.0 <= self.backprop_dropout < 1.0:
            raise ValueError(f"backprop_dropout must lie in [0, 1), got {self.backprop_dropout}")


_XL_SETTINGS = MacSettings(amortiser="t5-large", input_encoder="t5-base", backprop_dropout=0.75)
_PAPER_RECIPE = Recipe(lr=1e-5, documents=(32,))

RELATIVE_POSITION_BUCKETS = 32
"""Relative distances that a T5 distinguishes."""
T5_VOCAB_SIZE = 32_128
PUBLISHED_T5_SHAPES = {
    "t5-small": (512, 6, 8, 2048),
    "t5-base": (768, 12, 12, 3072),
    "t5-large": (1024, 24, 16, 4096),
}
"""Width, layers, heads of 64, feed-forward (arXiv 1910.10683, 3.7; google-t5/*/config.json)."""
SCRATCH_PREFIX = "scratch:"


def parse_scratch_shape(name: str) -> tuple[int, int, int, int]:
    """Parse width, layers, heads and feed-forward width of a `scratch:` shape."""
    numbers = name.removeprefix(SCRATCH_PREFIX).split(",")
    if len(numbers) != 4 or not all(number.isdecimal() and int(number) for number in numbers):
        raise UserError(
            f"{name!r} is not a valid shape.",
            "Use scratch:WIDTH,LAYERS,HEADS,FF with four positive integers.",
        )
    width, layers, heads, inner = map(int, numbers)
    if width % heads:
        raise UserError(f"{name!r} is not a valid shape.", "Use a WIDTH that HEADS divides.")
    return width, layers, heads, inner


def _t5_cost(name: str, shape: Shape, latents: int) -> tuple[int, Callable[[int], int]] | None:
    """Return the parameters of a T5 with prompts, norms and MLPs, and its operations by tokens.

    None if the T5 is neither published nor `scratch:WIDTH,LAYERS,HEADS,FF`.
    """
    if name in PUBLISHED_T5_SHAPES:
        width, layers, heads, wide = PUBLISHED_T5_SHAPES[name]
        inner, vocabulary = 64 * heads, T5_VOCAB_SIZE
    elif name.startswith(SCRATCH_PREFIX):
        width, layers, heads, wide = parse_scratch_shape(name)
        inner, vocabulary = width, shape.vocabulary
    else:
        return None
    attention = 4 * width * inner
    feed = 2 * width * wide
    hidden = shape.hidden
    maps = 1 + (width != shape.hidden)
    embeddings = vocabulary * width + 2 * width + 2 * RELATIVE_POSITION_BUCKETS * heads
    lift = latents * (3 * width + (hidden + 1) * hidden + maps * (width + 1) * hidden)

    def read(tokens: int) -> int:
        """Return the operations of encoder, causal decoder and MLPs for this many tokens."""
        encoder = 2 * tokens * (attention + feed) + 4 * inner * tokens * tokens
        decoder = 2 * latents * (attention + feed) + 4 * inner * shape.attended_pairs(latents)
        crossed = attention * (latents + tokens) + 4 * inner * latents * tokens
        return layers * (encoder + decoder + crossed) + 2 * latents * (
            maps * width * hidden + hidden**2
        )

    return layers * (3 * attention + 2 * feed + 5 * width) + embeddings + lift, read


def cost(settings: MacSettings, shape: Shape, work: Workload) -> Cost | None:
    """Cost of MAC (arXiv 2403.04317, algorithm 2), with one aggregation per query.

    None for trees, and for T5s of unknown size.
    """
    s, latents, hidden = settings, settings.num_virtual_tokens, shape.hidden
    documents, questions = (
        _t5_cost(name, shape, latents) for name in (s.amortiser, s.input_encoder)
    )
    if documents is None or questions is None or s.hierarchy is not None:
        return None
    kept = min(len(work.chunk_tokens), s.bank_cap or len(work.chunk_tokens))
    expanded, out = 2 * shape.layers * s.prefix_length, shape.kv_heads * shape.head_dim
    weights = (hidden + out) * s.expansion_hidden + (0 if out == hidden else hidden * out)
    inner, feed = s.heads * s.head_dim, min(hidden, 768)
    added = (
        documents[0]
        + questions[0]
        + s.blocks * (4 * hidden * inner + 2 * hidden * feed + 8 * hidden + feed)
    )
    added += expanded * (weights + 2 * hidden + s.expansion_hidden + out)
    base = replace(closed_book_cost(shape, work), added_parameters=added)
    if not kept:
        return base
    # documents of one batch are padded to the longest
    lengths = [
        max(work.chunk_tokens) if shape.counts_masked_pairs else document
        for document in work.chunk_tokens
    ]
    floats = kept * latents * hidden
    encoder_flops = questions[1](min(work.prompt_tokens, s.question_tokens))
    block = 4 * latents * (hidden * (inner + feed) + kept * inner * (hidden + latents))
    return replace(
        base,
        state_floats=floats,
        state_bytes=floats * (2 if s.bank_dtype == "bfloat16" else 4) + INT64_BYTES,
        ask_slots=base.ask_slots + s.prefix_length,
        adapt_flops=sum(documents[1](min(length, s.document_tokens)) for length in lengths),
        ask_flops=encoder_flops
        + s.blocks * block
        + 2 * expanded * weights
        + answer_flops(shape, work, s.prefix_length, has_bos=False),
        positions=base.positions + s.prefix_length,
    )


MAC = MethodSpec(
    name="mac",
    summary="latents of documents, aggregated into a prefix for each query",
    import_path="ttabench.methods.mac.method:Mac",
    Settings=MacSettings,
    presets={
        "nano": MacSettings(
            amortiser="scratch:128,3,8,512",
            input_encoder="scratch:128,2,8,512",
            num_virtual_tokens=16,
            head_dim=16,
            expansion_hidden=128,
            embeddings_from_base=True,
            retrieval_aux=0.5,
            words_aux=1.0,
            attention_aux=0.3,
        ),
        "distilgpt2": MacSettings(
            amortiser="t5-small", input_encoder="t5-small", num_virtual_tokens=12
        ),
        "gpt2-large": MacSettings(),
        "gpt2-xl": _XL_SETTINGS,
        "llama-2-7b": _XL_SETTINGS,
    },
    # The paper trains 50 epochs after one of warm-up (none for DistilGPT2), at a constant rate: set
    # `--steps` and `--warmup` for your data. The clip of 100 is from the released code.
    recipes={
        "nano": Recipe(
            documents=(8, 16, 32, 64),
            questions=2,
            batch_documents=64,
            steps=1200,
            lr=3e-3,
            warmup=50,
            schedule="cosine",
            optimizer="muon",
            beta2=0.98,
            clip=1.0,
        ),
        "distilgpt2": replace(_PAPER_RECIPE, lr=1e-4, documents=(64,)),
        "gpt2-large": _PAPER_RECIPE,
        "gpt2-xl": _PAPER_RECIPE,
        "llama-2-7b": _PAPER_RECIPE,
    },
    growth="linear",
    trainable=True,
    query_aware=True,
    cost=cost,
    test_settings=MacSettings(
        amortiser="scratch:16,1,2,32",
        input_encoder="scratch:16,1,2,32",
        num_virtual_tokens=4,
        blocks=2,
        heads=2,
        head_dim=8,
        expansion_hidden=16,
        bank_dtype="float32",
    ),
    paper="2403.04317",
    deprecated_settings={
        "bank_block": 1024,
        "merge_weighted": False,
        "share_t5": False,
        "amortiser_init": None,
        "own_aux": 0.0,
        "modulation": "prefix",
        "lora_rank": 8,
        "lora_targets": ["q_proj", "v_proj", "c_attn"],
        "pad_to": 0,
        "question_pad_to": 0,
        "dedupe": True,
        "hierarchy_aware": 0.0,
        "base_dropout": False,
        "num_beams": 1,
        "retrieval_temperature": 0.05,
        "design": "encoder-decoder",
        "tokenizer": "auto",
    },
)
METHODS = (MAC,)
