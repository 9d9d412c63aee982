"""Files made to hurt: cards that expand without end or look elsewhere."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.readers.test_bad_sources import put
from ttabench.core.errors import UserError
from ttabench.readers.cards import Card, cards_folder, load_card


def card_of(name: str) -> dict[str, Any]:
    import yaml

    found: dict[str, Any] = yaml.safe_load((cards_folder() / f"{name}.yaml").read_text(encoding="utf-8"))
    return found


@pytest.mark.parametrize(
    "bomb",
    [
        "a: &a [x, x, x, x, x, x, x, x, x]\n"
        + "".join(f"{new}: &{new} [{', '.join([f'*{old}'] * 9)}]\n" for old, new in pairwise("abcdefghi")),
        "a: &a {k: v}\n" + "b: &b {<<: [" + ", ".join(["*a"] * 9) + "]}\n",
        "a: &a [*a]\n",
    ],
    ids=["lists", "merges", "itself"],
)  # fmt: skip
def test_an_alias_bomb_is_refused_at_once(tmp_path: Path, bomb: str) -> None:
    path = put(tmp_path, "card.yaml", bomb)
    with pytest.raises(UserError, match=r"line \d: a task card may hold no alias"):
        load_card(str(path))


@pytest.mark.parametrize("name", ["/etc", "../secret", "a/../../b", "C:\\secret", "..\\secret", "", "~/../x"])
@pytest.mark.parametrize("place", ["config", "files", "whole", "articles"])
def test_a_card_names_nothing_outside_its_source(place: str, name: str) -> None:
    data = card_of("streamingqa")
    if place == "config":
        data["source"]["hub"]["config"] = name
    elif place == "articles":
        data["source"]["articles"]["files"] = [name]
    else:
        data["splits"]["test"][place] = [name]
    with pytest.raises(ValueError, match="is no path below the folder"):
        Card.model_validate_json(json.dumps(data), strict=True)
