"""Registry of methods: built-in methods, families, plugins and files, by name."""

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
"""Entry point group of plugin methods."""


def _load_offer(offer: PluginEntryPoint) -> MethodSpec:
    spec = offer.load()
    label = f"{ENTRY_POINT_GROUP} {offer.name!r} of {offer.package}"
    if not isinstance(spec, MethodSpec) or spec.name != offer.name:
        raise UserError(f"{label} must be a MethodSpec named {offer.name!r}.", FIX_PLUGIN_HINT)
    return replace(_validate_spec(spec, label, offer.entry.module), origin=offer.origin)


def _validate_spec(spec: MethodSpec, label: str, module: str) -> MethodSpec:
    """Validate the spec of a plugin and guard its functions."""
    validate_model(create_fields_model(get_type_hints(MethodSpec)), vars(spec), label)
    fault = "" if is_dataclass(spec.Settings) else "has Settings that are not a dataclass"
    if not PLUGIN_NAME_PATTERN.fullmatch(spec.name):
        fault = f"has the name {spec.name!r}; only lower-case letters, digits and _ are allowed"
    if spec.name in (*methods(), *families()):
        fault = f"has the name of a built-in method, {spec.name}"
    if fault:
        raise UserError(f"{label} {fault}.", FIX_PLUGIN_HINT)
    with plugin_errors_as_user_errors(module, f"settings of method {spec.name}"):
        for settings in (spec.Settings(), *spec.presets.values()):
            restore_settings(spec, json_values(asdict(settings)))
    keep, cost = spec.keep, spec.cost
    return replace(
        spec,
        keep=None if keep is None else guard_plugin_function(keep, Mapping, ValueError),
        cost=None if cost is None else guard_plugin_function(cost, Cost | None),
    )


LISTED_FIRST = ("none", "icl", "window", "snapkv", "h2o")
"""Methods at the start of listings: baselines. All others follow by name."""


def _method_packages() -> Iterator[ModuleType]:
    for package in iter_modules(methods_package.__path__):
        if package.ispkg:
            yield import_module(f"{methods_package.__name__}.{package.name}")


@cache
def methods() -> Mapping[str, MethodSpec]:
    """Return the built-in methods by name, without families."""
    by_name = {
        spec.name: spec
        for package in _method_packages()
        for spec in getattr(package, "METHODS", ())
    }
    return {
        name: by_name[name] for name in [*LISTED_FIRST, *sorted(set(by_name) - set(LISTED_FIRST))]
    }


def installed() -> tuple[dict[str, MethodSpec], list[str]]:
    """Return plugin methods by name, and an error message for each unusable one."""
    specs, faults = {}, []
    for name, offer in sorted(plugin_entry_points(ENTRY_POINT_GROUP).items()):
        try:
            specs[name] = _load_offer(offer)
        except UserError as error:
            faults.append(str(error))
    return specs, faults


def _find_in_file(file: str, name_wanted: str) -> MethodSpec:
    """Return the method of a file. `name_wanted` selects one of several ("": the only one)."""
    from ttabench.methods.base import Method

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
        if not issubclass(cls, Method) or cls.adapt is Method.adapt or cls.patch is Method.patch:
            fault = f"{label} must be a Method that overrides adapt and patch."
            raise UserError(fault, FIX_PLUGIN_HINT)
        spec = _validate_spec(spec, label, module.__name__)
        specs[spec.name] = replace(spec, import_path=cls, origin=module_code_digest(module))
    hint = 'Set `spec = MethodSpec(name="...")` in a class of the file.'
    return select_object("method", path, name_wanted, specs, hint)


@cache
def families() -> Mapping[str, MethodSpec]:
    """Return the specs of method families from optional packages, by family name."""
    return {
        spec.name.partition(":")[0]: spec
        for package in _method_packages()
        for spec in getattr(package, "FAMILIES", ())
    }


@cache
def formulas() -> Mapping[str, Formula]:
    """Return the methods with a cost formula by name."""
    return {name: spec for name, spec in methods().items() if spec.cost is not None}


def find_formula(name: str) -> Formula:
    """Return the cost formula of a method.

    Raises:
        UserError: there is no such method, or it has no cost formula.
    """
    spec = find_method(name)
    if spec.cost is None:
        raise UserError(f"{name} has no cost formula.", f"Remove {name}.")
    return spec


def find_method(name: str) -> MethodSpec:
    """Return the method of this name.

    Raises:
        UnknownName: there is no such method. The message names the closest one.
        UserError: its package or file is missing or fails.
    """
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
        raise UserError(f"Unknown method {name!r}.", f"Use './{name}.py' for the file.")
    names = [
        *methods(),
        *plugin_entry_points(ENTRY_POINT_GROUP),
        *(f"{family_name}:..." for family_name in families()),
    ]
    raise UnknownName("method", name, sorted(names))


def part_names(name: str) -> list[str]:
    """Return the names in a combination (`rag+mac`). The name of an existing file stays whole."""
    in_file = PYTHON_FILE_PATTERN.fullmatch(name)
    if in_file and Path(in_file["path"]).expanduser().is_file():
        return [name]
    return name.split(PAIR_SEPARATOR)


_pairs: dict[tuple[tuple[str, str], ...], PairSpec] = {}
"""Pairs by the names and origins of their parts, so that each pair has one settings class."""


def _find_pair(name: str) -> PairSpec:
    parts = [find_method(part) for part in part_names(name)]
    key = tuple((part.name, part.origin) for part in parts)
    if key not in _pairs:
        _pairs[key] = make_pair_spec(parts)
    return _pairs[key]


def names_file(name: str) -> bool:
    """Return True if a method name refers to a Python file, which is executed on look-up."""
    return any(
        PYTHON_FILE_PATTERN.fullmatch(part) is not None for part in (name, *part_names(name))
    )


def find_installed(name: str) -> MethodSpec:
    """Return a method named by a record or checkpoint, without executing files.

    Raises:
        UnknownName: there is no such method, or the name is that of a file.
        UserError: its package is missing or fails.
    """
    if names_file(name):
        raise UnknownName("method", name[:200], sorted(methods()))
    return find_method(name)


def known_default_settings(name: str, origin: str = "") -> dict[str, Json]:
    """Return the default settings of a method, even if its optional package is missing.

    Args:
        origin: see `MethodSpec.origin`.

    Raises:
        UserError: there is no method of this name and origin.
    """
    family = families().get(name.partition(":")[0]) if len(part_names(name)) == 1 else None
    spec = family or find_installed(name)
    if spec.origin != origin:
        raise UserError(
            f"{name} is now from {spec.origin or 'ttabench'}, not from {origin or 'ttabench'}.", ""
        )
    return default_settings(spec)


def compute_cost(
    method: Formula | str, settings: Mapping[str, Json], shape: Shape, work: Workload
) -> Cost | None:
    """Compute the cost of a method by its formula, None if unknown.

    Args:
        settings: changes to the default settings.
    """
    known = find_formula(method) if isinstance(method, str) else method
    return known.cost(restore_settings(known, settings), shape, work) if known.cost else None


if not TYPE_CHECKING:
    __getattr__ = renamed(__name__, {"find": "find_method", "cost_of": "compute_cost"})
