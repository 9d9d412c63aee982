"""Outcomes of every architecture, made tiny, and the page of the documentation that is computed of them.

The truth of the package's check is held to an untouched copy, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from pathlib import Path

import torch

from tests.architectures.tiny import KINDS, tiny
from tests.places import ROOT
from tests.tiny import byte_tokenizer
from ttabench.contract.models import METHOD_SETTINGS, check_methods
from ttabench.core.errors import UserError
from ttabench.lm.forward.capability_probe import reference_logprobs
from ttabench.lm.model import LM

PAGE = Path(ROOT) / "docs" / "reference" / "architectures.md"
MARKS = "<!-- architectures -->", "<!-- /architectures -->"
Found = Mapping[str, Mapping[str, str]]


def base(kind: str) -> LM:
    """A base model of the architecture."""
    return LM(tiny(kind), byte_tokenizer(), kind, random_weights=True)


def row(kind: str) -> dict[str, str]:
    """By method "right", "refused: ..", "wrong: .." or "raised: .."; one entry "made" where there is no such model."""
    ids_1T = torch.arange(60, 90)[None]
    try:
        lm = base(kind)
        with torch.no_grad():
            plain = tiny(kind)(input_ids=ids_1T, use_cache=False).logits[0].log_softmax(-1)
    except UserError as error:
        return {"made": f"refused: {error}"}
    except Exception as error:  # whatever sizes by rule lead to
        return {"made": f"no: {' '.join(f'{type(error).__name__}: {error}'.split())[:100]}"}
    found = check_methods(lm)
    with torch.no_grad():
        torch.testing.assert_close(
            reference_logprobs(lm, ids_1T), plain, atol=1e-4, rtol=1e-4, equal_nan=True
        )
    return found


def share(number: int, of: int) -> tuple[str, ...]:
    """Every so manieth architecture, from the one of that number."""
    return KINDS[number::of]


def bad(found: Found) -> dict[str, dict[str, str]]:
    """What is neither right nor refused."""
    wrong = {
        kind: {name: said for name, said in row.items() if said.startswith(("wrong", "raised"))}
        for kind, row in found.items()
    }
    return {kind: row for kind, row in wrong.items() if row}


def table(found: Found) -> list[str]:
    """Markdown lines: architectures alike in one row, those of most methods first."""
    made = {kind: row for kind, row in found.items() if "made" not in row}
    marks = {
        kind: tuple(row[name].split(":")[0] for name in METHOD_SETTINGS)
        for kind, row in made.items()
    }
    why = {
        kind: next((said for said in row.values() if said != "right"), "")
        for kind, row in made.items()
    }
    why = {
        kind: said.removeprefix("refused: ").partition(") ")[2].partition(". ")[0]
        for kind, said in why.items()
    }
    why = {kind: said.removeprefix("cannot be used here: ") for kind, said in why.items()}
    lines = [
        "| architectures | " + " | ".join(METHOD_SETTINGS) + " | why |",
        "| --- |" + " --- |" * (len(METHOD_SETTINGS) + 1),
    ]

    def key(kind: str) -> tuple[int, tuple[str, ...], str]:
        return -marks[kind].count("right"), marks[kind], why[kind]

    for (_, row, reason), kinds in groupby(sorted(made, key=key), key=key):
        shown = ["yes" if mark == "right" else "-" if mark == "refused" else mark for mark in row]
        lines.append(f"| {', '.join(kinds)} | {' | '.join(shown)} | {reason} |")
    right = sum(row["icl"] == "right" for row in made.values())
    none = len(found) - len(made)
    count = f"{len(found)} architectures: {right} are right under icl; {none} could not be made tiny by rule"
    return [*lines, "", f"{count} ({', '.join(kind for kind in found if kind not in made)})."]


def stored() -> dict[str, dict[str, str]]:
    """What the page says of each architecture, as far as a table is made of it."""
    found: dict[str, dict[str, str]] = {}
    text = PAGE.read_text().partition(MARKS[0])[2].partition(MARKS[1])[0]
    for line in text.splitlines():
        kinds, *marks, why = [cell.strip() for cell in line.split("|")[1:-1]] or [""] * 2
        if len(marks) == len(METHOD_SETTINGS) and set(marks) <= {"yes", "-"}:
            said = ["right" if mark == "yes" else f"refused: (it) {why}. " for mark in marks]
            found |= {
                kind: dict(zip(METHOD_SETTINGS, said, strict=True)) for kind in kinds.split(", ")
            }
    none = text.rpartition(" rule (")[2].partition(")")[0]
    return found | {kind: {"made": "no"} for kind in none.split(", ")}


def write(found: Found) -> None:
    """Put the table between its marks; architectures that were not tried keep their entries."""
    known = {**stored(), **found}
    found = {kind: known[kind] for kind in KINDS if kind in known}
    text = PAGE.read_text()
    before, after = text.partition(MARKS[0])[0], text.partition(MARKS[1])[2]
    PAGE.write_text(before + "\n".join([MARKS[0], *table(found), MARKS[1]]) + after)
