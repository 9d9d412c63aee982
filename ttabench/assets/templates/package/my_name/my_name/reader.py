"""The dataset reader: all facts are read, then all questions are asked."""

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
    """The protocol of a card, which `--task-set` changes."""

    max_new_tokens: int = 8


@dataclass(frozen=True, kw_only=True)
class Facts(Task[Settings]):
    """Rows with a fact, a question and its answer."""

    rows: Sequence[Mapping[str, Json]]

    def episodes(self, tokens: Tokens | None = None) -> Iterator[Episode]:
        """Yield one episode of all rows."""
        yield Episode(
            key=f"{self.card.name}/{self.split}", steps=self._steps(self.rows[: self.limit])
        )

    def training_steps(self, training: Training) -> Iterator[tuple[str, tuple[Step, ...]]]:
        """Yield episodes of random rows, without end."""
        while True:
            rows = training.rng.choices(self.rows, k=training.documents)
            yield self.split, self._steps(rows)

    def counts(self) -> dict[str, Json]:
        """Return the counts of a record."""
        return {"documents": len(self.rows), "questions": self.n_queries}

    def texts(self) -> Iterator[str]:
        """Yield all texts, for digests and vocabularies."""
        return (str(value) for row in self.rows for value in row.values())

    def _steps(self, rows: Sequence[Mapping[str, Json]]) -> tuple[Step, ...]:
        chunks = [Chunk(text=row["fact"], key=row["question"]) for row in rows]
        return (*chunks, *(self._query(row) for row in rows))

    def _query(self, row: Mapping[str, Json]) -> Query:
        question = row["question"]
        want = Generate(answers=(row["answer"],), max_new_tokens=self.settings.max_new_tokens)
        return Query(prompt=question, key=question, want=want, source_key=question)


def read(card: Card, request: Request) -> Facts:
    """Bind a card to the rows of a request."""
    settings, arguments = resolve_settings(card, request, Settings)
    table = load_table(card, request)
    return Facts(
        card=card,
        request=request,
        settings=settings,
        arguments=arguments,
        data=table,
        rows=[row.values for row in table.rows],
    )
