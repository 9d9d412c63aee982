"""Samples without a text: their figures and names, and a digest of each text, so that they may be passed on.

Two runs were asked the same where the digests of prompt and right answers are the same, whichever still has its texts.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from typing import Any

from ttabench.core.types import Json

DIGITS = 16
DIGEST = re.compile(r"sha256:[0-9a-f]{16}")
NAME = re.compile(r"[A-Za-z0-9_.@/:+#-]{0,80}")
"""Keys that cannot be a sentence are kept: ids of rows as published, numbers, names of readers and orders."""
TEXTS = ("prompt", "prediction", "answers")
MODES = frozenset({"choose", "generate", "score"})
SUBTASK = ("subtask",)
NAMES = ("episode", "key", "source_key", *SUBTASK)
"""Columns of samples that name something; all other columns of texts are texts."""


@lru_cache(maxsize=100_000)
def digest_of(text: str) -> str:
    """The digest of a text; empty for an empty text, and a digest is its own."""
    if not text or is_digest(text):
        return text
    return f"sha256:{hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()[:16]}"


def is_digest(text: str) -> bool:
    """Whether a digest stands here for a text that is not kept."""
    return DIGEST.fullmatch(text) is not None


def kept_text(text: str) -> str:
    """The text, or nothing where only its digest is kept."""
    return "" if is_digest(text) else text


def name_of(key: str) -> str:
    """A key as samples without texts have it."""
    return key if NAME.fullmatch(key) else digest_of(key)


def holds_digests(samples: Mapping[str, Sequence[Any]]) -> bool:
    """Whether the texts of samples are not kept, from their columns `TEXTS`."""
    cells = (cell for name in TEXTS for cell in samples.get(name, ()))
    return any(is_digest(text) for cell in cells for text in ([cell] if isinstance(cell, str) else cell))


def without_texts(table: Any, subtasks: Collection[str]) -> Any:
    """A `pyarrow.Table` of samples with every text as its digest."""
    import pyarrow as pa

    columns = [_without_texts(name, table[name].combine_chunks(), subtasks) for name in table.column_names]
    return pa.table(columns, names=table.column_names)


def _without_texts(name: str, column: Any, subtasks: Collection[str]) -> Any:
    import pyarrow as pa
    import pyarrow.types as kinds

    listed = kinds.is_list(column.type)
    kind = column.type.value_type if listed else column.type
    if kinds.is_integer(kind) or kinds.is_floating(kind) or kinds.is_boolean(kind) or kinds.is_null(kind):
        return column
    assert kinds.is_string(kind), f"{name} holds {column.type}: a text may stand in it"

    def cell(text: str | None) -> str | None:
        if text is None or (name == "mode" and text in MODES) or (name in SUBTASK and text in subtasks):
            return text
        return name_of(text) if name in NAMES else digest_of(text)

    cells = [None if value is None else [cell(text) for text in value] if listed else cell(value)
             for value in column.to_pylist()]  # fmt: skip
    return pa.array(cells, type=column.type)


def column_digest(values: Sequence[Json]) -> str:
    """Digest of the values of a column, in order; a text counts by its digest, so it holds without texts, too."""
    text = json.dumps([_digested(value) for value in values], default=repr)  # what is no JSON is of no record
    return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]


def digests_of(columns: Mapping[str, Sequence[Json]]) -> dict[str, str]:
    """The digest of every column of samples: they tie them to the record of their run."""
    return {name: column_digest(values) for name, values in columns.items()}


def changed_column(columns: Mapping[str, Sequence[Json]], recorded: Mapping[str, str]) -> str:
    """The first column that holds other values than were recorded; "" where none does, or none was recorded."""
    changed = (name for name in columns if name in recorded and recorded[name] != column_digest(columns[name]))
    return next(changed, "")


def _digested(value: Json) -> Json:
    if isinstance(value, list):
        return [_digested(part) for part in value]
    return digest_of(value) if isinstance(value, str) else value
