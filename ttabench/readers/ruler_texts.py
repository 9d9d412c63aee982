"""Contexts and questions of RULER's 13 sub-tasks (Hsieh et al. 2024, arXiv 2404.06654), at any
size.

    sample = draw_sample("niah_single_1", "test 0 0", {}, questions=1, length=4096)
    sample.write(25)             "A special magic number is hidden within ... and back again.\\n"
    sample.questions[0].text     "What is the special magic number for calm-river mentioned in ...?"

Prompts and sizes are the published ones. Draws depend on a name only, so a longer context of a
sample has the same questions. Keys and counted words come from lists of this module; the published
ones are those of a package.
"""

from __future__ import annotations

import math
import random
import re
import string
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any, Literal, NamedTuple

from ttabench.mini.world import CATEGORIES, RELATIONS

NOISE = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."
ADJECTIVES = tuple(
    "able agile amber ancient arctic bitter blank bold brave breezy brief bright brisk broad calm candid careful "
    "cheap clean clear clever cold common cosy crisp curious daily damp dark deep dense direct distant dizzy dry "
    "dull dusty eager early easy elder empty even exact faint fair famous fancy fast final firm flat fluffy fond "
    "formal fragile free fresh frosty funny gentle giant glad golden grand grave great green grey happy hard "
    "harsh heavy hidden high hollow honest humble icy ideal jolly keen kind large late lazy lean light little "
    "lively local lone long loose loud loyal lucky mad main major mature mellow merry mild modern modest narrow "
    "neat new noble noisy odd old open orderly pale plain polite poor proud pure quick quiet rapid rare raw ready "
    "rich ripe rough round royal rural sad safe salty sandy sharp short shy silent silly simple sleepy slim slow "
    "small smart smooth soft solid sour spare steady steep stiff still strange strict strong sunny sweet swift "
    "tall tame tender thick thin tidy tiny tired tough true upper usual vague vast vivid warm wary weak weary wet "
    "whole wide wild wise witty wooden worthy young zesty".split()
)
NOUNS = tuple(
    sorted(
        {word for words in CATEGORIES.values() for word in words}
        | {
            value
            for kind in RELATIONS.values()
            for one in kind
            for value in one.values
            if value.islower()
        }
    )
)
NEEDLE_DEPTHS = 40
"""Possible positions of needles in essays, evenly spaced; as many as there are needles if that is
more.
"""
MAX_NEEDLES = 50_000
"""Maximum size of a haystack of needles, about a million tokens: every needle has its own key."""
FULL_COUNTS_FROM_TOKENS = 4096
"""Length in tokens from which words occur as often as published; in shorter contexts they occur
less often.
"""
WORD_PAIRS_FROM_TOKENS = 8192
"""Length in tokens from which single words are too few, so that pairs of words are counted."""


@dataclass(frozen=True, kw_only=True)
class Question:
    """A question about a context."""

    text: str
    prefix: str
    """Start of the answer, part of the prompt."""
    answers: tuple[str, ...]
    evidence: tuple[str, ...] = ()
    """Texts that no swapped context of this question may contain: the key, or the source of the
    answer.
    """


@dataclass(frozen=True, kw_only=True)
class RulerSample:
    """A context of any size, and its questions."""

    subtask: str
    questions: tuple[Question, ...]
    max_new_tokens: int
    """Maximum tokens of an answer."""
    write: Callable[[int], str]
    """Writes the context with so many units: sentences, words, needles or documents."""
    all_of: bool = True
    """True if an answer must contain all gold answers, not any one of them."""
    min_units: int = 1
    """Units of the shortest context."""
    max_units: int | None = None
    """Units available; None if unlimited."""


class Documents(NamedTuple):
    """Documents, and questions with answers in them."""

    texts: tuple[str, ...]
    asked: tuple[DocumentQuestion, ...]


class DocumentQuestion(NamedTuple):
    """A question about some of many documents, by their numbers."""

    question: str
    answers: tuple[str, ...]
    gold: tuple[int, ...]
    """Documents that are needed for the answer."""
    near: tuple[int, ...] = ()
    """Other documents of the same article, which come before those of other articles."""


class NiahSpec(NamedTuple):
    """A needle-in-a-haystack sub-task: published settings by their names in the paper's Table 5."""

    haystack: Literal["noise", "essays", "needles"]
    key: Literal["words", "uuids"] = "words"
    value: Literal["numbers", "uuids"] = "numbers"
    keys: int = 1
    values: int = 1
    """Values per key."""
    asked: int = 1
    """Keys per question."""


NIAH = {
    "niah_single_1": NiahSpec("noise"),
    "niah_single_2": NiahSpec("essays"),
    "niah_single_3": NiahSpec("essays", value="uuids"),
    "niah_multikey_1": NiahSpec("essays", keys=4),
    "niah_multikey_2": NiahSpec("needles"),
    "niah_multikey_3": NiahSpec("needles", key="uuids", value="uuids"),
    "niah_multivalue": NiahSpec("essays", values=4),
    "niah_multiquery": NiahSpec("essays", keys=4, asked=4),
}
SUBTASKS = (*NIAH, "vt", "cwe", "fwe", "qa_1", "qa_2")
REQUIRED_MATERIAL = {name: "essays" for name, spec in NIAH.items() if spec.haystack == "essays"}
REQUIRED_MATERIAL |= {"qa_1": "squad", "qa_2": "hotpotqa"}
"""Material that a sub-task needs: the words of essays, or documents with questions."""
QA_SUBTASKS = ("qa_1", "qa_2")
"""Sub-tasks for which any one of the right answers is enough."""


def draw_sample(
    subtask: str, name: str, material: Mapping[str, Any], *, questions: int, length: int
) -> RulerSample:
    """Draw the sample of a sub-task that a name determines.

    Args:
        material: the contents of files, by the names in `REQUIRED_MATERIAL`.
        length: length of the context in tokens, which sets how often words occur.
    """
    source = f"ruler {subtask} {name}"
    if subtask in NIAH:
        return _niah_sample(subtask, source, material.get("essays", ()), questions)
    if subtask == "vt":
        return _variable_tracking_sample(source, questions)
    if subtask in QA_SUBTASKS:
        return _qa_sample(subtask, source, material[REQUIRED_MATERIAL[subtask]], questions)
    draw = _common_words_sample if subtask == "cwe" else _frequent_words_sample
    return draw(source, length)


def insert_needles(lines: Sequence[str], needles: Sequence[str], name: str) -> list[str]:
    """Insert each needle before a line; a name seeds the positions."""
    places = sorted(
        random.Random(f"{name} places").sample(range(len(lines)), len(needles)), reverse=True
    )
    with_needles = list(lines)
    for place, needle in zip(places, needles, strict=True):
        with_needles.insert(place, needle)
    return with_needles


# --- needles --------------------------------------------------------------------------------------


def _draw_unused(source: random.Random, kind: str, taken: set[str]) -> str:
    """Draw a key or value that was not drawn before."""
    draws: dict[str, Callable[[], object]] = {
        "uuids": lambda: uuid.UUID(int=source.getrandbits(128), version=4),
        "words": lambda: f"{source.choice(ADJECTIVES)}-{source.choice(NOUNS)}",
        "numbers": lambda: source.randint(10**6, 10**7 - 1),
    }
    while (text := str(draws[kind]())) in taken:
        pass
    taken.add(text)
    return text


def _niah_sample(subtask: str, name: str, essays: Sequence[str], questions: int) -> RulerSample:
    spec, source, taken = NIAH[subtask], random.Random(name), set[str]()
    keys = [
        _draw_unused(source, spec.key, taken) for _ in range(max(spec.keys, spec.asked * questions))
    ]
    values = {
        key: [_draw_unused(source, spec.value, taken) for _ in range(spec.values)] for key in keys
    }
    needles = [_needle(spec, key, value) for key in keys for value in values[key]]
    source.shuffle(needles)
    is_single = spec.asked * spec.values == 1
    kind = spec.value[:-1] if is_single else spec.value
    hidden = f"A special magic {kind} is" if is_single else f"Some special magic {kind} are"
    opening = f"{hidden} hidden within the following text. Make sure to memorize it. "
    opening += f"I will quiz you about the {kind} afterwards.\n"

    def write(size: int) -> str:
        if spec.haystack == "essays":
            return f"{opening}{_essay_with_needles(essays, size, needles, name)}\n"
        if spec.haystack == "noise":
            lines = [NOISE] * size
        else:
            more, used = random.Random(f"{name} haystack"), set(taken)
            pairs = (
                (_draw_unused(more, spec.key, used), _draw_unused(more, spec.value, used))
                for _ in range(size)
            )
            lines = [_needle(spec, *pair) for pair in pairs]
        return opening + "\n".join(insert_needles(lines, needles, name)) + "\n"

    keys_of_questions = [
        keys[first : first + spec.asked] for first in range(0, spec.asked * questions, spec.asked)
    ]
    return RulerSample(
        subtask=subtask,
        questions=tuple(
            _needle_question(
                kind, question_keys, [v for key in question_keys for v in values[key]], is_single
            )
            for question_keys in keys_of_questions
        ),
        max_new_tokens=128,
        write=write,
        min_units=len(needles),
        max_units=MAX_NEEDLES if spec.haystack == "needles" else None,
    )


def _needle(spec: NiahSpec, key: str, value: str) -> str:
    return f"One of the special magic {spec.value} for {key} is: {value}."


def _needle_question(
    kind: str, keys: Sequence[str], values: Sequence[str], is_single: bool
) -> Question:
    key_list = ", ".join(keys[:-1]) + f", and {keys[-1]}" if len(keys) > 1 else keys[0]
    what, are = ("What is the", "is") if is_single else ("What are all the", "are")
    about = f"special magic {kind} for {key_list} mentioned in the provided text"
    return Question(
        text=f"{what} {about}?",
        prefix=f"The {about} {are}",
        answers=tuple(values),
        evidence=tuple(keys),
    )


@lru_cache(maxsize=4)
def _sentences(words: Sequence[str], size: int) -> tuple[str, ...]:
    text = " ".join(words[place % len(words)] for place in range(size))
    return tuple(re.split(r"(?<=[.!?])\s+", text.strip()))


def _essay_with_needles(words: Sequence[str], size: int, needles: Sequence[str], name: str) -> str:
    """Return the first words of essays, repeated if too short, with needles between their
    sentences.
    """
    essay_sentences = _sentences(words, size)
    n_depths = max(NEEDLE_DEPTHS, len(needles))
    depths = sorted(random.Random(f"{name} places").sample(range(n_depths), len(needles)))
    with_needles = list(essay_sentences)
    for depth, needle in reversed(list(zip(depths, needles, strict=True))):
        with_needles.insert(len(essay_sentences) * depth // (n_depths - 1), needle)
    return " ".join(with_needles)


# --- chains of variables --------------------------------------------------------------------------

N_HOPS = 4


def _chains(
    source: random.Random, count: int, letters: int
) -> list[tuple[str, list[str], list[str]]]:
    """Draw (value, variables, assignments) of chains: VAR AB = 12345, VAR CD = VAR AB, ..."""
    names, values = dict[str, None](), dict[str, None]()
    while len(names) < count * (N_HOPS + 1):
        names["".join(source.choices(string.ascii_uppercase, k=letters))] = None
    while len(values) < count:
        values[str(source.randint(10_000, 99_999))] = None
    chains = []
    for number, value in enumerate(values):
        chain_names = list(names)[number * (N_HOPS + 1) : (number + 1) * (N_HOPS + 1)]
        links = [f"VAR {name} = VAR {before} " for before, name in pairwise(chain_names)]
        chains.append((value, chain_names, [f"VAR {chain_names[0]} = {value}", *links]))
    return chains


def _noise_with_chains(chains: Sequence[Sequence[str]], size: int, source: random.Random) -> str:
    """Insert the assignments of every chain into noise, in their order."""
    lines = [f"{NOISE}\n"] * size
    for chain in chains:
        for offset, place in enumerate(sorted(source.sample(range(len(lines)), len(chain)))):
            lines.insert(place + offset, chain[offset])
    opening = (
        "Memorize and track the chain(s) of variable assignment hidden in the following text.\n\n"
    )
    return f"{opening}{' '.join(lines)}\n"


def _chain_question(value: str, names: Sequence[str]) -> Question:
    return Question(
        text=f"Question: Find all variables that are assigned the value {value} in the text above.",
        prefix=f"Answer: According to the chain(s) of variable assignment in the text above, {len(names)} variables "
        f"are assgined the value {value}, they are:",  # the published spelling
        answers=tuple(names),
        evidence=(value,),
    )


def _variable_tracking_sample(name: str, questions: int) -> RulerSample:
    source = random.Random(name)
    ((value, names, chain),) = _chains(source, 1, 3)
    shown = _chain_question(value, names)  # a worked example, of at most 500 tokens
    example = _noise_with_chains([chain], 15, source)
    example += f"{shown.text} {shown.prefix} {' '.join(names)}\n\n\n\n"
    chains = _chains(source, questions, 5)
    return RulerSample(
        subtask="vt",
        questions=tuple(_chain_question(assigned, variables) for assigned, variables, _ in chains),
        max_new_tokens=30,
        write=lambda size: (
            example
            + _noise_with_chains(
                [each[2] for each in chains], size, random.Random(f"{name} places")
            )
        ),
        min_units=N_HOPS + 1,
    )


# --- frequent words -------------------------------------------------------------------------------

N_COMMON_WORDS = 10


def _word_list(
    words: Sequence[str], common_count: int, rare_count: int, source: random.Random
) -> str:
    """Return a numbered list in which the first ten words occur often."""
    listed = [
        *list(words[:N_COMMON_WORDS]) * common_count,
        *list(words[N_COMMON_WORDS:]) * rare_count,
    ]
    source.shuffle(listed)
    opening = (
        "Below is a numbered list of words. In these words, some appear more often than others. "
    )
    numbered = " ".join(f"{number}. {word}" for number, word in enumerate(listed, start=1))
    return f"{opening}Memorize the ones that appear most often.\n{numbered}\n"


def _common_words_sample(name: str, length: int) -> RulerSample:
    source = random.Random(name)
    plain = sorted({*ADJECTIVES, *NOUNS})
    words = (
        plain
        if length < WORD_PAIRS_FROM_TOKENS
        else [f"{first}-{second}" for first in ADJECTIVES for second in NOUNS]
    )
    pool = source.sample(words, min(len(words), max(length // 4, 64)))
    n_worked, common_count, rare_count = 20, 6, 1
    worked_counts = 3, 1
    if length >= FULL_COUNTS_FROM_TOKENS:
        n_worked, common_count, rare_count = 40, 30, 3
        worked_counts = 10, 3
    question = Question(
        text="Question: What are the 10 most common words in the above list?",
        prefix="Answer: The top 10 words that appear most often in the list are:",
        answers=tuple(pool[:N_COMMON_WORDS]),
    )
    worked = source.sample(words, n_worked)
    example = _word_list(worked, *worked_counts, source)
    answered = " ".join(
        f"{number}. {word}" for number, word in enumerate(worked[:N_COMMON_WORDS], start=1)
    )
    example += f"{question.text} {question.prefix} {answered}\n"
    return RulerSample(
        subtask="cwe",
        questions=(question,),
        max_new_tokens=120,
        write=lambda size: (
            example
            + _word_list(pool[:size], common_count, rare_count, random.Random(f"{name} order"))
        ),
        min_units=2 * N_COMMON_WORDS,
        max_units=len(pool),
    )


def _frequent_words_sample(name: str, length: int) -> RulerSample:
    source = random.Random(name)
    words = dict[str, None]()
    while len(words) < max(8, length // 50):
        words["".join(source.choices(string.ascii_lowercase, k=6))] = None
    coded = ["...", *list(words)[1:]]  # the most frequent one is noise

    def write(size: int) -> str:
        counts = [int(size * rank**-2 / (math.pi**2 / 6)) for rank in range(1, len(coded) + 1)]
        drawn = [word for word, count in zip(coded, counts, strict=True) for _ in range(count)]
        random.Random(f"{name} order").shuffle(drawn)
        opening = "Read the following coded text and track the frequency of each coded word. "
        return f"{opening}Find the three most frequently appeared coded words. {' '.join(drawn)}\n"

    question = Question(
        text="Question: Do not provide any explanation. Please ignore the dots '....'. What are the three most "
        "frequently appeared words in the above coded text?",
        prefix="Answer: According to the coded text above, the three most frequently appeared words are:",
        answers=tuple(coded[1:4]),
        evidence=tuple(coded[1:4]),
    )
    return RulerSample(
        subtask="fwe", questions=(question,), max_new_tokens=50, write=write, min_units=100
    )


# --- questions about documents --------------------------------------------------------------------


def _qa_sample(subtask: str, name: str, documents: Documents, questions: int) -> RulerSample:
    source = random.Random(name)
    instruction = "Answer the question based on the given documents. "
    instruction += "Only give me the answer and do not output any other words."
    first = source.randrange(len(documents.asked))
    selected = [
        documents.asked[(first + number) % len(documents.asked)]
        for number in range(min(questions, len(documents.asked)))
    ]
    gold = dict.fromkeys(number for each in selected for number in each.gold)
    near = dict.fromkeys(number for each in selected for number in each.near if number not in gold)
    distractors = list(range(len(documents.texts)))
    source.shuffle(distractors)
    ranked = list(dict.fromkeys([*gold, *source.sample(list(near), len(near)), *distractors]))

    def write(size: int) -> str:
        shown = random.Random(f"{name} order").sample(ranked[:size], min(size, len(ranked)))
        texts = numbered([documents.texts[place] for place in shown])
        return f"{instruction}\n\nThe following are given documents.\n\n{texts}\n\n"

    def about(each: DocumentQuestion) -> Question:
        evidence = tuple(documents.texts[number] for number in each.gold)
        return Question(
            text=f"{instruction}\n\nQuestion: {each.question}",
            prefix="Answer:",
            answers=each.answers,
            evidence=evidence,
        )

    return RulerSample(
        subtask=subtask,
        questions=tuple(map(about, selected)),
        max_new_tokens=32,
        all_of=False,
        write=write,
        min_units=len(gold),
        max_units=len(ranked),
    )


def numbered(documents: Sequence[str]) -> str:
    """Format documents as RULER shows them."""
    return "\n\n".join(
        f"Document {number}:\n{text}" for number, text in enumerate(documents, start=1)
    )
