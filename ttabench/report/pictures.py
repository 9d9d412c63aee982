"""Pictures and pages: checks of output paths, writing of files, colours and shapes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from ttabench.core.errors import UserError
from ttabench.core.files import (
    MAX_RECORD_BYTES,
    reading_file,
    refuse_foreign_path,
    replace_atomically,
    unwritable_error,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SUFFIXES = (".png", ".svg", ".pdf")
PALETTE = (
    "#4477aa",
    "#ee6677",
    "#228833",
    "#ccbb44",
    "#66ccee",
    "#aa3377",
    "#ee7733",
    "#009988",
    "#882255",
    "#777777",
)
"""Distinguishable with red-green blindness (after Paul Tol's bright and vibrant schemes)."""
CROSS = "M-1,-.8L-.8,-1L0,-.2L.8,-1L1,-.8L.2,0L1,.8L.8,1L0,.2L-.8,1L-1,.8L-.2,0Z"
SHAPES = (
    "circle",
    "square",
    "diamond",
    "triangle-up",
    "triangle-down",
    "cross",
    "triangle-right",
    "triangle-left",
    "M0,-1.1L.26,-.36L1.05,-.34L.42,.14L.65,.9L0,.44L-.65,.9L-.42,.14L-1.05,-.34L-.26,-.36Z",
)
BASELINE_STYLES = {"none": ("#000000", CROSS), "icl": ("#000000", "square")}


GENERATOR_MARKS = (
    b'<meta name="generator" content="ttabench ',
    b"Software\0ttabench",
    b"<dc:title>ttabench</dc:title>",
    b"/Creator (ttabench)",
)
"""Bytes that mark pages and pictures (.png, .svg, .pdf) written by this package."""


def is_own_file(path: Path) -> bool:
    """Return True if this package wrote the page or picture."""
    with reading_file(path, max_bytes=MAX_RECORD_BYTES):
        content = path.read_bytes()
    return any(mark in content for mark in GENERATOR_MARKS)


def check_output_path(
    path: Path,
    suffixes: Sequence[str] = SUFFIXES,
    what: str = "picture",
    ours: Callable[[Path], bool] = is_own_file,
) -> None:
    """Check that a file of these suffixes can be written to a path.

    Args:
        path: the path.
        suffixes: the allowed suffixes.
        what: the kind of file, for messages.
        ours: returns True if an existing file may be replaced, see `refuse_foreign_path`.

    Raises:
        UserError: the path has a different suffix, cannot be written, or is a foreign file.
    """
    if path.suffix.lower() not in suffixes:
        raise UserError(f"{path} is no {what}.", f"Use a suffix of {', '.join(suffixes)}.")
    if not path.parent.is_dir():
        raise UserError(
            f"{path} cannot be written: there is no folder {path.parent}.",
            "Create it, or use another.",
        )
    if (
        path.is_symlink()
        or path.is_dir()
        or not os.access(path if path.exists() else path.parent, os.W_OK)
    ):
        raise UserError(
            f"{path} cannot be written.", "Use a file in a folder that you can write to, no link."
        )
    refuse_foreign_path(path, ours)


def write(figure: Figure, path: Path) -> None:
    """Write a matplotlib figure in the format of the suffix."""
    kind = path.suffix.lower().removeprefix(".")
    try:
        with replace_atomically(path, is_ours=is_own_file) as scratch:
            metadata = {
                "png": {"Software": "ttabench"},
                "svg": {"Creator": "ttabench", "Date": None},
                "pdf": {"Creator": "ttabench", "CreationDate": None},
            }[kind]
            figure.savefig(scratch, format=kind, dpi=150, metadata=metadata)
    except OSError as error:
        raise unwritable_error(path.parent, error) from None


def check_packages(what: str, needed: Mapping[str, str]) -> None:
    """Check that the packages which `what` needs are installed.

    Raises:
        UserError: a package is missing.
    """
    if missing := [package for module, package in needed.items() if find_spec(module) is None]:
        fault = f"{what} needs packages that are not installed: {', '.join(missing)}."
        raise UserError(fault, "Install them: pip install 'ttabench[report]'.")


def styles(methods: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Return colour and shape by method, unique for up to 90 methods; baselines are black."""
    others = [name for name in dict.fromkeys(methods) if name not in BASELINE_STYLES]
    pairs = {
        name: (PALETTE[place % len(PALETTE)], SHAPES[(place + place // len(PALETTE)) % len(SHAPES)])
        for place, name in enumerate(others)
    }
    return BASELINE_STYLES | pairs
