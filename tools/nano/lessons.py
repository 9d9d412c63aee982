"""Curriculum of the nano LM: its sequences, their order, and their losses.

A batch has ids, loss weights, and the positions of names and answers, which `teaching` uses.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tools.nano import corpus
from ttabench.mini.world import rng

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from torch import Tensor


@dataclass(frozen=True)
class Stage:
    """One stage of the curriculum."""

    name: str
    tokens: int
    lengths: tuple[int, ...]
    """Target lengths of the sequences. One is drawn per batch."""
    families: dict[str, float]
    """Share of each family."""
    batch: int = 8192
    """Tokens per batch. Early stages depend on the number of steps, not of tokens."""
    one_relation: float = 0.3
    """Share of question-answering sequences with the same relation in all documents."""
    naming: float = 0.0
    pointing: float = 0.0
    """Weights of the teaching losses, see `teaching.losses_of`."""


@dataclass(frozen=True)
class Teaching:
    """Weights of the attention losses, see `teaching.losses_of`."""

    naming: float
    pointing: float
    layers: tuple[int, ...] = (2,)
    """Layers with the pointing loss."""


_QA = {"streamingqa": 2.4, "squad_seq": 1.4, "archivalqa": 1.4}
_ALL = _QA | {
    "superglue": 1.1,
    "metaicl": 1.1,
    "lamp": 0.7,
    "msc": 0.8,
    "dailydialog": 0.5,
    "pg19": 0.6,
}
STAGES = (
    Stage(
        "tell apart",
        2_500_000,
        (64, 96, 128, 192),
        _QA | {"metaicl": 0.8},
        4096,
        0.6,
        naming=0.3,
        pointing=0.5,
    ),
    Stage(
        "all families", 3_000_000, (128, 192, 256, 384), _ALL, 4096, 0.4, naming=0.1, pointing=0.3
    ),
    Stage("longer", 4_000_000, (256, 384, 512, 768, 1024), _ALL, pointing=0.3),
    Stage("longest", 4_500_000, (384, 512, 1024, 1536, 2048, 2560), _ALL, pointing=0.2),
)


@dataclass
class Sequence:
    """Token ids, loss weights, and for each answer its start and the earlier positions that contain
    it.
    """

    ids: list[int]
    weights: list[float]
    pointers: list[tuple[int, list[int]]] = field(default_factory=list)
    """(position that predicts the answer, positions of its first token in the segments that contain
    it).
    """
    groups: list[int] = field(default_factory=list)
    """Document, question or demonstration of each token."""
    keys: list[int] = field(default_factory=list)
    """Mask per token: 1 for the first, 2 for the second word that identifies its group, 3 for both."""

    def cut(self, length: int) -> Sequence:
        """Return the first `length` tokens."""
        kept = [pointer for pointer in self.pointers if pointer[0] < length]
        return Sequence(
            self.ids[:length], self.weights[:length], kept, self.groups[:length], self.keys[:length]
        )


def sequence(tokenizer: Tokenizer, stage: Stage, length: int, seed: object) -> Sequence:
    """Generate one training sequence, at most a quarter longer than `length`."""
    source = rng("nano", stage.name, seed)
    (name,) = source.choices(list(stage.families), list(stage.families.values()))
    kinds = {"streamingqa": "person", "squad_seq": "place", "archivalqa": "company"}
    family = (
        corpus.question_answering(kinds[name], stage.one_relation)
        if name in kinds
        else corpus.FAMILIES[name]
    )
    return encoded(tokenizer, family(source, length)).cut(length * 5 // 4)


def encoded(tokenizer: Tokenizer, segments: corpus.Segments) -> Sequence:
    """Encode segments as one sequence after a BOS."""
    texts = [segment.text for segment in segments if segment.text != corpus.END]
    encoded = iter(tokenizer.encode_batch(texts, add_special_tokens=False))
    made = Sequence([0], [0.0], groups=[0], keys=[0])
    names = tokenizer.encode_batch(
        [f" {key}" for segment in segments for key in segment.keys], add_special_tokens=False
    )
    words = iter([name.ids[0] for name in names])
    spans: list[tuple[int, list[int]]] = []
    for segment in segments:
        ids = [1] if segment.text == corpus.END else next(encoded).ids
        start = len(made.ids)
        places = [
            first + i
            for first, source_ids in (spans[s] for s in segment.sources)
            for i, t in enumerate(source_ids)
            if t == ids[0]
        ]
        if places:
            made.pointers.append((start - 1, places))
        spans.append((start, ids))
        known = [next(words) for _ in segment.keys]
        made.groups += [made.groups[-1] + bool(known)] * len(ids)
        made.keys += [
            sum(place + 1 for place, word in enumerate(known) if word == token) for token in ids
        ]
        made.ids += ids
        made.weights += [segment.weight] * len(ids)
    return made


@dataclass(frozen=True)
class Batch:
    """Padded sequences. Shape letters: B rows, T tokens, N pointers of all rows."""

    ids_BT: Tensor
    weights_BT: Tensor
    row_N: Tensor
    query_N: Tensor
    """Position that predicts an answer."""
    held_NT: Tensor
    """True at the earlier positions that contain the answer."""
    groups_BT: Tensor
    keys_BT: Tensor
    positions_BT: Tensor
    """Position of each token, ascending per row, usually by one."""


def batch_of(sequences: list[Sequence], positions: list[list[int]] | None = None) -> Batch:
    """Pad sequences to the longest.

    Args:
        positions: positions of the tokens of each sequence; None counts from 0.
    """
    import torch
    from torch.nn.utils.rnn import pad_sequence

    ids_BT = pad_sequence(
        [torch.tensor(s.ids) for s in sequences], batch_first=True, padding_value=2
    )
    weights_BT = pad_sequence([torch.tensor(s.weights) for s in sequences], batch_first=True)
    flat = [(row, query, places) for row, s in enumerate(sequences) for query, places in s.pointers]
    held_NT = torch.zeros(len(flat), ids_BT.shape[1], dtype=torch.bool)
    for n, (_, _, places) in enumerate(flat):
        held_NT[n, places] = True
    rows, queries = (torch.tensor([f[i] for f in flat], dtype=torch.int64) for i in (0, 1))
    groups_BT = pad_sequence(
        [torch.tensor(s.groups) for s in sequences], batch_first=True, padding_value=-1
    )
    keys_BT = pad_sequence([torch.tensor(s.keys) for s in sequences], batch_first=True)
    width = ids_BT.shape[1]
    own_positions = positions or [list(range(width)) for _ in sequences]
    # Padding continues the positions; it is never attended to.
    whole = [[*row, *range(row[-1] + 1, row[-1] + 1 + width - len(row))] for row in own_positions]
    return Batch(
        ids_BT, weights_BT, rows, queries, held_NT, groups_BT, keys_BT, torch.tensor(whole)
    )


def batches(tokenizer: Tokenizer, stage: Stage, seed: int) -> Iterator[Batch]:
    """Yield endless batches of about `stage.batch` tokens each."""
    step = 0
    while True:
        length = rng("length", stage.name, seed, step).choice(stage.lengths)
        rows = max(1, stage.batch // length)
        yield batch_of(
            [sequence(tokenizer, stage, length, f"{seed}-{step}-{row}") for row in range(rows)]
        )
        step += 1
