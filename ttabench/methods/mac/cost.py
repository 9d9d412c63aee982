"""What MAC costs: what reads documents and questions, a bank of latents, an expansion into a prefix or deltas.

    cost(settings, shape, work).added_parameters     the amortiser, the input encoder, the aggregator, the expansion

Tack et al., arXiv 2403.04317, section 3 and appendix A.1; T5: arXiv 1910.10683. The T5s are taken to cut a text into as
many tokens as the base model does; their end token stands for the joiner of a piece.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ttabench.cost.load import INTEGER, Cost, Workload, answer, closed_book
from ttabench.cost.shape import Shape
from ttabench.methods.mac.settings import MacSettings

BUCKETS = 32
"""Relative distances that a T5 tells apart."""
T5_VOCABULARY = 32_128


@dataclass(frozen=True)
class T5:
    """An encoder-decoder with as many layers on either side."""

    width: int
    layers: int
    heads: int
    inner: int
    """Of all heads together."""
    feed_forward: int
    vocabulary: int

    @property
    def parameters(self) -> int:
        """All of them, norms and distance biases too."""
        attention, feed = 4 * self.width * self.inner, 2 * self.width * self.feed_forward
        encoder, decoder = attention + feed + 2 * self.width, 2 * attention + feed + 3 * self.width
        ends = self.vocabulary * self.width + 2 * self.width + 2 * BUCKETS * self.heads
        return self.layers * (encoder + decoder) + ends

    def read(self, tokens: int, slots: int, pairs: int) -> int:
        """Operations: encode the text; `slots` decoder tokens see it, and `pairs` of them each other."""
        attention, feed = 4 * self.width * self.inner, 2 * self.width * self.feed_forward
        encoder = 2 * tokens * (attention + feed) + 4 * self.inner * tokens * tokens
        crossed = 4 * self.width * self.inner * (slots + tokens) + 4 * self.inner * slots * tokens
        return self.layers * (encoder + 2 * slots * (attention + feed) + 4 * self.inner * pairs + crossed)


@dataclass(frozen=True)
class OneStack(T5):
    """An encoder of that shape, or a causal LM (GPT-2's layers), that reads the text and the slots as one sequence."""

    positions: int = 0
    """Learned ones, of the causal LM."""
    causal: bool = False

    @property
    def parameters(self) -> int:
        """All of them, norms and biases too."""
        matrices = 4 * self.width * self.inner + 2 * self.width * self.feed_forward
        if not self.causal:
            ends = self.vocabulary * self.width + self.width + BUCKETS * self.heads
            return self.layers * (matrices + 2 * self.width) + ends
        biases = 4 * self.width + self.feed_forward + self.width + 4 * self.width
        return self.layers * (matrices + biases) + (self.vocabulary + self.positions + 2) * self.width

    def read(self, tokens: int, slots: int, pairs: int) -> int:  # noqa: ARG002  # as of a T5
        """Operations: every token and slot sees all of them, behind a mask where the stack is causal."""
        length = tokens + slots
        matrices = 4 * self.width * self.inner + 2 * self.width * self.feed_forward
        return self.layers * (2 * length * matrices + 4 * self.inner * length * length)


PUBLISHED = {"t5-small": (512, 6, 8, 2048), "t5-base": (768, 12, 12, 3072), "t5-large": (1024, 24, 16, 4096)}
"""Width, layers, heads of 64, feed-forward (arXiv 1910.10683, section 3.7; google-t5/*/config.json)."""


def t5_of(name: str, shape: Shape) -> T5 | None:
    """The T5 of that name on a base model; None where it is neither published nor `scratch:WIDTH,LAYERS,HEADS,FF`."""
    numbers = name.removeprefix("scratch:").split(",")
    if name.startswith("scratch:") and len(numbers) == 4 and all(number.isdecimal() for number in numbers):
        width, layers, heads, feed_forward = map(int, numbers)
        return T5(width, layers, heads, width, feed_forward, shape.vocabulary)
    if name not in PUBLISHED:
        return None
    width, layers, heads, feed_forward = PUBLISHED[name]
    return T5(width, layers, heads, 64 * heads, feed_forward, T5_VOCABULARY)


def reader_of(settings: MacSettings, name: str, tokens: int, shape: Shape) -> T5 | None:
    """What reads documents or questions of so many tokens, of the design that is set; None as of `t5_of`."""
    t5 = t5_of(name, shape)
    if t5 is None or settings.design == "encoder-decoder":
        return t5
    if settings.design == "encoder":
        return OneStack(**vars(t5))
    if name in PUBLISHED:
        return None
    return OneStack(**vars(t5), positions=tokens + settings.num_virtual_tokens, causal=True)


def cost(settings: MacSettings, shape: Shape, work: Workload) -> Cost | None:
    """MAC (arXiv 2403.04317, algorithms 2 and 3): a latent a document, one aggregation and expansion a question."""
    longest = max(settings.document_tokens, settings.question_tokens if settings.share_t5 else 0)
    documents = reader_of(settings, settings.amortiser, longest, shape)
    questions = documents
    if not settings.share_t5:
        questions = reader_of(settings, settings.input_encoder, settings.question_tokens, shape)
    if documents is None or questions is None:
        return None
    latents = settings.num_virtual_tokens
    lengths = [max(min(piece, settings.document_tokens), settings.pad_to) for piece in work.pieces]
    adapt = sum(_amortise(documents, shape, length, latents) for length in lengths)
    kept = min(len(lengths), settings.bank_cap or len(lengths))
    floats = kept * latents * shape.hidden
    expansion = _Expansion.of(settings, shape)
    asked = max(min(work.prompt_tokens, settings.question_tokens), settings.question_pad_to)
    ask = _amortise(questions, shape, asked, latents) + _aggregate(settings, shape, kept) + expansion.flops
    slots = settings.prefix_length if settings.modulation == "prefix" else 0
    bare = closed_book(shape, work)
    if kept:
        ask += answer(shape, work, slots, begun=False) + expansion.token_flops * (shape.starts + work.asked)
    added = _amortiser(documents, shape, latents) + _amortiser(questions, shape, latents)
    added += documents.parameters + (0 if settings.share_t5 else questions.parameters)
    return replace(
        bare,
        added_parameters=added + _aggregator(settings, shape) + expansion.parameters,
        state_floats=floats,
        state_bytes=floats * (2 if settings.bank_dtype == "bfloat16" else 4) + (INTEGER if kept else 0),
        ask_slots=bare.ask_slots + (slots if kept else 0),
        adapt_flops=adapt,
        ask_flops=ask if kept else bare.ask_flops,
        positions=bare.positions + (slots if kept else 0),
    )


def _amortise(t5: T5, shape: Shape, tokens: int, latents: int) -> int:
    """The T5, then an MLP of its own for each latent token; its decoder is causal."""
    widths = t5.width * shape.hidden + shape.hidden**2 + (0 if t5.width == shape.hidden else t5.width * shape.hidden)
    return t5.read(tokens, latents, shape.pairs(latents)) + 2 * latents * widths


def _amortiser(t5: T5, shape: Shape, latents: int) -> int:
    """Parameters beside the T5: prompts, norms, MLPs."""
    lift = (t5.width + 1) * shape.hidden
    mix = (shape.hidden + 1) * shape.hidden
    return latents * (3 * t5.width + lift + mix + (0 if t5.width == shape.hidden else lift))


def _aggregator(settings: MacSettings, shape: Shape) -> int:
    """Parameters of the cross-attention blocks."""
    hidden, inner, feed = shape.hidden, settings.heads * settings.head_dim, min(shape.hidden, 768)
    norms, biases = 6 * hidden, 2 * hidden + feed
    return int(settings.blocks * (4 * hidden * inner + 2 * hidden * feed + norms + biases))


def _aggregate(settings: MacSettings, shape: Shape, kept: int) -> int:
    """Every block projects the question and the entries it reads; a tree reads its levels one after the other, and of
    those that only choose documents the last block only attends."""
    hidden, latents = shape.hidden, settings.num_virtual_tokens
    inner, feed = settings.heads * settings.head_dim, min(hidden, 768)
    own = 4 * latents * hidden * inner + 4 * latents * hidden * feed
    entry = 4 * latents * hidden * inner + 4 * latents * latents * inner
    *lower, last = _levels(kept, settings.hierarchy)
    chosen = lower if settings.hierarchy_by == "attended" else []
    attended = 2 * latents * hidden * inner  # queries, or keys, once more
    shares = sum((groups + entries) * attended + entries * 2 * latents * latents * inner for entries, groups in chosen)
    whole = sum(groups * own + entries * entry for entries, groups in (*lower, last))
    return int(settings.blocks * (whole + shares) - sum(groups * own + entries * entry for entries, groups in chosen))


def _levels(kept: int, group: int | None) -> Iterator[tuple[int, int]]:
    """Entries and groups of every level; one group of all where there is no tree."""
    if group is None:
        yield kept, 1
        return
    while True:
        groups = -(-kept // group)
        yield kept, groups
        if groups <= 1:
            return
        kept = groups


@dataclass(frozen=True)
class _Expansion:
    """Latent tokens to key/value prefixes (P-tuning v2), or to low-rank deltas (Table 4)."""

    parameters: int
    flops: int
    token_flops: int
    """Of the unmerged deltas, for every token of prompt and answer."""

    @staticmethod
    def of(settings: MacSettings, shape: Shape) -> _Expansion:
        """Every expanded token has a feed-forward network of its own."""
        hidden, wide, rank = shape.hidden, settings.expansion_hidden, settings.lora_rank
        if settings.modulation == "prefix":
            tokens, out = 2 * shape.layers * settings.prefix_length, shape.kv_heads * shape.head_dim
            to_b = token_flops = 0
        else:
            linears = [linear for linear in shape.linears if linear.name in settings.lora_targets]
            tokens, out = shape.layers * len(linears) * rank, max(linear.inputs for linear in linears)
            to_b = out * max(linear.outputs for linear in linears)
            token_flops = 2 * rank * shape.layers * sum(linear.ends for linear in linears)
        project = 0 if out == hidden else hidden * out
        weights = hidden * wide + wide * out + project + to_b
        return _Expansion(tokens * (weights + 2 * hidden + wide + out), 2 * tokens * weights, token_flops)
