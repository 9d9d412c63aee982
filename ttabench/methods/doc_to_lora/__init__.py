"""Doc-to-LoRA: a hypernetwork computes low-rank deltas of each chunk; their ranks add up."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

from ttabench.core.errors import require_at_least
from ttabench.cost import FLOAT32_BYTES, Cost, Shape, Workload, closed_book_cost
from ttabench.methods.spec import CHUNK_WRITER_RECIPE, MethodSpec


@dataclass(frozen=True, kw_only=True)
class DocToLoraSettings:
    """Settings of `doc_to_lora`; the defaults are those of the released checkpoints."""

    chunk: int = 512
    """Maximum tokens of a chunk. A text is cut into as few chunks of equal length as possible."""
    rank: int = 8
    """Rank of the deltas of each chunk, and of the shared deltas."""
    alpha: float = 2 * 8**1.5
    """Factor of the deltas; it is not divided by the rank."""
    targets: tuple[str, ...] = ("down_proj",)
    """Last parts of the names of the adapted linear maps, in every layer."""
    latent: int = 512
    """Width of the latents that read a chunk."""
    latents: int = 8
    """Number of latents."""
    blocks: int = 9
    """Cross-attention blocks over the chunk, each with its own weights."""
    heads: int = 16
    """Attention heads of the latents."""
    kv_heads: int = 4
    """Key/value heads of the latents' attention."""
    head_dim: int = 128
    """Size of an attention head."""
    seed: int = 0
    """Random seed of the initial weights."""

    def __post_init__(self) -> None:
        sizes = ("chunk", "rank", "latent", "latents", "blocks", "heads", "kv_heads", "head_dim")
        require_at_least(1, **{name: getattr(self, name) for name in sizes})
        if not self.targets:
            raise ValueError("targets must name at least one linear map")
        if self.heads % self.kv_heads:
            raise ValueError(
                f"heads must be a multiple of kv_heads={self.kv_heads}, got {self.heads}"
            )

    def chunk_slices(self, tokens: int) -> list[slice]:
        """Return the chunks of a text of this many tokens as slices."""
        count = -(-tokens // self.chunk)
        ends = [number * tokens // count for number in range(count + 1)] if count else []
        return [slice(*both) for both in pairwise(ends)]


def cost(settings: DocToLoraSettings, shape: Shape, work: Workload) -> Cost:
    """Cost of reading each chunk separately, of the hypernetwork, and of the deltas.

    If the base model lacks these maps, the output projection of its feed-forward is counted;
    running it raises an error.
    """
    s, w = settings, settings.latent
    maps = [linear for linear in shape.linears if linear.name in s.targets] or list(
        shape.mlp_linears[-1:]
    )
    query_output, key_value = 2 * w * s.heads * s.head_dim, 2 * w * s.kv_heads * s.head_dim
    feed, widest_map = 3 * w * 4 * w, max(linear.parameters_per_rank for linear in maps)
    input_projection = 2 * shape.hidden * 4 * shape.hidden + 4 * shape.hidden * w
    ranks, ends = len(maps) * s.rank, sum(linear.parameters_per_rank for linear in maps)
    attention_blocks = s.blocks + 1  # blocks of the encoder, and one of the decoder
    added = (
        input_projection
        + attention_blocks * (query_output + key_value + feed + 5 * w)
        + w * (s.latents + ranks + 2)
    )
    added += 2 * 2 * w + shape.layers * (8 * w * w + 5 * w)
    added += shape.layers * (len(maps) * w * widest_map + s.rank * (ends + 2 * len(maps)))
    if not work.chunk_tokens:
        return replace(closed_book_cost(shape, work), added_parameters=added)
    chunks = [
        shape.bos_tokens + chunk.stop - chunk.start
        for tokens in work.chunk_tokens
        for chunk in s.chunk_slices(tokens)
    ]
    if shape.counts_masked_pairs:
        chunks = [max(chunks)] * len(chunks)  # padded, since they are read together
    latent_flops = (
        s.latents * s.blocks * (query_output + feed)
        + s.latents * key_value
        + ranks * (query_output + feed)
    )
    latent_flops += (
        ranks * (8 * w * w + w * widest_map) + 2 * ranks * s.latents * s.heads * s.head_dim
    )
    token = input_projection + s.blocks * (key_value + 2 * s.latents * s.heads * s.head_dim)
    networks = 2 * shape.layers * sum(chunk * token + latent_flops for chunk in chunks)
    size, base = shape.layers * s.rank * ends, closed_book_cost(shape, work)
    query_flops = 2 * size * (len(chunks) + 1) * (shape.bos_tokens + work.query_positions)
    return replace(
        base,
        added_parameters=added,
        state_floats=size * len(chunks),
        state_bytes=FLOAT32_BYTES * size * len(chunks),
        adapt_slots=max(chunks),
        adapt_flops=sum(shape.forward_flops(chunk) for chunk in chunks) + networks,
        ask_flops=base.ask_flops + query_flops,
        positions=max(base.positions, *chunks),
    )


DOC_TO_LORA = MethodSpec(
    name="doc_to_lora",
    summary="low-rank deltas computed by a Perceiver from the hidden states of each chunk",
    import_path="ttabench.methods.doc_to_lora.method:DocToLora",
    Settings=DocToLoraSettings,
    presets={
        "nano": DocToLoraSettings(
            rank=4, alpha=16.0, latent=64, latents=8, blocks=2, heads=4, kv_heads=2, head_dim=16
        ),
        "smollm2-135m": DocToLoraSettings(latent=256, blocks=2, heads=4, kv_heads=2, head_dim=64),
    },
    recipes={"": CHUNK_WRITER_RECIPE},
    growth="linear",
    trainable=True,
    cost=cost,
    test_settings=DocToLoraSettings(
        rank=2, alpha=2.0, latent=16, latents=4, blocks=2, heads=2, kv_heads=1, head_dim=8, chunk=24
    ),
    paper="2602.15902",
    deprecated_settings={"depth": 1},
)

METHODS = (DOC_TO_LORA,)
