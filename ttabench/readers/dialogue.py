"""Dialogues turn by turn: t turns are read, the next one is the prompt, and the one behind it is scored.

    t = 2      Observe("\\nA: Hi."), Observe("\\nA: Hello."), Ask("\\nA: How are you?\\nA:" -> " Fine.")

One episode a dialogue and one pass: every t for which it has turns is asked on the way, so that different t have
different dialogues (`same_dialogues=true`: the same). CCM's protocol (arXiv 2312.03414): perplexity of the words of the
scored turn, without its speaker and without an end; the turns are put in words in `readers.dialogue_text`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ttabench.core.errors import UserError
from ttabench.core.types import Ask, At, Episode, Json, Observe, Score, Step
from ttabench.readers.base import Bound, Training, shares, spread
from ttabench.readers.cards import Card
from ttabench.readers.control_contexts import with_pieces
from ttabench.readers.control_dialogues import other_dialogues
from ttabench.readers.description import described
from ttabench.readers.dialogue_files import Dialogues, dialogues, twin_dialogues
from ttabench.readers.dialogue_protocol import JOINED, Settings, check
from ttabench.readers.dialogue_text import Dialogue, Wording, repeated, said, speaker
from ttabench.readers.protocol_options import resolve
from ttabench.readers.sources import Request
from ttabench.readers.tokens import Count, Tokens, counted_by

BETWEEN = 2
"""Turns of a dialogue that are not read at any t: the prompt and the scored one."""


@dataclass(frozen=True, kw_only=True)
class Talks(Bound[Settings]):
    """A `readers.Task` over dialogues."""

    dialogues: Sequence[Dialogue]
    in_training: int | None = None
    """Dialogues that stand in the training split, too; None where it is not known."""

    _left_out: list[Counter[str]] = field(init=False, default_factory=list, compare=False)

    @property
    def dropped(self) -> Mapping[str, int]:
        """Dialogues of the source that are not asked about, by reason.

        By the tokens of the base model once it asked for the episodes; before, four characters count as a token.
        """
        if not self._left_out:
            self.fitting(None)
        return dict(Counter(self.unused) + self._left_out[0])

    def fitting(self, tokens: Tokens | None) -> list[Dialogue]:
        """The dialogues that are neither too short for every t nor too long."""
        count = counted_by(tokens)
        reasons = [self._too_much(dialogue, count) for dialogue in self.dialogues]
        if tokens is not None or not self._left_out:
            self._left_out[:] = [Counter(filter(None, reasons))]
        return [one for one, reason in zip(self.dialogues, reasons, strict=True) if not reason]

    def _too_much(self, dialogue: Dialogue, count: Count) -> str:
        """Why a dialogue is left out; empty where it is not."""
        settings, turns = self.settings, dialogue.turns
        least = (max if settings.same_dialogues else min)(settings.places.values()) + BETWEEN
        if len(turns) < least:
            return f"fewer than {least} turns"
        most = settings.max_train_tokens if self.split == "train" else settings.max_tokens
        lengths = [count(said(turn, number, settings.speakers)) for number, turn in enumerate(turns)]
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
        kept, places = self.fitting(tokens), self.settings.places
        asked: list[dict[int, int]] = [{} for _ in kept]
        for (step, place), share in zip(places.items(), shares(self.limit, len(places)), strict=True):
            enough = [number for number, dialogue in enumerate(kept) if len(dialogue.turns) >= place + BETWEEN]
            for number in spread(enough, share):
                asked[number][step] = place
        return [(dialogue, own) for dialogue, own in zip(kept, asked, strict=True) if own]

    def episodes(self, tokens: Tokens | None = None) -> Iterator[Episode]:
        """One episode a dialogue (see `readers.Task`)."""
        for dialogue, places in self._asked(tokens):
            yield Episode(key=self._key(dialogue), steps=tuple(self._steps(dialogue, places)))

    def others(self, tokens: Tokens | None = None) -> Iterator[Episode]:
        """Each with the turns of another dialogue (see `readers.Task`)."""
        own, others = self._others(tokens)
        for (dialogue, places), other in zip(own, others, strict=True):
            episode = Episode(key=self._key(dialogue), steps=tuple(self._steps(dialogue, places)))
            yield with_pieces(episode, [self._observe(other, number) for number in range(len(other.turns))])

    def _others(self, tokens: Tokens | None) -> tuple[list[tuple[Dialogue, dict[int, int]]], list[Dialogue]]:
        own = self._asked(tokens)
        wanted = [(dialogue, max(places.values())) for dialogue, places in own]
        return own, other_dialogues(self, wanted, self.fitting(tokens))

    def describe_others(self) -> dict[str, Json]:
        """See `readers.Task`."""
        own, others = self._others(None)
        pairs = zip(own, others, strict=True)
        few = sum(len(other.turns) < max(places.values()) for (_, places), other in pairs)
        notes = [f"{few} of {len(own)} other dialogues have fewer turns than are read"] if few else []
        return described(self.others(), notes)

    def _key(self, dialogue: Dialogue) -> str:
        return f"{self.card.name}/{self.split}/{dialogue.id}" + (f"/seed{self.seed}" if self.mini else "")

    def _steps(self, dialogue: Dialogue, places: Mapping[int, int]) -> Iterator[Step]:
        """The turns that are read, and a query at each of these places."""
        steps = {place: step for step, place in places.items()}
        for number in range(max(steps) + 1):
            if number:
                yield self._observe(dialogue, number - 1)
            if number in steps:
                yield self._ask(dialogue, number, steps[number])

    def _observe(self, dialogue: Dialogue, number: int) -> Observe:
        text = said(dialogue.turns[number], number, self.settings.speakers)
        return Observe(text=text, key=f"{dialogue.id}#{number}", joiner="")

    def _ask(self, dialogue: Dialogue, number: int, step: int) -> Ask:
        """The query behind so many turns: the turn of this number is answered by the next."""
        answered, scored = dialogue.turns[number : number + BETWEEN]
        speakers = self.settings.speakers
        return Ask(
            prompt=said(answered, number, speakers) + speaker(number + 1, speakers),
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
        for dialogue in self._drawn(training):
            count = min(training.documents, len(dialogue.turns) - BETWEEN)
            yield self.split, self._steps(dialogue, {place: place for place in range(1, count + 1)})

    def _drawn(self, training: Training) -> Iterator[Dialogue]:
        kept = [] if self.mini else self.fitting(training.tokens)
        size = {"rows": 1, "turns": training.documents + BETWEEN}
        while True:
            if self.mini:
                seed = training.draws.getrandbits(48)
                yield from twin_dialogues(self.card, self.split, seed, {**self.arguments, **size}).kept
            yield from training.draws.sample(kept, len(kept))

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
    check(card, request, settings)
    joined = settings.eval_split == JOINED and request.split == "test"
    names = JOINED.split("+") if joined else [request.split]
    if request.source == "mini":
        twins = [twin_dialogues(card, name, request.seed, arguments) for name in names]
    else:
        if joined and Path(request.source).is_file():
            fault = f"eval_split={JOINED} joins two splits, and {request.source} is one file."
            raise UserError(fault, "Give the folder of all splits, or --task-set eval_split=test.")
        twins = [dialogues(card, replace(request, split=name), settings.wording) for name in names]
    kept = [replace(dialogue, id=f"{name}/{dialogue.id}" if joined else dialogue.id)
            for name, part in zip(names, twins, strict=True) for dialogue in part.kept]  # fmt: skip
    made = Talks(
        card=card,
        request=request,
        settings=settings,
        arguments=arguments,
        source=twins[-1].label,
        data_notes=tuple(dict.fromkeys(note for part in twins for note in part.notes)),
        unused=sum((Counter(part.dropped) for part in twins), Counter()),
        dialogues=tuple(kept),
        in_training=_in_training(card, request, kept, settings.wording),
    )
    if not made.n_asks:
        left = ", ".join(f"{count} {reason}" for reason, count in made.dropped.items())
        fault = f"No dialogue of {made.source} is asked at t = {', '.join(map(str, settings.places))}: {left}."
        raise UserError(fault, "Give smaller --task-set steps=N,M, or raise max_tokens.")
    return made


def _in_training(card: Card, request: Request, candidates: Sequence[Dialogue], wording: Wording) -> int | None:
    """How many dialogues stand in the training split beside; None where there is none, or no other."""
    if request.source == "mini" or request.split == "train" or Path(request.source).is_file():
        return None
    try:
        training: Dialogues = dialogues(card, replace(request, split="train"), wording)
    except UserError:
        return None
    return repeated(candidates, training.kept)
