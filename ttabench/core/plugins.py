"""Plugins: objects from entry points of other packages, and from single Python files.

plugin_entry_points("ttabench.methods")["echo"].load()     # import the object now
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
from dataclasses import dataclass
from functools import cache, wraps
from importlib.machinery import SourceFileLoader
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from modulefinder import ModuleFinder
from pathlib import Path
from traceback import TracebackException, walk_tb
from types import ModuleType
from typing import Any, TypeVar

from ttabench.core.environment import is_out_of_memory
from ttabench.core.errors import UnknownName, UserError

T = TypeVar("T")
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
_package_digests: dict[str, str] = {}
"""Code digests of packages at import time."""


@dataclass(frozen=True)
class PluginEntryPoint:
    """Entry point of a package."""

    name: str
    package: str
    """Package as `name==version`."""
    entry: EntryPoint

    @property
    def origin(self) -> str:
        """Package and code digest: `echo==1.0 (code 3f0c2a9b71de)`. The version is not enough.

        Raises a UserError if the code changed after this process imported it.
        """
        module = self.entry.module.partition(".")[0]
        code = package_code_digest(module)
        if _package_digests.setdefault(module, code) != code:
            raise UserError(
                f"The code of {self.package} changed after it was imported.", "Restart Python."
            )
        return f"{self.package} (code {code})"

    def load(self) -> Any:
        """Import the object."""
        context = f"loading {self.entry.group} {self.name!r} of {self.package}"
        with plugin_errors_as_user_errors(self.entry.module, context):
            return self.entry.load()


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


@cache
def plugin_entry_points(group: str) -> Mapping[str, PluginEntryPoint]:
    """Return the entry points of a group by name. The first of two equal names wins."""
    offers: dict[str, PluginEntryPoint] = {}
    for entry in entry_points(group=group):
        package = f"{entry.dist.name}=={entry.dist.version}" if entry.dist else "an unknown package"
        offers.setdefault(entry.name, PluginEntryPoint(entry.name, package, entry))
    return offers


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


def select_object(kind: str, path: Path, wanted: str, objects: Mapping[str, T], hint: str) -> T:
    """Return the named object of a file, or the only one if no name is given."""
    if not objects:
        raise UserError(f"{path} contains no {kind}.", hint)
    if wanted and wanted not in objects:
        raise UnknownName(f"{kind} in {path}", wanted, sorted(objects))
    if len(objects) > 1 and not wanted:
        names = ", ".join(objects)
        raise UserError(
            f"{path} contains several {kind}s: {names}.",
            f"Choose one: {path}:{next(iter(objects))}.",
        )
    return objects[wanted or next(iter(objects))]


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
    files = {
        str(name): file
        for name, module in finder.modules.items()
        if (file := getattr(module, "__file__", ""))
    }
    return {name: Path(file) for name, file in files.items()}


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
