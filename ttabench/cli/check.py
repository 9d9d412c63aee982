"""`ttabench check` of a method or a model, and `ttabench new method NAME`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import Annotated, Any, Literal

import typer

from ttabench.cli import options as o
from ttabench.cli.errors import apply_resource_limits
from ttabench.core.declared import EXECUTION_GROUP
from ttabench.core.errors import UserError
from ttabench.methods import registry
from ttabench.records.run_fields import RunFields
from ttabench.run.request import RunRequest
from ttabench.terminal import render


@o.add_options(
    "typed", RunRequest, only=("preset", "settings", "model", "device", "dtype"), typed_only=True
)
def check(
    typed: Mapping[str, Any],
    method: Annotated[
        str, typer.Argument(help="A method: a name, or a file of Python (./mine.py).")
    ] = "",
    threads: o.Threads = None,
    json: o.AsJson = False,
) -> None:
    """Check that a method keeps its promises; or, with --model alone, what methods give on a model.

    One verdict a line; exit code 1 if a promise is broken, or a method neither right nor refused.
    """
    if bool(method) == ("model" in typed):
        raise UserError(
            "`check` takes a method or --model, one of them.", "Run `ttabench check mac`."
        )
    apply_resource_limits(threads, device=typed.get("device", "auto"))
    if not (_check_method(method, typed, json=json) if method else _check_model(typed, json=json)):
        raise typer.Exit(1)


def _check_method(method: str, typed: Mapping[str, Any], *, json: bool) -> bool:
    """Print a verdict a line; whether every promise is kept."""
    from ttabench.methods.settings import build_settings, parse_settings, resolve_preset

    spec, preset, changes = (
        registry.find_method(method),
        typed.get("preset", ""),
        typed.get("settings", ()),
    )
    if (
        not preset and spec.test_settings is not None
    ):  # those typed stand on top of the settings that it is checked with
        spec, preset = replace(spec, presets={"checked": spec.test_settings}), "checked"
    settings = build_settings(spec, parse_settings(spec, changes), resolve_preset(spec, preset, ""))
    from ttabench.contract.promises import PROMISES, check_promise, make_cases

    checked, refused = make_cases(spec, settings)
    promises = []
    for sentence in PROMISES:
        fault = check_promise(sentence, checked)
        promises.append({"promise": sentence, "kept": not fault, "told": fault})
        if not json:
            render.print_line(
                f"{'BROKEN' if fault else 'kept':<8}{sentence}{fault and f': {fault}'}"
            )
    kept = sum(not promise["told"] for promise in promises)
    if json:
        header = {"method": spec.name, "bases": list(checked), "refused": refused}
        render.print_json({**header, "promises": promises})
    else:
        for line in refused:
            render.print_note(f"Note: {line}")
        render.print_line(
            f"{spec.name} passes {kept} of {len(promises)} checks (2-layer {' and '.join(checked)})."
        )
    return kept == len(promises)


def _check_model(typed: Mapping[str, Any], *, json: bool) -> bool:
    """Print what methods give under a base model, one a line; whether each is right or refused."""
    from ttabench.contract.models import check_methods
    from ttabench.lm.forward.capabilities import get_capabilities
    from ttabench.lm.model import load

    base = RunFields(
        **{name: typed[name] for name in ("model", "device", "dtype") if name in typed}
    )
    lm = load(base.model, device=base.device, dtype=base.dtype)
    capabilities, method_outcomes = get_capabilities(lm).record(), check_methods(lm)
    if json:
        header = {"model": base.model, "architecture": str(lm.config.model_type)}
        render.print_json({**header, "ways": capabilities, "methods": method_outcomes})
    else:
        for name, outcome in method_outcomes.items():
            verdict, _, reason = outcome.partition(": ")
            render.print_line(f"{verdict:<8}{name}{reason and f': {reason}'}")
        unusual = ", ".join(f"{part} {way}" for part, way in capabilities.items())
        how = f"with {unusual}" if unusual else "in the usual way"
        render.print_note(f"{lm.name} ({lm.config.model_type}) is run {how}.")
    return all(outcome.startswith(("right", "refused")) for outcome in method_outcomes.values())


def new(
    what: Annotated[Literal["method"], typer.Argument(help="What to begin: method.")],  # noqa: ARG001  # one kind so far
    name: Annotated[str, typer.Argument(help="Its name: lower-case letters, digits and _.")],
    out: Annotated[Path, o.folder(EXECUTION_GROUP, "Folder to write to.", "--out", "-o")] = Path(),
) -> None:
    """Write a working method to begin from: `ttabench new method NAME`."""
    from ttabench.contract import render_method_template
    from ttabench.core import files
    from ttabench.core.plugins import PLUGIN_NAME_PATTERN

    if not PLUGIN_NAME_PATTERN.fullmatch(name) or name in registry.methods():
        hint = "Use lower-case letters, digits and _, and no name that `ttabench list methods` has."
        raise UserError(f"{name!r} is no name for a new method.", hint)
    path = out / f"{name}.py"
    files.make_writable_folder(out, out)
    files.write_atomically(path, render_method_template(name), lambda _: False)
    render.print_line(str(path))
    typed = quote(str(path if path.is_absolute() else f"./{path}"))
    render.print_note(f"Check it: ttabench check {typed}")
    render.print_note(f"Run it: ttabench eval --method {typed} --task streamingqa")
