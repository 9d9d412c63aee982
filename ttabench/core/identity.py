"""Names for what is computed: a hash of all that decides it, in which a choice that is the default does not stand.

So a new setting with a default leaves every name as it was. A default that comes to mean something else would not be
seen: give such a setting a new name, or raise `SCHEMA`, which renames everything.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

from ttabench.core.types import Json

SCHEMA = 2
"""Of what is hashed; part of every name. 1 was a hash of everything, defaults included."""
DIGITS = 12


def changed(values: Mapping[str, Json], defaults: Mapping[str, Json]) -> dict[str, Json]:
    """The values that are not the defaults, and those that have none. 1, 1.0 and true are three values."""
    return {key: value for key, value in values.items() if key not in defaults or not same(value, defaults[key])}


def same(one: Json, other: Json) -> bool:
    """Whether two values are the same as JSON, where a tuple is a list."""
    return text_of(one) == text_of(other)


def text_of(value: Json) -> str:
    """JSON of one form for one value: sorted keys, no spaces."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def hashed(text: str) -> str:
    """12 hexadecimal digits of the SHA-256 of a text."""
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:DIGITS]


def identity(what: Mapping[str, Json]) -> str:
    """12 hexadecimal digits that follow from JSON values and from `SCHEMA`."""
    return hashed(text_of({"schema": SCHEMA, **what}))
