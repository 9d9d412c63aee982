"""Digests that tie samples to the record of their run: one a column, over its values in order, not over a file's bytes.

    digests_of({"key": ["q1", "q2"], "f1": [1.0, 0.5]})    ->  {"key": "3c09...", "f1": "be71..."}
    changed_column({"f1": [1.0, 0.0]}, those)              ->  "f1"

They hold for any set of the columns, and where samples are packed with those of other runs. A text counts by its digest
(`scores.digest_of`), so they hold of samples without texts, too.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence

from ttabench.core.types import Json
from ttabench.records.scores import digest_of

DIGITS = 16
"""Of a digest, hexadecimal."""


def column_digest(values: Sequence[Json]) -> str:
    """Digest of the values of a column, in order."""
    text = json.dumps([_without_text(value) for value in values], default=repr)  # what is no JSON is of no record
    return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]


def digests_of(columns: Mapping[str, Sequence[Json]]) -> dict[str, str]:
    """The digest of every column."""
    return {name: column_digest(values) for name, values in columns.items()}


def changed_column(columns: Mapping[str, Sequence[Json]], recorded: Mapping[str, str]) -> str:
    """The first column that holds other values than were recorded; "" where none does, or none was recorded."""
    changed = (name for name in columns if name in recorded and recorded[name] != column_digest(columns[name]))
    return next(changed, "")


def _without_text(value: Json) -> Json:
    if isinstance(value, list):
        return [_without_text(part) for part in value]
    return digest_of(value) if isinstance(value, str) else value
