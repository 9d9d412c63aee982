"""Records of several runs: those that are damaged are left out, and named.

loaded([Path("runs/3f0c2a9b71de"), Path("runs/77ab02c95e10")])
Loaded(runs=((Path("runs/3f0c2a9b71de"), record),), damaged=("The record runs/77ab... cannot be read (...). ...",))
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ttabench.core.errors import UserError
from ttabench.records.schema import RECORD_FILE, REMEDY, RunRecord, load_record
from ttabench.report.configuration import whole
from ttabench.report.pairing import Run


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """Runs, and a line for every one that was left out."""

    runs: tuple[Run, ...]
    damaged: tuple[str, ...] = ()
    """The file, its fault and the remedy."""


def load_run(folder: Path) -> RunRecord:
    """The record of a run, its configuration one that this version can tell.

    Raises:
        UserError: it is missing or damaged; the line names the file.
    """
    record = load_record(folder)
    try:
        whole(record.config)
    except UserError as error:
        fault = f"The record {folder / RECORD_FILE} is corrupted: config: {error}"
        raise UserError(fault, REMEDY) from None
    return record


def loaded(folders: Iterable[Path], *, alone: bool = True) -> Loaded:
    """The runs in these folders, in their order.

    Args:
        folders: of runs.
        alone: whether no others stand beside them, so that one has to be whole.

    Raises:
        UserError: the only one is damaged, or all are.
    """
    runs: list[Run] = []
    damaged: list[str] = []
    for folder in folders:
        try:
            runs.append((folder, load_run(folder)))
        except UserError as error:
            damaged.append(str(error))
    if alone:
        refuse_all_damaged(len(runs), damaged)
    return Loaded(runs=tuple(runs), damaged=tuple(damaged))


def refuse_all_damaged(runs: int, damaged: list[str]) -> None:
    """See that something is left.

    Raises:
        UserError: nothing is, for all is damaged; says what is wrong with the first.
    """
    if damaged and not runs:
        more = f" {len(damaged) - 1} more are damaged, too." if len(damaged) > 1 else ""
        raise UserError(damaged[0] + more)
