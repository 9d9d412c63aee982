"""Methods by name, imported only when used, and their settings from `key=value` texts.

    resolve("mac")                                     -> the class ttabench.methods.mac.method:Mac
    typed_settings(Mac, ["hierarchy=16"])              -> {"hierarchy": 16}
    settings_from(Mac, {"hierarchy": 16}, "nano")      -> Mac.Settings(..., hierarchy=16)

Nothing here imports torch, so `ttabench --help` and shell completion stay fast.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, replace
from importlib import import_module
from typing import Any, get_type_hints

from ttabench.core.errors import UnknownName, UserError
from ttabench.core.types import Json

METHODS: Mapping[str, str] = {
    "none": "ttabench.methods.none.method:NoContext",
    "icl": "ttabench.methods.icl.method:InContext",
    "window": "ttabench.methods.eviction.window:SlidingWindow",
    "snapkv": "ttabench.methods.eviction.snapkv:SnapKV",
    "h2o": "ttabench.methods.eviction.h2o:H2O",
    "mac": "ttabench.methods.mac.method:Mac",
    "lora": "ttabench.methods.lora.method:Lora",
    "templora": "ttabench.methods.templora.method:TempLora",
    "streamadapter": "ttabench.methods.streamadapter.method:StreamAdapter",
}
PLUGINS: Mapping[str, str] = {"kvpress": "ttabench.methods.kvpress.method:KvPress"}
"""Families of methods from optional packages: `Class.of(text)` is the class of the method named `family:text`."""


def resolve(name: str) -> type[Any]:
    """The method class of this name.

    Raises:
        UnknownName: no such method; the message names the closest one.
        UserError: it is of an optional package that is missing, or knows no such method.
    """
    family, _, member = name.partition(":")
    if family in PLUGINS:
        plugged: type[Any] = _loaded(PLUGINS[family]).of(member)
        return plugged
    if name not in METHODS:
        raise UnknownName("method", name, sorted([*METHODS, *(f"{family}:..." for family in PLUGINS)]))
    return _loaded(METHODS[name])


def plugins() -> list[type[Any]]:
    """The class that stands for each family of methods from an optional package, which is not imported."""
    return [_loaded(where) for where in PLUGINS.values()]


def _loaded(where: str) -> type[Any]:
    module, _, attribute = where.partition(":")
    found: type[Any] = getattr(import_module(module), attribute)
    return found


def assignments(texts: Sequence[str], flag: str = "--set") -> dict[str, str]:
    """`["a=1", "b=x"]` as a dictionary; a later assignment of one key wins.

    Raises:
        UserError: a text without `=`.
    """
    pairs: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise UserError(f"{flag} {text!r} is not an assignment.", f"Write {flag} key=value.")
        pairs[key.strip()] = value.strip()
    return pairs


def preset_for(cls: type[Any], preset: str, model: str) -> str:
    """The preset in use: the one asked for, else the one named like the model, else none ("").

    Raises:
        UnknownName: the method has no preset of this name.
    """
    presets = getattr(cls, "presets", {})
    if preset and preset not in presets:
        if not presets:
            raise UserError(f"{getattr(cls, 'name', cls.__name__)} has no presets.", "Leave --preset out.")
        raise UnknownName("preset", preset, sorted(presets))
    return preset or (model if model in presets else "")


def typed_settings(cls: type[Any], texts: Sequence[str]) -> dict[str, Json]:
    """`key=value` texts as typed settings of a method.

    Raises:
        UserError: unknown key (with the closest one), or a value of another type.
    """
    method = getattr(cls, "name", cls.__name__)
    hints = get_type_hints(cls.Settings)
    known = [spec.name for spec in fields(cls.Settings)]
    typed: dict[str, Json] = {}
    for key, text in assignments(texts).items():
        if key not in known:
            _refuse_key(method, key, known)
        typed[key] = parse_value(text, hints[key], f"--set {key} of {method}")
    return typed


def settings_from(cls: type[Any], typed: Mapping[str, Json], preset: str = "") -> Any:
    """Settings of a method: its defaults or a preset (see `preset_for`), overlaid by typed settings.

    Raises:
        UserError: the settings refuse a value.
    """
    try:
        return replace(cls.presets[preset] if preset else cls.Settings(), **typed)
    except (ValueError, TypeError) as error:
        method = getattr(cls, "name", cls.__name__)
        raise UserError(f"Settings of {method}: {error}.", f"See `ttabench list methods {method}`.") from None


def _refuse_key(method: str, key: str, known: list[str]) -> None:
    if not known:
        raise UserError(f"{method} has no settings, so --set {key} means nothing.", "Leave it out.")
    raise UnknownName(f"setting of {method}", key, known)


def parse_value(text: str, hint: Any, where: str) -> Json:
    """A text as a value of an annotated type: numbers, booleans, literals, optional values, comma-separated tuples.

    Raises:
        UserError: the text is no such value; names the place, the type and the text.
    """
    from pydantic import TypeAdapter, ValidationError

    raw: Json = None if text.lower() in ("none", "null") and _takes_none(hint) else text
    if isinstance(raw, str) and getattr(hint, "__origin__", None) in (tuple, list):
        raw = [part for part in raw.split(",") if part]
    if {int, float} <= set(getattr(hint, "__args__", ())) and "." in text:
        hint = float  # pydantic reads "1.0" as the integer 1, but a share of all and one token are not the same
    try:
        return TypeAdapter(hint).validate_python(raw)
    except ValidationError:
        raise UserError(f"{where} takes {type_name(hint)}, got {text!r}.", "Give a value of that type.") from None


def _takes_none(hint: Any) -> bool:
    return type(None) in getattr(hint, "__args__", ())


def type_name(hint: Any) -> str:
    """An annotation for people: `int`, `int or None`, `'prefix' or 'lora'`."""
    origin = getattr(hint, "__origin__", None)
    arguments = getattr(hint, "__args__", ())
    if str(origin) == "typing.Literal":
        return " or ".join(repr(argument) for argument in arguments)
    if arguments and origin not in (tuple, list):
        return " or ".join("None" if argument is type(None) else type_name(argument) for argument in arguments)
    return getattr(hint, "__name__", str(hint)) if not arguments else str(hint)


def describe_settings(cls: type[Any]) -> list[tuple[str, str, Json]]:
    """(key, type, default) of every setting of a method, for `list methods` and the dry run."""
    hints = get_type_hints(cls.Settings)
    rows: list[tuple[str, str, Json]] = []
    for spec in fields(cls.Settings):
        default = spec.default if spec.default is not MISSING else getattr(cls.Settings(), spec.name)
        rows.append((spec.name, type_name(hints[spec.name]), default))
    return rows
