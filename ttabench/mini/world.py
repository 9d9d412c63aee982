"""The invented world behind every miniature twin: names, relations, facts, and who belongs to which split.

Every entity is a pair of name pieces ("Tavo Brenik"). Pieces are shared by all splits, pairs are not: a reader that
has learned the training split knows every word of a test document and none of its facts.

    entities("person", "test")[0] -> "Mitun Murins"
    Fact("Mitun Murins", work, "baker").statement(0) -> "Mitun Murins works as a baker."
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

from ttabench.mini.relations import RELATIONS, Relation

SPLITS = ("train", "validation", "test")
_SHARES = {"train": range(16), "validation": range(16, 18), "test": range(18, 25)}
"""Residues modulo 25 of a pair's number: 64 % of the pairs train, 8 % validation, 28 % test."""

PIECES = 80
"""Name pieces of each position; 80 x 80 = 6,400 pairs a kind, 1,792 of them in the test split."""


def rng(*parts: object) -> random.Random:
    """A random generator named by its parts, equal on every machine and Python version."""
    return random.Random("/".join(map(str, parts)))


@cache
def _pieces(kind: str, position: int, endings: tuple[str, ...]) -> tuple[str, ...]:
    """Pronounceable invented name pieces, different for every kind and position."""
    source = rng("pieces", kind, position)
    onsets, vowels, middles = (
        "b br d dr f g gr h k kl l m n p pr r s st t tr v z".split(),
        "aeiou",
        "l m n r s v d k t".split(),
    )
    seen: dict[str, None] = {}
    while len(seen) < PIECES:
        word = source.choice(onsets) + source.choice(vowels) + source.choice(middles) + source.choice(endings)
        seen.setdefault(word.capitalize())
    return tuple(seen)


_ENDINGS = {
    "person": (("a", "el", "io", "un"), ("ek", "ard", "ov", "ins")),
    "place": (("ar", "en", "or", "is"), ("ford", "ham", "wick", "mere")),
    "company": (("ex", "um", "al", "on"), ("works", "lines", "mills", "bank")),
}
KINDS = tuple(_ENDINGS)


def name_pieces(kind: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """First and second name pieces of a kind of entity."""
    first, second = _ENDINGS[kind]
    return _pieces(kind, 0, first), _pieces(kind, 1, second)


@cache
def entities(kind: str, split: str) -> tuple[str, ...]:
    """All entities of one kind in one split, in a fixed shuffled order. Splits are disjoint."""
    if kind not in _ENDINGS or split not in _SHARES:
        raise ValueError(f"no entities of kind {kind!r} in split {split!r}")
    first, second = name_pieces(kind)
    names = [
        f"{a} {b}" for i, a in enumerate(first) for j, b in enumerate(second) if (7 * i + 13 * j) % 25 in _SHARES[split]
    ]
    rng("entities", kind, split).shuffle(names)
    return tuple(names)


def draw_entities(source: random.Random, kind: str, split: str, count: int) -> list[str]:
    """`count` distinct entities; where the split has fewer, pairs repeat only after all were used."""
    pool = entities(kind, split)
    drawn: list[str] = []
    while len(drawn) < count:
        drawn += source.sample(pool, min(count - len(drawn), len(pool)))
    return drawn


@dataclass(frozen=True)
class Fact:
    """A value of a relation for one entity."""

    entity: str
    relation: Relation
    value: str

    def statement(self, phrasing: int) -> str:
        """The fact as a sentence."""
        return self.relation.statements[phrasing % len(self.relation.statements)].format(e=self.entity, v=self.value)

    def question(self, phrasing: int) -> str:
        """A question whose answer is the value."""
        return self.relation.questions[phrasing % len(self.relation.questions)].format(e=self.entity)

    def told(self) -> str:
        """The fact as a speaker tells it."""
        return self.relation.first_person.format(e=self.entity, v=self.value)


def facts(source: random.Random, kind: str, entity: str, count: int) -> list[Fact]:
    """`count` facts of different relations about one entity, in random order."""
    if count > len(RELATIONS[kind]):
        raise ValueError(f"a {kind} has {len(RELATIONS[kind])} relations, {count} facts were asked for")
    return [
        Fact(entity, relation, source.choice(relation.values)) for relation in source.sample(RELATIONS[kind], count)
    ]


CATEGORIES: dict[str, tuple[str, ...]] = {
    name: tuple(words.split())
    for name, words in {
        "bird": "heron robin crow finch stork wren gull raven thrush owl swan lark",
        "tree": "oak birch cedar maple willow elm poplar spruce larch beech alder pine",
        "tool": "hammer chisel saw wrench drill pliers shovel rake anvil spanner file axe",
        "cloth": "scarf jacket sock shirt glove apron cloak vest skirt collar bonnet robe",
        "fruit": "apple pear cherry grape lemon melon peach fig quince mango orange apricot",
        "fish": "carp perch pike eel cod sole tench bream mackerel sardine tuna shark",
        "metal": "silver bronze zinc steel tin nickel lead brass chrome cobalt pewter platinum",
        "weather": "storm fog drizzle hail frost thunder breeze sleet snow mist gale drought",
        "room": "kitchen attic cellar parlour bedroom pantry hallway study nursery porch garage lobby",
        "game": "chess poker tennis cricket dominoes golf rugby bowls darts hockey polo croquet",
        "spice": "pepper ginger saffron nutmeg thyme basil mint cumin clove parsley garlic mustard",
        "boat": "cutter schooner dinghy trawler frigate galley punt sloop tanker steamer lugger clipper",
    }.items()
}
_VERBS = frozenset({"saw"})
"""Words of a category that texts of the world use otherwise, too."""


def categories_in(texts: Iterable[str]) -> set[str]:
    """Names of the categories that have a word in any of these texts."""
    words = {word for text in texts for word in re.findall("[a-z]+", text.lower())} - _VERBS
    return {name for name, members in CATEGORIES.items() if words & set(members)}


def names_in(text: str) -> set[str]:
    """Whatever looks like an entity's name in a text: two capitalised words in a row."""
    return set(re.findall(r"\b(?=([A-Z][a-z]+ [A-Z][a-z]+))", text))


LABEL_WORDS = tuple(
    "alpha beta gamma delta red blue green amber north south east west first second third fourth left right "
    "upper lower round square plain fancy gold iron stone wood moon star sun cloud yes no true false warm cold "
    "loud quiet".split()
)
"""Words that mean nothing by themselves: what they stand for is told by the demonstrations alone."""
