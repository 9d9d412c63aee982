"""Plugins: objects of other packages, through entry points, and those in a single file of Python.

offered("ttabench.methods")["echo"].load()        whatever stands there, imported now
module_at(Path("./mine.py"))                      the file, executed as a module
with calling(module.__name__):                      UserError: mine.py, line 3: ZeroDivisionError: division by zero.
    module.closeness("a", ask)

A digest says which code that was: of a package, or of a file with the local modules it imports. Local is what is
neither of Python nor of ttabench nor installed among site-packages.
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
"""A file of Python, or one of the objects in it."""
PLUGIN_NAME_PATTERN = re.compile(r"[a-z][a-z0-9_]*")
"""A name that somebody else may give."""
FIX_PLUGIN_HINT = "Fix that file, or uninstall the package that offers it."
FILE_MODULE_PREFIX = "ttabench_file_"
"""Beginning of the name of a module that was executed from a file."""
STDLIB_FOLDERS = tuple(
    {Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib")}
)
INSTALL_FOLDER_NAMES = {"site-packages", "dist-packages"}
_local_modules: dict[str, dict[str, ModuleType]] = {}
"""Local modules that each executed file imported, by the name of the file's module, then by their own."""
_package_digests: dict[str, str] = {}
"""Digests of the code of packages when they were imported."""


@dataclass(frozen=True)
class PluginEntryPoint:
    """An entry point: a package offers an object under a name."""

    name: str
    package: str
    """Name and version of the package, `name==version`."""
    entry: EntryPoint

    @property
    def origin(self) -> str:
        """The package and a digest of its code, which may change under one version: `echo==1.0 (code 3f0c2a9b71de)`.

        A UserError where that is no longer the code that this process imported.
        """
        module = self.entry.module.partition(".")[0]
        code = package_code_digest(module)
        if _package_digests.setdefault(module, code) != code:
            raise UserError(
                f"The code of {self.package} changed after it was imported.", "Restart Python."
            )
        return f"{self.package} (code {code})"

    def load(self) -> Any:
        """The object, imported now."""
        context = f"loading {self.entry.group} {self.name!r} of {self.package}"
        with plugin_errors_as_user_errors(self.entry.module, context):
            return self.entry.load()


@contextmanager
def plugin_errors_as_user_errors(
    module: str, context: str = "", passthrough: type[Exception] = UserError
) -> Iterator[None]:
    """Run code of a file or another package. Whatever it raises becomes a `UserError` that names its innermost line.
    What it prints goes to standard error, because standard output is for results.

    Args:
        module: name of the module that the code is from.
        doing: context that the message adds.
        passes: exception that stays as it is, as `UserError`, `KeyboardInterrupt` and failed allocations do.
    """
    try:
        with redirect_stdout(sys.stderr):
            yield
    except BaseException as error:
        if isinstance(error, UserError | KeyboardInterrupt | passthrough) or is_out_of_memory(
            error
        ):
            raise
        raise UserError(
            f"{_describe_exception(error, module)}{context and f' ({context})'}.", FIX_PLUGIN_HINT
        ) from error


def guard_plugin_function(
    function: Callable[..., Any], returns: Any = object, passthrough: type[Exception] = UserError
) -> Callable[..., Any]:
    """A function of a file or another package that runs in `calling` and must return an instance of `returns`."""

    @wraps(function)
    def call(*arguments: Any, **keywords: Any) -> Any:
        with plugin_errors_as_user_errors(function.__module__, passthrough=passthrough):
            result = function(*arguments, **keywords)
            if not isinstance(result, returns):
                raise TypeError(f"{function} must return {returns}, got {result!r:.40}")
            return result

    return call


def _describe_exception(error: BaseException, module: str) -> str:
    """An exception in one line, with the innermost line of the module's package: `mine.py, line 3: KeyError: 'a'`."""
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
    """The entry points of a group, by name; the first of two that share one."""
    offers: dict[str, PluginEntryPoint] = {}
    for entry in entry_points(group=group):
        package = f"{entry.dist.name}=={entry.dist.version}" if entry.dist else "an unknown package"
        offers.setdefault(entry.name, PluginEntryPoint(entry.name, package, entry))
    return offers


def import_file(path: Path) -> ModuleType:
    """Execute a file of Python as a module, once for each content of it and of the local modules it imports.

    Its folder is searched first for these, as under `python FILE`.
    """
    if not path.is_file():
        raise UserError(f"There is no file {path}.", "Give the path of a file of Python.")
    with plugin_errors_as_user_errors(str(path)):
        files = find_code_files(path)
    place = path.resolve()
    name = f"{FILE_MODULE_PREFIX}{path.stem}_{hashlib.sha256(str(place).encode()).hexdigest()[:8]}_{_digest(files)[:16]}"
    imported = files.keys() - {"__main__"}
    if name in _local_modules:
        sys.modules.update(_local_modules[name])
        return sys.modules[name]
    loader = _SourceLoader(name, str(place))
    spec = spec_from_file_location(name, place, loader=loader)
    assert spec is not None, "a file of Python has a loader"
    module = module_from_spec(spec)
    for other in imported:
        sys.modules.pop(other, None)  # of another file, or of another content
    sys.modules[name] = module  # dataclasses look their module up
    linecache.checkcache()
    with plugin_errors_as_user_errors(name), _prepended_to_path(place.parent):
        loader.exec_module(module)
    _local_modules[name] = {other: sys.modules[other] for other in imported if other in sys.modules}
    return module


class _SourceLoader(SourceFileLoader):
    """Reads no byte code, which does not show two edits within a second."""

    def path_stats(self, path: str) -> Mapping[str, Any]:
        """Find no time that byte code could be compared with."""
        raise OSError(path)


@contextmanager
def _prepended_to_path(folder: Path) -> Iterator[None]:
    """Import from a folder first, and write no byte code."""
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
    """16 hexadecimal digits that change with an executed file and with the local modules it imports."""
    return module.__name__.rpartition("_")[2]


def select_object(kind: str, path: Path, wanted: str, objects: Mapping[str, T], hint: str) -> T:
    """The object of a file that is wanted, the only one where none is named."""
    if not objects:
        raise UserError(f"{path} holds no {kind}.", hint)
    if wanted and wanted not in objects:
        raise UnknownName(f"{kind} in {path}", wanted, sorted(objects))
    if len(objects) > 1 and not wanted:
        names = ", ".join(objects)
        raise UserError(
            f"{path} holds several {kind}s: {names}.", f"Name one: {path}:{next(iter(objects))}."
        )
    return objects[wanted or next(iter(objects))]


class _LocalModuleFinder(ModuleFinder):
    """Leaves out folders without `__init__.py`, which have no loader."""

    def find_module(self, name: str, path: Any, parent: Any = None) -> Any:
        """As the library, and `ImportError` for such a folder."""
        try:
            return super().find_module(name, path, parent)
        except (AttributeError, TypeError) as error:
            raise ImportError(name) from error


def find_code_files(path: Path) -> dict[str, Path]:
    """A file of Python ("__main__") and every local module that it imports, by name."""
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
    """12 hexadecimal digits that change with any file of Python in a package; it is not imported."""
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
