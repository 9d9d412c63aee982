"""Base class of tasks, and helpers for dataset readers. A dataset reader subclasses `Task`:

class MyTask(Task[MySettings]):               settings as `resolve_settings` returns them
    def episodes(self, tokens=None): ...      chunks and queries, in order
    def counts(self): ...                     {"documents": 16, "questions": 48}
    def texts(self): ...                      every text that the digest of a record covers
"""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
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
    """Sizes and random generator of training episodes."""

    rng: random.Random
    documents: int
    """Chunks per episode."""
    questions: int
    """Queries about each chunk."""
    tokens: Tokens | None
    """Tokenizer of the base model, for protocols that cut by tokens."""

    def split(self, pool: Sequence[RowT]) -> tuple[Sequence[RowT], Sequence[RowT]]:
        """Draw (rows to read, other rows to query) from a pool; a small pool has fewer to read."""
        rows = self.rng.sample(pool, min(len(pool), self.documents + self.questions))
        border = max(0, len(rows) - self.questions)
        return rows[:border], rows[border:]


@dataclass(frozen=True)
class Task(Generic[SettingsT]):
    """A card bound to a source, a split and a seed, with the settings that its reader resolved.

    A reader implements `episodes`, `counts` and `texts`, and `training_steps` if methods train on
    it. Readers whose sources have several contexts implement `episodes_with_source` in place of
    `episodes`, and `swap_context`. Readers with limits on length implement `filter_by_length`.
    """

    card: Card
    request: Request
    settings: SettingsT
    """Resolved protocol."""
    arguments: Mapping[str, Scalar]
    """Arguments of the mini generator; empty for real data."""
    data: RawTable
    """Source of the rows, its notes, and counts of unused rows."""
    is_score_first: ClassVar[bool] = False
    """True if texts are scored, and none after it was read: no state has seen a scored text."""
    shares_training_draws: ClassVar[bool] = False
    """True if all tasks of one source draw the same training episodes. Otherwise the random seed of
    the draws includes the name of the task.
    """
    _dropped_by_length: list[dict[str, int]] = field(
        init=False, default_factory=list, compare=False
    )

    @property
    def source(self) -> str:
        """Source label in records and tables: `mini`, `hub:<path>@<revision>`, `folder:<path>` or
        `file:<path>`.
        """
        return self.data.label

    @property
    def split(self) -> str:
        """Name of the split on the card."""
        return self.request.split

    @property
    def seed(self) -> int:
        """Seed of the order, and of the rows if the source is `mini`."""
        return self.request.seed

    @property
    def unit(self) -> SamplingUnit:
        """Sampling unit: standard errors treat these as independent."""
        return self.card.unit

    @property
    def limit(self) -> int | None:
        """Maximum number of questions, as requested."""
        return self.request.limit

    @property
    def is_synthetic(self) -> bool:
        """True if the rows come from the synthetic world."""
        return self.source == "mini"

    def filter_by_length(self, tokens: Tokens | None) -> tuple[Any, dict[str, int]]:  # noqa: ARG002
        """Return (rows within the length limits, counts of the other rows by reason).

        Readers with length limits override it, and get their rows from `select_fitting`.
        """
        return None, {}

    def select_fitting(self, tokens: Tokens | None) -> Any:
        """Return the rows within the length limits, and record the others for `dropped`."""
        kept, dropped = self.filter_by_length(tokens)
        if tokens is not None or not self._dropped_by_length:
            self._dropped_by_length[:] = [dropped]
        return kept

    @property
    def dropped(self) -> Mapping[str, int]:
        """Counts of unused source rows, by reason.

        Rows outside the length limits are counted with the base model's tokenizer. Before the first
        use of that tokenizer, their number is an estimate.
        """
        if not self._dropped_by_length:
            self.select_fitting(None)
        return {**self.data.unused, **self._dropped_by_length[0]}

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences on unexpected properties of the data, for records. Tables show them as
        warnings.
        """
        if self.is_synthetic:
            return self.data.notes
        note, unused = self.card.splits[self.split].note, self.data.unused
        sentences = [*([note] if note else []), *self.data.notes]
        if unused:
            sentences.append(
                f"rows of {self.source.partition(':')[2]} were excluded ({format_reasons(unused)})"
            )
        if "@unpinned" in self.source:
            sentences.append("the hub data set is not pinned to a revision")
        return tuple(sentences)

    def episode_key(self, name: str, *subtask: str) -> str:
        """Return the key of the episode of a text, user or dialogue; in the synthetic world it
        contains the seed.
        """
        seed = (f"seed{self.seed}",) if self.is_synthetic else ()
        return "/".join((self.card.name, *subtask, self.split, name, *seed))

    def episodes(self, tokens: Tokens | None = None) -> Iterator[Episode]:
        """Yield the episodes, the same at every call. Without a tokenizer, 4 characters count as a
        token.
        """
        return (episode for episode, _ in self.episodes_with_source(tokens))

    def episodes_with_source(self, tokens: Tokens | None) -> Iterator[tuple[Episode, Any]]:
        """Yield every episode with its context, in the form that `swap_context` takes."""
        return ((episode, None) for episode in self.episodes(tokens))

    @cached_property
    def n_chunks(self) -> int:
        """Number of chunks over all episodes; an estimate in protocols that cut by tokens."""
        return sum(len(episode.chunks()) for episode in self.episodes())

    @cached_property
    def n_queries(self) -> int:
        """Number of queries over all episodes; an estimate in protocols that cut by tokens."""
        return sum(len(episode.queries()) for episode in self.episodes())

    # --- swapped contexts: an episode's own queries, answered from the state of another context ---

    def swap_context(self, own: Any, tokens: Tokens | None) -> Iterable[Step]:  # noqa: ARG002
        """Return the chunks of another context, to replace those of `own`."""
        raise UserError(f"The task {self.card.name} has no other contexts.", "Remove --swap-state.")

    def swapped_episodes(self, tokens: Tokens | None = None) -> Iterator[Episode]:
        """Yield the episodes with their own keys, queries and windows, and the chunks of another
        context.
        """
        for episode, own in self.episodes_with_source(tokens):
            other = replace_chunks(episode, self.swap_context(own, tokens))
            if episode.chunks() and not other.chunks():
                raise self.no_swap_error()
            yield other

    def describe_swapped(self) -> dict[str, Json]:
        """Describe the swapped contexts for a record: `notes`, and a `digest` of their texts."""
        pairs = list(zip(self.episodes(), self.swapped_episodes(), strict=True))
        n_shorter = sum(len(other.chunks()) < len(own.chunks()) for own, other in pairs)
        notes = (
            [f"{n_shorter} of {len(pairs)} swapped contexts have fewer chunks than the own context"]
            if n_shorter
            else []
        )
        digest = fingerprint(*(chunk.text for _, other in pairs for chunk in other.chunks()))
        return {"notes": notes, "digest": digest}

    def draw_synthetic(self, seed: int, **more: Scalar) -> RawTable:
        """Draw rows of the synthetic world with another seed.

        Args:
            more: arguments of its generator that replace those of the task.
        """
        return synthetic_table(self.card, self.split, seed, {**self.arguments, **more})

    def candidates(
        self,
        every: Sequence[RowT],
        own: RowT,
        parse: Callable[[RawTable], Iterable[RowT]],
        **more: Scalar,
    ) -> Iterator[RowT]:
        """Yield candidates for a swapped context: the rows of `every` after `own`, cyclically.

        For a synthetic source, rows of other seeds follow. They are drawn with the generator
        arguments `more` and converted by `parse`.
        """
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
        """Return the first of `others` that shares no content with `own_contents`.

        Args:
            allow_overlap: if all of them share content, return the first one instead of an error.
        """
        overlapping = list[RowT]()
        for other in others:
            if own_contents.isdisjoint(contents_of(other)):
                return other
            overlapping = overlapping or [other]
        if not (allow_overlap and overlapping):
            raise self.no_swap_error()
        return overlapping[0]

    def no_swap_error(self) -> UserError:
        """Return the error for a source without any swapped context."""
        fault = f"{self.source} has no other context: the task reads or queries every text in it."
        return UserError(fault, "Use fewer documents or queries, or a larger source.")

    # --- training and records ---

    def training_episodes(
        self, seed: int, documents: int, questions: int = 1, tokens: Tokens | None = None
    ) -> Iterator[Episode]:
        """Yield endless episodes of `documents` chunks with `questions` queries about each, drawn
        with replacement.

        For texts that are cut by tokens, the protocol decides both numbers.
        """
        assert min(documents, questions) > 0, (
            f"an episode needs documents and questions, got {documents} and {questions}"
        )
        name = self.split if self.shares_training_draws else f"{self.card.name} {self.split}"
        rng = random.Random(f"training {name} {seed}")
        steps_by_origin = self.training_steps(
            Training(rng=rng, documents=documents, questions=questions, tokens=tokens)
        )
        for number, (origin, steps) in enumerate(steps_by_origin):
            yield Episode(
                key=f"{self.card.name}/{origin}/training{seed}.{number}", steps=tuple(steps)
            )

    def iter_training_rows(
        self,
        rng: random.Random,
        available: Sequence[RowT],
        parse: Callable[[RawTable], Iterable[RowT]],
        **more: Scalar,
    ) -> Iterator[RowT]:
        """Yield training rows endlessly.

        A `mini` source generates rows with the generator arguments `more`, converted by `parse`.
        Other sources yield the rows in `available`, in a new order every epoch.
        """
        while True:
            yield from (
                parse(self.draw_synthetic(rng.getrandbits(48), **more))
                if self.is_synthetic
                else rng.sample(available, len(available))
            )

    def training_steps(self, training: Training) -> Iterator[tuple[str, Iterable[Step]]]:
        """Yield (origin, steps) of training episodes, endlessly. Keys contain the origin."""
        raise NotImplementedError

    def counts(self) -> dict[str, Json]:
        """Return the sizes of the task, in the terms of its reader."""
        raise NotImplementedError

    def texts(self) -> Iterable[str]:
        """Yield every text that is read, queried or used as reference, in order.

        The digest of a record covers these texts.
        """
        raise NotImplementedError

    def describe(self) -> dict[str, Json]:
        """Describe the task as JSON for a record, with the resolved protocol and a digest of the
        rows.

        `counts` may include `lengths`: text lengths with metrics from a single pass, see
        `types.StreamPosition`.
        """
        card = self.card
        return {
            "task": card.name,
            **{name: getattr(card, name) for name in ("reader", "title", "arxiv", "licence")},
            **{name: getattr(self, name) for name in ("unit", "source", "split", "seed", "limit")},
            "protocol": self.settings.model_dump(mode="json"),
            "arguments": dict(self.arguments),
            **self.counts(),
            **({"score_first": True} if self.is_score_first else {}),
            "dropped": dict(self.dropped),
            "notes": list(self.notes),
            "digest": fingerprint(*self.texts()),
        }


def fingerprint(*texts: str) -> str:
    """Digest texts in order: 16 hexadecimal digits."""
    return hashlib.sha256("\0".join(texts).encode("utf-8")).hexdigest()[:16]


def make_unique(name: str, seen: Counter[str]) -> str:
    """Count a name in `seen` and number its repeats: x, x#2, x#3."""
    seen[name] += 1
    return name if seen[name] == 1 else f"{name}#{seen[name]}"


def divide_limit(limit: int | None, rows: Collection[RowT]) -> Iterator[tuple[RowT, int | None]]:
    """Pair each of these sub-tasks or texts with an even share of a limit; None means no limit."""
    for i, row in enumerate(rows):
        share = None if limit is None else limit * (i + 1) // len(rows) - limit * i // len(rows)
        yield row, share


def pick_evenly(rows: Sequence[RowT], share: int | None) -> Sequence[RowT]:
    """Pick `share` evenly spaced rows; all of them for None."""
    if share is None or share >= len(rows):
        return rows
    return tuple(rows[index * len(rows) // share] for index in range(share))


def select_names(kind: str, known: Iterable[str], requested: str) -> list[str]:
    """Select the names in a comma-separated list, each once; "all" selects every known name."""
    known = list(known)
    names = known if requested == "all" else [name.strip() for name in requested.split(",")]
    if unknown := [name for name in names if name not in known]:
        raise UnknownName(kind, unknown[0], known)
    return list(dict.fromkeys(names))


def interleave(chunks: Sequence[Chunk], queries: Iterable[tuple[int, Query]]) -> Iterator[Step]:
    """Yield chunks and queries; each query is given with the number of chunks before it.

    Chunks after the last query are left out.
    """
    n_read = 0
    for n_before, query in sorted(queries, key=itemgetter(0)):
        yield from chunks[n_read:n_before]
        yield query
        n_read = n_before


def sample_rows(rows: Sequence[RowT], requested: int | None, name: str) -> Sequence[RowT]:
    """Draw `requested` random rows, in their original order; all of them for None.

    Args:
        name: seed of the draw.
    """
    if requested is None or requested >= len(rows):
        return rows
    return [
        rows[index] for index in sorted(random.Random(name).sample(range(len(rows)), requested))
    ]


def move_blanks_forward(steps: Iterable[Step]) -> Iterator[Step]:
    """Move blanks from the end of each chunk to the joiner of the next step.

    Byte-level tokenizers merge a blank with the text after it. Chunks with token ids, and chunks of
    blanks only, are unchanged.

        Chunk("Answer: yes "), Query("Question: ...")
            ->   Chunk("Answer: yes"), Query(joiner=" \\n\\n", ...)
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
    """Replace an episode's chunks one for one; without a replacement, its own chunk is removed.

    replace_chunks(Episode("e", [a1, a2, query]), [b1, b2, b3])    Episode("e", [b1, b2, query])
    """
    replacements = move_blanks_forward(chunk for chunk in chunks if isinstance(chunk, Chunk))
    steps = [
        next(replacements, None) if isinstance(step, Chunk) else step for step in episode.steps
    ]
    return Episode(key=episode.key, steps=tuple(step for step in steps if step is not None))


def swap_seeds(seed: int) -> Iterator[int]:
    """Yield 50 seeds that no run uses, for draws from the synthetic world."""
    return (
        random.Random(f"another context {seed} {number}").getrandbits(48) for number in range(50)
    )


def rows_after(every: Sequence[RowT], own: RowT) -> list[RowT]:
    """Return all other rows, cyclically from the one after `own`."""
    index = every.index(own)
    return [*every[index + 1 :], *every[:index]]
