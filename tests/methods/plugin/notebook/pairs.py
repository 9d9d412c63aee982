"""The task family: rows `{"fact", "question", "answer"}`, all facts read, then all questions asked."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ttabench.core.types import Ask, Episode, Json, Observe
from ttabench.readers.cards import Card
from ttabench.readers.description import Bound, describe
from ttabench.readers.options import ProtocolSettings, resolve
from ttabench.readers.sources import Request, table
from ttabench.readers.tokens import Tokens


class Settings(ProtocolSettings):
    """The protocol."""

    max_new_tokens: int = 8


@dataclass(frozen=True, kw_only=True)
class Pairs(Bound[Settings]):
    """A `readers.Task` of facts."""

    rows: Sequence[Mapping[str, Json]]

    def _episode(self, key: str, rows: Sequence[Mapping[str, Json]]) -> Episode:
        read = [Observe(text=row["fact"], key=row["question"]) for row in rows]
        return Episode(key=key, steps=(*read, *(self._ask(row) for row in rows)))

    def _ask(self, row: Mapping[str, Json]) -> Ask:
        return Ask(prompt=row["question"], key=row["question"], answers=(row["answer"],), about=row["question"],
                   max_new_tokens=self.settings.max_new_tokens)  # fmt: skip

    def episodes(self, tokens: Tokens | None = None) -> Iterator[Episode]:  # noqa: ARG002  # the contract's
        """One, of all rows."""
        yield self._episode(f"{self.card.name}/{self.split}", self.rows[: self.limit])

    def training(
        self,
        seed: int,
        documents: int,
        questions: int = 1,  # noqa: ARG002  # the contract's
        tokens: Tokens | None = None,  # noqa: ARG002
    ) -> Iterator[Episode]:
        """So many rows drawn at random, endlessly."""
        draws = random.Random(seed)
        while True:
            yield self._episode("training", draws.choices(list(self.rows), k=documents))

    def describe(self) -> dict[str, Json]:
        """See `readers.Task`."""
        texts = [str(value) for row in self.rows for value in row.values()]
        return describe(self, {"documents": len(self.rows), "questions": self.n_asks}, texts)


def read(card: Card, request: Request) -> Pairs:
    """The reader."""
    settings, arguments = resolve(card, request, Settings)
    found = table(card, request)
    return Pairs(card=card, source=found.label, split=request.split, seed=request.seed, limit=request.limit,
                 settings=settings, arguments=arguments, rows=[row.values for row in found.rows])  # fmt: skip
