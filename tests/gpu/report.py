"""Rows of tables as they are made: printed, and kept in FOLDER/NAME.md and .json at once, so that a kill loses none.

table = Table(Report(Path("results/gpu"), 440, about), "answers", "Answers", ("method", "same_share", STATUS))
table.row({"method": "icl"}, 30, lambda: {"same_share": 0.95})
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ttabench.core.amounts import format_figure
from ttabench.core.environment import is_out_of_memory
from ttabench.core.files import write_atomically
from ttabench.core.types import Json

STATUS = "status"


class OutOfTime(BaseException):
    """A row took longer than it may; no library catches it."""


class Report:
    """Where tables go, what they were made with, and when nothing more is begun."""

    def __init__(self, folder: Path, seconds: float, about: Mapping[str, Json]) -> None:
        self.folder, self.about, self._end = folder, dict(about), time.monotonic() + seconds
        self.timer = threading.Timer(seconds + 20, os._exit, (1,))  # whatever a kernel is at
        self.timer.daemon = True
        self.timer.start()
        self.printed: Table | None = None
        signal.signal(signal.SIGALRM, _stop)

    @property
    def left(self) -> float:
        """Seconds until the end."""
        return self._end - time.monotonic()


@dataclass
class Table:
    """One table; cells stand under the columns of their names, and all of them in the .json."""

    report: Report
    name: str
    title: str
    columns: tuple[str, ...]
    rows: list[dict[str, Json]] = field(default_factory=list)

    def row(
        self, key: Mapping[str, Json], limit: float, work: Callable[[], Mapping[str, Json]]
    ) -> None:
        """A row that begins with `key` and goes on with what the work gives within so many seconds, or with why not."""
        limit = min(limit, self.report.left)
        try:
            signal.setitimer(
                signal.ITIMER_REAL, max(limit, 1e-6)
            )  # a kernel that runs is waited for
            cells = {STATUS: "ok", **work()}
        except OutOfTime:
            cells = {STATUS: f"stopped after {limit:.0f} s" if limit > 0 else "left out: no time"}
        except ModuleNotFoundError as error:
            cells = {STATUS: f"left out: {error.name} is missing here"}
        except Exception as error:  # the other rows can be made all the same
            why = "out of memory" if is_out_of_memory(error) else f"{type(error).__name__}: {error}"
            cells = {STATUS: " ".join(why.split())[:200]}
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        self.rows.append({**key, **cells})
        self._show()

    def _show(self) -> None:
        """Print the newest row and write all of them."""
        report, headings = self.report, [column.replace("_", " ") for column in self.columns]
        lines = [_line(headings), _line("---" for _ in headings)]
        lines += [
            _line(format_figure(column, row.get(column)) for column in self.columns)
            for row in self.rows
        ]
        head = [] if report.printed is self else ["", self.title, "", *lines[:2]]
        print(*head, lines[-1], sep="\n", flush=True)
        report.printed = self
        report.folder.mkdir(parents=True, exist_ok=True)
        about = ", ".join(f"{name} {value}" for name, value in report.about.items())
        page = "\n".join([f"# {self.title}", "", f"{about}.", "", *lines, ""])
        write_atomically(report.folder / f"{self.name}.md", page)
        content = {"title": self.title, "about": report.about, "rows": self.rows}
        write_atomically(report.folder / f"{self.name}.json", json.dumps(content, indent=1) + "\n")


def _stop(*_: object) -> None:
    raise OutOfTime


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"
