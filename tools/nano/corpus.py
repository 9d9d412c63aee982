"""Training text of the nano LM: sequences of all nine families, in the prompt layout of the dataset
readers.

A sequence is a list of segments. The weight of a segment is the weight of its tokens in the loss: 1
for answers, 0 for documents of question answering, a little for running text. `END` becomes the EOS
token. `sources` are earlier segments with the answer, to which the model should attend when it
predicts this segment.

    Segment("Notes of Monday: Mirel Dovan keeps a goat.\n\n", 0.0, keys=("Mirel", "Dovan")),
    Segment("What pet does Mirel Dovan keep?", 0.0, keys=("Mirel", "Dovan")), Segment(" goat", 1.0, sources=(0,))
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from ttabench.mini import books, demonstrations, dialogue, profiles, qa
from ttabench.mini.world import CATEGORIES, LABEL_WORDS, RELATIONS, Fact, entities

END = "\0"


class Segment(NamedTuple):
    """A segment of a training sequence."""

    text: str
    weight: float
    sources: tuple[int, ...] = ()
    """Indices of earlier segments that contain this answer."""
    keys: tuple[str, ...] = ()
    """Words that identify this document, question or demonstration. They start a new group of
    segments.
    """


Segments: TypeAlias = list[Segment]
_RUNNING = 0.3
"""Weight of running text, much of which is unpredictable."""


def name_of(entity: str) -> tuple[str, ...]:
    """Split a name into its two words."""
    first, second = entity.split()
    return (first, second)


def _topic(text: str, category: str) -> tuple[str, ...]:
    """Return the word of a category in a text."""
    (word,) = set(text.lower().translate(str.maketrans(".,", "  ")).split()) & set(
        CATEGORIES[category]
    )
    return (word, word)


ANSWERS = {
    "boolq": ["no", "yes"],
    "cb": ["True", "False", "Neither"],
    "rte": ["True", "False"],
    "sst2": ["negative", "positive"],
    "copa": ["", ""],
}
"""Answer words by label. COPA's answers are its choices."""


def _answered(
    prompt: str, answer: str, keys: tuple[str, ...], sources: tuple[int, ...] = ()
) -> Segments:
    return [Segment(prompt, 0.0, keys=keys), Segment(f" {answer}", 1.0, sources), Segment(END, 1.0)]


def question_answering(
    kind: str, one_relation: float = 0.3
) -> Callable[[random.Random, int], Segments]:
    """Return a generator of documents, then questions drawn with replacement.

    Without replacement, the model learns "not the one already answered". Only answers have a loss,
    so questions take half of a short sequence and a quarter of a long one.
    """

    def sequence(source: random.Random, tokens: int) -> Segments:
        asking = 0.5 if tokens <= 256 else 0.35 if tokens <= 1024 else 0.25
        facts_told = source.choice((1, 2, 3, 4, 4, 4))
        relation = source.choice(RELATIONS[kind]).name if source.random() < one_relation else None
        per_document = 12 + 11 * facts_told if relation is None else 20
        count = max(2, round((1 - asking) * tokens / per_document))
        made = qa.documents(source, kind, "train", count, facts_told, relation)
        segments = [
            Segment(f"{document.text}\n\n", 0.0, keys=name_of(document.entity)) for document in made
        ]
        for index in source.choices(range(len(made)), k=max(2, round(asking * tokens / 12))):
            fact = source.choice(made[index].facts)
            segments += _answered(
                fact.question(source.randrange(2)), fact.value, name_of(fact.entity), (index,)
            )
        return segments

    return sequence


def metaicl(source: random.Random, tokens: int) -> Segments:
    """Generate demonstrations of one rule with its own label words. Every answer is predicted from
    earlier ones.
    """
    size = source.choice((2, 2, 3, 4))
    categories = list(source.choice(demonstrations.category_groups("train", size)))
    labels = source.sample(LABEL_WORDS, size)
    query, between = source.choice((("Input: {x} Output:", " "), ("Input: {x}\nOutput:", "\n\n")))
    return _demonstrated(source, tokens // 16, categories, labels, query, between)


def _demonstrated(
    source: random.Random,
    count: int,
    categories: list[str],
    labels: list[str],
    query: str,
    between: str,
) -> Segments:
    segments: Segments = []
    seen: dict[int, tuple[int, ...]] = {}
    for _ in range(max(2, count)):
        i = source.randrange(len(categories))
        text = demonstrations.scene(source, categories[i])
        segments.append(Segment(query.format(x=text), 0.0, keys=_topic(text, categories[i])))
        segments.append(Segment(f" {labels[i]}", 1.0, seen.get(i, ())))
        seen[i] = (*seen.get(i, ()), len(segments) - 1)
        segments.append(Segment(END, 1.0) if source.random() < 0.1 else Segment(between, 0.0))
    return segments


def superglue(source: random.Random, tokens: int) -> Segments:
    """Generate demonstrations of one language-understanding task in its usual template, under a new
    rule.
    """
    task = source.choice(("boolq", "cb", "copa", "rte", "sst2"))
    categories = list(
        source.choice(demonstrations.category_groups("train", 3 if task == "cb" else 2))
    )
    source.shuffle(categories)
    labels = ANSWERS[task]
    segments: Segments = []
    seen: dict[int, tuple[int, ...]] = {}
    for _ in range(max(2, tokens // (20 if task == "sst2" else 32))):
        label = source.randrange(len(categories))
        row = demonstrations.row(
            task, source, categories, label, source.choice(entities("person", "train"))
        )
        prompt, answer = template(task, row, labels[label])
        if task != "copa":
            prompt = prompt._replace(keys=_topic(prompt.text, categories[label]))
        segments += [prompt, answer._replace(sources=() if task == "copa" else seen.get(label, ()))]
        seen[label] = (*seen.get(label, ()), len(segments) - 1)
        segments.append(Segment(END, 1.0) if source.random() < 0.1 else Segment("\n\n", 0.0))
    return segments


def template(task: str, row: dict[str, object], answer: str) -> Segments:
    """Format a demonstration in the task's usual template: prompt (weight 0), answer (weight 1)."""
    if task == "copa":
        word = "because" if row["question"] == "cause" else "therefore"
        choice = str(row["choice1"] if row["label"] == 0 else row["choice2"])
        prompt, answer = f"{str(row['premise'])[:-1]} {word}", f" {choice[0].lower()}{choice[1:]}"
        return [Segment(prompt, 0.0), Segment(f" {answer}", 1.0)]
    prompt = {
        "boolq": "{passage}\nQuestion: {question}?\nAnswer:",
        "cb": "{premise}\nQuestion: {hypothesis}. True, False, or Neither?\nAnswer:",
        "rte": "{premise}\nQuestion: {hypothesis} True or False?\nAnswer:",
        "sst2": "{sentence}\nQuestion: Is this sentence positive or negative?\nAnswer:",
    }[task]
    return [Segment(prompt.format(**row), 0.0), Segment(f" {answer}", 1.0)]


def lamp(source: random.Random, tokens: int) -> Segments:
    """Generate a user's profile, then new articles of the same user."""
    topics = list(source.choice(demonstrations.category_groups("train", 4)))
    categories = dict(zip(topics, source.sample(profiles.NEWS[:14], len(topics)), strict=True))
    segments: Segments = []
    for i in range(max(4, round(0.7 * tokens / 18))):
        topic = source.choice(topics)
        text = demonstrations.scene(source, topic)
        lead = ", and " if i else ""
        segments.append(
            Segment(
                f'{lead}the category for the article: "{text}" is "', 0.0, keys=_topic(text, topic)
            )
        )
        segments += [Segment(categories[topic], 1.0), Segment('"', 0.1)]
    segments.append(Segment("\n", 0.0))
    for _ in range(max(2, round(0.3 * tokens / 34))):
        topic = source.choice(topics)
        article = demonstrations.scene(source, topic)
        prompt = f"{profiles.INSTRUCTION}\nInput: {article}\nOutput:"
        segments += _answered(prompt, categories[topic], _topic(article, topic))
    return segments


def msc(source: random.Random, tokens: int) -> Segments:
    """Generate sessions of two speakers, then questions about their facts."""
    conversation = dialogue.draw_facts(source, "train", max(2, tokens // 120), 3)
    source.shuffle(conversation)
    segments: Segments = []
    for start in range(0, len(conversation), 4):
        turns = dialogue.session(source, conversation[start : start + 4], conversation[:start])
        lines = [f"Speaker {1 + i % 2}: {turn}" for i, turn in enumerate(turns)]
        segments.append(Segment("\n".join(lines) + "\n\n", _RUNNING))
    for _ in range(max(2, tokens // 80)):
        fact = source.choice(conversation)
        segments += _answered(fact.question(source.randrange(2)), fact.value, name_of(fact.entity))
    return segments


def conversation(source: random.Random, split: str, turns: int) -> list[str]:
    """Generate a dialogue of at least `turns` turns that keeps returning to earlier facts."""
    pending, known, spoken = dialogue.draw_facts(source, split, 3, 3), list[Fact](), list[str]()
    source.shuffle(pending)
    while len(spoken) < turns:
        if not pending:
            pending = dialogue.draw_facts(source, split, 3, 3)
        fact = pending.pop()
        spoken += dialogue.fact_turns(source, fact, known)
        known.append(fact)
    return spoken[:turns]


def dailydialog(source: random.Random, tokens: int) -> Segments:
    """Generate one conversation, turn by turn."""
    turns = conversation(source, "train", max(3, tokens // 14))
    return [Segment(f"\nA: {turn}", 2 * _RUNNING) for turn in turns] + [Segment(END, 0.1)]


def pg19(source: random.Random, tokens: int) -> Segments:
    """Generate a part of a book."""
    return [Segment(books.book(source, "train", tokens, cast=source.choice((8, 16, 32))), _RUNNING)]


FAMILIES: dict[str, Callable[[random.Random, int], Segments]] = {
    "streamingqa": question_answering("person"),
    "squad_seq": question_answering("place"),
    "archivalqa": question_answering("company"),
    "superglue": superglue,
    "metaicl": metaicl,
    "lamp": lamp,
    "msc": msc,
    "dailydialog": dailydialog,
    "pg19": pg19,
}


def vocabulary_words() -> list[str]:
    """List every word of the world. Each must be one token."""
    from ttabench.mini.world import KINDS, name_parts

    words = [*LABEL_WORDS, *(w for group in CATEGORIES.values() for w in group)]
    for kind in KINDS:
        words += [*name_parts(kind)[0], *name_parts(kind)[1]]
        words += [value for relation in RELATIONS[kind] for value in relation.values]
    return words
