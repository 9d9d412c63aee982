"""Dialogues turn by turn: t turns are read, the next one is the prompt, and the one behind it is scored.

    t = 2      Observe("\\nA: Hi."), Observe("\\nA: Hello."), Ask("\\nA: How are you?\\nA:" -> " Fine.")

One episode a dialogue and one pass: every t for which it has turns is asked on the way, so that different t have
different dialogues (`same_dialogues=true`: the same). CCM's protocol (arXiv 2312.03414): perplexity of the words of the
scored turn, without its speaker and without an end; its released code puts "A:" in front of every turn.

Files are DailyDialog's own, a dialogue a line, or tables with the list of turns in a cell. Published turns have a blank
in front of every mark, and apostrophes by themselves; CCM's released code undoes both, parts the points of "..." and of
"3.5", and takes the blanks on both sides of every quote.

    detokenised("Let ’ s see , it costs 15 yuan .")      "Let's see, it costs 15 yuan."
    detokenised("Well ... I ' d go .", "released")       "Well. . . I'd go."
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import count
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field

from ttabench.core.errors import UserError
from ttabench.core.types import Ask, At, Episode, Json, Observe, Score, Step
from ttabench.mini.world import names_in
from ttabench.readers.base import (
    Bound,
    Training,
    behind,
    in_order,
    other_seeds,
    shares,
    spread,
    told_apart,
    with_pieces,
)
from ttabench.readers.cards import Card, Scalar
from ttabench.readers.formats import RawRow, opened
from ttabench.readers.protocol_options import ProtocolSettings, StepCounts, TokenLimit, resolve
from ttabench.readers.sources import Request, Table, table, twin_table, usable
from ttabench.readers.tokens import Count, Tokens, counted_by

Wording: TypeAlias = Literal["plain", "released"]
"""Which blanks of the published turns are taken away."""
LEAST = 3
"""Turns: one that is read, one that is answered, and the answer."""
END_OF_TURN = "__eou__"
_PLAIN = str.maketrans("’‘´`“”，。？！：；", "''''\"\",.?!:;")
_RELEASED = str.maketrans("’。", "'.")
_RELEASED_MARK = re.compile(r" (?=[,.?!;'])")
_MARK = re.compile(r" (?=[,.?!;:])")
_APOSTROPHE = re.compile(r"(?<=\w) ?' ?(?=(?:s|t|m|d|ll|re|ve|clock)\b)", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class Dialogue:
    """A dialogue."""

    id: str
    turns: tuple[str, ...]
    """In plain words, without who speaks."""

    @property
    def text(self) -> str:
        """All turns; two dialogues of one text are the same."""
        return "\n".join(self.turns)


def dialogues(card: Card, request: Request, wording: Wording = "plain") -> tuple[list[Dialogue], Table]:
    """(usable dialogues of `request.split`, the table of all)."""
    data = table(card, request, {".txt": _lines}, within=[request.split])
    return _usable(card, data, wording), data


def twin_dialogues(card: Card, split: str, seed: int, arguments: Mapping[str, Scalar]) -> tuple[list[Dialogue], Table]:
    """Those of the miniature world, which have no blanks of tokenising."""
    data = twin_table(card, split, seed, None, arguments)
    return _usable(card, data, "plain"), data


def _usable(card: Card, data: Table, wording: Wording) -> list[Dialogue]:
    seen = Counter[str]()

    def dialogue_of(row: RawRow) -> Dialogue | str:
        name = row.cell(card.columns.get("id", ()))
        cell: Any = row.needed(card.columns["turns"], "Give the published files.")
        turns = tuple(detokenised(turn, wording) for turn in (turns_of(cell) if isinstance(cell, str) else cell))
        if len(turns) < LEAST:
            return f"fewer than {LEAST} turns"
        name = told_apart(str(row.number if name is None else name), seen)
        return Dialogue(id=name, turns=turns) if all(turns) else "an empty turn"

    return usable(data, dialogue_of)


def _lines(path: Path) -> Iterator[RawRow]:
    """A row a line that is not blank."""
    with opened(path) as (lines, at):
        for line in filter(str.strip, lines):
            yield RawRow(f"{path} line {at.line}", {"dialog": turns_of(line)})


def turns_of(line: str) -> list[str]:
    """The turns in a line of the published files, each of which ends with `END_OF_TURN`."""
    *turns, rest = line.split(END_OF_TURN)
    if not turns:
        raise ValueError(f"no turn ends with {END_OF_TURN}")
    return [*turns, rest] if rest.strip() else turns


def detokenised(turn: str, wording: Wording = "plain") -> str:
    """A turn without the blanks that tokenising left, its quotes and stops in ASCII."""
    if wording == "released":
        text = _RELEASED_MARK.sub("", turn.translate(_RELEASED)).replace("' ", "'")
        return ". ".join(part.strip() for part in text.split(".")).strip()
    text = " ".join(turn.translate(_PLAIN).split())
    return _APOSTROPHE.sub("'", _MARK.sub("", text))


JOINED = "validation+test"
BETWEEN = 2
"""Turns of a dialogue that are not read at any t: the prompt and the scored one."""


class Settings(ProtocolSettings):
    """The protocol part of a card of this reader, and what `--task-set` may change."""

    steps: StepCounts = (1, 2, 4, 8, 12)
    """Turns that are read in front of the one that is answered."""
    speakers: Literal["same", "alternate"] = "same"
    """`same` puts "A:" in front of every turn, as CCM's released code does; `alternate` "A:" and "B:" in turn."""
    wording: Wording = "plain"
    """Of the published turns: `plain` English, or as CCM's `released` code has it, which parts the points of "..."."""
    max_turn_tokens: TokenLimit = 128
    """Dialogues with a longer turn are left out, counted with the speaker; 0 for no limit."""
    max_tokens: TokenLimit = 600
    """Longer dialogues are left out; 0 for no limit."""
    max_train_tokens: TokenLimit = 400
    """The same in the split `train`."""
    eval_split: Literal["test", "validation+test"] = "test"
    """What the split `test` is: the dialogues of this name, or those of both, as in CCM's released code."""
    context_at_12: Annotated[int, Field(ge=12, le=13)] = 12
    """Turns that are read at t = 12: CCM's released code has 13 there."""
    same_dialogues: bool = False
    """Ask only of dialogues that are long enough for every t."""

    @property
    def places(self) -> dict[int, int]:
        """How many turns are read at each t, ascending."""
        return {step: self.context_at_12 if step == 12 else step for step in sorted(set(self.steps))}


@dataclass(frozen=True, kw_only=True)
class Talks(Bound[Settings]):
    """A `readers.Task` over dialogues."""

    dialogues: Sequence[Dialogue]
    in_training: int | None = None
    """Dialogues that stand in the training split, too; None where it is not known."""

    def measured(self, tokens: Tokens | None) -> tuple[list[Dialogue], dict[str, int]]:
        """(the dialogues that are neither too short for every t nor too long, the others by reason)."""
        size = counted_by(tokens)
        faults = [self._too_much(dialogue, size) for dialogue in self.dialogues]
        kept = [one for one, reason in zip(self.dialogues, faults, strict=True) if not reason]
        return kept, dict(Counter(filter(None, faults)))

    def _too_much(self, dialogue: Dialogue, size: Count) -> str:
        """Why a dialogue is left out; empty where it is not."""
        settings, turns = self.settings, dialogue.turns
        least = (max if settings.same_dialogues else min)(settings.places.values()) + BETWEEN
        if len(turns) < least:
            return f"fewer than {least} turns"
        most = settings.max_train_tokens if self.split == "train" else settings.max_tokens
        lengths = [size(self._said(turn, number)) for number, turn in enumerate(turns)]
        if settings.max_turn_tokens and max(lengths) > settings.max_turn_tokens:
            return f"a turn of more than {settings.max_turn_tokens} tokens"
        return f"more than {most} tokens" if most and sum(lengths) > most else ""

    def remarks(self) -> list[str]:
        """Notes of this reader."""
        lengths = {len(dialogue.turns) for dialogue in self.dialogues}
        places, sentences = self.settings.places, []
        if not self.mini:
            sentences += ["nothing is drawn: every seed asks the same and gives the same figures", self._overlap()]
        if len(places) > 1 and min(lengths) < max(places.values()) + BETWEEN and not self.settings.same_dialogues:
            sentences.append(
                "each t has its own dialogues, those with enough turns; same_dialogues=true asks the same ones"
            )
        missing = [step for step, place in places.items() if max(lengths) < place + BETWEEN]
        if missing:
            sentences.append(f"no dialogue has the turns of t = {', '.join(map(str, missing))}: nothing is asked there")
        return [note for note in sentences if note]

    def _overlap(self) -> str:
        if self.split == "train":
            return ""
        if self.in_training is None:
            return "the source has no training split beside: which dialogues stand in both is not known"
        return f"{self.in_training} of {len(self.dialogues)} dialogues stand in the training split word for word"

    def _asked(self, tokens: Tokens | None) -> list[tuple[Dialogue, dict[int, int]]]:
        """The dialogues with the t at which each is asked, and how many turns are read there."""
        kept, places = self.fit(tokens), self.settings.places
        asked: list[dict[int, int]] = [{} for _ in kept]
        for (step, place), share in zip(places.items(), shares(self.limit, len(places)), strict=True):
            enough = [number for number, dialogue in enumerate(kept) if len(dialogue.turns) >= place + BETWEEN]
            for number in spread(enough, share):
                asked[number][step] = place
        return [(dialogue, own) for dialogue, own in zip(kept, asked, strict=True) if own]

    def episodes(self, tokens: Tokens | None = None) -> Iterator[Episode]:
        """One episode a dialogue."""
        for dialogue, asked in self._asked(tokens):
            yield Episode(key=self.key(dialogue.id), steps=tuple(self._steps(dialogue, asked)))

    def others(self, tokens: Tokens | None = None) -> Iterator[Episode]:
        """Each with the turns of another dialogue."""
        for episode, other in zip(self.episodes(tokens), self._others(tokens), strict=True):
            yield with_pieces(episode, [self._observe(other, number) for number in range(len(other.turns))])

    def _others(self, tokens: Tokens | None) -> list[Dialogue]:
        """For each dialogue that is asked about another.

        The next one of another text with so many turns, or else the longest; of a mini source the next of other draws
        that names nobody of one's own.
        """
        asked = [(dialogue, max(places.values())) for dialogue, places in self._asked(tokens)]
        if self.mini:
            return self._of_twins([own for own, _ in asked])
        every = self.fit(tokens)
        longest = sorted(every, key=lambda dialogue: -len(dialogue.turns))
        others = []
        for own, wanted in asked:
            long = [one for one in every if len(one.turns) >= wanted]
            candidates = (*(behind(long, own) if own in long else []), *longest)
            others.append(self.apart({own.text}, candidates, lambda one: {one.text}))
        return others

    def _of_twins(self, asked: Sequence[Dialogue]) -> list[Dialogue]:
        draws = (twin_dialogues(self.card, self.split, seed, self.arguments)[0] for seed in other_seeds(self.seed))
        pool: list[Dialogue] = []

        def beginning_at(number: int) -> Iterator[Dialogue]:
            for tried in count():
                if tried == len(pool):
                    pool.extend(next(draws, ()))
                if tried == len(pool):
                    return
                yield pool[(number + tried) % len(pool)]

        names = lru_cache(None)(lambda dialogue: names_in(dialogue.text))
        return [self.apart(names(own), beginning_at(number), names) for number, own in enumerate(asked)]

    def _steps(self, dialogue: Dialogue, places: Mapping[int, int]) -> Iterator[Step]:
        """The turns that are read, and a query at each of these places."""
        pieces = [self._observe(dialogue, number) for number in range(max(places.values()))]
        return in_order(pieces, ((place, self._ask(dialogue, place, step)) for step, place in places.items()))

    def _said(self, turn: str, number: int) -> str:
        """A turn as it is read; they are numbered from 0."""
        return f"{self._speaker(number)} {turn}"

    def _speaker(self, number: int) -> str:
        return "\nB:" if self.settings.speakers == "alternate" and number % 2 else "\nA:"

    def _observe(self, dialogue: Dialogue, number: int) -> Observe:
        text = self._said(dialogue.turns[number], number)
        return Observe(text=text, key=f"{dialogue.id}#{number}", joiner="")

    def _ask(self, dialogue: Dialogue, number: int, step: int) -> Ask:
        """The query behind so many turns: the turn of this number is answered by the next."""
        answered, scored = dialogue.turns[number : number + BETWEEN]
        return Ask(
            prompt=self._said(answered, number) + self._speaker(number + 1),
            question=answered,
            key=f"{dialogue.id}#{number + 1}",
            want=Score(continuation=f" {scored}", words=len(scored.split())),
            joiner="",
            at=At(step),
        )

    def training_steps(self, training: Training) -> Iterator[tuple[str, Iterator[Step]]]:
        """The first turns of a dialogue, up to `documents` of them read; behind each the next turn is asked for.

        Files are read in epochs; a mini source has a new dialogue for every episode.
        """
        draws, kept = training.draws, [] if self.mini else self.fit(training.tokens)
        size = {**self.arguments, "rows": 1, "turns": training.documents + BETWEEN}
        while True:
            if self.mini:
                kept = twin_dialogues(self.card, self.split, draws.getrandbits(48), size)[0]
            for dialogue in kept if self.mini else draws.sample(kept, len(kept)):
                read_ = min(training.documents, len(dialogue.turns) - BETWEEN)
                yield self.split, self._steps(dialogue, {place: place for place in range(1, read_ + 1)})

    def counts(self) -> dict[str, Json]:
        """Dialogues and their turns, and how many of them stand in the training split."""
        turns = sum(len(dialogue.turns) for dialogue in self.dialogues)
        return {"dialogues": len(self.dialogues), "turns": turns, "in_training": self.in_training}

    def texts(self) -> Iterator[str]:
        """Every turn that may be read or asked."""
        for dialogue in self.dialogues:
            yield from (dialogue.id, *dialogue.turns)


def read(card: Card, request: Request) -> Talks:
    """Bind a card of this reader to its data; see `readers.load`."""
    settings, arguments = resolve(card, request, Settings)
    if len(set(settings.places.values())) < len(settings.places):
        fault = f"Two of the steps would read the same turns (context_at_12={settings.context_at_12})."
        raise UserError(fault, "Give other --task-set steps=N,M.")
    names = [request.split]
    if settings.eval_split == JOINED and request.split != "train":
        names = JOINED.split("+")
        if request.split == "validation" or Path(request.source).is_file():
            fault = f"eval_split={JOINED} joins two splits to the split test: no other, and no single file."
            raise UserError(fault, "Give --task-set eval_split=test, or --split test of a folder.")
    held, tables, joined = list[Dialogue](), list[Table](), len(names) > 1
    for name in names:
        if request.source == "mini":
            own, data = twin_dialogues(card, name, request.seed, arguments)
        else:
            own, data = dialogues(card, replace(request, split=name), settings.wording)
        held += [replace(dialogue, id=f"{name}/{dialogue.id}") if joined else dialogue for dialogue in own]
        tables.append(data)
    notes = dict.fromkeys(note for data in tables for note in data.notes)
    unused = sum((data.unused for data in tables), Counter[str]())
    return Talks(
        card=card,
        request=request,
        settings=settings,
        arguments=arguments,
        data=Table(label=data.label, notes=tuple(notes), unused=unused),
        dialogues=held,
        in_training=_in_training(card, request, held, settings.wording),
    )


def _in_training(card: Card, request: Request, asked: Sequence[Dialogue], wording: Wording) -> int | None:
    """How many dialogues stand in the training split beside; None where there is none, or no other."""
    if request.source == "mini" or request.split == "train" or Path(request.source).is_file():
        return None
    try:
        known = {dialogue.text for dialogue in dialogues(card, replace(request, split="train"), wording)[0]}
    except UserError:
        return None
    return sum(dialogue.text in known for dialogue in asked)
