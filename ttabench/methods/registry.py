"""Registry of methods: built-in methods, families, plugins and files, by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, is_dataclass, replace
from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from types import ModuleType
from typing import TYPE_CHECKING, Any, get_type_hints

from ttabench import methods as methods_package
from ttabench.core.declared import create_fields_model, validate_model
from ttabench.core.deprecation import renamed
from ttabench.core.errors import FAMILY_SUFFIX, UserError
from ttabench.core.plugins import (
    FIX_PLUGIN_HINT,
    PYTHON_FILE_PATTERN,
    guard_plugin_function,
    plugin_errors_as_user_errors,
)
from ttabench.core.registry import PluginSource, Registry, import_object
from ttabench.core.types import Json
from ttabench.cost import Cost, Shape, Workload
from ttabench.methods.pair import PAIR_SEPARATOR, PairSpec, make_pair_spec
from ttabench.methods.settings import default_settings, json_values, restore_settings
from ttabench.methods.spec import MethodSpec

LISTED_FIRST = ("none", "icl", "window", "snapkv", "h2o")
"""Methods at the start of listings: baselines. All others follow by name."""


def _bundled_specs(attribute: str) -> list[MethodSpec]:
    """Return the specs that the packages of methods list under this name."""
    return [
        spec
        for package in iter_modules(methods_package.__path__)
        if package.ispkg
        for spec in getattr(
            import_module(f"{methods_package.__name__}.{package.name}"), attribute, ()
        )
    ]


def _methods_in_module(module: ModuleType, _: str) -> dict[str, type[Any]]:
    """Return the classes of a file that have a spec of their own, by the name in it."""
    return {
        str(spec.name): cls
        for cls in vars(module).values()
        if isinstance(cls, type)
        and cls.__module__ == module.__name__
        and isinstance(spec := vars(cls).get("spec"), MethodSpec)
    }


def _accept_plugin(value: Any, source: PluginSource) -> MethodSpec:
    """Validate a spec, or a class with one, and guard the functions of the spec."""
    if isinstance(value, type):
        from ttabench.methods.base import Method

        if (
            not issubclass(value, Method)
            or value.adapt is Method.adapt
            or value.patch is Method.patch
        ):
            fault = f"{source.label} must be a Method that overrides adapt and patch."
            raise UserError(fault, FIX_PLUGIN_HINT)
        value = replace(value.spec, import_path=value)
    if not isinstance(value, MethodSpec) or value.name != source.name:
        fault = f"{source.label} must be a MethodSpec named {source.name!r}."
        raise UserError(fault, FIX_PLUGIN_HINT)
    validate_model(create_fields_model(get_type_hints(MethodSpec)), vars(value), source.label)
    if not is_dataclass(value.Settings):
        raise UserError(f"Settings of {source.label} must be a dataclass.", FIX_PLUGIN_HINT)
    with plugin_errors_as_user_errors(source.module, f"settings of method {value.name}"):
        for settings in (value.Settings(), *value.presets.values()):
            restore_settings(value, json_values(asdict(settings)))
    keep, cost = value.keep, value.cost
    return replace(
        value,
        origin=source.origin,
        keep=None if keep is None else guard_plugin_function(keep, Mapping, ValueError),
        cost=None if cost is None else guard_plugin_function(cost, Cost | None),
    )


@cache
def methods() -> Registry[MethodSpec]:
    """Return the registry of methods. As a mapping, it has the built-in ones, without families."""
    by_name = {spec.name: spec for spec in _bundled_specs("METHODS")}
    names = dict.fromkeys([*LISTED_FIRST, *sorted(by_name)])
    return Registry(
        "method",
        {name: by_name[name] for name in names},
        group="ttabench.methods",
        in_module=_methods_in_module,
        accept=_accept_plugin,
    )


@cache
def families() -> Mapping[str, MethodSpec]:
    """Return the specs of method families from optional packages, by family name."""
    return {spec.name.partition(":")[0]: spec for spec in _bundled_specs("FAMILIES")}


_pairs: dict[tuple[tuple[str, str], ...], PairSpec] = {}
"""Pairs by the names and origins of their parts, so that each pair has one settings class."""


def find_method(name: str, *, files: bool = True) -> MethodSpec:
    """Return the method of this name; see `Registry.find`.

    Args:
        files: False for names from records and checkpoints: no file is executed.
    """
    if name not in methods() and len(parts := part_names(name)) > 1:
        specs = [find_method(part, files=files) for part in parts]
        key = tuple((spec.name, spec.origin) for spec in specs)
        if key not in _pairs:
            _pairs[key] = make_pair_spec(specs)
        return _pairs[key]
    family, _, member = name.partition(":")
    if family in families():
        spec: MethodSpec = import_object(families()[family].family_factory)(member)
        return spec
    return methods().find(
        name, files=files, others=[f"{name}{FAMILY_SUFFIX}" for name in families()]
    )


def part_names(name: str) -> list[str]:
    """Return the names in a combination (`rag+mac`). The name of an existing file stays whole."""
    in_file = PYTHON_FILE_PATTERN.fullmatch(name)
    if in_file and Path(in_file["path"]).expanduser().is_file():
        return [name]
    return name.split(PAIR_SEPARATOR)


def names_file(name: str) -> bool:
    """Return True if a method name refers to a Python file, which is executed on look-up."""
    return any(
        PYTHON_FILE_PATTERN.fullmatch(part) is not None for part in (name, *part_names(name))
    )


def find_installed(name: str) -> MethodSpec:
    """Return a method named by a record or checkpoint, without executing files.

    Raises:
        UnknownName: there is no such method.
        UserError: its package is missing or fails, or the name is that of a file.
    """
    return find_method(name, files=False)


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
    method: MethodSpec | str, settings: Mapping[str, Json], shape: Shape, work: Workload
) -> Cost | None:
    """Compute the cost of a method by its formula, None if unknown.

    Args:
        settings: changes to the default settings.
    """
    spec = find_method(method) if isinstance(method, str) else method
    return spec.cost(restore_settings(spec, settings), shape, work) if spec.cost else None


if not TYPE_CHECKING:
    __getattr__ = renamed(__name__, {"find": "find_method", "cost_of": "compute_cost"})
