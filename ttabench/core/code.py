"""A digest of code that is not ttabench's: of a file with the local modules it imports, or of a package.

Local is what is neither of Python nor of ttabench nor installed among site-packages. An import whose name is computed
counts where it was made while the file was executed.
"""

from __future__ import annotations

import ast
import hashlib
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cache
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from pathlib import Path

from ttabench.core.checked_file import LONGEST, reading
from ttabench.core.errors import UserError

OURS = Path(__file__).resolve().parents[1]
STDLIB = tuple({Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib")})
INSTALLED = {"site-packages", "dist-packages"}


def code_of_file(path: Path, also: Iterable[str] = ()) -> str:
    """16 hexadecimal digits that change with a file of Python and with every local module it imports."""
    files = {"": path}
    loaded = {name: file for name in also if (file := _file_of(getattr(sys.modules.get(name), "__spec__", None)))}
    left = [("", path), *((name, file) for name, file in loaded.items() if file.is_relative_to(path.resolve().parent))]
    while left:
        name, file = left.pop()
        files[name] = file
        modules = {
            module: at for wanted in _imports(name, file) for module, at in _modules(wanted, path.resolve().parent)
        }
        left += [(module, at) for module, at in modules.items() if module not in files]
    return _digest(files.items())[:16]


@cache
def code_of_package(name: str) -> str:
    """12 hexadecimal digits that change with any file of Python in a package; it is not imported."""
    spec = _found(name)
    folders = [Path(place) for place in (spec.submodule_search_locations or () if spec else ())]
    files = [(str(file.relative_to(folder)), file) for folder in folders for file in sorted(folder.rglob("*.py"))]
    single = spec and not folders and Path(spec.origin or "").is_file()
    return _digest([(name, Path(str(spec.origin)))] if spec and single else files)[:12]


def _digest(files: Iterable[tuple[str, Path]]) -> str:
    whole = hashlib.sha256()
    for name, file in sorted(files):
        content = b""
        with suppress(UserError), reading(file, most=LONGEST):  # whoever imports it says so
            content = file.read_bytes()
        whole.update(f"{name}\0{len(content)}\0".encode("utf-8", "surrogateescape") + content)
    return whole.hexdigest()


def _imports(name: str, file: Path) -> Iterator[str]:
    """Names of the modules that a source may import, and of what it takes from them, which may be modules, too."""
    try:
        with reading(file, most=LONGEST):
            tree = ast.parse(file.read_bytes())
    except UserError:
        return  # no source; whoever imports it says what is wrong
    package = name if file.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield from (base, *(f"{base}.{alias.name}" for alias in node.names))


def _modules(name: str, folder: Path) -> Iterator[tuple[str, Path]]:
    """The local module of a name and the packages it lies in, by name: as Python finds it now, and in a folder."""
    first, *rest = name.split(".")
    for spec in (_found(first), _within(first, [str(folder)])):
        parts, inner = first, spec
        for part in (*rest, None):
            if file := _file_of(inner):
                yield parts, file
            if part is None or inner is None:
                break
            inner = _within(f"{parts}.{part}", inner.submodule_search_locations or [])
            parts = f"{parts}.{part}"


def _found(name: str) -> ModuleSpec | None:
    with suppress(ImportError, ValueError, AttributeError):
        return find_spec(name)
    return None


def _within(name: str, places: Iterable[str]) -> ModuleSpec | None:
    with suppress(ImportError, ValueError):
        return PathFinder.find_spec(name, list(places))
    return None


def _file_of(spec: ModuleSpec | None) -> Path | None:
    """The file of a module that is local."""
    if spec is None or not spec.has_location or not spec.origin:
        return None
    file = Path(spec.origin).resolve()
    own = any(file.is_relative_to(place) for place in (OURS, *STDLIB))
    return None if own or INSTALLED & set(file.parts) else file
