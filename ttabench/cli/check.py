"""`ttabench check` for a method or a base model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any

import typer

from ttabench.cli import options as o
from ttabench.cli.errors import apply_resource_limits
from ttabench.core.errors import UserError
from ttabench.methods import registry
from ttabench.records.run_fields import RunFields
from ttabench.run.request import RunRequest
from ttabench.terminal import render


@o.add_options("typed", RunRequest, only=o.RUN_OPTIONS["check"], typed_only=True)
def check(
    typed: Mapping[str, Any],
    method: Annotated[
        str,
        typer.Argument(
            help="Method to test: a name, or a Python file (./mine.py).", show_default=False
        ),
    ] = "",
    threads: o.Threads = None,
    json: o.AsJson = False,
) -> None:
    """Test a method on tiny models or, with --model, the built-in methods on a base model.

    Prints one result per line. The exit code is 1 if a test fails.
    """
    if bool(method) == ("model" in typed):
        raise UserError(
            "`ttabench check` takes either a method or --model.",
            "Use one of them, such as `ttabench check mac`.",
        )
    apply_resource_limits(threads, device=typed.get("device", "auto"))
    if not (_check_method(method, typed, json=json) if method else _check_model(typed, json=json)):
        raise typer.Exit(1)


def _check_method(method: str, typed: Mapping[str, Any], *, json: bool) -> bool:
    """Print one line per test; return True if all pass."""
    from ttabench.methods.settings import build_settings, parse_settings, resolve_preset

    spec = registry.find_method(method)
    preset = typed.get("preset", "")
    changes = typed.get("settings", {})
    if not preset and spec.test_settings is not None:
        preset = "checked"
        spec = replace(spec, presets={preset: spec.test_settings})
    settings = build_settings(spec, parse_settings(spec, changes), resolve_preset(spec, preset, ""))
    from ttabench.contract.promises import PROMISES, check_promise, make_cases

    checked, refused = make_cases(spec, settings)
    promises = []
    for sentence in PROMISES:
        fault = check_promise(sentence, checked)
        promises.append({"promise": sentence, "kept": not fault, "told": fault})
        if not json:
            verdict = f"BROKEN  {sentence}: {fault}" if fault else f"kept    {sentence}"
            render.print_line(verdict)
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
    """Print one line per method; return True if each one is right or refused."""
    from ttabench.contract.models import check_methods
    from ttabench.lm.forward.capabilities import get_capabilities
    from ttabench.lm.model import load

    names = ("model", "device", "dtype", "max_context")
    base = RunFields(**{name: typed[name] for name in names if name in typed})
    lm = load(base.model, device=base.device, dtype=base.dtype, max_context=base.max_context)
    capabilities, method_outcomes = get_capabilities(lm).record(), check_methods(lm)
    if json:
        header = {"model": base.model, "architecture": str(lm.config.model_type)}
        render.print_json({**header, "ways": capabilities, "methods": method_outcomes})
    else:
        for name, outcome in method_outcomes.items():
            verdict, _, reason = outcome.partition(": ")
            render.print_line(f"{verdict:<8}{name}: {reason}" if reason else f"{verdict:<8}{name}")
        adjustments = ", ".join(f"{part} {value}" for part, value in capabilities.items())
        render.print_note(
            f"{lm.name} ({lm.config.model_type}) runs with adjustments: {adjustments or 'none'}."
        )
    return all(outcome.startswith(("right", "refused")) for outcome in method_outcomes.values())
