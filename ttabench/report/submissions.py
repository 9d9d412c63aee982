"""What submissions are called where their runs stand beside ours: `lab-b` for `files/lab-b.parquet`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from ttabench.records.submission import SUFFIX, file_of


def names_of(files: Sequence[Path]) -> dict[Path, str]:
    """Names of files: each without the ending, or its path where two have one name; each file once."""
    once = list({file.resolve(): file for file in reversed(files)}.values())[::-1]
    counts = Counter(file.stem for file in once)
    return {file: file.stem if counts[file.stem] == 1 else str(file) for file in once}


def file_called(name: str) -> str:
    """The file that is called so."""
    return name if name.endswith(SUFFIX) else name + SUFFIX


def name_in(names: Mapping[Path, str], folder: Path) -> str:
    """Name of the submission of a run; "" for a run of ours."""
    file = file_of(folder)
    return "" if file is None else names.get(file, file.stem)
