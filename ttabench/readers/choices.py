"""Rows of multiple-choice tasks, whatever their layout, as prompts and options in the words of lm-evaluation-harness.

    CB    {"premise": "...", "hypothesis": "...", "label": "contradiction"}     raw file, label by name
    CB    {"premise": "...", "hypothesis": "...", "label": 1}                   hub, label by number
          -> Item(prompt="...\\nQuestion: .... True, False, or Neither?\\nAnswer:",
                  options=(" True", " False", " Neither"), gold=1)

How a row becomes options is its `shape` on the card, see `readers.choice_shapes`. The texts are those of
lm-evaluation-harness 0.4.13; a test compares them string by string.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from ttabench.core.errors import UserError
from ttabench.core.types import Choose
from ttabench.readers.cards import SubTask
from ttabench.readers.choice_shapes import SHAPES
from ttabench.readers.raw import RawRow, malformed, proper
from ttabench.readers.sources import Table

HIDDEN_LABEL = "label hidden"
"""Reason for which rows are dropped whose answer the publisher keeps."""
_FIELD = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Item:
    """A row ready to be shown or asked."""

    id: str
    """Unique in its file: the published id, else the number of the row; repeats end in #2, #3, ..."""
    prompts: Mapping[str, str]
    """By template name."""
    options: tuple[str, ...]
    """Each with its leading delimiter."""
    gold: int
    option_prefixes: tuple[str, ...] = ()
    """See `types.Choose`."""

    @property
    def shown(self) -> str:
        """The row as a demonstration: prompt and right option."""
        return self._asked + self.options[self.gold]

    def turns(self, delimiter: str) -> tuple[str, str]:
        """The row as a demonstration in a chat template: what the user says, and the right option."""
        return self._asked, self.options[self.gold].removeprefix(delimiter)

    @property
    def _asked(self) -> str:
        """Text before the right option."""
        return self.prompts["lm_eval"] + (self.option_prefixes[self.gold] if self.option_prefixes else "")

    def choose(self, delimiter: str) -> Choose:
        """The want of a query about the row."""
        return Choose(options=self.options, gold=self.gold, option_prefixes=self.option_prefixes, delimiter=delimiter)


def parse(
    part: SubTask, data: Table, delimiter: str = " ", single_blank: bool = False
) -> tuple[list[Item], dict[str, int]]:
    """(items in file order, how many rows are dropped by reason: a hidden label, a text or option without words).

    Args:
        delimiter: stands before every option.
        single_blank: one blank before COPA's options, where lm-evaluation-harness has two.

    Raises:
        UserError: a row lacks a column, has no options, or a label that is none of them; every row is dropped.
    """
    seen: Counter[str] = Counter()
    dropped: Counter[str] = Counter()
    items: list[Item] = []
    one_blank = single_blank and part.shape == "copa"
    for number, raw in enumerate(data.rows):
        row = SHAPES[part.shape](part, raw)
        if row.gold is None:
            dropped[HIDDEN_LABEL] += 1
            continue
        if not 0 <= row.gold < len(row.options):
            raise malformed(raw.place, f"label {row.gold} is none of its {len(row.options)} options")
        if empty := row.empty:
            dropped[f"empty {empty}"] += 1
            continue
        name = _name(raw, number)
        seen[name] += 1
        items.append(
            Item(
                id=name if seen[name] == 1 else f"{name}#{seen[name]}",
                prompts={key: _filled(template, row.fields, raw) for key, template in part.templates.items()},
                options=tuple(delimiter + (option.lstrip() if one_blank else option) for option in row.options),
                gold=row.gold,
                option_prefixes=row.option_prefixes,
            )
        )
    if not items:
        reasons = ", ".join(f"{reason}: {count}" for reason, count in dropped.items())
        raise UserError(f"{data.where}: none of the {len(data.rows)} rows can be used ({reasons}).", "Give others.")
    return items, dict(dropped)


def _name(raw: RawRow, number: int) -> str:
    name = next((raw.values[key] for key in ("idx", "id", "qID", "ind") if key in raw.values), number)
    return proper(raw.place, "its id", str(name))


def _filled(template: str, fields: Mapping[str, str], raw: RawRow) -> str:
    """The template with its fields put in, in one pass: braces in the data mean nothing."""

    def value(match: re.Match[str]) -> str:
        if match[1] not in fields:
            raise malformed(raw.place, f"the template needs {match[1]!r}, the row gives {', '.join(fields)}")
        return fields[match[1]]

    return _FIELD.sub(value, template)
