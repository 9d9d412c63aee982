"""Dialogues turn by turn: t turns are read, the next turn is the prompt, and the turn after it is
scored.

    t = 2    Chunk("\\nA: Hi."), Chunk("\\nA: Hello."), Query("\\nA: How are you?\\nA:" -> " Fine.")

Each dialogue is one episode and one pass, with a query at every t that it is long enough for.
Different t therefore cover different dialogues (`same_dialogues=true`: the same). CCM's protocol
(arXiv 2312.03414): perplexity of the words of the scored turn, without its speaker and without an
end token. CCM's released code puts "A:" before every turn.

Files are DailyDialog's own, one dialogue per line, or tables with the list of turns in a cell.
Published turns have a blank before every punctuation mark, and separate apostrophes:

    detokenize("Let ’ s see , it costs 15 yuan .")      "Let's see, it costs 15 yuan."
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ttabench.core.types import Chunk, Episode, Json, Query, Score, Step, StreamPosition
from ttabench.mini.world import names_in
from ttabench.readers.base import (
    Task,
    Training,
    divide_limit,
    interleave,
    make_unique,
    pick_evenly,
    replace_chunks,
    rows_after,
    swap_seeds,
)
from ttabench.readers.cards import Card, ProtocolSettings
from ttabench.readers.formats import RawRow, open_lines
from ttabench.readers.sources import RawTable, Request, load_rows, parse_table, resolve_settings
from ttabench.readers.tokens import StepCounts, TokenCounter, TokenLimit, Tokens, token_counter

MIN_TURNS = 3
"""Turns: one to read, one to answer, and the answer."""
UNREAD_TURNS = 2
"""Turns that are not read at any t: the prompt and the scored turn."""
END_OF_TURN = "__eou__"
"""End of every turn in a line of the published files."""
_ASCII_MARKS = str.maketrans("’‘´`“”，。？！：；", "''''\"\",.?!:;")
_BLANK_BEFORE_MARK = re.compile(r" (?=[,.?!;:])")
_APOSTROPHE = re.compile(r"(?<=\w) ?' ?(?=(?:s|t|m|d|ll|re|ve|clock)\b)", re.IGNORECASE)
SPEAKER_PREFIX = "\nA:"
"""Start of every turn."""


@dataclass(frozen=True, kw_only=True)
class Dialogue:
    """A dialogue."""

    id: str
    turns: tuple[str, ...]
    """Plain texts, without the speakers."""

    @property
    def text(self) -> str:
        """All turns as one text; dialogues with equal text are duplicates."""
        return "\n".join(self.turns)


def parse_dialogues(card: Card, data: RawTable) -> list[Dialogue]:
    """Parse the usable dialogues, in file order."""
    seen = Counter[str]()

    def dialogue_of(row: RawRow) -> Dialogue | str:
        name = row.cell(card.columns.get("id", ()))
        cell: Any = row.require(card.columns["turns"], "Use the published files.")
        if isinstance(cell, str):  # a line of the published files
            *cell, rest = cell.split(END_OF_TURN)
            if not cell:
                raise ValueError(f"no turn ends with {END_OF_TURN}")
            cell += [rest] if rest.strip() else []
        turns = tuple(map(detokenize, cell))
        if len(turns) < MIN_TURNS:
            return f"fewer than {MIN_TURNS} turns"
        name = make_unique(str(row.number if name is None else name), seen)
        return Dialogue(id=name, turns=turns) if all(turns) else "an empty turn"

    return parse_table(data, dialogue_of)


def _read_lines(path: Path) -> Iterator[RawRow]:
    with open_lines(path) as (lines, position):
        for line in filter(str.strip, lines):
            yield RawRow(f"{path} line {position.line}", {"dialog": line})


def detokenize(turn: str) -> str:
    """Remove the blanks that tokenisation left, and convert quotes and stops to ASCII."""
    text = " ".join(turn.translate(_ASCII_MARKS).split())
    return _APOSTROPHE.sub("'", _BLANK_BEFORE_MARK.sub("", text))


class Settings(ProtocolSettings):
    """Protocol settings of this reader; `--task-set` may change them."""

    steps: StepCounts = (1, 2, 4, 8, 12)
    """Numbers of turns read before the turn that is answered."""
    max_turn_tokens: TokenLimit = 128
    """Dialogues with a longer turn are left out, counted with the speaker; 0 for no limit."""
    max_tokens: TokenLimit = 600
    """Longer dialogues are left out; 0 for no limit."""
    max_train_tokens: TokenLimit = 400
    """The same limit in the split `train`."""
    same_dialogues: bool = False
    """True if only dialogues long enough for every t are queried."""


@dataclass(frozen=True)
class Dialogues(Task[Settings]):
    """A `Task` over dialogues."""

    dialogues: Sequence[Dialogue]
    is_score_first = True

    def filter_by_length(self, tokens: Tokens | None) -> tuple[list[Dialogue], dict[str, int]]:
        """Return (dialogues neither too short for every t nor too long, counts of the others by
        reason).
        """
        size = token_counter(tokens)
        kept, dropped = list[Dialogue](), Counter[str]()
        for dialogue in self.dialogues:
            if reason := self._reason_excluded(dialogue, size):
                dropped[reason] += 1
            else:
                kept.append(dialogue)
        return kept, dropped

    def _reason_excluded(self, dialogue: Dialogue, size: TokenCounter) -> str:
        """Return why a dialogue is left out; empty if it is not."""
        settings, turns = self.settings, dialogue.turns
        least = (max if settings.same_dialogues else min)(settings.steps) + UNREAD_TURNS
        if len(turns) < least:
            return f"fewer than {least} turns"
        most = settings.max_train_tokens if self.split == "train" else settings.max_tokens
        lengths = [size(_turn_text(turn)) for turn in turns]
        if settings.max_turn_tokens and max(lengths) > settings.max_turn_tokens:
            return f"a turn of more than {settings.max_turn_tokens} tokens"
        return f"more than {most} tokens" if most and sum(lengths) > most else ""

    def _query_counts(self, kept: Sequence[Dialogue]) -> Iterator[tuple[Dialogue, list[int]]]:
        """Pair every queried dialogue with its values of t."""
        counts: list[list[int]] = [[] for _ in kept]
        for step, share in divide_limit(self.limit, sorted(set(self.settings.steps))):
            enough = [
                number
                for number, dialogue in enumerate(kept)
                if len(dialogue.turns) >= step + UNREAD_TURNS
            ]
            for number in pick_evenly(enough, share):
                counts[number].append(step)
        return (pair for pair in zip(kept, counts, strict=True) if pair[1])

    def episodes_with_source(self, tokens: Tokens | None) -> Iterator[tuple[Episode, Dialogue]]:
        """Yield one episode per dialogue."""
        for dialogue, counts in self._query_counts(self.select_fitting(tokens)):
            steps = tuple(self._steps(dialogue, counts))
            yield Episode(key=self.episode_key(dialogue.id), steps=steps), dialogue

    def swapped_episodes(self, tokens: Tokens | None = None) -> Iterator[Episode]:
        """Yield each episode with the turns of another dialogue.

        It is the next dialogue of another text with as many turns, or else the longest. For a mini
        source it is the next of another draw that names nobody of the own dialogue.
        """
        every = self.select_fitting(tokens)
        longest = sorted(every, key=lambda dialogue: -len(dialogue.turns))
        pool = list[Dialogue]()
        if self.is_synthetic:
            pool = parse_dialogues(self.card, self.draw_synthetic(next(swap_seeds(self.seed))))
        for number, (episode, own) in enumerate(self.episodes_with_source(tokens)):
            if pool:
                start = number % len(pool)
                candidates = pool[start:] + pool[:start]
                other = self.first_disjoint(
                    names_in(own.text), candidates, lambda dialogue: names_in(dialogue.text)
                )
            else:
                n_read = len(episode.chunks())
                long = [dialogue for dialogue in every if len(dialogue.turns) >= n_read]
                other = self.first_disjoint(
                    {own.text}, [*rows_after(long, own), *longest], lambda dialogue: {dialogue.text}
                )
            chunks = (self._chunk(other, place) for place in range(len(other.turns)))
            yield replace_chunks(episode, chunks)

    def _steps(self, dialogue: Dialogue, steps: Sequence[int]) -> Iterator[Step]:
        """Return the turns to read, with a query after each number of turns in `steps`."""
        chunks = [self._chunk(dialogue, number) for number in range(max(steps))]
        return interleave(chunks, ((step, self._query(dialogue, step)) for step in steps))

    def _chunk(self, dialogue: Dialogue, number: int) -> Chunk:
        return Chunk(
            text=_turn_text(dialogue.turns[number]), key=f"{dialogue.id}#{number}", joiner=""
        )

    def _query(self, dialogue: Dialogue, step: int) -> Query:
        """Return the query after `step` turns: turn `step`, counted from 0, is the prompt, and the
        next is scored.
        """
        answered, scored = dialogue.turns[step : step + UNREAD_TURNS]
        return Query(
            prompt=_turn_text(answered) + SPEAKER_PREFIX,
            question=answered,
            key=f"{dialogue.id}#{step + 1}",
            want=Score(continuation=f" {scored}", words=len(scored.split())),
            joiner="",
            at=StreamPosition(step),
        )

    def training_steps(self, training: Training) -> Iterator[tuple[str, Iterator[Step]]]:
        """Yield the first turns of a dialogue, up to `documents` of them read, with a query for the
        next turn after each.

        Files are read in epochs; a mini source generates a new dialogue for every episode.
        """
        kept = self.select_fitting(training.tokens)
        parse = partial(parse_dialogues, self.card)
        turns = training.documents + UNREAD_TURNS
        for dialogue in self.iter_training_rows(training.rng, kept, parse, rows=1, turns=turns):
            n_read = min(training.documents, len(dialogue.turns) - UNREAD_TURNS)
            yield self.split, self._steps(dialogue, range(1, n_read + 1))

    def counts(self) -> dict[str, Json]:
        """Count dialogues and their turns."""
        turns = sum(len(dialogue.turns) for dialogue in self.dialogues)
        return {"dialogues": len(self.dialogues), "turns": turns}

    def texts(self) -> Iterator[str]:
        """Yield every turn that may be read or queried."""
        for dialogue in self.dialogues:
            yield from (dialogue.id, *dialogue.turns)


def _turn_text(turn: str) -> str:
    return f"{SPEAKER_PREFIX} {turn}"


def read(card: Card, request: Request) -> Dialogues:
    """Bind a card of this reader to its data; see `readers.load`."""
    settings, arguments = resolve_settings(card, request, Settings)
    data = load_rows(card, request, arguments, {".txt": _read_lines})
    dialogues = parse_dialogues(card, data)
    return Dialogues(card, request, settings, arguments, data, dialogues)
