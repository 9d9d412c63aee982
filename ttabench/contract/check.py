"""`ttabench check METHOD`: every promise, on every base of two layers that the method takes; a verdict a line.

verdicts(find("icl"), InContextSettings())      [Verdict("asking twice ...", kept=True, told=""), ...]
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ttabench.contract.bases import BASES
from ttabench.contract.case import Case
from ttabench.contract.keeping import Broken
from ttabench.contract.promises import PROMISES
from ttabench.core.errors import UserError
from ttabench.methods.spec import MethodSpec


@dataclass(frozen=True)
class Verdict:
    """Whether a promise is kept."""

    promise: str
    kept: bool
    told: str = ""
    """The observation that breaks it."""


def cases(spec: MethodSpec, settings: Any) -> tuple[dict[str, Case], list[str]]:
    """The method on every base that it takes, by name, and why it does not take the others.

    Raises:
        UserError: it takes none; what it says of the first.
    """
    cases_by_base, refused = {}, []
    first: UserError | None = None
    for name, base in BASES.items():
        case = Case(spec, settings, base)
        try:
            case.untrained()
        except UserError as error:
            first = first or error
            refused.append(f"not on {name}: {error}")
        else:
            cases_by_base[name] = case
    if not cases_by_base:
        assert first is not None, "there are bases"
        raise first
    return cases_by_base, refused


def verdicts(checked: Mapping[str, Case]) -> Iterator[Verdict]:
    """One after the other, in the order of `PROMISES`."""
    return (verdict(sentence, checked) for sentence in PROMISES)


def verdict(sentence: str, checked: Mapping[str, Case]) -> Verdict:
    """Whether a promise is kept on every base; the first one on which it is not tells."""
    for name, case in checked.items():
        try:
            PROMISES[sentence](case)
        except Broken as broken:
            return Verdict(sentence, kept=False, told=f"on {name}: {broken}")
        except Exception as error:  # a method of somebody else may do anything
            line = f"{type(error).__name__}: {error}".splitlines()[0]
            return Verdict(sentence, kept=False, told=f"on {name}: {line}")
    return Verdict(sentence, kept=True)
