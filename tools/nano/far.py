"""Last stage of the nano LM's curriculum: questions about any of 165 documents, over distances up
to 8,192 tokens.

Sequences are short (512 to 4,096 tokens) and dense: up to half of their tokens are questions. In
half of the batches of questions, positions jump between documents, so that short sequences train
distances of thousands of tokens. A third of the batches rehearse the other families, against
forgetting.

    "Notes of Monday: Mirel Dovan keeps a goat."       positions 1 to 12
    "In brief, Tavo Dovan keeps a mule."               positions 4,031 to 4,041: another animal, a similar name
    "What pet does Mirel Dovan keep?" " goat"          positions 7,100 to 7,109
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from tools.nano import corpus
from tools.nano.corpus import Segment, Segments
from tools.nano.lessons import Batch, Sequence, Stage, Teaching, batch_of, encoded, sequence
from ttabench.mini import qa
from ttabench.mini.world import (
    NAME_PARTS_PER_POSITION,
    RELATIONS,
    Fact,
    entities,
    facts,
    name_parts,
    rng,
)

if TYPE_CHECKING:
    from tokenizers import Tokenizer


REHEARSED = {
    "superglue": 1.5,
    "metaicl": 1.1,
    "lamp": 1.0,
    "msc": 1.2,
    "dailydialog": 1.2,
    "pg19": 1.6,
    "streamingqa": 0.5,
}

REHEARSED_LENGTHS = {256: 1.0, 384: 1.0, 512: 1.0, 1024: 1.0, 1536: 1.0, 2048: 1.0, 4096: 0.4}
"""Lengths of rehearsed sequences. Without the last, perplexity after 4,096 tokens of a book (3.34)
was worse than after 2,048 (2.82).
"""


@dataclass(frozen=True)
class FarStage:
    """Last stage of the curriculum: batches of questions, and batches that rehearse."""

    name: str = "far"
    steps: int = 2_700
    batch: int = 4_096
    """Tokens per batch, approximately."""
    span: int = 8_192
    """Upper limit of jumped positions, and number of positions of the model."""
    rope_theta: float = 1e8
    """Base of the rotary frequencies. With 1e4, heads of 16 dimensions match nothing beyond about
    1,500 tokens.
    """
    early: dict[int, float] = field(default_factory=lambda: {512: 0.7, 1024: 2.0, 2048: 2.0})
    late: dict[int, float] = field(default_factory=lambda: {1024: 1.5, 2048: 2.0, 4096: 1.5})
    """Weights of the lengths of question sequences. The share of `late` grows from 0 to 1."""
    rehearsed: float = 0.34
    """Share of batches of the other families."""
    rehearsed_lengths: dict[int, float] = field(default_factory=lambda: dict(REHEARSED_LENGTHS))
    families: dict[str, float] = field(default_factory=lambda: dict(REHEARSED))
    """Weights of the rehearsed families."""
    jumping: float = 0.5
    """Share of batches of questions with position jumps."""
    naming: float = 0.03
    """Weight of the naming loss, in sequences of at most `naming_length` tokens, because it
    compares all tokens.
    """
    naming_length: int = 512
    pointing: float = 0.3
    layers: tuple[int, ...] = (2, 3)
    """Layers with the pointing loss in batches of questions. The first one has it in all batches."""

    def shortened(self, share: float) -> FarStage:
        """Return the stage with this share of its steps, at least one."""
        return replace(self, steps=max(1, round(share * self.steps)))

    def rate(self, step: int, peak: float) -> float:
        """Return the learning rate: 30 steps of warm-up, constant for a quarter, a cosine to 5 % of
        the peak.
        """
        done = max(0.0, step / self.steps - 0.25) / 0.75
        return (
            peak * min(1.0, (step + 1) / 30) * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * done)))
        )


FAR = FarStage()


def batches(
    tokenizer: Tokenizer, stage: FarStage, seed: int, first: int = 0
) -> Iterator[tuple[Batch, Teaching]]:
    """Yield batches from step `first` on, each with its teaching losses."""
    for step in range(first, stage.steps):
        source = rng(stage.name, seed, step)
        rehearse, late = source.random() < stage.rehearsed, source.random() < step / stage.steps
        chances = stage.rehearsed_lengths if rehearse else stage.late if late else stage.early
        (length,) = source.choices(list(chances), list(chances.values()))
        rows = range(max(1, stage.batch // length))
        teaching = Teaching(
            stage.naming if length <= stage.naming_length else 0.0,
            stage.pointing,
            stage.layers[:1] if rehearse else stage.layers,
        )
        if rehearse:
            own = Stage(stage.name, 0, (length,), stage.families)
            yield (
                batch_of(
                    [sequence(tokenizer, own, length, f"{seed}-{step}-{row}") for row in rows]
                ),
                teaching,
            )
            continue
        made = [
            encoded(tokenizer, dense_questions(rng(stage.name, seed, step, row), length)).cut(
                length * 5 // 4
            )
            for row in rows
        ]
        jumps = source.random() < stage.jumping
        yield (
            batch_of(
                made, [jumped(batch, stage.span, source) for batch in made] if jumps else None
            ),
            teaching,
        )


def dense_questions(source: random.Random, tokens: int) -> Segments:
    """Generate documents, then questions about every fact, which take 15 to 50 % of the tokens."""
    (kind,) = source.choices(("person", "place", "company"), (2.0, 1.5, 1.5))
    asking, facts_told = source.choice((0.15, 0.3, 0.5, 0.5)), source.choice((1, 2, 4, 4, 4))
    relation = source.choice(RELATIONS[kind]) if source.random() < 0.3 else None
    count = max(2, round((1 - asking) * tokens / (20 if relation else 12 + 8 * facts_told)))
    documents = []
    for entity in cast(source, kind, count, alike=source.random() < 0.3):
        own = (
            [Fact(entity, relation, source.choice(relation.values))]
            if relation
            else facts(source, kind, entity, min(facts_told, len(RELATIONS[kind])))
        )
        documents.append(qa.document(source, entity, own))
    segments = [
        Segment(f"{document.text}\n\n", 0.0, keys=corpus.name_of(document.entity))
        for document in documents
    ]
    for place, fact in _asked(source, documents, max(2, round(asking * tokens / 12))):
        keys = corpus.name_of(fact.entity)
        segments.append(Segment(fact.question(source.randrange(2)), 0.0, keys=keys))
        segments += [Segment(f" {fact.value}", 1.0, (place,)), Segment(corpus.END, 0.2)]
    return segments


def _asked(
    source: random.Random, documents: list[qa.Document], count: int
) -> list[tuple[int, Fact]]:
    """Draw `count` facts and their documents, each once before any is repeated."""
    every = [(place, fact) for place, document in enumerate(documents) for fact in document.facts]
    if source.random() < 0.3:
        return source.choices(every, k=count)
    source.shuffle(every)
    return every[:count] + source.choices(every, k=max(0, count - len(every)))


def cast(source: random.Random, kind: str, count: int, *, alike: bool) -> list[str]:
    """Draw `count` entities of the training split.

    Args:
        alike: True to draw from a small grid of first and second names, so that many entities share one of the two.
    """
    pool = entities(kind, "train")
    if not alike:
        return source.sample(pool, count)
    side = math.isqrt(2 * count) + 1
    while True:
        first, second = (
            set(source.sample(parts, min(side, NAME_PARTS_PER_POSITION)))
            for parts in name_parts(kind)
        )
        near = [name for name in pool if name.split()[0] in first and name.split()[1] in second]
        if len(near) >= count:
            return source.sample(near, count)
        side += 1


def jumped(made: Sequence, span: int, source: random.Random) -> list[int]:
    """Return positions below `span` that jump before some documents and questions.

    The sum of all jumps is uniform. Its division among them is exponential.
    """
    groups = made.groups
    starts = [at for at in range(1, len(groups)) if groups[at] != groups[at - 1]]
    places = source.sample(starts, min(len(starts), source.choice((1, 2, 4, 8, len(starts)))))
    shares = [source.expovariate(1.0) for _ in places]
    reach = source.random() * max(0, span - len(groups))
    jump = {at: int(reach * share / sum(shares)) for at, share in zip(places, shares, strict=True)}
    positions, ahead = [], 0
    for at in range(len(groups)):
        ahead += jump.get(at, 0)
        positions.append(at + ahead)
    return positions
