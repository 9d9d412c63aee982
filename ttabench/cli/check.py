"""`ttabench check` of a method or a model, and `ttabench new method NAME`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import Annotated, Any, Literal

import typer

from ttabench.cli import options as o
from ttabench.cli.ending import bounded
from ttabench.core.declared import HOW
from ttabench.core.errors import UserError
from ttabench.methods import registry
from ttabench.records.run_fields import RunFields
from ttabench.run.request import RunRequest
from ttabench.terminal import render


@o.takes("typed", RunRequest, only=("preset", "settings", "model", "device", "dtype"), typed_only=True)
def check(
    typed: Mapping[str, Any],
    method: Annotated[str, typer.Argument(help="A method: a name, or a file of Python (./mine.py).")] = "",
    threads: o.Threads = None,
    json: o.AsJson = False,
) -> None:
    """Check that a method keeps its promises; or, with --model alone, what methods give on a model.

    One verdict a line; exit code 1 if a promise is broken, or a method neither right nor refused.
    """
    if bool(method) == ("model" in typed):
        raise UserError("`check` takes a method or --model, one of them.", "Run `ttabench check mac`.")
    bounded(threads, device=typed.get("device", "auto"))
    if not (_method(method, typed, json=json) if method else _model(typed, json=json)):
        raise typer.Exit(1)


def _method(method: str, typed: Mapping[str, Any], *, json: bool) -> bool:
    """Print a verdict a line; whether every promise is kept."""
    from ttabench.methods.settings import preset_for, settings_of, typed_settings

    spec, preset, changes = registry.find(method), typed.get("preset", ""), typed.get("settings", ())
    if not preset and spec.checked is not None:  # those typed stand on top of the settings that it is checked with
        spec, preset = replace(spec, presets={"checked": spec.checked}), "checked"
    settings = settings_of(spec, typed_settings(spec, changes), preset_for(spec, preset, ""))
    from ttabench.contract.promises import PROMISES, cases, verdict

    checked, refused = cases(spec, settings)
    promises = []
    for sentence in PROMISES:
        fault = verdict(sentence, checked)
        promises.append({"promise": sentence, "kept": not fault, "told": fault})
        if not json:
            render.print_line(f"{'BROKEN' if fault else 'kept':<8}{sentence}{fault and f': {fault}'}")
    kept = sum(not promise["told"] for promise in promises)
    if json:
        about = {"method": spec.name, "bases": list(checked), "refused": refused}
        render.print_json({**about, "promises": promises})
    else:
        for line in refused:
            render.remark(f"Note: {line}")
        render.print_line(f"{spec.name} passes {kept} of {len(promises)} checks (2-layer {' and '.join(checked)}).")
    return kept == len(promises)


def _model(typed: Mapping[str, Any], *, json: bool) -> bool:
    """Print what methods give under a base model, one a line; whether each is right or refused."""
    from ttabench.contract.models import outcomes
    from ttabench.lm.forward.ways import ways_of
    from ttabench.lm.model import load

    base = RunFields(**{name: typed[name] for name in ("model", "device", "dtype") if name in typed})
    lm = load(base.model, device=base.device, dtype=base.dtype)
    ways, said = ways_of(lm).record(), outcomes(lm)
    if json:
        about = {"model": base.model, "architecture": str(lm.config.model_type)}
        render.print_json({**about, "ways": ways, "methods": said})
    else:
        for name, outcome in said.items():
            verdict, _, why = outcome.partition(": ")
            render.print_line(f"{verdict:<8}{name}{why and f': {why}'}")
        unusual = ", ".join(f"{part} {way}" for part, way in ways.items())
        how = f"with {unusual}" if unusual else "in the usual way"
        render.remark(f"{lm.name} ({lm.config.model_type}) is run {how}.")
    return all(outcome.startswith(("right", "refused")) for outcome in said.values())


def new(
    what: Annotated[Literal["method"], typer.Argument(help="What to begin: method.")],  # noqa: ARG001  # one kind so far
    name: Annotated[str, typer.Argument(help="Its name: lower-case letters, digits and _.")],
    out: Annotated[Path, o.folder(HOW, "Folder to write to.", "--out", "-o")] = Path(),
) -> None:
    """Write a working method to begin from: `ttabench new method NAME`."""
    from ttabench.contract import skeleton
    from ttabench.core import files
    from ttabench.core.plugins import NAME

    if not NAME.fullmatch(name) or name in registry.methods():
        hint = "Use lower-case letters, digits and _, and no name that `ttabench list methods` has."
        raise UserError(f"{name!r} is no name for a new method.", hint)
    path = out / f"{name}.py"
    files.made(out, out)
    files.write_atomically(path, skeleton(name), lambda _: False)
    render.print_line(str(path))
    typed = quote(str(path if path.is_absolute() else f"./{path}"))
    render.remark(f"Check it: ttabench check {typed}")
    render.remark(f"Run it: ttabench eval --method {typed} --task streamingqa")
