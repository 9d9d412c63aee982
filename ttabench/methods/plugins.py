"""Methods of other packages, through the entry-point group `ttabench.methods`, and those in a file of Python.

    of_package("echo", own)                       -> the MethodSpec that an installed package offers
    of_file(Path("./mine.py"), "", own)           -> that of the one method there

`own` are the names that ttabench's own methods and families have.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import MISSING, fields, is_dataclass, replace
from pathlib import Path
from typing import get_args

from ttabench.core.errors import UnknownName, UserError
from ttabench.core.plugins import Offer, code_at, module_at
from ttabench.core.types import Growth
from ttabench.methods.spec import MethodSpec

GROUP = "ttabench.methods"
"""Entry points of other packages."""
CLASS = re.compile(r"[\w.]+:\w+")
"""Where the class of a method is."""
NAME = re.compile(r"[a-z][a-z0-9_]*")


def of_package(offer: Offer, own: Collection[str]) -> MethodSpec:
    """The method that an installed package offers.

    Raises:
        UserError: it offers something else, under another name or under one of ours, or its import fails.
    """
    spec = offer.load()
    where = f"{GROUP} {offer.name!r} of {offer.package}"
    if not isinstance(spec, MethodSpec):
        raise UserError(f"{where} is no MethodSpec.", f"Uninstall {offer.package}, or let it offer one.")
    if spec.name != offer.name:
        hint = f"Uninstall {offer.package}, or let it offer that name."
        raise UserError(f"{where} calls itself {spec.name!r}.", hint)
    fault = _fault(spec, own)
    if not fault and not isinstance(spec.where, type) and not CLASS.fullmatch(str(spec.where)):
        fault = f"has where={spec.where!r}, which is no package.module:Class"
    if fault:
        raise UserError(f"{where} {fault}.", f"Mend or uninstall {offer.package}.")
    return replace(spec, origin=offer.origin)


def of_file(path: Path, wanted: str, own: Collection[str]) -> MethodSpec:
    """The method of a file, by name where it holds several ("": the only one).

    Raises:
        UserError: the file is missing, cannot be executed, holds no method, several, or one that cannot be used.
        UnknownName: it holds none of that name.
    """
    specs = _specs(path, own)
    if not specs:
        hint = 'Give a class there `spec = MethodSpec(name="...")`.'
        raise UserError(f"{path} holds no method.", hint)
    if wanted and wanted not in specs:
        raise UnknownName(f"method in {path}", wanted, sorted(specs))
    if len(specs) > 1 and not wanted:
        raise UserError(f"{path} holds several methods: {', '.join(specs)}.", f"Name one: {path}:{next(iter(specs))}.")
    return specs[wanted or next(iter(specs))]


def _specs(path: Path, own: Collection[str]) -> dict[str, MethodSpec]:
    """Every method that a file defines, by name."""
    from ttabench.methods.base import BaseMethod

    module = module_at(path)
    specs: dict[str, MethodSpec] = {}
    for cls in vars(module).values():
        spec = vars(cls).get("spec") if isinstance(cls, type) and cls.__module__ == module.__name__ else None
        if not isinstance(spec, MethodSpec):
            continue
        fault = _fault(spec, own)
        if not issubclass(cls, BaseMethod):
            fault = "is no BaseMethod"
        elif cls.adapt is BaseMethod.adapt or cls.patch is BaseMethod.patch:
            fault = "has no adapt or no patch of its own"
        elif spec.name in specs:
            fault = f"shares the name {spec.name} with another class"
        if fault:
            raise UserError(f"{path}: {cls.__name__} {fault}.", "Mend the file.")
        specs[spec.name] = replace(spec, where=cls, origin=code_at(path))
    return specs


def _fault(spec: MethodSpec, own: Collection[str]) -> str:
    """The fault of the spec of somebody else, as the end of a sentence; "" for none."""
    if spec.name in own:
        return f"has a name of ttabench's own, {spec.name}"
    if not NAME.fullmatch(spec.name):
        return f"has the name {spec.name!r}, which may hold lower-case letters, digits and _ only"
    if spec.growth not in get_args(Growth):
        return f"has growth={spec.growth!r}, which is none of {', '.join(get_args(Growth))}"
    if not is_dataclass(spec.Settings):
        return "has Settings that are no dataclass"
    bare = [
        field.name for field in fields(spec.Settings) if field.default is MISSING and field.default_factory is MISSING
    ]
    return f"has a setting without a default, {bare[0]}" if bare else ""
