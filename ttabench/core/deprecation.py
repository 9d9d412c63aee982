"""Deprecated names. They work with a `DeprecationWarning` until version 0.3."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping
from typing import Any


def warn_renamed(owner: str, old: str, new: str) -> None:
    """Warn about a deprecated name in the code of another package."""
    warnings.warn(f"{owner}: {old} is now {new}. Use {new}.", DeprecationWarning, stacklevel=3)


def renamed(module: str, names: Mapping[str, str]) -> Callable[[str], Any]:
    """Return a module `__getattr__` that resolves deprecated names to the current objects."""

    def get(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        warn_renamed(module, name, names[name])
        return getattr(sys.modules[module], names[name])

    return get
