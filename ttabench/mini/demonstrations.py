"""Demonstration tasks of the synthetic world: SuperGLUE- and MetaICL-like rows with a hidden rule.

A rule pairs categories of words (birds, tools ...) with labels. The categories are world knowledge;
the pairing is drawn anew for every task and seed. Without demonstrations every label is equally
likely.

    sentence: "a wrench was seen near the road"  label: 1   (in this draw tools are positive)

One demonstration reveals a rule of two categories and two labels. With more categories each
demonstration reveals only its own category, so full context improves with their number
(`categories`).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from typing import Literal, TypeAlias

from ttabench.mini.world import (
    CATEGORIES,
    CATEGORIES_BY_WORDING,
    LABEL_WORDS,
    OTHER_SENTENCES,
    SPLIT_RESIDUES,
    WORDS,
    Wording,
    entities,
    rng,
)

Row = dict[str, object]
Rule: TypeAlias = list[tuple[str, ...]]
"""The categories of each label."""
_SCENES = (
    "a {w} was seen near the road",
    "somebody drew a {w} on the wall",
    "the story began with a {w}",
    "they talked about the {w} all day",
    "there was a {w} in the picture",
    "we heard of a {w} last week",
)
_HELD_OUT_SCENES = (
    "the word {w} was written on the door",
    "someone whispered {w} two times",
    "the letter to the mayor ended in {w}",
    "a child at the window pointed and said {w}",
    "the sign above the shop read {w}",
    "at the top of the list they put {w}",
)
LABELS_PER_TASK = {"boolq": 2, "cb": 3, "copa": 2, "rte": 2, "sst2": 2}
"""Number of labels of the synthetic SuperGLUE tasks, and of SST-2."""


def category_groups(split: str, size: int, wording: Wording = "trained") -> list[tuple[str, ...]]:
    """Return the groups of `size` categories that form the rules of one split, disjointly.

    Groups of held-out words are the same in every split; training should not use them.
    """
    every = list(combinations(sorted(CATEGORIES_BY_WORDING[wording]), size))
    if wording == "held_out":
        return every
    return [group for i, group in enumerate(every) if (i * 7) % 25 in SPLIT_RESIDUES[split]]


def _draw_rule(
    source: random.Random, split: str, size: int, categories: int, wording: Wording
) -> Rule:
    """Draw a rule of one split: the categories of each of `size` labels.

    `categories`: number of categories in all; 0 for one per label. A rule of more categories may
    use all twelve in every split, so its split is that of the whole rule, not of its set of
    categories.
    """
    if not categories:
        single_categories = list(source.choice(category_groups(split, size, wording)))
        source.shuffle(single_categories)
        return [(category,) for category in single_categories]
    if not size <= categories <= len(CATEGORIES):
        raise ValueError(f"{size} labels take {size} to {len(CATEGORIES)} categories")
    while True:
        drawn = source.sample(sorted(CATEGORIES_BY_WORDING[wording]), categories)
        rule = [tuple(sorted(drawn[label::size])) for label in range(size)]
        trained = [tuple(name.removesuffix(OTHER_SENTENCES) for name in group) for group in rule]
        if rng("rule", sorted(trained)).randrange(25) in SPLIT_RESIDUES[split]:
            return rule


def _category_per_label(source: random.Random, rule: Rule) -> list[str]:
    """Choose one category of each label; a label of one category draws nothing from the source."""
    return [group[0] if len(group) == 1 else source.choice(group) for group in rule]


def scene(source: random.Random, category: str) -> str:
    """Return a short clause with one word of the category."""
    scenes = _SCENES if category in CATEGORIES else _HELD_OUT_SCENES
    return source.choice(scenes).format(w=source.choice(WORDS[category]))


def _balanced_labels(source: random.Random, labels: int, count: int) -> list[int]:
    """Return `count` label indices, as even as possible, in random order."""
    drawn = [i % labels for i in range(count)]
    source.shuffle(drawn)
    return drawn


def _parts(
    source: random.Random,
    labels: int,
    demonstrations: int,
    queries: int,
    name: str,
    row_of: Callable[[int], Row],
) -> dict[str, list[Row]]:
    """Generate `{"train": [...], "validation": [...]}`: rows with balanced labels, named by part
    and number.
    """
    made = dict[str, list[Row]]()
    for part, count in (("train", demonstrations), ("validation", queries)):
        drawn = enumerate(_balanced_labels(source, labels, count))
        made[part] = [
            row_of(label) | {"idx": name.format(part=part, number=number)}
            for number, label in drawn
        ]
    return made


def superglue(
    task: str,
    split: str,
    seed: int,
    demonstrations: int = 32,
    queries: int = 64,
    rules: Literal["fresh", "fixed", "mixed"] = "fresh",
    categories: int = 0,
    wording: Wording = "trained",
) -> dict[str, list[Row]]:
    """Generate `{"train": [...], "validation": [...]}` in the hub schema of one task, under one
    rule.

    `rules`: "fresh" draws a rule from the seed; "fixed" has one rule per task, the same for every
    seed and split, which training can memorise; "mixed" uses either for about half of the seeds.
    `categories`: number of word categories that a rule divides among its labels; 0 for one per
    label.
    """
    source = rng("superglue", task, split, seed)
    if rules == "fixed" or (rules == "mixed" and rng("mixed", task, split, seed).random() < 0.5):
        rule_source, rule_split = rng("superglue", task, "fixed"), "train"
    else:
        rule_source, rule_split = source, split
    rule = _draw_rule(rule_source, rule_split, LABELS_PER_TASK[task], categories, wording)
    people = entities("person", split)

    def row_of(label: int) -> Row:
        return row(task, source, _category_per_label(source, rule), label, source.choice(people))

    return _parts(source, len(rule), demonstrations, queries, "{number}", row_of)


def row(task: str, source: random.Random, categories: list[str], label: int, person: str) -> Row:
    """Return one row of a task with a word of `categories[label]` in its text."""
    text = scene(source, categories[label])
    if task == "boolq":
        return {
            "passage": f"With {person}, {text}.",
            "question": f"would {person} agree",
            "label": label,
        }
    if task in {"cb", "rte"}:
        return {
            "premise": f"With {person}, {text}.",
            "hypothesis": f"The word of {person} counts.",
            "label": label,
        }
    if task == "sst2":
        return {"sentence": f"{text} ", "label": label}
    # COPA: the first category is the right continuation; `label` is its position
    right, wrong = (scene(source, categories[i]) for i in (0, 1))
    choices = (right, wrong) if label == 0 else (wrong, right)
    first, second = (f"{text.capitalize()}." for text in choices)
    return {
        "premise": f"The mood of {person} changed.",
        "question": source.choice(("cause", "effect")),
        "choice1": first,
        "choice2": second,
        "label": label,
    }


OPTIONS_PER_TASK = {
    "hellaswag": 4,
    "winogrande": 2,
    "openbookqa": 4,
    "arc_easy": 4,
    "arc_challenge": 4,
    "piqa": 2,
}
"""Number of options of the synthetic tasks that StreamAdapter was not trained on."""


def unseen(
    task: str,
    split: str,
    seed: int,
    demonstrations: int = 32,
    queries: int = 64,
    categories: int = 0,
    wording: Wording = "trained",
) -> dict[str, list[Row]]:
    """Generate `{"train": [...], "validation": [...]}` in the hub schema of one task, under one
    rule drawn from `seed`.

    HellaSwag's rule selects the category of the right ending's words. The others pair categories
    with label words drawn anew: the right option is the label word of the category in the question
    (WinoGrande: in the blank). `superglue`, in contrast, pairs categories with fixed answer words,
    or selects the right one of two endings; the other arguments are the same.
    """
    source = rng("unseen", task, split, seed)
    size = OPTIONS_PER_TASK[task]
    rule = _draw_rule(source, split, size, categories, wording)
    labels = source.sample(LABEL_WORDS, size)
    people = entities("person", split)

    def row_of(place: int) -> Row:
        drawn = _category_per_label(source, rule)
        if task == "winogrande":
            return _blank(source, drawn, labels, place)
        if task == "hellaswag":
            return _endings(source, drawn, place, source.choice(people))
        return _question(task, source, dict(zip(drawn, labels, strict=True)), place, people)

    return _parts(source, size, demonstrations, queries, "{part}-{number}", row_of)


def _blank(source: random.Random, categories: list[str], labels: list[str], place: int) -> Row:
    """Return a sentence with a blank, for the word that goes with the label word at its end."""
    right = source.randrange(2)
    words = [source.choice(WORDS[categories[right if i == place else 1 - right]]) for i in range(2)]
    sentence = "They saw a {0} and a {1}, and the _ is {2}"
    if categories[0] not in CATEGORIES:
        sentence = "Of the words {0} and {1} on the wall, _ was called {2}"
    sentence = sentence.format(*words, labels[right])
    return {
        "sentence": sentence,
        "option1": words[0],
        "option2": words[1],
        "answer": str(place + 1),
    }


def _endings(source: random.Random, categories: list[str], place: int, person: str) -> Row:
    """Return a beginning and its endings; the right one, at `place`, has a word of the first
    category.
    """
    wrong = iter(source.sample(categories[1:], len(categories) - 1))
    endings = [
        scene(source, categories[0] if i == place else next(wrong)) for i in range(len(categories))
    ]
    context = {
        "activity_label": "News",
        "ctx_a": f"The mood of {person} changed.",
        "ctx_b": "because",
    }
    return {**context, "endings": endings, "label": str(place)}


def _question(
    task: str, source: random.Random, rule: Mapping[str, str], place: int, people: Sequence[str]
) -> Row:
    """Return a question about a word of some category, with that category's label word at `place`
    of the options.

    The question is a sentence fragment, as many stems of OpenBookQA are, and its key word is near
    the end. With "What changed the mood of {person}?" and four clauses to choose from, full context
    read by nano was at 33 per cent on the validation split of openbookqa, 43 of arc_easy and 56 of
    piqa after 10 demonstrations.
    """
    category = source.choice(list(rule))
    question = f"With {source.choice(people)}, {scene(source, category)}"
    texts = source.sample([word for key, word in rule.items() if key != category], len(rule) - 1)
    texts.insert(place, rule[category])
    if task == "piqa":
        return {"goal": question, "sol1": texts[0], "sol2": texts[1], "label": place}
    letters = "ABCD"[: len(texts)]
    column = "question_stem" if task == "openbookqa" else "question"
    return {
        column: question,
        "choices": {"text": texts, "label": list(letters)},
        "answerKey": letters[place],
    }


def metaicl(
    split: str,
    seed: int,
    tasks: int = 8,
    demonstrations: int = 16,
    queries: int = 32,
    wording: Wording = "trained",
) -> dict[str, list[Row]]:
    """Generate MetaICL rows {task, input, output, options} by file stem: `<task>_16_<seed>_train`,
    `<task>_16_<seed>_test`.

    A task is a rule of 2 to 4 categories with its own label words; tasks of different splits have
    different rules.
    """
    files: dict[str, list[Row]] = {}
    for number in range(tasks):
        source = rng("metaicl", split, seed, number)
        size = source.choice((2, 2, 3, 4))
        rule = source.choice(category_groups(split, size, wording))
        options = source.sample(LABEL_WORDS, size)
        name = f"mini-{split}-{number}"
        for part, count in (("train", demonstrations), ("test", queries)):
            files[f"{name}_16_{seed}_{part}"] = [
                {
                    "task": name,
                    "input": scene(source, rule[i]),
                    "output": options[i],
                    "options": options,
                }
                for i in _balanced_labels(source, size, count)
            ]
    return files
