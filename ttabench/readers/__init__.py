"""Readers turn a task card and a source of rows into episodes; one module a shape of task.

    task = load("streamingqa", source="mini", split="test", seed=0, options={"documents": "16"})
    for episode in task.episodes():
        ...

Other packages offer readers through the entry-point group `ttabench.readers`. Whatever in these modules reads data,
cards or options raises a `UserError` of one line where they are wrong: what, where, and how to mend it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Protocol

from ttabench.core.errors import UnknownName
from ttabench.core.plugins import offered
from ttabench.core.types import Episode, Json

if TYPE_CHECKING:
    from ttabench.readers.cards import Card
    from ttabench.readers.sources import Request
    from ttabench.readers.tokens import Tokens

GROUP = "ttabench.readers"
"""Entry points of other packages: functions of a card and a request."""
READERS = (
    "qa_stream", "demonstrations", "metaicl", "book", "dialogue", "sessions", "lamp", "recall", "shared_context",
    "ruler",
)  # fmt: skip
"""Modules here, each with a function `read`."""


class Task(Protocol):
    """A task bound to a source, a split and a seed: what the runner and the trainer iterate over."""

    @property
    def card(self) -> Card:
        """The literal card."""

    @property
    def source(self) -> str:
        """`mini`, `hub:<path>@<revision>`, `folder:<path>` or `file:<path>`; stands in every record and table."""

    @property
    def split(self) -> str:
        """Name of the split on the card."""

    @property
    def seed(self) -> int:
        """Seed of the order, and of the rows where the source is `mini`."""

    @property
    def dropped(self) -> Mapping[str, int]:
        """Rows of the source that were not used, by reason."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences a record must carry and a table should warn with."""

    @property
    def n_observes(self) -> int:
        """Observations over all episodes; an estimate in protocols that cut by tokens."""

    @property
    def n_asks(self) -> int:
        """Queries over all episodes; likewise."""

    def episodes(self, tokens: Tokens | None = None) -> Iterator[Episode]:
        """The episodes, the same at every call; without a base model 4 characters count as a token."""

    def others(self, tokens: Tokens | None = None) -> Iterator[Episode]:
        """The episodes with keys, queries and windows of their own and the observations of another context."""

    def describe_others(self) -> dict[str, Json]:
        """Of these other contexts, for a record: `notes`, and a `digest` of their texts."""

    def training(
        self, seed: int, documents: int, questions: int = 1, tokens: Tokens | None = None
    ) -> Iterator[Episode]:
        """Endless episodes of `documents` observations with `questions` queries about each, drawn with replacement.

        Texts that are cut by tokens have as many of both as their protocol says.
        """

    def describe(self) -> dict[str, Json]:
        """All of the above as JSON, with the resolved protocol and a digest of the rows, for a record.

        Where one pass over a text gives the figures of several lengths, they stand under `lengths` (see `types.At`).
        """


def load(
    card: Card | str,
    *,
    source: str = "mini",
    split: str = "test",
    seed: int = 0,
    limit: int | None = None,
    options: Mapping[str, object] | None = None,
) -> Task:
    """Bind a task to its data.

    Args:
        card: a card, or what `cards.load_card` takes.
        source: "mini", "hub", or a file or folder in any published layout.
        split: a split of the card ("test", "validation", "train", ...).
        seed: of the order of the stream, and of the rows of a mini source.
        limit: at most that many questions, evenly spaced over the stream, shared out evenly over sub-tasks; all
            documents are still read.
        options: protocol settings, and arguments of the mini generator; texts ("16", "true") or typed values.

    Raises:
        UserError: a name, path, option or row is wrong; one line that says where.
    """
    from ttabench.readers.cards import load_card
    from ttabench.readers.sources import Request

    bound = load_card(card) if isinstance(card, str) else card
    read = _reader(bound.reader)
    if split not in bound.splits:
        raise UnknownName(f"split of task {bound.name}", split, list(bound.splits))
    request = Request(source=str(source), split=split, seed=seed, limit=limit, options=dict(options or {}))
    return read(bound, request)


def origin(reader: str) -> str:
    """Of what package, in what state, a reader is; "" for those here."""
    return "" if reader in READERS or reader not in offered(GROUP) else offered(GROUP)[reader].origin


def _reader(name: str) -> Callable[[Card, Request], Task]:
    read: Callable[[Card, Request], Task]
    if name in READERS:
        read = import_module(f"ttabench.readers.{name}").read
    elif name in offered(GROUP):
        read = offered(GROUP)[name].load()
    else:
        raise UnknownName("reader", name, sorted([*READERS, *offered(GROUP)]))
    return read
