"""Registries: objects of one kind by name, built in or from entry points and Python files.

READERS = Registry[Reader]("reader", {"book": "ttabench.readers.book:read"}, group="ttabench.readers")
READERS.find("book")      # imports the module; or an entry point of that group
READERS.find("bok")       # UnknownName: ... Did you mean 'book'?
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from ttabench.core.errors import MAX_COMPARED_CHARS, UnknownName, UserError
from ttabench.core.plugins import (
    PLUGIN_NAME_PATTERN,
    PYTHON_FILE_PATTERN,
    import_file,
    module_code_digest,
    package_code_digest,
    plugin_errors_as_user_errors,
)

T = TypeVar("T")
_package_digests: dict[str, str] = {}
"""Code digests of packages at import time."""


def import_object(path: str) -> Any:
    """Import an object by its path `package.module:name`."""
    module, _, name = path.partition(":")
    return getattr(import_module(module), name)


@dataclass(frozen=True)
class PluginSource:
    """Source of an object that is not built in."""

    name: str
    label: str
    """Entry point with its package, or file with the name, for error messages."""
    module: str
    origin: str
    """Package with its version and code digest, or digest of the file. It is part of run ids."""


@cache
def plugin_entry_points(group: str) -> Mapping[str, EntryPoint]:
    """Return the entry points of a group by name. The first of two equal names wins."""
    return {entry.name: entry for entry in reversed(tuple(entry_points(group=group)))}


def package_of(entry: EntryPoint) -> str:
    """Return the package of an entry point as `name==version`."""
    return f"{entry.dist.name}=={entry.dist.version}" if entry.dist else "an unknown package"


def entry_point_origin(entry: EntryPoint) -> str:
    """Return package and code digest: `echo==1.0 (code 3f0c2a9b71de)`. The version is not enough.

    Raises a UserError if the code changed after this process imported it.
    """
    module = entry.module.partition(".")[0]
    code = package_code_digest(module)
    if _package_digests.setdefault(module, code) != code:
        fault = f"The code of {package_of(entry)} changed after it was imported."
        raise UserError(fault, "Restart Python.")
    return f"{package_of(entry)} (code {code})"


class Registry(Mapping[str, T]):
    """Objects of one kind by name. As a mapping, it has the built-in ones.

    Args:
        kind: noun for error messages, and the name of the option that takes such an object.
        builtin: built-in objects by name. A text is loaded at each use by `load`.
        load: function from such a text to the object.
        group: entry-point group of other packages.
        in_module: function that lists the objects in the module of a Python file by name. Its
            second argument is the requested name. None: files are refused.
        accept: function that validates and converts an object that is not built in.
    """

    def __init__(
        self,
        kind: str,
        builtin: Mapping[str, T | str],
        *,
        load: Callable[[str], T] = import_object,
        group: str = "",
        in_module: Callable[[ModuleType, str], Mapping[str, Any]] | None = None,
        accept: Callable[[Any, PluginSource], T] = lambda value, _: value,
    ) -> None:
        self.kind, self.group = kind, group
        self._builtin, self._load = builtin, load
        self._in_module, self._accept = in_module, accept

    def __getitem__(self, name: str) -> T:
        value = self._builtin[name]
        return self._load(value) if isinstance(value, str) else value

    def __contains__(self, name: object) -> bool:
        return name in self._builtin

    def __iter__(self) -> Iterator[str]:
        return iter(self._builtin)

    def __len__(self) -> int:
        return len(self._builtin)

    @property
    def names(self) -> list[str]:
        """Names of built-in objects and entry points."""
        return [*self, *plugin_entry_points(self.group)]

    def find(self, name: str, *, files: bool = True, others: Iterable[str] = ()) -> T:
        """Return the object of a name, or of `./file.py` or `./file.py:name`.

        Args:
            files: False for names that are not from the user: no file is executed.
            others: further names to suggest for an unknown one.

        Raises:
            UnknownName: there is no such object. The message names the closest one.
            UserError: its package or file is missing, fails, or has no valid object.
        """
        if name in self:
            return self[name]
        if entry := plugin_entry_points(self.group).get(name):
            return self._load_entry_point(entry)
        in_file, fault, hint = PYTHON_FILE_PATTERN.fullmatch(name), "", ""
        if self._in_module and in_file and files:
            return self._find_in_file(Path(in_file["path"]).expanduser(), in_file["name"] or "")
        if self._in_module and in_file:
            fault = f"Only --{self.kind} can name a Python file, got {name[:200]!r}."
            hint = "Use it, or make the object an entry point of a package."
        elif self._in_module and Path(f"{name[:MAX_COMPARED_CHARS]}.py").is_file():
            hint = f"Use './{name}.py' for the file."
        known = sorted([*self.names, *others])
        raise UnknownName(self.kind, name[:200], known, fault=fault, hint=hint)

    def installed(self) -> tuple[dict[str, T], list[str]]:
        """Return the objects of entry points by name, and an error message for each invalid one."""
        objects, faults = {}, []
        for name, entry in sorted(plugin_entry_points(self.group).items()):
            try:
                objects[name] = self._load_entry_point(entry)
            except UserError as error:
                faults.append(str(error))
        return objects, faults

    def origin(self, name: str) -> str:
        """Return the `PluginSource.origin` of an entry point, "" for other names."""
        entry = None if name in self else plugin_entry_points(self.group).get(name)
        return entry_point_origin(entry) if entry else ""

    def _load_entry_point(self, entry: EntryPoint) -> T:
        label = f"{self.group} {entry.name!r} of {package_of(entry)}"
        with plugin_errors_as_user_errors(entry.module, f"loading {label}"):
            value = entry.load()
        source = PluginSource(entry.name, label, entry.module, entry_point_origin(entry))
        return self._accept_named(value, source)

    def _find_in_file(self, path: Path, name: str) -> T:
        """Return the named object of a file, or the only one if no name is given."""
        assert self._in_module is not None, "find refuses files of this registry"
        module = import_file(path)
        objects = self._in_module(module, name)
        if name and name not in objects:
            raise UnknownName(f"{self.kind} in {path}", name, sorted(objects))
        if not name and len(objects) != 1:
            count = f"several {self.kind}s: {', '.join(objects)}" if objects else f"no {self.kind}"
            hint = f"For an example, run: ttabench new {self.kind} NAME."
            if objects:
                hint = f"Choose one: {path}:{next(iter(objects))}."
            raise UserError(f"{path} contains {count}.", hint)
        name = name or next(iter(objects))
        label = f"{path}: {name}"
        source = PluginSource(name, label, module.__name__, module_code_digest(module))
        return self._accept_named(objects[name], source)

    def _accept_named(self, value: Any, source: PluginSource) -> T:
        if source.name in self or not PLUGIN_NAME_PATTERN.fullmatch(source.name):
            fault = f"{source.label} has an invalid name, or that of a built-in {self.kind}."
            raise UserError(fault, "Use another name of lower-case letters, digits and _.")
        return self._accept(value, source)
