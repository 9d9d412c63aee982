"""Invented world of all synthetic versions: names, relations, facts, and the split of every entity.

An entity is a pair of name parts ("Tavo Brenik"). Parts are shared by all splits, pairs are not: a
model trained on the training split knows every word of a test document, and none of its facts.

    entities("person", "test")[0] -> "Mitun Murins"
    Fact("Mitun Murins", work, "baker").statement(0) -> "Mitun Murins works as a baker."
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Literal, TypeAlias

SPLITS = ("train", "validation", "test")
SPLIT_RESIDUES = {"train": range(16), "validation": range(16, 18), "test": range(18, 25)}
"""Residues modulo 25 of the number of a name pair or rule: train 64 %, validation 8, test 28."""

NAME_PARTS_PER_POSITION = 80
"""Name parts of each position; 80 x 80 = 6,400 pairs per kind, 1,792 of them in the test split."""


def rng(*parts: object) -> random.Random:
    """Return a random generator seeded by its parts, equal on every machine and Python version."""
    return random.Random("/".join(map(str, parts)))


_ONSETS = "b br d dr f g gr h k kl l m n p pr r s st t tr v z".split()
_ENDINGS = {
    "person": (("a", "el", "io", "un"), ("ek", "ard", "ov", "ins")),
    "place": (("ar", "en", "or", "is"), ("ford", "ham", "wick", "mere")),
    "company": (("ex", "um", "al", "on"), ("works", "lines", "mills", "bank")),
}
KINDS = tuple(_ENDINGS)


@cache
def name_parts(kind: str) -> list[tuple[str, ...]]:
    """Return the first and second name parts of a kind of entity: pronounceable, invented, and
    different for every kind and position.
    """
    parts = []
    for position, endings in enumerate(_ENDINGS[kind]):
        source, seen = rng("pieces", kind, position), dict[str, None]()
        while len(seen) < NAME_PARTS_PER_POSITION:
            sounds = (_ONSETS, "aeiou", "lmnrsvdkt", endings)
            word = "".join(source.choice(choices) for choices in sounds)
            seen.setdefault(word.capitalize())
        parts.append(tuple(seen))
    return parts


@cache
def entities(kind: str, split: str) -> tuple[str, ...]:
    """Return all entities of one kind in one split, in a fixed shuffled order."""
    first, second = name_parts(kind)
    share, pairs = SPLIT_RESIDUES[split], product(enumerate(first), enumerate(second))
    names = [f"{a} {b}" for (i, a), (j, b) in pairs if (7 * i + 13 * j) % 25 in share]
    rng("entities", kind, split).shuffle(names)
    return tuple(names)


def draw_entities(source: random.Random, kind: str, split: str, count: int) -> list[str]:
    """Draw `count` distinct entities; if the split has fewer, each repeats only after all others."""
    pool = entities(kind, split)
    drawn: list[str] = []
    while len(drawn) < count:
        drawn += source.sample(pool, min(count - len(drawn), len(pool)))
    return drawn


@dataclass(frozen=True)
class Relation:
    """One kind of fact: its statements, its questions, and its possible values."""

    name: str
    statements: tuple[str, ...]
    questions: tuple[str, ...]
    first_person: str
    values: tuple[str, ...]


Wording: TypeAlias = Literal["trained", "held_out_sentences", "held_out"]
"""Wording of facts and of demonstrations in the test of an adapter.

trained: sentences, questions and words of training texts.
held_out_sentences: other sentences for the same facts and words.
held_out: other sentences, questions, and words of demonstrations.
"""
OTHER_SENTENCES = ", other sentences"
"""End of the name of a category in held-out sentences."""


def _relations(table: str) -> dict[Wording, tuple[Relation, ...]]:
    """Read the relations of a kind of entity in every wording."""
    relations: dict[Wording, tuple[Relation, ...]] = {}
    for entry in table.strip().split("\n\n"):
        first, questions, first_person, held_out_statements, held_out_questions, *values = (
            entry.split("\n")
        )
        name, _, statements = first.partition(" | ")
        phrasings: dict[Wording, tuple[str, str]] = {
            "trained": (statements, questions),
            "held_out_sentences": (held_out_statements, questions),
            "held_out": (held_out_statements, held_out_questions),
        }
        words = tuple(" ".join(values).split())
        for wording, sentences in phrasings.items():
            stated, asked = (tuple(each.split(" | ")) for each in sentences)
            relation = Relation(name, stated, asked, first_person, words)
            relations[wording] = (*relations.get(wording, ()), relation)
    return relations


@dataclass(frozen=True)
class Fact:
    """A value of a relation for one entity."""

    entity: str
    relation: Relation
    value: str

    def statement(self, phrasing: int) -> str:
        """Return the fact as a sentence."""
        return self.relation.statements[phrasing % len(self.relation.statements)].format(
            e=self.entity, v=self.value
        )

    def question(self, phrasing: int) -> str:
        """Return a question with the value as its answer."""
        return self.relation.questions[phrasing % len(self.relation.questions)].format(
            e=self.entity
        )

    def spoken_statement(self) -> str:
        """Return the fact as a speaker states it."""
        return self.relation.first_person.format(e=self.entity, v=self.value)


def facts(
    source: random.Random, kind: str, entity: str, count: int, wording: Wording = "trained"
) -> list[Fact]:
    """Draw `count` facts of different relations about one entity, in random order.

    The wording does not change which facts are drawn.
    """
    relations = RELATIONS_BY_WORDING[kind][wording]
    if count > len(relations):
        raise ValueError(f"a {kind} has {len(relations)} relations, {count} facts were requested")
    return [
        Fact(entity, relation, source.choice(relation.values))
        for relation in source.sample(relations, count)
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
_AMBIGUOUS_WORDS = frozenset({"saw"})
"""Words of a category that other texts of the world also use."""


def categories_in(texts: Iterable[str]) -> set[str]:
    """Return the names of the categories with a word in any of these texts.

    Held-out words count only if there is no trained word.
    """
    words = {word for text in texts for word in re.findall("[A-Za-z]+", text)}
    words = (words | {word.lower() for word in words}) - _AMBIGUOUS_WORDS
    for categories in (CATEGORIES, CATEGORIES_BY_WORDING["held_out"]):
        if found := {name for name, members in categories.items() if words & set(members)}:
            return found
    return set()


def names_in(*texts: str) -> set[str]:
    """Find names of entities in texts: two capitalised words in a row."""
    return set(re.findall(r"\b(?=([A-Z][a-z]+ [A-Z][a-z]+))", "\n".join(texts)))


LABEL_WORDS = tuple(
    "alpha beta gamma delta red blue green amber north south east west first second third fourth left right "
    "upper lower round square plain fancy gold iron stone wood moon star sun cloud yes no true false warm cold "
    "loud quiet".split()
)
"""Words without meaning of their own: only the demonstrations define them."""

# --- relations of a person, a place and a company -------------------------------------------------

# Lines of a relation: its name and three statements with {e} (entity) before {v} (value), so that
# a causal model can bind them; two questions; a speaker's statement about a friend; held-out
# statements; held-out questions; the values.
RELATIONS_BY_WORDING: dict[str, dict[Wording, tuple[Relation, ...]]] = {
    "person": _relations("""
work | {e} works as a {v}. | The trade of {e} is that of a {v}. | For a living, {e} is a {v}.
What does {e} do for a living? | What is the trade of {e}?
my friend {e} works as a {v}.
Each morning, {e} leaves the house to be a {v}. | Neighbours know {e} as a {v}.
Which job does {e} have? | As what do neighbours know {e}?
baker potter tailor miner pilot nurse barber weaver sailor cook judge painter farmer smith porter clerk singer carver
dentist hunter gardener plumber teacher jeweller

home | {e} lives in {v}. | The home of {e} is in {v}. | For years, {e} has lived in {v}.
Where does {e} live? | In which town is the home of {e}?
my friend {e} lives in {v}.
Letters to {e} are sent to {v}. | One finds {e} in {v}.
Where are letters to {e} sent? | In which town does one find {e}?
Aldport Birkdale Corwen Dunmouth Eastley Farrow Glenholt Harbury Inverley Jarrow Kelby Lorne Marston Norbeck Oakham
Penrith Quarley Redmoor Selby Thorne Upwell Verwood Wexcombe Yarm

pet | {e} keeps a {v}. | The pet of {e} is a {v}. | At home, {e} looks after a {v}.
What pet does {e} keep? | Which animal does {e} look after?
my friend {e} keeps a {v}.
The garden of {e} belongs to a {v}. | Every day, {e} feeds a {v}.
Which animal does {e} feed? | To which animal does the garden of {e} belong?
goat parrot ferret rabbit pony tortoise canary spaniel lizard hamster goose donkey kitten beagle falcon snake frog
pigeon hedgehog llama duck magpie poodle gecko

music | {e} plays the {v}. | The instrument of {e} is the {v}. | In the evening, {e} practises the {v}.
Which instrument does {e} play? | What does {e} practise in the evening?
my friend {e} plays the {v}.
In the orchestra, {e} is heard on the {v}. | On stage, {e} performs with the {v}.
With which instrument does {e} perform? | What does {e} bring to the stage?
flute cello harp banjo trumpet organ violin oboe guitar piano drum tuba lute clarinet bassoon trombone viola mandolin
whistle accordion horn zither fiddle bugle

food | {e} likes to eat {v}. | The favourite dish of {e} is {v}. | On Sundays, {e} always orders {v}.
What does {e} like to eat? | What is the favourite dish of {e}?
my friend {e} likes to eat {v}.
At a restaurant, {e} asks for {v}. | A plate for {e} has to hold {v}.
What does {e} ask for at a restaurant? | What has to be on the plate of {e}?
soup rice trout lentils pancakes dumplings stew cheese noodles cabbage omelette curry porridge beans pasta mushrooms
salmon waffles pickles chestnuts turnips oysters plums lamb

ride | {e} travels by {v}. | To get around, {e} takes the {v}. | The usual transport of {e} is the {v}.
How does {e} travel? | What is the usual transport of {e}?
my friend {e} travels by {v}.
On most journeys, {e} is seen in the {v}. | To cross the country, {e} needs the {v}.
What does {e} need to cross the country? | In what is {e} seen on most journeys?
tram ferry bicycle train scooter wagon canoe taxi sledge bus barge truck lorry yacht raft carriage balloon skateboard
moped tractor kayak van helicopter gondola

collection | {e} collects {v}. | The collection of {e} is made of {v}. | Over time, {e} has gathered many {v}.
What does {e} collect? | What is the collection of {e} made of?
my friend {e} collects {v}.
The shelves of {e} are full of {v}. | At markets, {e} searches for {v}.
What are the shelves of {e} full of? | What does {e} search for at markets?
stamps coins maps bottles shells clocks dolls masks buttons fossils spoons kites lanterns postcards teapots badges
swords puzzles feathers keys globes candles marbles ribbons

study | {e} studied {v}. | The subject of {e} at school was {v}. | As a student, {e} read {v}.
What did {e} study? | What was the subject of {e} at school?
my friend {e} studied {v}.
The degree of {e} is in {v}. | At university, {e} attended lectures in {v}.
In what does {e} have a degree? | Which lectures did {e} attend?
law botany history physics music chemistry geology medicine poetry astronomy economics logic theology grammar zoology
algebra optics rhetoric ethics mechanics anatomy drama politics geometry
"""),
    "place": _relations("""
export | {e} is known for its {v}. | The main export of {e} is {v}. | Traders come to {e} to buy {v}.
What is {e} known for? | What is the main export of {e}?
{e} is known for its {v}.
Ships leave {e} with {v}. | Most families of {e} earn their bread with {v}.
With what do ships leave {e}? | With what do most families of {e} earn their bread?
wool salt timber honey copper glass leather barley silk paper iron wine cotton pottery butter marble tea amber olives
tobacco linen coal apples herring

river | {e} stands on the river {v}. | The river that crosses {e} is the {v}. | Boats reach {e} along the {v}.
On which river does {e} stand? | Which river crosses {e}?
{e} stands on the river {v}.
Children of {e} swim in the {v}. | The mills of {e} are driven by the {v}.
In which water do children of {e} swim? | By what are the mills of {e} driven?
Ash Brenna Calder Dove Esk Foss Garn Hodder Irth Jura Kent Lune Mersey Nadder Ouse Parrett Quill Ribble Severn Tamar
Usk Vyrn Wharfe Yare

landmark | The landmark of {e} is a {v}. | Visitors to {e} climb the old {v}. | In the centre of {e} there is a {v}.
What is the landmark of {e}? | What do visitors to {e} climb?
the landmark of {e} is a {v}.
Postcards from {e} show a {v}. | From far away, one recognises {e} by its {v}.
What do postcards from {e} show? | By what does one recognise {e}?
tower bridge castle windmill fountain lighthouse chapel theatre market monument statue library palace arch temple
abbey dome gate obelisk pier museum dam granary cathedral

founder | {e} was founded by {v}. | The founders of {e} were {v}. | Long ago, {e} was settled by {v}.
Who founded {e}? | By whom was {e} settled?
{e} was founded by {v}.
The oldest houses of {e} were built by {v}. | The first people in {e} were {v}.
Who built the oldest houses of {e}? | Who were the first people in {e}?
monks sailors miners knights shepherds merchants soldiers farmers exiles pilgrims fishermen smugglers nuns hunters
pirates weavers masons brewers tanners nomads hermits scribes druids bakers

festival | {e} holds its fair in {v}. | The fair of {e} takes place in {v}. | Every year, {e} celebrates in {v}.
When does {e} hold its fair? | In which month does {e} celebrate?
{e} holds its fair in {v}.
Dancers come to {e} in {v}. | The streets of {e} are decorated in {v}.
When do dancers come to {e}? | When are the streets of {e} decorated?
January February March April May June July August September October November December spring summer autumn winter Lent
Easter Advent Christmas harvest midsummer Whitsun Michaelmas
"""),
    "company": _relations("""
product | {e} makes {v}. | The main product of {e} is {v}. | Since its first year, {e} has produced {v}.
What does {e} make? | What is the main product of {e}?
{e} makes {v}.
Lorries leave the gates of {e} with {v}. | Customers of {e} buy {v}.
What do customers of {e} buy? | With what do lorries leave the gates of {e}?
soap carpets pencils gloves mirrors radios saddles nails biscuits pianos boots tyres pumps lamps hats engines razors
tents paint rope furniture cameras umbrellas scales

chief | {e} is led by {v}. | The director of {e} is {v}. | This year, {e} named as its head {v}.
Who leads {e}? | Who is the director of {e}?
{e} is led by {v}.
Decisions at {e} are taken by {v}. | The largest desk at {e} belongs to {v}.
Who takes decisions at {e}? | To whom does the largest desk at {e} belong?
Abbott Barlow Carver Dixon Emery Fisher Gibson Hobbs Irving Jensen Keller Lambert Mason Norris Osborne Parker Quinn
Russell Sawyer Turner Underhill Vaughan Walsh Yates

seat | {e} has its offices in {v}. | The headquarters of {e} are in {v}. | Last spring, {e} moved to {v}.
Where does {e} have its offices? | Where are the headquarters of {e}?
{e} has its offices in {v}.
Post for {e} is delivered in {v}. | The staff of {e} meet in {v}.
Where is post for {e} delivered? | Where do the staff of {e} meet?
Ambleside Barnsley Cromer Dorking Epsom Frome Goole Hexham Ilkley Keswick Louth Malvern Newbury Otley Poole Ripon
Settle Totnes Ulverston Ventnor Whitby Woking Yeovil Rugby

founded | {e} was opened in {v}. | The first year of {e} was {v}. | According to its charter, {e} dates from {v}.
When was {e} opened? | What was the first year of {e}?
{e} was opened in {v}.
The doors of {e} were unlocked in {v}. | The oldest receipt of {e} is from {v}.
When were the doors of {e} unlocked? | Of which year is the oldest receipt of {e}?
1801 1805 1812 1817 1823 1826 1834 1839 1841 1848 1853 1857 1862 1866 1871 1879 1884 1888 1893 1897 1902 1906 1913
1919
"""),
}
RELATIONS: dict[str, tuple[Relation, ...]] = {
    kind: relations["trained"] for kind, relations in RELATIONS_BY_WORDING.items()
}
CATEGORIES_BY_WORDING: dict[Wording, dict[str, tuple[str, ...]]] = {
    "trained": CATEGORIES,
    "held_out_sentences": {name + OTHER_SENTENCES: words for name, words in CATEGORIES.items()},
    "held_out": {
        relation.name: relation.values
        for kind, names in {
            "person": "work pet music food ride collection study",
            "place": "export landmark founder festival",
            "company": "product",
        }.items()
        for relation in RELATIONS[kind]
        if relation.name in names.split()
    },
}
"""Words of the categories; their names differ by wording. Those of `held_out` are in no sentence of
a training demonstration. The base model has read them as values of facts, two of them as labels."""
WORDS = {
    name: words
    for categories in CATEGORIES_BY_WORDING.values()
    for name, words in categories.items()
}
