"""Files of pictures: whether one can be written under a name, and how a figure is written.

check_path(Path("quality.svg"), "--plot")       before anything is measured for it
write(figure, Path("quality.svg"))
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ttabench.core.errors import UserError
from ttabench.core.files import replacing, unwritable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SUFFIXES = (".png", ".svg", ".pdf")


def check_path(path: Path, option: str = "--plot", suffixes: Sequence[str] = SUFFIXES, what: str = "picture") -> None:
    """Whether a picture, or what else ends so, can be written under this name, which was typed behind this option."""
    if path.suffix.lower() not in suffixes:
        raise UserError(f"{option} {path} is no {what}.", f"Give a file that ends in {', '.join(suffixes)}.")
    if not path.parent.is_dir():
        raise UserError(f"{option} {path} cannot be written: there is no folder {path.parent}.", "Make it first.")
    if path.is_symlink():
        raise UserError(f"{option} {path} is a link to another file.", "Name that file, or remove the link.")
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise UserError(f"{option} {path} cannot be written.", "Give a file in a folder of yours.")


def write(figure: Figure, path: Path, *, around: bool = False, dpi: int = 150) -> None:
    """Write a figure in the form of the suffix; `around`: as large as what is drawn, labels beyond its edges too."""
    kind, tight = path.suffix.lower().removeprefix("."), "tight" if around else None
    try:
        with replacing(path) as scratch:
            metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(kind)
            figure.savefig(scratch, format=kind, dpi=dpi, metadata=metadata, bbox_inches=tight)
    except OSError as error:
        raise unwritable(path.parent, error) from None
