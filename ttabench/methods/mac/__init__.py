"""MAC, Memory of Amortized Contexts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ttabench.cost.load import INTEGER, Cost, Workload, answer, closed_book
from ttabench.cost.shape import Shape
from ttabench.methods.mac.settings import PRESETS, RECIPES, TINY, MacSettings
from ttabench.methods.spec import MethodSpec

BUCKETS = 32
"""Relative distances that a T5 tells apart."""
T5_VOCABULARY = 32_128
PUBLISHED = {"t5-small": (512, 6, 8, 2048), "t5-base": (768, 12, 12, 3072), "t5-large": (1024, 24, 16, 4096)}
"""Width, layers, heads of 64, feed-forward (arXiv 1910.10683, section 3.7; google-t5/*/config.json)."""


@dataclass(frozen=True)
class T5:
    """An encoder-decoder with as many layers on either side, and the networks that make latents of what it reads."""

    width: int
    layers: int
    heads: int
    inner: int
    """Of all heads together."""
    feed_forward: int
    vocabulary: int

    @property
    def parameters(self) -> int:
        """All of the T5, norms and distance biases too."""
        attention, feed = 4 * self.width * self.inner, 2 * self.width * self.feed_forward
        encoder, decoder = attention + feed + 2 * self.width, 2 * attention + feed + 3 * self.width
        ends = self.vocabulary * self.width + 2 * self.width + 2 * BUCKETS * self.heads
        return self.layers * (encoder + decoder) + ends

    def around(self, hidden: int, latents: int) -> int:
        """Parameters beside it: prompts, norms, an MLP a latent."""
        lift, mix = (self.width + 1) * hidden, (hidden + 1) * hidden
        return latents * (3 * self.width + lift + mix + (0 if self.width == hidden else lift))

    def read(self, shape: Shape, tokens: int, latents: int) -> int:
        """Operations: encode the text; decoder tokens see it and those before them; an MLP for each."""
        attention, feed = 4 * self.width * self.inner, 2 * self.width * self.feed_forward
        encoder = 2 * tokens * (attention + feed) + 4 * self.inner * tokens * tokens
        decoder = 2 * latents * (attention + feed) + 4 * self.inner * shape.pairs(latents)
        crossed = 4 * self.width * self.inner * (latents + tokens) + 4 * self.inner * latents * tokens
        lift = self.width * shape.hidden * (1 if self.width == shape.hidden else 2)
        return self.layers * (encoder + decoder + crossed) + 2 * latents * (lift + shape.hidden**2)


def _t5(name: str, shape: Shape) -> T5 | None:
    """The T5 of that name; None where it is neither published nor `scratch:WIDTH,LAYERS,HEADS,FF`."""
    numbers = name.removeprefix("scratch:").split(",")
    if name.startswith("scratch:") and len(numbers) == 4 and all(number.isdecimal() for number in numbers):
        width, layers, heads, feed_forward = map(int, numbers)
        return T5(width, layers, heads, width, feed_forward, shape.vocabulary)
    if name not in PUBLISHED:
        return None
    width, layers, heads, feed_forward = PUBLISHED[name]
    return T5(width, layers, heads, 64 * heads, feed_forward, T5_VOCABULARY)


def cost(settings: MacSettings, shape: Shape, work: Workload) -> Cost | None:
    """MAC (arXiv 2403.04317, algorithms 2 and 3): a latent a document, one aggregation and expansion a question."""
    s, latents, hidden = settings, settings.num_virtual_tokens, shape.hidden
    documents = _t5(s.amortiser, shape)
    questions = documents if s.share_t5 else _t5(s.input_encoder, shape)
    usual = (s.design, s.modulation, s.hierarchy_by) == ("encoder-decoder", "prefix", "aggregated")
    if documents is None or questions is None or not usual:
        return None
    lengths = [max(min(piece, s.document_tokens), s.pad_to) for piece in work.pieces]
    kept = min(len(lengths), s.bank_cap or len(lengths))
    asked = max(min(work.prompt_tokens, s.question_tokens), s.question_pad_to)
    expanded, out = 2 * shape.layers * s.prefix_length, shape.kv_heads * shape.head_dim
    weights = (hidden + out) * s.expansion_hidden + (0 if out == hidden else hidden * out)
    inner, feed = s.heads * s.head_dim, min(hidden, 768)
    added = sum(reader.around(hidden, latents) for reader in (documents, questions))
    added += documents.parameters + (0 if s.share_t5 else questions.parameters)
    added += s.blocks * (4 * hidden * inner + 2 * hidden * feed + 8 * hidden + feed)
    added += expanded * (weights + 2 * hidden + s.expansion_hidden + out)
    floats, bare = kept * latents * hidden, replace(closed_book(shape, work), added_parameters=added)
    if not kept:
        return bare
    own = 4 * latents * hidden * (inner + feed)
    entry = 4 * latents * hidden * inner + 4 * latents * latents * inner
    aggregating = s.blocks * sum(groups * own + entries * entry for entries, groups in _levels(kept, s.hierarchy))
    return replace(
        bare,
        state_floats=floats,
        state_bytes=floats * (2 if s.bank_dtype == "bfloat16" else 4) + INTEGER,
        ask_slots=bare.ask_slots + s.prefix_length,
        adapt_flops=sum(documents.read(shape, length, latents) for length in lengths),
        ask_flops=questions.read(shape, asked, latents)
        + aggregating
        + 2 * expanded * weights
        + answer(shape, work, s.prefix_length, begun=False),
        positions=bare.positions + s.prefix_length,
    )


def _levels(kept: int, group: int | None) -> Iterator[tuple[int, int]]:
    """Entries and groups of every level; one group of all where there is no tree."""
    groups = 1 if group is None else -(-kept // group)
    yield kept, groups
    if groups > 1:
        yield from _levels(groups, group)


MAC = MethodSpec(
    name="mac",
    summary="latents of documents, a prefix a question",
    where="ttabench.methods.mac.method:Mac",
    Settings=MacSettings,
    presets=PRESETS,
    recipes=RECIPES,
    growth="linear",
    trainable=True,
    looks_at_question=True,
    piece_shares=lambda settings: settings.hierarchy is None,
    cost=cost,
    checked=TINY,
    paper="2403.04317",
)
METHODS = (MAC,)
