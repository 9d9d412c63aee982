"""How every command shows a result, and where it puts it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ttabench.core import amounts
from ttabench.terminal import render


@dataclass(frozen=True, kw_only=True)
class Showing:
    """How results are shown: tables, or JSON, or (quiet) only where they were stored."""

    json: bool = False
    quiet: bool = False

    @property
    def talking(self) -> bool:
        """Whether progress and remarks are shown."""
        return not (self.json or self.quiet)


@dataclass(frozen=True, kw_only=True)
class Storing:
    """Where results go, and whether what is there is replaced."""

    out: Path | None = None
    force: bool = False


def show_result(title: str, result: Mapping[str, Any], showing: Showing, hint: str = "") -> None:
    """A result of one row, its names as they stand in records."""
    if showing.json:
        render.print_json(dict(result))
    elif showing.quiet:
        render.print_line(str(result.get("folder", "")))
    else:
        rows = tuple((name.replace("_", " "), amounts.figure(name, value)) for name, value in result.items())
        render.show([render.Table(title=title, columns=("what", "#value"), rows=rows, caption=hint)])
