"""A context that is read once, in pieces, and many questions about it (SCBench, arXiv 2412.10319).

Modes (`mode`):
    requests   Every question alone behind the context: several users ask about one text.
    turns      Every question behind the context and the questions before it with their right answers, which are read
               like the context: one user goes on asking. The column `step` tells the turns apart.

    Episode("shared_context/test/0", [Observe(piece 1), Observe(piece 2), Ask("Where does Ada Voss live?"),
                                      Observe("Where does Ada Voss live? Selby"), Ask("What pet does ...?"), ...])

One context is one episode. The sub-tasks of SCBench have prompts, lengths of answers and metrics of their own
(`shared_rows.SUB_TASKS`); options are chosen among by their letters.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from string import ascii_uppercase
from typing import Annotated, Literal

from pydantic import Field

from ttabench.core.errors import UnknownName, UserError
from ttabench.core.types import Ask, At, Episode, Generate, Json, Observe, Step
from ttabench.mini.world import names_in
from ttabench.readers.base import Bound, Training, behind, drawn, in_order, other_seeds, shares, spread
from ttabench.readers.book import CutText
from ttabench.readers.cards import Card
from ttabench.readers.protocol_options import ProtocolSettings, TokenCount, TokenLimit, resolve
from ttabench.readers.shared_rows import PREFIX, SUB_TASKS, Shared, Turn, contexts_of, sub_task_of
from ttabench.readers.sources import Request, table, twin_table
from ttabench.readers.tokens import Tokens
from ttabench.stats.metrics import check_judges, metric

_OF_A_TWIN = 16


class Settings(ProtocolSettings):
    """The protocol part of a card of this reader, and what `--task-set` may change."""

    mode: Literal["requests", "turns"] = "requests"
    task: str = ""
    """The sub-task of SCBench; where none is given, the one that the name of the file or its folder says, if any."""
    contexts: Annotated[int, Field(gt=0)] | None = None
    """How many, drawn by the seed; None for all of them."""
    tokens: TokenLimit = 0
    """Of a context, at most: of a longer one the first and the last half of so many are read; 0 for no limit."""
    piece: TokenCount = 512
    """Tokens of a piece, at most; it ends with a line where one fits."""
    prompt: str = "bare"
    """Name of a question template of the card."""
    max_new_tokens: TokenCount | None = None
    """None for what the sub-task says, 16 where none is known."""


@dataclass(frozen=True, kw_only=True)
class SharedContext(Bound[Settings]):
    """A `readers.Task` over contexts, one episode each."""

    found: Sequence[Shared]
    """All of the source, in file order."""
    chosen: Sequence[Shared]
    """Those that are read and asked about."""

    def remarks(self) -> list[str]:
        """Notes of this reader."""
        code = self.settings.task.startswith("repoqa")
        return ["functions are scored by ROUGE-L, not by RepoQA's similarity of code"] if code else []

    def laid(self, tokens: Tokens | None) -> Iterator[tuple[Episode, Shared]]:
        """One episode a context that is asked about."""
        for shared, share in zip(self.chosen, shares(self.limit, len(self.chosen)), strict=True):
            if share != 0:
                asks = spread([self._ask(shared, number) for number in range(len(shared.turns))], share)
                yield Episode(key=self.key(shared.id), steps=self._steps(shared, asks, tokens)), shared

    def others(self, tokens: Tokens | None = None) -> Iterator[Episode]:
        """Each with the next context, and its turns, in place of its own."""
        for episode, own in self.laid(tokens):
            yield Episode(key=episode.key, steps=self._steps(self._next(own), episode.asks(), tokens))

    def _steps(self, read: Shared, asks: Sequence[Ask], tokens: Tokens | None) -> tuple[Step, ...]:
        """A context, and questions about this or another one: behind it, or behind as many of its turns."""
        pieces = list(self._pieces(read, tokens))
        places = [len(pieces) + (ask.at.count - 1 if self.settings.mode == "turns" else 0) for ask in asks]
        told = [*pieces, *(self._told(read, number) for number in range(len(read.turns)))]
        return tuple(in_order(told, zip(places, asks, strict=True)))

    def _pieces(self, shared: Shared, tokens: Tokens | None) -> Iterator[Observe]:
        task = SUB_TASKS.get(self.settings.task)
        cut = CutText.of((task.lead if task else "") + shared.text, tokens)
        most, size = self.settings.tokens, len(cut)
        parts = [(0, size)] if not most or size <= most else [(0, most - most // 2), (size - most // 2, size)]
        for first, last in parts:
            start = 0
            for end in (part := cut.range(first, last)).ends(self.settings.piece):
                piece = part.range(start, end)
                yield Observe(text=piece.text, key=f"{shared.id}@{first + start}", joiner="", ids=piece.ids)
                start = end

    def _worded(self, turn: Turn) -> str:
        """A question, with its options, in the words of its template."""
        options = (f"\n{letter}. {option}" for letter, option in zip(ascii_uppercase, turn.options, strict=False))
        return self.card.prompt.asked("".join((turn.question, *options)), self.settings.prompt)

    def _told(self, shared: Shared, number: int) -> Observe:
        """A turn that was answered right."""
        turn, prompt = shared.turns[number], self.card.prompt
        text = f"{self._worded(turn)}{prompt.delimiter}{self._generated(turn).target}"
        return Observe(text=text, key=f"{shared.id}/turn{number + 1}", joiner=prompt.joiner)

    def _generated(self, turn: Turn) -> Generate:
        """The want of a question without options, as its sub-task has it."""
        own = SUB_TASKS.get(turn.kind) or SUB_TASKS.get(self.settings.task)
        most = self.settings.max_new_tokens or (own.max_new_tokens if own else 16)
        return replace(self.card.prompt.generated(turn.answers, most), all_of=bool(own and own.all_of))

    def _ask(self, shared: Shared, number: int) -> Ask:
        turn, prompt = shared.turns[number], self.card.prompt
        return Ask(
            prompt=self._worded(turn),
            question=turn.question,
            key=f"{shared.id}/{number + 1}",
            want=prompt.chosen(ascii_uppercase[: len(turn.options)], turn.answers[0])
            if turn.options
            else self._generated(turn),
            joiner=prompt.joiner,
            subtask=turn.kind,
            at=At(number + 1 if self.settings.mode == "turns" else 0),
        )

    def _next(self, own: Shared) -> Shared:
        """The next context of another text, for the last the first; in the miniature world about nobody of the own."""
        worlds = other_seeds(self.seed) if self.mini else iter(())
        fresh = (one for seed in worlds for one in _written(self.card, self.request, seed, self.arguments, 2))
        told = self._about(own)
        others = chain(behind(self.found, self.found.index(own)), fresh)
        other = next((one for one in others if told.isdisjoint(self._about(one))), None)
        if other is None:
            raise UserError(f"{self.source} has no other context.", "Give a source with several contexts.")
        return other

    def _about(self, shared: Shared) -> set[str]:
        return {name for text in shared.texts() for name in names_in(text)} if self.mini else {shared.text}

    def remarks_on_others(self) -> list[str]:
        """Notes on the other contexts."""
        pairs = [(self._next(own), own) for own in self.chosen] if self.settings.mode == "turns" else []
        fewer = sum(len(other.turns) < len(own.turns) for other, own in pairs)
        return [f"{fewer} of the other contexts have fewer turns than the own"] if fewer else []

    def training_steps(self, training: Training) -> Iterator[tuple[str, tuple[Step, ...]]]:
        """One context each; a mini source writes a new one, files are read in epochs, each in a new order."""
        while True:
            seed = training.draws.getrandbits(48)
            some = _written(self.card, self.request, seed, self.arguments, 1) if self.mini else self.chosen
            for shared in training.draws.sample(some, len(some)):
                asks = [self._ask(shared, number) for number in range(len(shared.turns))]
                yield self.split, self._steps(shared, asks, training.tokens)

    def counts(self) -> dict[str, Json]:
        """Counts of the source, and of the queries asked."""
        return {"rows": len(self.found), "contexts": len(self.chosen), "questions": self.n_asks}

    def texts(self) -> Iterator[str]:
        """Every context with its questions."""
        for shared in self.chosen:
            yield from (shared.id, *shared.texts())


def _written(
    card: Card, request: Request, seed: int, arguments: Mapping[str, object], contexts: int
) -> Sequence[Shared]:
    """Contexts of the miniature world."""
    return contexts_of(card, twin_table(card, request.split, seed, contexts, arguments))[0]


def _of_sub_task(card: Card, settings: Settings, typed: bool, where: str) -> tuple[Card, Settings]:
    """Card and settings of the sub-task that is asked for, or that the source is named after."""
    name = settings.task.removeprefix(PREFIX) or sub_task_of(where)
    if name not in SUB_TASKS:
        if settings.task:
            raise UnknownName(f"sub-task of {card.name}", name, list(SUB_TASKS))
        return card, settings
    prompt = name if name in card.prompt.templates and not typed else settings.prompt
    metrics = SUB_TASKS[name].metrics
    card = card.model_copy(update={"metrics": metrics, "main_metric": metrics[0]})
    return card, settings.model_copy(update={"task": name, "prompt": prompt})


def read(card: Card, request: Request) -> SharedContext:
    """Bind a card of this reader to its data; see `readers.load`."""
    settings, arguments = resolve(card, request, Settings)
    if request.source == "mini":
        data = twin_table(card, request.split, request.seed, settings.contexts or _OF_A_TWIN, arguments)
    else:
        data = table(card, request)
        card, settings = _of_sub_task(card, settings, "prompt" in request.options, data.where)
    found, dropped = contexts_of(card, data)
    chosen = drawn(found, settings.contexts, f"contexts {request.seed}")
    choosing = {bool(turn.options) for shared in chosen for turn in shared.turns}
    if len(choosing) > 1:
        raise UserError(f"{data.where} has questions with options and others without.", "Give them apart.")
    if True in choosing:
        card = card.model_copy(update={"metrics": ("acc", "option_nll"), "main_metric": "acc", "chance": None})
    check_judges(card.name, map(metric, card.metrics), "choose" if True in choosing else "generate")
    card.prompt.check(card.name, settings.prompt, 0)
    return SharedContext(
        card=card,
        request=request,
        settings=settings,
        arguments=arguments,
        source=data.label,
        data_notes=data.notes,
        unused=dropped,
        found=found,
        chosen=chosen,
    )
