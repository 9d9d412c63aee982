"""What every task bound to its data has: the base of all readers.

class MyTask(Bound[MySettings]):              settings that `resolve_settings` gave
    def episodes(self, tokens=None): ...      what is read and asked
    def counts(self): ...                     {"documents": 16, "questions": 48}
    def texts(self): ...                      all that is shown, asked or compared with, for the digest of a record
"""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import itemgetter
from typing import Any, ClassVar, Generic, TypeVar

from ttabench.core.errors import UnknownName, UserError
from ttabench.core.types import Chunk, Episode, Json, Query, Step
from ttabench.readers.cards import Card, ProtocolSettings, Scalar
from ttabench.readers.formats import format_reasons
from ttabench.readers.sources import RawTable, Request, synthetic_table
from ttabench.readers.tokens import Tokens
from ttabench.stats.clusters import SamplingUnit

RowT = TypeVar("RowT")
SettingsT = TypeVar("SettingsT", bound=ProtocolSettings)


@dataclass(frozen=True, kw_only=True)
class Training:
    """Size of the episodes that training asks for."""

    rng: random.Random
    documents: int
    """Observations an episode."""
    questions: int
    """Queries about each."""
    tokens: Tokens | None
    """The base model, for protocols that cut by tokens."""

    def split(self, pool: Sequence[RowT]) -> tuple[Sequence[RowT], Sequence[RowT]]:
        """(rows to show, other rows to ask), drawn from a pool; a smaller one gives fewer to show."""
        rows = self.rng.sample(pool, min(len(pool), self.documents + self.questions))
        border = max(0, len(rows) - self.questions)
        return rows[:border], rows[border:]


@dataclass(frozen=True, kw_only=True)
class Task(Generic[SettingsT]):
    """A task: a card bound to a source, a split and a seed, with what its reader resolved.

    A reader gives `episodes`, `counts`, `texts`, and `training_steps` where methods train on it. Where its sources have
    other contexts it gives `episodes_with_source` in place of `episodes`, and `swap_context`; `filter_by_length` where it leaves out what is too
    long.
    """

    card: Card
    request: Request
    settings: SettingsT
    """The protocol in use."""
    arguments: Mapping[str, Scalar]
    """Arguments of the generator of a mini source; empty for real data."""
    data: RawTable
    """Where its rows are from, with notes on them, and how many were not used."""
    shares_training_draws: ClassVar[bool] = False
    """Whether the draws of training do not depend on the name of the task: those of one source draw alike."""
    _dropped_by_length: list[dict[str, int]] = field(
        init=False, default_factory=list, compare=False
    )

    @property
    def source(self) -> str:
        """`mini`, `hub:<path>@<revision>`, `folder:<path>` or `file:<path>`; stands in every record and table."""
        return self.data.label

    @property
    def split(self) -> str:
        """Name of the split on the card."""
        return self.request.split

    @property
    def seed(self) -> int:
        """Seed of the order, and of the rows where the source is `mini`."""
        return self.request.seed

    @property
    def unit(self) -> SamplingUnit:
        """The unit that varies from one reader to the next: errors of figures are over it."""
        return self.card.unit

    @property
    def limit(self) -> int | None:
        """Most questions asked for."""
        return self.request.limit

    @property
    def is_synthetic(self) -> bool:
        """Whether the rows are of the miniature world."""
        return self.source == "mini"

    def filter_by_length(self, tokens: Tokens | None) -> tuple[Any, dict[str, int]]:  # noqa: ARG002  # what readers take
        """(what keeps the limits on length, how much does not by reason); `select_fitting` gives the first."""
        return None, {}

    def select_fitting(self, tokens: Tokens | None) -> Any:
        """What keeps the limits on length; what does not is `dropped`."""
        kept, dropped = self.filter_by_length(tokens)
        if tokens is not None or not self._dropped_by_length:
            self._dropped_by_length[:] = [dropped]
        return kept

    @property
    def dropped(self) -> Mapping[str, int]:
        """Rows of the source that were not used, by reason.

        Those that are too long by the tokens of the base model once it asked for the episodes, else by an estimate.
        """
        if not self._dropped_by_length:
            self.select_fitting(None)
        return {**self.data.unused, **self._dropped_by_length[0]}

    @property
    def notes(self) -> tuple[str, ...]:
        """What differs from what a reader of the figures would assume: sentences for a record, warned of in tables."""
        note, unused = self.card.splits[self.split].note, self.data.unused
        sentences = (
            [note, *self.data.notes] if note and not self.is_synthetic else [*self.data.notes]
        )
        if unused and not self.is_synthetic:
            sentences.append(
                f"rows of {self.source.partition(':')[2]} were left out ({format_reasons(unused)})"
            )
        if "@unpinned" in self.source:
            sentences.append("the hub data set is not pinned to a revision")
        return tuple(sentences)

    def episode_key(self, name: str, *subtask: str) -> str:
        """Of the episode of a text, a user or a dialogue; in the miniature world each seed has its own."""
        seed = (f"seed{self.seed}",) if self.is_synthetic else ()
        return "/".join((self.card.name, *subtask, self.split, name, *seed))

    def episodes(self, tokens: Tokens | None = None) -> Iterator[Episode]:
        """The episodes, the same at every call; without a base model 4 characters count as a token."""
        return (episode for episode, _ in self.episodes_with_source(tokens))

    def episodes_with_source(self, tokens: Tokens | None) -> Iterator[tuple[Episode, Any]]:
        """Every episode with what is read in it, as `swap_context` takes it."""
        return ((episode, None) for episode in self.episodes(tokens))

    @cached_property
    def n_chunks(self) -> int:
        """Observations over all episodes; an estimate in protocols that cut by tokens."""
        return sum(len(episode.chunks()) for episode in self.episodes())

    @cached_property
    def n_queries(self) -> int:
        """Queries over all episodes; likewise."""
        return sum(len(episode.queries()) for episode in self.episodes())

    # --- other contexts: own queries and the observations of another, whose state answers in place of one's own ---

    def swap_context(self, own: Any, tokens: Tokens | None) -> Iterable[Step]:  # noqa: ARG002  # what readers take
        """The pieces of another context, in place of what is read in an episode."""
        raise UserError(
            f"The task {self.card.name} has no other contexts.", "Leave --swap-state out."
        )

    def swapped_episodes(self, tokens: Tokens | None = None) -> Iterator[Episode]:
        """The episodes with keys, queries and windows of their own and the observations of another context."""
        for episode, own in self.episodes_with_source(tokens):
            other = replace_chunks(episode, self.swap_context(own, tokens))
            if episode.chunks() and not other.chunks():
                raise self.no_swap_error()
            yield other

    def describe_swapped(self) -> dict[str, Json]:
        """Of these other contexts, for a record: `notes`, and a `digest` of their texts."""
        pairs = list(zip(self.episodes(), self.swapped_episodes(), strict=True))
        fewer = sum(len(other.chunks()) < len(own.chunks()) for own, other in pairs)
        notes = (
            [f"{fewer} of {len(pairs)} other contexts have fewer pieces than the own"]
            if fewer
            else []
        )
        digest = fingerprint(*(chunk.text for _, other in pairs for chunk in other.chunks()))
        return {"notes": notes, "digest": digest}

    def draw_synthetic(self, seed: int, **more: Scalar) -> RawTable:
        """Other rows of the miniature world, drawn by this seed; `more`: other arguments of its generator."""
        return synthetic_table(self.card, self.split, seed, {**self.arguments, **more})

    def candidates(
        self,
        every: Sequence[RowT],
        own: RowT,
        parse: Callable[[RawTable], Iterable[RowT]],
        **more: Scalar,
    ) -> Iterator[RowT]:
        """What stands behind one's own, from the last on the first; then what is `parse` of a twin of other seeds."""
        yield from rows_after(every, own)
        for seed in swap_seeds(self.seed) if self.is_synthetic else ():
            yield from parse(self.draw_synthetic(seed, **more))

    def first_disjoint(
        self,
        own_contents: set[str],
        others: Iterable[RowT],
        contents_of: Callable[[RowT], set[str]],
        *,
        allow_overlap: bool = False,
    ) -> RowT:
        """The first of others that tells nothing of what is known; `allow_overlap`: the first of all where each does."""
        first = list[RowT]()
        for other in others:
            if own_contents.isdisjoint(contents_of(other)):
                return other
            first = first or [other]
        if not (allow_overlap and first):
            raise self.no_swap_error()
        return first[0]

    def no_swap_error(self) -> UserError:
        """The error of a source that has nothing to read in place of one's own."""
        fault = f"{self.source} has nothing to read that is neither read nor asked about: there is no other context."
        return UserError(fault, "Read or ask less of it, or give a larger source.")

    # --- training and records ---

    def training_episodes(
        self, seed: int, documents: int, questions: int = 1, tokens: Tokens | None = None
    ) -> Iterator[Episode]:
        """Endless episodes of `documents` observations with `questions` queries about each, drawn with replacement.

        Texts that are cut by tokens have as many of both as their protocol says.
        """
        assert min(documents, questions) > 0, (
            f"{documents} documents with {questions} questions make no episode"
        )
        name = self.split if self.shares_training_draws else f"{self.card.name} {self.split}"
        rng = random.Random(f"training {name} {seed}")
        drawn = self.training_steps(
            Training(rng=rng, documents=documents, questions=questions, tokens=tokens)
        )
        for number, (place, steps) in enumerate(drawn):
            yield Episode(
                key=f"{self.card.name}/{place}/training{seed}.{number}", steps=tuple(steps)
            )

    def iter_training_rows(
        self,
        rng: random.Random,
        held: Sequence[RowT],
        parse: Callable[[RawTable], Iterable[RowT]],
        **more: Scalar,
    ) -> Iterator[RowT]:
        """What to train on, endlessly: of a mini source what is `parse` of one new text after another, which has these
        arguments; else what is held, in a new order every epoch.
        """
        while True:
            yield from (
                parse(self.draw_synthetic(rng.getrandbits(48), **more))
                if self.is_synthetic
                else rng.sample(held, len(held))
            )

    def training_steps(self, training: Training) -> Iterator[tuple[str, Iterable[Step]]]:
        """(where it is from, its steps) of each episode of `training`, endlessly."""
        raise NotImplementedError

    def counts(self) -> dict[str, Json]:
        """How much of what it has, in the words of its reader."""
        raise NotImplementedError

    def texts(self) -> Iterable[str]:
        """Everything shown, asked or compared with, in order; the digest of a record changes with any of it."""
        raise NotImplementedError

    def describe(self) -> dict[str, Json]:
        """All of the above as JSON, with the resolved protocol and a digest of the rows, for a record.

        Where one pass over a text gives the figures of several lengths, they stand under `lengths` (see `types.At`).
        """
        card = self.card
        return {
            "task": card.name,
            **{name: getattr(card, name) for name in ("reader", "title", "arxiv", "licence")},
            **{name: getattr(self, name) for name in ("unit", "source", "split", "seed", "limit")},
            "protocol": self.settings.model_dump(mode="json"),
            "arguments": dict(self.arguments),
            **self.counts(),
            "dropped": dict(self.dropped),
            "notes": list(self.notes),
            "digest": fingerprint(*self.texts()),
        }


def fingerprint(*texts: str) -> str:
    """16 hexadecimal digits that change with any of these texts or their order."""
    return hashlib.sha256("\0".join(texts).encode("utf-8")).hexdigest()[:16]


def make_unique(name: str, seen: Counter[str]) -> str:
    """A name, counted in `seen`; where it was seen before with its number: x, x#2, x#3."""
    seen[name] += 1
    return name if seen[name] == 1 else f"{name}#{seen[name]}"


def split_limit(limit: int | None, count: int) -> list[int | None]:
    """A limit shared out evenly over so many sub-tasks or texts; None for no limit."""
    if limit is None:
        return [None] * count
    return [limit * (i + 1) // count - limit * i // count for i in range(count)]


def pick_evenly(rows: Sequence[RowT], share: int | None) -> Sequence[RowT]:
    """So many of the rows, evenly spaced; all of them for None."""
    if share is None or share >= len(rows):
        return rows
    return tuple(rows[number * len(rows) // share] for number in range(share))


def select_names(kind: str, known: Iterable[str], requested: str) -> list[str]:
    """The names in a comma list, each once; "all" for all that are known."""
    known = list(known)
    names = known if requested == "all" else [name.strip() for name in requested.split(",")]
    if unknown := [name for name in names if name not in known]:
        raise UnknownName(kind, unknown[0], known)
    return list(dict.fromkeys(names))


def interleave(chunks: Sequence[Chunk], queries: Iterable[tuple[int, Query]]) -> Iterator[Step]:
    """Each query after so many pieces; what is behind the last query is not read."""
    read = 0
    for place, query in sorted(queries, key=itemgetter(0)):
        yield from chunks[read:place]
        yield query
        read = place


def sample_rows(rows: Sequence[RowT], requested: int | None, name: str) -> Sequence[RowT]:
    """So many of the rows, drawn by a name with a seed and in their order; all of them for None."""
    if requested is None or requested >= len(rows):
        return rows
    return [
        rows[place] for place in sorted(random.Random(name).sample(range(len(rows)), requested))
    ]


def move_blanks_forward(steps: Iterable[Step]) -> Iterator[Step]:
    """The same text, in which blanks at the end of a piece stand in front of what follows it, as breaks do.

    Byte-level tokenizers join a blank with what stands behind it. Pieces with their ids, and pieces of blanks, stay.

        Observe("Answer: yes "), Ask("Question: ...")   ->   Observe("Answer: yes"), Ask(joiner=" \\n\\n", ...)
    """
    blanks = ""
    for step in steps:
        moved = replace(step, joiner=blanks + step.joiner) if blanks else step
        if isinstance(moved, Chunk):
            body = moved.text if moved.ids or not moved.text.strip() else moved.text.rstrip()
            blanks = moved.text[len(body) :]
            moved = replace(moved, text=body) if blanks else moved
        yield moved


def replace_chunks(episode: Episode, chunks: Iterable[Step]) -> Episode:
    """The episode with these observations in place of its own, one for one; where they end, its own are left out.

    with_pieces(Episode("e", [a1, a2, ask]), [b1, b2, b3])    Episode("e", [b1, b2, ask])
    """
    fresh = move_blanks_forward(chunk for chunk in chunks if isinstance(chunk, Chunk))
    steps = [next(fresh, None) if isinstance(step, Chunk) else step for step in episode.steps]
    return Episode(key=episode.key, steps=tuple(step for step in steps if step is not None))


def swap_seeds(seed: int) -> Iterator[int]:
    """50 seeds that no run has, for draws from the miniature world."""
    return (
        random.Random(f"another context {seed} {number}").getrandbits(48) for number in range(50)
    )


def rows_after(every: Sequence[RowT], own: RowT) -> list[RowT]:
    """What stands behind one of them, from the last on to the first: all but that one."""
    place = every.index(own)
    return [*every[place + 1 :], *every[:place]]
