"""Modules that import their names at first use: `ttabench` and `ttabench.extend`.

A module lists its names once, in its block `if TYPE_CHECKING`, where type checkers read them:

    if TYPE_CHECKING:
        from ttabench.core.types import Chunk as Chunk
    else:
        __getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any


def lazy_names(
    module: str, file: str
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` of a module from its imports for type checkers.

    Args:
        module: name of the module, for error messages.
        file: its source file.
    """
    blocks = [node for node in ast.parse(Path(file).read_bytes()).body if isinstance(node, ast.If)]
    imports = [node for node in blocks[0].body if isinstance(node, ast.ImportFrom)]
    owners = {name.name: str(node.module) for node in imports for name in node.names}

    def get(name: str) -> Any:
        if name not in owners:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        return getattr(import_module(owners[name]), name)

    return get, partial(sorted, owners), sorted(owners, key=str.lower)
