"""The task family: rows `{"fact", "question", "answer"}`, all facts read, then all questions asked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ttabench.extend import (
    Card,
    Chunk,
    Episode,
    Generate,
    Json,
    ProtocolSettings,
    Query,
    Request,
    Step,
    Task,
    Tokens,
    Training,
    load_table,
    resolve_settings,
)


class Settings(ProtocolSettings):
    """The protocol."""

    max_new_tokens: int = 8


@dataclass(frozen=True, kw_only=True)
class Pairs(Task[Settings]):
    """A `readers.Task` of facts."""

    rows: Sequence[Mapping[str, Json]]

    def _episode(self, key: str, rows: Sequence[Mapping[str, Json]]) -> Episode:
        read = [Chunk(text=row["fact"], key=row["question"]) for row in rows]
        return Episode(key=key, steps=(*read, *(self._query(row) for row in rows)))

    def _query(self, row: Mapping[str, Json]) -> Query:
        want = Generate(answers=(row["answer"],), max_new_tokens=self.settings.max_new_tokens)
        return Query(
            prompt=row["question"], key=row["question"], want=want, source_key=row["question"]
        )

    def episodes(self, tokens: Tokens | None = None) -> Iterator[Episode]:  # noqa: ARG002  # the contract's
        """One, of all rows."""
        yield self._episode(f"{self.card.name}/{self.split}", self.rows[: self.limit])

    def training_steps(self, training: Training) -> Iterator[tuple[str, tuple[Step, ...]]]:
        """So many rows drawn at random."""
        while True:
            yield (
                self.split,
                self._episode(
                    "", training.rng.choices(list(self.rows), k=training.documents)
                ).steps,
            )

    def counts(self) -> dict[str, Json]:
        """Facts and questions."""
        return {"documents": len(self.rows), "questions": self.n_queries}

    def texts(self) -> Iterator[str]:
        """All cells."""
        return (str(value) for row in self.rows for value in row.values())


def read(card: Card, request: Request) -> Pairs:
    """The reader."""
    settings, arguments = resolve_settings(card, request, Settings)
    found = load_table(card, request)
    rows = [row.values for row in found.rows]
    return Pairs(
        card=card, request=request, settings=settings, arguments=arguments, data=found, rows=rows
    )
