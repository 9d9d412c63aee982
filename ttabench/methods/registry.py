"""Methods by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, is_dataclass, replace
from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from types import ModuleType
from typing import get_type_hints

from ttabench import methods as here
from ttabench.core.declared import model_of, validated
from ttabench.core.errors import LONGEST_NAME, UnknownName, UserError
from ttabench.core.plugins import FILE, FIX, NAME, Offer, calling, code_of, guarded, module_at, offered, one_of
from ttabench.core.types import Json
from ttabench.cost import Cost, Formula, Shape, Workload
from ttabench.methods.pair import SIGN, PairSpec, pair_of
from ttabench.methods.settings import defaults, plain, restored
from ttabench.methods.spec import MethodSpec

GROUP = "ttabench.methods"
"""Entry points of other packages."""


def _of_package(offer: Offer) -> MethodSpec:
    """The method that an installed package offers."""
    spec = offer.load()
    where = f"{GROUP} {offer.name!r} of {offer.package}"
    if not isinstance(spec, MethodSpec) or spec.name != offer.name:
        raise UserError(f"{where} is no MethodSpec of that name.", FIX)
    return replace(_sound(spec, where, offer.entry.module), origin=offer.origin)


def _sound(spec: MethodSpec, where: str, module: str) -> MethodSpec:
    """The checked spec of a file or another package; its functions are `guarded`."""
    validated(model_of(get_type_hints(MethodSpec)), vars(spec), where)
    fault = "" if is_dataclass(spec.Settings) else "has Settings that are no dataclass"
    if not NAME.fullmatch(spec.name):
        fault = f"has the name {spec.name!r}, which may hold lower-case letters, digits and _ only"
    if spec.name in (*methods(), *families()):
        fault = f"has a name of ttabench's own, {spec.name}"
    if fault:
        raise UserError(f"{where} {fault}.", FIX)
    with calling(module, f"settings of method {spec.name}"):
        for settings in (spec.Settings(), *spec.presets.values()):
            restored(spec, plain(asdict(settings)))
    keep, cost = spec.keep, spec.cost
    return replace(spec, keep=keep and guarded(keep, Mapping, ValueError), cost=cost and guarded(cost, Cost | None))


FIRST = ("none", "icl", "window", "snapkv", "h2o")
"""The order in which methods are listed: floor and ceiling, baselines, then all others by name."""


def _rooms() -> Iterator[ModuleType]:
    for package in iter_modules(here.__path__):
        if package.ispkg:
            yield import_module(f"{here.__name__}.{package.name}")


@cache
def methods() -> Mapping[str, MethodSpec]:
    """Every method of ttabench's own by name, but those of families."""
    by_name = {spec.name: spec for room in _rooms() for spec in getattr(room, "METHODS", ())}
    return {name: by_name[name] for name in [*FIRST, *sorted(set(by_name) - set(FIRST))]}


def installed() -> tuple[dict[str, MethodSpec], list[str]]:
    """Methods of other packages by name, and a sentence on each that cannot be used."""
    specs, faults = {}, []
    for name, offer in sorted(offered(GROUP).items()):
        try:
            specs[name] = _of_package(offer)
        except UserError as error:
            faults.append(str(error))
    return specs, faults


def _in_file(file: str, wanted: str) -> MethodSpec:
    """The method of a file, by name where it holds several ("": the only one)."""
    from ttabench.methods.base import BaseMethod

    path, specs = Path(file).expanduser(), dict[str, MethodSpec]()
    module = module_at(path)
    for cls in vars(module).values():
        spec = vars(cls).get("spec") if isinstance(cls, type) and cls.__module__ == module.__name__ else None
        if not isinstance(spec, MethodSpec):
            continue
        where = f"{path}: {cls.__name__}"
        if not issubclass(cls, BaseMethod) or cls.adapt is BaseMethod.adapt or cls.patch is BaseMethod.patch:
            raise UserError(f"{where} is no BaseMethod with an adapt and a patch of its own.", FIX)
        sound = _sound(spec, where, module.__name__)
        specs[spec.name] = replace(sound, where=cls, origin=code_of(module))
    return one_of("method", path, wanted, specs, 'Give a class there `spec = MethodSpec(name="...")`.')


@cache
def families() -> Mapping[str, MethodSpec]:
    """What stands for families of methods from optional packages, by the family's name."""
    return {spec.name.partition(":")[0]: spec for room in _rooms() for spec in getattr(room, "FAMILIES", ())}


@cache
def formulas() -> Mapping[str, Formula]:
    """Cost formulas by name, of methods that have one."""
    return {name: spec for name, spec in methods().items() if spec.cost is not None}


def formula(name: str) -> Formula:
    """The cost formula of a method; a UserError where there is no such method, or none is known."""
    spec = find(name)
    if spec.cost is None:
        raise UserError(f"No cost on paper is known of {name}.", "Leave it out.")
    return spec


def find(name: str) -> MethodSpec:
    """The method of this name; an UnknownName that names the closest one, or a UserError where the package or file that
    offers it is missing or fails."""
    if name in methods():
        return methods()[name]
    if len(parts_of(name)) > 1:
        return _together(name)
    family, _, member = name.partition(":")
    if family in families():
        module, _, function = families()[family].members.partition(":")
        return getattr(import_module(module), function)(member)
    if in_file := FILE.fullmatch(name):
        return _in_file(in_file["path"], in_file["name"] or "")
    if name in offered(GROUP):
        return _of_package(offered(GROUP)[name])
    if len(name) <= LONGEST_NAME and Path(f"{name}.py").is_file():
        raise UserError(f"Unknown method {name!r}.", f"Did you mean the file './{name}.py'?")
    names = [*methods(), *offered(GROUP), *(f"{family_name}:..." for family_name in families())]
    raise UnknownName("method", name, sorted(names))


def parts_of(name: str) -> list[str]:
    """The names of methods that read together (`rag+mac`); of a single one its own, as of a file whose name has a +."""
    if (in_file := FILE.fullmatch(name)) and Path(in_file["path"]).expanduser().is_file():
        return [name]
    return name.split(SIGN)


_pairs: dict[tuple[tuple[str, str], ...], PairSpec] = {}
"""Pairs by the names and origins of their parts, so that the settings of one pair are of one class."""


def _together(name: str) -> PairSpec:
    """The pair of methods of this name."""
    parts = [find(part) for part in parts_of(name)]
    key = tuple((part.name, part.origin) for part in parts)
    if key not in _pairs:
        _pairs[key] = pair_of(parts)
    return _pairs[key]


def is_file(name: str) -> bool:
    """Whether the name of a method is that of a file, which is executed when it is looked up, or has one in it."""
    return any(FILE.fullmatch(part) is not None for part in (name, *parts_of(name)))


def find_installed(name: str) -> MethodSpec:
    """The method of this name, where a record or a checkpoint says it: no file, which is executed only where typed."""
    if is_file(name):
        raise UnknownName("method", name[:200], sorted(methods()))
    return find(name)


def known_settings(name: str, origin: str = "") -> dict[str, Json]:
    """Defaults of the settings of a method, also of one whose optional package is missing; a UserError where the method
    of that name is not here, or of another origin: a package, see `Offer.origin`, or "" for ttabench's own."""
    family = families().get(name.partition(":")[0]) if len(parts_of(name)) == 1 else None
    spec = family or find_installed(name)
    if spec.origin != origin:
        raise UserError(f"{name} is now of {spec.origin or 'ttabench'}, not of {origin or 'ttabench'}.", "")
    return defaults(spec)


def cost_of(method: Formula | str, settings: Mapping[str, Json], shape: Shape, work: Workload) -> Cost | None:
    """The cost of a method on paper, None where that is not known. `settings`: what differs from its defaults."""
    known = formula(method) if isinstance(method, str) else method
    return known.cost(restored(known, settings), shape, work) if known.cost else None
