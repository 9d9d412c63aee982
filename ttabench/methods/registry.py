"""Methods by name, and their settings from `key=value` texts.

    find("mac")                                              -> its MethodSpec, from the door of its room
    typed_settings(find("mac"), ["hierarchy=16"])            -> {"hierarchy": 16}
    settings_of(find("mac"), {"hierarchy": 16}, "nano")      -> MacSettings(..., hierarchy=16)

Every package beside this module that has `METHODS` (or `FAMILIES`) is a room; nothing else has to name it. Other
packages offer methods through the entry-point group `ttabench.methods`, and a file of Python is named by its path.
Nothing here imports torch, so that `--help`, lists, refusals and costs on paper come at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, fields, replace
from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from types import ModuleType
from typing import Any, get_type_hints

from ttabench import methods as here
from ttabench.core.digests import digest
from ttabench.core.errors import UnknownName, UserError
from ttabench.core.plugins import module_at, offered
from ttabench.core.typed import assignments, parse_value, type_name
from ttabench.core.types import Json
from ttabench.cost import ON_PAPER, Cost, Formula, Shape, Workload
from ttabench.methods.spec import MethodFamily, MethodSpec

GROUP = "ttabench.methods"
"""Entry points of other packages."""
SUFFIX = ".py"
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
    if spec.name != name or name in methods() or name in families():
        why = f"calls itself {spec.name!r}" if spec.name != name else "has a name of ttabench's own"
        raise UserError(f"{told} {why}.", f"Uninstall {offer.package}, or let it offer another name.")
    return replace(spec, origin=offer.package)


@cache
def _in_file(text: str) -> MethodSpec:
    """The method of `FILE.py`, or of several in one, `FILE.py:NAME`."""
    file, _, name = text.partition(SUFFIX)
    path, wanted = Path(file + SUFFIX), name.removeprefix(":")
    module = module_at(path)
    classes = [each for each in vars(module).values()
               if isinstance(each, type) and each.__module__ == module.__name__]  # fmt: skip
    found = {}
    for cls in classes:
        spec = vars(cls).get("spec")
        if isinstance(spec, MethodSpec):
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
    if SUFFIX in name and "(" not in name:
        return _in_file(name)
    family, _, member = name.partition(":")
    if family in families():
        return families()[family].of(member)
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
