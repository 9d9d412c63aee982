"""Methods by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, is_dataclass, replace
from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from types import ModuleType
from typing import TYPE_CHECKING, get_type_hints

from ttabench import methods as methods_package
from ttabench.core.declared import create_fields_model, validate_model
from ttabench.core.deprecation import renamed
from ttabench.core.errors import MAX_COMPARED_CHARS, UnknownName, UserError
from ttabench.core.plugins import (
    FIX_PLUGIN_HINT,
    PLUGIN_NAME_PATTERN,
    PYTHON_FILE_PATTERN,
    PluginEntryPoint,
    guard_plugin_function,
    import_file,
    module_code_digest,
    plugin_entry_points,
    plugin_errors_as_user_errors,
    select_object,
)
from ttabench.core.types import Json
from ttabench.cost import Cost, Formula, Shape, Workload
from ttabench.methods.pair import PAIR_SEPARATOR, PairSpec, make_pair_spec
from ttabench.methods.settings import default_settings, json_values, restore_settings
from ttabench.methods.spec import MethodSpec

ENTRY_POINT_GROUP = "ttabench.methods"
"""Entry points of other packages."""


def _load_offer(offer: PluginEntryPoint) -> MethodSpec:
    """The method that an installed package offers."""
    spec = offer.load()
    label = f"{ENTRY_POINT_GROUP} {offer.name!r} of {offer.package}"
    if not isinstance(spec, MethodSpec) or spec.name != offer.name:
        raise UserError(f"{label} is no MethodSpec of that name.", FIX_PLUGIN_HINT)
    return replace(_validate_spec(spec, label, offer.entry.module), origin=offer.origin)


def _validate_spec(spec: MethodSpec, label: str, module: str) -> MethodSpec:
    """The checked spec of a file or another package; its functions are `guarded`."""
    validate_model(create_fields_model(get_type_hints(MethodSpec)), vars(spec), label)
    fault = "" if is_dataclass(spec.Settings) else "has Settings that are no dataclass"
    if not PLUGIN_NAME_PATTERN.fullmatch(spec.name):
        fault = f"has the name {spec.name!r}, which may hold lower-case letters, digits and _ only"
    if spec.name in (*methods(), *families()):
        fault = f"has a name of ttabench's own, {spec.name}"
    if fault:
        raise UserError(f"{label} {fault}.", FIX_PLUGIN_HINT)
    with plugin_errors_as_user_errors(module, f"settings of method {spec.name}"):
        for settings in (spec.Settings(), *spec.presets.values()):
            restore_settings(spec, json_values(asdict(settings)))
    keep, cost = spec.keep, spec.cost
    return replace(
        spec,
        keep=keep and guard_plugin_function(keep, Mapping, ValueError),
        cost=cost and guard_plugin_function(cost, Cost | None),
    )


LISTED_FIRST = ("none", "icl", "window", "snapkv", "h2o")
"""The order in which methods are listed: floor and ceiling, baselines, then all others by name."""


def _method_packages() -> Iterator[ModuleType]:
    for package in iter_modules(methods_package.__path__):
        if package.ispkg:
            yield import_module(f"{methods_package.__name__}.{package.name}")


@cache
def methods() -> Mapping[str, MethodSpec]:
    """Every method of ttabench's own by name, but those of families."""
    by_name = {
        spec.name: spec
        for package in _method_packages()
        for spec in getattr(package, "METHODS", ())
    }
    return {
        name: by_name[name] for name in [*LISTED_FIRST, *sorted(set(by_name) - set(LISTED_FIRST))]
    }


def installed() -> tuple[dict[str, MethodSpec], list[str]]:
    """Methods of other packages by name, and a sentence on each that cannot be used."""
    specs, faults = {}, []
    for name, offer in sorted(plugin_entry_points(ENTRY_POINT_GROUP).items()):
        try:
            specs[name] = _load_offer(offer)
        except UserError as error:
            faults.append(str(error))
    return specs, faults


def _find_in_file(file: str, name_wanted: str) -> MethodSpec:
    """The method of a file, by name where it holds several ("": the only one)."""
    from ttabench.methods.base import BaseMethod

    path, specs = Path(file).expanduser(), dict[str, MethodSpec]()
    module = import_file(path)
    for cls in vars(module).values():
        spec = (
            vars(cls).get("spec")
            if isinstance(cls, type) and cls.__module__ == module.__name__
            else None
        )
        if not isinstance(spec, MethodSpec):
            continue
        label = f"{path}: {cls.__name__}"
        if (
            not issubclass(cls, BaseMethod)
            or cls.adapt is BaseMethod.adapt
            or cls.patch is BaseMethod.patch
        ):
            raise UserError(
                f"{label} is no BaseMethod with an adapt and a patch of its own.", FIX_PLUGIN_HINT
            )
        sound = _validate_spec(spec, label, module.__name__)
        specs[spec.name] = replace(sound, import_path=cls, origin=module_code_digest(module))
    return select_object(
        "method", path, name_wanted, specs, 'Give a class there `spec = MethodSpec(name="...")`.'
    )


@cache
def families() -> Mapping[str, MethodSpec]:
    """What stands for families of methods from optional packages, by the family's name."""
    return {
        spec.name.partition(":")[0]: spec
        for package in _method_packages()
        for spec in getattr(package, "FAMILIES", ())
    }


@cache
def formulas() -> Mapping[str, Formula]:
    """Cost formulas by name, of methods that have one."""
    return {name: spec for name, spec in methods().items() if spec.cost is not None}


def find_formula(name: str) -> Formula:
    """The cost formula of a method; a UserError where there is no such method, or none is known."""
    spec = find_method(name)
    if spec.cost is None:
        raise UserError(f"No cost on paper is known of {name}.", "Leave it out.")
    return spec


def find_method(name: str) -> MethodSpec:
    """The method of this name; an UnknownName that names the closest one, or a UserError where the package or file that
    offers it is missing or fails."""
    if name in methods():
        return methods()[name]
    if len(part_names(name)) > 1:
        return _find_pair(name)
    family, _, member = name.partition(":")
    if family in families():
        module, _, function = families()[family].family_factory.partition(":")
        return getattr(import_module(module), function)(member)
    if in_file := PYTHON_FILE_PATTERN.fullmatch(name):
        return _find_in_file(in_file["path"], in_file["name"] or "")
    if name in plugin_entry_points(ENTRY_POINT_GROUP):
        return _load_offer(plugin_entry_points(ENTRY_POINT_GROUP)[name])
    if len(name) <= MAX_COMPARED_CHARS and Path(f"{name}.py").is_file():
        raise UserError(f"Unknown method {name!r}.", f"Did you mean the file './{name}.py'?")
    names = [
        *methods(),
        *plugin_entry_points(ENTRY_POINT_GROUP),
        *(f"{family_name}:..." for family_name in families()),
    ]
    raise UnknownName("method", name, sorted(names))


def part_names(name: str) -> list[str]:
    """The names of methods that read together (`rag+mac`); of a single one its own, as of a file whose name has a +."""
    if (in_file := PYTHON_FILE_PATTERN.fullmatch(name)) and Path(
        in_file["path"]
    ).expanduser().is_file():
        return [name]
    return name.split(PAIR_SEPARATOR)


_pairs: dict[tuple[tuple[str, str], ...], PairSpec] = {}
"""Pairs by the names and origins of their parts, so that the settings of one pair are of one class."""


def _find_pair(name: str) -> PairSpec:
    """The pair of methods of this name."""
    parts = [find_method(part) for part in part_names(name)]
    key = tuple((part.name, part.origin) for part in parts)
    if key not in _pairs:
        _pairs[key] = make_pair_spec(parts)
    return _pairs[key]


def names_file(name: str) -> bool:
    """Whether the name of a method is that of a file, which is executed when it is looked up, or has one in it."""
    return any(
        PYTHON_FILE_PATTERN.fullmatch(part) is not None for part in (name, *part_names(name))
    )


def find_installed(name: str) -> MethodSpec:
    """The method of this name, where a record or a checkpoint says it: no file, which is executed only where typed."""
    if names_file(name):
        raise UnknownName("method", name[:200], sorted(methods()))
    return find_method(name)


def known_default_settings(name: str, origin: str = "") -> dict[str, Json]:
    """Defaults of the settings of a method, also of one whose optional package is missing; a UserError where the method
    of that name is not here, or of another origin: a package, see `Offer.origin`, or "" for ttabench's own."""
    family = families().get(name.partition(":")[0]) if len(part_names(name)) == 1 else None
    spec = family or find_installed(name)
    if spec.origin != origin:
        raise UserError(
            f"{name} is now of {spec.origin or 'ttabench'}, not of {origin or 'ttabench'}.", ""
        )
    return default_settings(spec)


def compute_cost(
    method: Formula | str, settings: Mapping[str, Json], shape: Shape, work: Workload
) -> Cost | None:
    """The cost of a method on paper, None where that is not known. `settings`: what differs from its defaults."""
    known = find_formula(method) if isinstance(method, str) else method
    return known.cost(restore_settings(known, settings), shape, work) if known.cost else None


if not TYPE_CHECKING:
    __getattr__ = renamed(__name__, {"find": "find_method", "cost_of": "compute_cost"})
