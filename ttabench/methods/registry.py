"""Methods by name, and their settings from `key=value` texts.

    find("mac")                                              -> its MethodSpec, from the door of its room
    typed_settings(find("mac"), ["hierarchy=16"])            -> {"hierarchy": 16}
    settings_of(find("mac"), {"hierarchy": 16}, "nano")      -> MacSettings(..., hierarchy=16)

Every package beside this module that has `METHODS` (or `FAMILIES`) is a room; nothing else has to name it. Other
packages offer methods through the entry-point group `ttabench.methods`, and a file of Python is named by its path.
Nothing here imports torch, so that `--help`, lists, refusals and costs on paper come at once.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass, replace
from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from types import ModuleType
from typing import Any, get_args, get_type_hints

from ttabench import methods as here
from ttabench.core.digests import digest
from ttabench.core.errors import UnknownName, UserError
from ttabench.core.plugins import module_at, offered
from ttabench.core.typed import assignments, parse_value, type_name
from ttabench.core.types import Growth, Json
from ttabench.cost import ON_PAPER, Cost, Formula, Shape, Workload
from ttabench.methods.spec import MethodFamily, MethodSpec

GROUP = "ttabench.methods"
"""Entry points of other packages."""
FILE = re.compile(r"(?P<path>.*\.py)(?::(?P<name>\w+))?")
"""A file of Python, or one of the methods in it."""
NAME = re.compile(r"[a-z][a-z0-9_]*")
FIRST = ("none", "icl", "window", "snapkv", "h2o")
"""The order in which methods are listed: floor and ceiling, baselines, then all others by name."""


def _rooms() -> Iterator[ModuleType]:
    for found in iter_modules(here.__path__):
        if found.ispkg:
            yield import_module(f"{here.__name__}.{found.name}")


@cache
def methods() -> Mapping[str, MethodSpec]:
    """Every method of ttabench's own by name, but those of families."""
    found = {spec.name: spec for room in _rooms() for spec in getattr(room, "METHODS", ())}
    return {name: found[name] for name in [*FIRST, *sorted(set(found) - set(FIRST))]}


def installed() -> tuple[dict[str, MethodSpec], list[str]]:
    """Methods of other packages by name, and a sentence on each that cannot be used."""
    found, faults = {}, []
    for name in sorted(offered(GROUP)):
        try:
            found[name] = _installed(name)
        except UserError as error:
            faults.append(str(error))
    return found, faults


def _installed(name: str) -> MethodSpec:
    offer = offered(GROUP)[name]
    spec = offer.load()
    told = f"{GROUP} {name!r} of {offer.package}"
    if not isinstance(spec, MethodSpec):
        raise UserError(f"{told} is no MethodSpec.", f"Uninstall {offer.package}, or let it offer one.")
    if spec.name != name:
        raise UserError(f"{told} calls itself {spec.name!r}.", f"Uninstall {offer.package}, or let it offer that name.")
    if fault := _fault(spec):
        raise UserError(f"{told} {fault}.", f"Mend or uninstall {offer.package}.")
    return replace(spec, origin=offer.package)


def _fault(spec: MethodSpec) -> str:
    """What is wrong with the spec of somebody else, as the end of a sentence; "" for nothing."""
    if spec.name in methods() or spec.name in families():
        return f"has a name of ttabench's own, {spec.name}"
    if not NAME.fullmatch(spec.name):
        return f"has the name {spec.name!r}, which may hold lower-case letters, digits and _ only"
    if spec.growth not in get_args(Growth):
        return f"has growth={spec.growth!r}, which is none of {', '.join(get_args(Growth))}"
    if not is_dataclass(spec.Settings):
        return "has Settings that are no dataclass"
    bare = [each.name for each in fields(spec.Settings) if each.default is MISSING and each.default_factory is MISSING]
    return f"has a setting without a default, {bare[0]}" if bare else ""


@cache
def _in_file(file: str, wanted: str) -> MethodSpec:
    """The method of a file, by name where it holds several."""
    from ttabench.methods.base import BaseMethod

    path = Path(file).expanduser()
    module = module_at(path)
    found: dict[str, MethodSpec] = {}
    for cls in vars(module).values():
        spec = vars(cls).get("spec") if isinstance(cls, type) and cls.__module__ == module.__name__ else None
        if not isinstance(spec, MethodSpec):
            continue
        fault = _fault(spec)
        if not issubclass(cls, BaseMethod):
            fault = "is no BaseMethod"
        elif cls.adapt is BaseMethod.adapt or cls.patch is BaseMethod.patch:
            fault = "has no adapt or no patch of its own"
        elif spec.name in found:
            fault = f"shares the name {spec.name} with another class"
        if fault:
            raise UserError(f"{path}: {cls.__name__} {fault}.", "Mend the file.")
        found[spec.name] = replace(spec, where=cls, origin=digest(path))
    if not found:
        hint = 'Give a class there `spec = MethodSpec(name="...")`.'
        raise UserError(f"{path} holds no method.", hint)
    if wanted and wanted not in found:
        raise UnknownName(f"method in {path}", wanted, sorted(found))
    if len(found) > 1 and not wanted:
        raise UserError(f"{path} holds several methods: {', '.join(found)}.", f"Name one: {path}:{next(iter(found))}.")
    return found[wanted or next(iter(found))]


@cache
def families() -> Mapping[str, MethodFamily]:
    """Families of methods from optional packages, by name."""
    return {family.name: family for room in _rooms() for family in getattr(room, "FAMILIES", ())}


@cache
def formulas() -> Mapping[str, Formula]:
    """What is known of a method's cost, by name: those that run, then those of the papers that do not."""
    own = {name: spec for name, spec in methods().items() if spec.cost is not None}
    return {**own, **ON_PAPER}


def formula(name: str) -> Formula:
    """What is known of a method's cost, of any that runs and of those on paper.

    Raises:
        UnknownName: no such method; the message names the closest one.
        UserError: no cost of it is known.
    """
    if name in ON_PAPER:
        return ON_PAPER[name]
    found = find(name)
    if found.cost is None:
        raise UserError(f"No cost on paper is known of {name}.", "Leave it out.")
    return found


def find(name: str) -> MethodSpec:
    """The method of this name.

    Raises:
        UnknownName: no such method; the message names the closest one.
        UserError: it is of an optional package that is missing, or knows no such method; a package or file that offers
            it fails, or holds none.
    """
    if name in methods():
        return methods()[name]
    family, _, member = name.partition(":")
    if family in families():
        return families()[family].of(member)
    if in_file := FILE.fullmatch(name):
        return _in_file(in_file["path"], in_file["name"] or "")
    if name in offered(GROUP):
        return _installed(name)
    raise UnknownName("method", name, sorted([*methods(), *offered(GROUP), *(f"{each}:..." for each in families())]))


def preset_for(spec: Formula, preset: str, model: str) -> str:
    """The preset in use: the one asked for, else the one named like the model, else none ("").

    Raises:
        UnknownName: the method has no preset of this name.
    """
    if preset and preset not in spec.presets:
        if not spec.presets:
            raise UserError(f"{spec.name} has no presets.", "Leave --preset out.")
        raise UnknownName("preset", preset, sorted(spec.presets))
    return preset or (model if model in spec.presets else "")


def typed_settings(spec: Formula, texts: Sequence[str]) -> dict[str, Json]:
    """`key=value` texts as typed settings of a method.

    Raises:
        UserError: unknown key (with the closest one), or a value of another type.
    """
    return typed_values(spec, assignments(texts))


def typed_values(spec: Formula, changes: Mapping[str, Json]) -> dict[str, Json]:
    """Settings of a method by key: texts become values of their type, values stay.

    Raises:
        UserError: unknown key (with the closest one), or a text of another type.
    """
    hints = get_type_hints(spec.Settings)
    known = [each.name for each in fields(spec.Settings)]
    typed: dict[str, Json] = {}
    for key, value in changes.items():
        if key not in known:
            _refuse_key(spec.name, key, known)
        where = f"--set {key} of {spec.name}"
        typed[key] = parse_value(value, hints[key], where) if isinstance(value, str) else value
    return typed


def settings_of(spec: Formula, typed: Mapping[str, Json], preset: str = "") -> Any:
    """Settings of a method: its defaults or a preset (see `preset_for`), overlaid by typed settings.

    Raises:
        UserError: the settings refuse a value.
    """
    try:
        return replace(spec.presets[preset] if preset else spec.Settings(), **typed)
    except (ValueError, TypeError) as error:
        raise UserError(f"Settings of {spec.name}: {error}.", f"See `ttabench list methods {spec.name}`.") from None


def restored(spec: Formula, stored: Mapping[str, Json]) -> Any:
    """Settings as they were before they were written as JSON.

    Raises:
        TypeError: a setting that is not known.
        ValueError: a value that the settings refuse.
    """
    return spec.Settings(**{key: tuple(value) if isinstance(value, list) else value for key, value in stored.items()})


def cost_of(method: Formula | str, settings: Mapping[str, Json], shape: Shape, work: Workload) -> Cost | None:
    """What a method costs on paper, None where that is not known.

    Args:
        method: it, or its name.
        settings: what differs from its defaults.
        shape: the base model.
        work: what is read and asked.
    """
    known = formula(method) if isinstance(method, str) else method
    return known.cost(restored(known, settings), shape, work) if known.cost else None


def _refuse_key(method: str, key: str, known: list[str]) -> None:
    if not known:
        raise UserError(f"{method} has no settings, so --set {key} means nothing.", "Leave it out.")
    raise UnknownName(f"setting of {method}", key, known)


def describe_settings(spec: Formula) -> list[tuple[str, str, Json]]:
    """(key, type, default) of every setting of a method, for `list methods` and the dry run."""
    hints = get_type_hints(spec.Settings)
    rows: list[tuple[str, str, Json]] = []
    for each in fields(spec.Settings):
        default = each.default if each.default is not MISSING else getattr(spec.Settings(), each.name)
        rows.append((each.name, type_name(hints[each.name]), default))
    return rows
