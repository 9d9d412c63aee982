"""Rows of the suite `override`: texts that agree with, contradict or add to what a model knows.

    python results/override.py        writes results/english/override/rows.jsonl, in the layout of SCBench
    ttabench sweep results/english/override.yaml --data task=results/english/override/rows.jsonl

Each context states twelve facts, one a line: four as they are (`agree`), four with the answer of another fact of the
same relation (`contradict`), four of things that do not exist (`extend`). Every true fact stands once as it is and once
contradicted, in different contexts. The right answer is always what the text says. How strongly a model believes the
true answer is its nats under `none`: the questions of `agree`.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

OUT = Path(__file__).resolve().parent / "english/override/rows.jsonl"
CAPITAL = "The capital of {} is"
AUTHOR = "{} was written by"
SYMBOL = "The chemical symbol of {} is"
RIVER = "The {} flows through the city of"
FACTS: dict[str, dict[str, str]] = {
    CAPITAL: {
        "France": "Paris", "Japan": "Tokyo", "Italy": "Rome", "Spain": "Madrid", "Germany": "Berlin",
        "Russia": "Moscow", "China": "Beijing", "Egypt": "Cairo", "Greece": "Athens", "Norway": "Oslo",
        "Sweden": "Stockholm", "Finland": "Helsinki", "Poland": "Warsaw", "Hungary": "Budapest", "Austria": "Vienna",
        "Portugal": "Lisbon", "Ireland": "Dublin", "Cuba": "Havana", "Peru": "Lima", "Chile": "Santiago",
        "Kenya": "Nairobi", "Iran": "Tehran", "Iraq": "Baghdad", "Turkey": "Ankara", "Thailand": "Bangkok",
        "Vietnam": "Hanoi", "Nepal": "Kathmandu", "Bulgaria": "Sofia", "Romania": "Bucharest", "Canada": "Ottawa",
        "Australia": "Canberra", "Morocco": "Rabat",
    },
    AUTHOR: {
        "Hamlet": "William Shakespeare", "Don Quixote": "Miguel de Cervantes", "War and Peace": "Leo Tolstoy",
        "Oliver Twist": "Charles Dickens", "Pride and Prejudice": "Jane Austen", "Moby-Dick": "Herman Melville",
        "Faust": "Johann Wolfgang von Goethe", "Frankenstein": "Mary Shelley", "Dracula": "Bram Stoker",
        "The Divine Comedy": "Dante Alighieri", "Les Misérables": "Victor Hugo", "The Odyssey": "Homer",
        "Ulysses": "James Joyce", "The Trial": "Franz Kafka", "Candide": "Voltaire", "Walden": "Henry David Thoreau",
    },
    SYMBOL: {
        "oxygen": "O", "hydrogen": "H", "gold": "Au", "silver": "Ag", "iron": "Fe", "sodium": "Na", "carbon": "C",
        "helium": "He",
    },
    RIVER: {
        "Thames": "London", "Seine": "Paris", "Tiber": "Rome", "Spree": "Berlin", "Vltava": "Prague",
        "Liffey": "Dublin", "Manzanares": "Madrid", "Hudson": "New York",
    },
}  # fmt: skip
INVENTED: dict[str, tuple[list[str], list[str]]] = {
    CAPITAL: (
        ["Velmora", "Ostrania", "Karthuin", "Belzia", "Nordavia", "Tumeria", "Quorland", "Sarvona"],
        ["Tarsk", "Ilmora", "Bredin", "Calvos", "Hestra", "Jorvane", "Pellor", "Wystan"],
    ),
    AUTHOR: (
        ["The Glass Orchard", "Nine Winters North", "A Ledger of Salt", "The Tin Cathedral"],
        ["Marta Ellingsworth", "Tobin Varga", "Ines Calloway", "Rufus Okembe"],
    ),
    SYMBOL: (["veridium", "ostrium"], ["Vd", "Ot"]),
    RIVER: (["Marrow", "Tessel"], ["Dunmere", "Alcaster"]),
}
"""Things that do not exist, and what can be said of them."""
OF_EACH = 4
"""Facts of a kind in a context."""
CONTEXTS = 16


def contexts(seed: int = 0) -> list[list[tuple[str, str, str]]]:
    """Kind, beginning and answer of the facts of each context."""
    draws = random.Random(seed)
    true = [(relation, thing, answer) for relation, facts in FACTS.items() for thing, answer in facts.items()]
    draws.shuffle(true)
    laid: list[list[tuple[str, str, str]]] = [[] for _ in range(CONTEXTS)]
    for number, (relation, thing, answer) in enumerate(true):
        others = sorted(set(FACTS[relation].values()) - {answer})
        laid[number % CONTEXTS].append(("agree", relation.format(thing), answer))
        elsewhere = (number + CONTEXTS // 2) % CONTEXTS
        laid[elsewhere].append(("contradict", relation.format(thing), draws.choice(others)))
    for facts in laid:
        for relation in draws.choices(list(INVENTED), weights=[4, 2, 1, 1], k=OF_EACH):
            things, answers = INVENTED[relation]
            known = {beginning for _, beginning, _ in facts}
            free = [text for thing in things if (text := relation.format(thing)) not in known]
            facts.append(("extend", draws.choice(free), draws.choice(answers)))
        draws.shuffle(facts)
    return laid


def rows() -> list[dict[str, object]]:
    """The contexts as SCBench has them."""
    return [
        {
            "id": number,
            "context": "\n".join(f"{beginning} {said}." for _, beginning, said in facts),
            "multi_turns": [{"input": beginning, "answer": said, "task": kind} for kind, beginning, said in facts],
        }
        for number, facts in enumerate(contexts())
    ]


if __name__ == "__main__":
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows()), encoding="utf-8")
