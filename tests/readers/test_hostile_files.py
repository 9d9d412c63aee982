"""Files made to hurt: cards that expand without end or look elsewhere."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.readers.test_bad_sources import put
from ttabench.core.errors import UserError
from ttabench.readers.cards import Card, cards_folder, load_card


@pytest.mark.parametrize(
    "bomb",
    [
        "a: &a [x, x, x]\n" + "".join(f"{new}: &{new} [*{old}, *{old}]\n" for old, new in pairwise("abcdefghi")),
        "a: &a {k: v}\nb: &b {<<: [*a, *a]}\n",
        "a: &a [*a]\n",
    ],
    ids=["lists", "merges", "itself"],
)
def test_an_alias_bomb_is_refused_at_once(tmp_path: Path, bomb: str) -> None:
    with pytest.raises(UserError, match=r"line \d: a task card may hold no alias"):
        load_card(str(put(tmp_path, "card.yaml", bomb)))


@pytest.mark.parametrize("place", ["config", "files", "whole", "articles"])
def test_a_card_names_nothing_outside_its_source(place: str) -> None:
    for name in ("/etc", "../secret", "a/../../b", "C:\\secret", "", "~/../x"):
        data: Any = yaml.safe_load((cards_folder() / "streamingqa.yaml").read_text(encoding="utf-8"))
        if place == "config":
            data["source"]["hub"]["config"] = name
        elif place == "articles":
            data["source"]["articles"]["files"] = [name]
        else:
            data["splits"]["test"][place] = [name]
        with pytest.raises(ValueError, match="is no path below the folder"):
            Card.model_validate_json(json.dumps(data), strict=True)
