"""Code of plugins: of other packages and of single Python files.

import_file(Path("./mine.py"))                             # execute the file as a module
with plugin_errors_as_user_errors(module.__name__):        # UserError: mine.py, line 3: ...
    module.closeness("a", query)

A digest identifies the code of a package, or of a file with the local modules it imports. Local
modules are not part of Python, of ttabench, or of site-packages.
"""

from __future__ import annotations

import hashlib
import importlib
import linecache
import re
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout, suppress
from functools import wraps
from importlib.machinery import SourceFileLoader
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from modulefinder import ModuleFinder
from pathlib import Path
from traceback import TracebackException, walk_tb
from types import ModuleType
from typing import Any

from ttabench.core.environment import is_out_of_memory
from ttabench.core.errors import UserError

PYTHON_FILE_PATTERN = re.compile(r"(?P<path>.*\.py)(?::(?P<name>\w+))?")
"""Python file, optionally with the name of an object in it."""
PLUGIN_NAME_PATTERN = re.compile(r"[a-z][a-z0-9_]*")
"""Valid plugin name."""
FIX_PLUGIN_HINT = "Fix that file, or uninstall the package that contains it."
FILE_MODULE_PREFIX = "ttabench_file_"
"""Name prefix of modules executed from a file."""
STDLIB_FOLDERS = tuple(
    {Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib")}
)
INSTALL_FOLDER_NAMES = {"site-packages", "dist-packages"}
_local_modules: dict[str, dict[str, ModuleType]] = {}
"""Local modules by module name of the executed file, then by own name."""


@contextmanager
def plugin_errors_as_user_errors(
    module: str, context: str = "", passthrough: type[Exception] = UserError
) -> Iterator[None]:
    """Run plugin code; convert its exceptions to a `UserError` that names its innermost line.

    Its prints go to standard error, because standard output is for results.

    Args:
        module: name of the module that the code is from.
        context: text that the message adds.
        passthrough: exception that is not converted, like `UserError`, `KeyboardInterrupt` and
            failed allocations.
    """
    try:
        with redirect_stdout(sys.stderr):
            yield
    except BaseException as error:
        if isinstance(error, UserError | KeyboardInterrupt | passthrough) or is_out_of_memory(
            error
        ):
            raise
        suffix = f" ({context})" if context else ""
        raise UserError(
            f"{_describe_exception(error, module)}{suffix}.", FIX_PLUGIN_HINT
        ) from error


def guard_plugin_function(
    function: Callable[..., Any], returns: Any = object, passthrough: type[Exception] = UserError
) -> Callable[..., Any]:
    """Wrap a plugin function: convert its errors, and require a result of type `returns`."""

    @wraps(function)
    def call(*arguments: Any, **keywords: Any) -> Any:
        with plugin_errors_as_user_errors(function.__module__, passthrough=passthrough):
            result = function(*arguments, **keywords)
            if not isinstance(result, returns):
                raise TypeError(f"{function} must return {returns}, got {result!r:.40}")
            return result

    return call


def _describe_exception(error: BaseException, module: str) -> str:
    """Describe an exception and where in the package it arose: `mine.py, line 3: KeyError: 'a'`."""
    package = module.partition(".")[0]
    places = [
        f"{frame.f_code.co_filename}, line {line}"
        for frame, line in walk_tb(error.__traceback__)
        if str(frame.f_globals.get("__name__")).partition(".")[0] == package
    ]
    place = places[-1] if places else getattr(sys.modules.get(module), "__file__", module)
    return (
        f"{place}: {type(error).__name__}: {TracebackException.from_exception(error)}".splitlines()[
            0
        ]
    )


def import_file(path: Path) -> ModuleType:
    """Execute a Python file as a module, once per content of the file and its local imports.

    Its folder comes first in the search path, as with `python FILE`.
    """
    if not path.is_file():
        raise UserError(f"{path} is not a file.", "Use the path of a Python file.")
    with plugin_errors_as_user_errors(str(path)):
        files = find_code_files(path)
    place = path.resolve()
    place_hash = hashlib.sha256(str(place).encode()).hexdigest()[:8]
    name = f"{FILE_MODULE_PREFIX}{path.stem}_{place_hash}_{_digest(files)[:16]}"
    imported = files.keys() - {"__main__"}
    if name in _local_modules:
        sys.modules.update(_local_modules[name])
        return sys.modules[name]
    loader = _SourceLoader(name, str(place))
    spec = spec_from_file_location(name, place, loader=loader)
    assert spec is not None, "a Python file has a loader"
    module = module_from_spec(spec)
    for other in imported:
        sys.modules.pop(other, None)  # it may be from another file or content
    sys.modules[name] = module  # dataclasses look up their module
    linecache.checkcache()
    with plugin_errors_as_user_errors(name), _prepended_to_path(place.parent):
        loader.exec_module(module)
    _local_modules[name] = {other: sys.modules[other] for other in imported if other in sys.modules}
    return module


class _SourceLoader(SourceFileLoader):
    """Loader that ignores byte code, which misses a second edit within one second."""

    def path_stats(self, path: str) -> Mapping[str, Any]:
        """Report no timestamp, so that byte code is not used."""
        raise OSError(path)


@contextmanager
def _prepended_to_path(folder: Path) -> Iterator[None]:
    """Search a folder first, and write no byte code."""
    before, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.dont_write_bytecode = before
        with suppress(ValueError):
            sys.path.remove(str(folder))


def module_code_digest(module: ModuleType) -> str:
    """Return the digest (16 hexadecimal digits) of an executed file and its local imports."""
    return module.__name__.rpartition("_")[2]


class _LocalModuleFinder(ModuleFinder):
    """Module finder that skips folders without `__init__.py`: they have no loader."""

    def find_module(self, name: str, path: Any, parent: Any = None) -> Any:
        """Find a module. Raises `ImportError` for such a folder."""
        try:
            return super().find_module(name, path, parent)
        except (AttributeError, TypeError) as error:
            raise ImportError(name) from error


def find_code_files(path: Path) -> dict[str, Path]:
    """Return a Python file ("__main__") and the local modules it imports, by name."""
    places = [str(path.resolve().parent), *(place for place in sys.path if _is_local(Path(place)))]
    finder = _LocalModuleFinder(places, excludes=["ttabench"])
    finder.run_script(str(path))
    return {
        str(name): Path(file)
        for name, module in finder.modules.items()
        if (file := getattr(module, "__file__", ""))
    }


def _is_local(path: Path) -> bool:
    return not (
        INSTALL_FOLDER_NAMES & set(path.parts)
        or any(path.resolve().is_relative_to(place) for place in STDLIB_FOLDERS)
    )


def package_code_digest(name: str) -> str:
    """Return the digest (12 hexadecimal digits) of the Python files of a package, unimported."""
    spec = find_spec(name)
    folders = [Path(place) for place in (spec.submodule_search_locations or ())] if spec else []
    files = {
        str(file.relative_to(folder)): file for folder in folders for file in folder.rglob("*.py")
    }
    if spec and spec.origin and not folders:
        files = {name: Path(spec.origin)}
    return _digest(files)[:12]


def _digest(files: Mapping[str, Path]) -> str:
    hasher = hashlib.sha256()
    for name, file in sorted(files.items()):
        content = file.read_bytes()
        hasher.update(f"{name}\0{len(content)}\0".encode("utf-8", "surrogateescape") + content)
    return hasher.hexdigest()
