"""Modules that import their names at first use: `ttabench` and `ttabench.extend`.

__getattr__, __dir__, __all__ = lazy_names(__name__, {"core.types": "Chunk Query"})
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from typing import Any


def lazy_names(
    module: str, names: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return the `__getattr__`, `__dir__` and `__all__` of a module.

    Args:
        module: name of the module, for error messages.
        names: names separated by blanks, by the module of ttabench that defines them.
    """
    owners = {name: owner for owner, words in names.items() for name in words.split()}

    def get(name: str) -> Any:
        if name not in owners:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        return getattr(import_module(f"ttabench.{owners[name]}"), name)

    return get, partial(sorted, owners), list(owners)
