"""`ttabench check` of a method or a model, and `ttabench new method NAME`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from shlex import quote
from typing import Annotated, Any

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
    if method:
        kept = _method(method, typed.get("preset", ""), typed.get("settings", ()), json=json)
    else:
        kept = _model(
            RunFields(**{name: typed[name] for name in ("model", "device", "dtype") if name in typed}), json=json
        )
    if not kept:
        raise typer.Exit(1)


def _method(method: str, preset: str, changes: Sequence[str], *, json: bool) -> bool:
    """Print a verdict a line; whether every promise is kept."""
    from ttabench.methods.settings import preset_for, settings_of, typed_settings

    spec = registry.find(method)
    if preset or spec.checked is None:
        settings = settings_of(spec, typed_settings(spec, changes), preset_for(spec, preset, ""))
    else:  # those typed stand on top of the settings that it is checked with
        at = replace(spec, presets={"checked": spec.checked})
        settings = settings_of(at, typed_settings(spec, changes), "checked")
    from ttabench.contract.promises import PROMISES, cases, verdict
    from ttabench.core.environment import quiet_libraries

    quiet_libraries()
    checked, refused = cases(spec, settings)
    told = []
    for sentence in PROMISES:
        told.append(found := verdict(sentence, checked))
        if not json:
            line = sentence if found.kept else f"{sentence}: {found.told}"
            render.print_line(f"{'kept' if found.kept else 'BROKEN':<8}{line}")
    kept = sum(found.kept for found in told)
    if json:
        about = {"method": spec.name, "bases": list(checked), "refused": refused}
        render.print_json({**about, "promises": [asdict(found) for found in told]})
    else:
        for line in refused:
            render.remark(f"Note: {line}")
        render.print_line(f"{spec.name} passes {kept} of {len(told)} checks (2-layer {' and '.join(checked)}).")
    return kept == len(told)


def _model(base: RunFields, *, json: bool) -> bool:
    """Print what methods give under a base model, one a line; whether each is right or refused."""
    from ttabench.contract.models import outcomes
    from ttabench.core.environment import quiet_libraries
    from ttabench.lm.forward.ways import ways_of
    from ttabench.lm.model import load

    quiet_libraries()
    lm = load(base.model, device=base.device, dtype=base.dtype)
    ways, said = ways_of(lm).record(), outcomes(lm)
    if json:
        render.print_json(
            {"model": base.model, "architecture": str(lm.config.model_type), "ways": ways, "methods": said}
        )
    else:
        for name, outcome in said.items():
            verdict, _, why = outcome.partition(": ")
            render.print_line(f"{verdict:<8}{name}{why and f': {why}'}")
        unusual = ", ".join(f"{part} {way}" for part, way in ways.items())
        how = f"with {unusual}" if unusual else "in the usual way"
        render.remark(f"{lm.name} ({lm.config.model_type}) is run {how}.")
    return all(outcome.startswith(("right", "refused")) for outcome in said.values())


def new(
    what: Annotated[str, typer.Argument(help="What to begin: method.")],
    name: Annotated[str, typer.Argument(help="Its name: lower-case letters, digits and _.")],
    out: Annotated[Path, o.option(HOW, "Folder to write to.", "--out", "-o")] = Path(),
) -> None:
    """Write a working method to begin from: `ttabench new method NAME`."""
    from ttabench.contract import skeleton
    from ttabench.core.files import write_atomically
    from ttabench.core.plugins import NAME

    if what != "method":
        raise UserError(f"`ttabench new` makes a method, not {what[:40]!r}.", "Run `ttabench new method NAME`.")
    if not NAME.fullmatch(name) or name in registry.methods():
        hint = "Use lower-case letters, digits and _, and no name that `ttabench list methods` has."
        raise UserError(f"{name!r} is no name for a new method.", hint)
    path = out / f"{name}.py"
    if path.exists():
        raise UserError(f"{path} exists already.", "Give another name, or --out DIR.")
    out.mkdir(parents=True, exist_ok=True)
    write_atomically(path, skeleton(name))
    render.print_line(str(path))
    typed = quote(str(path if path.is_absolute() else f"./{path}"))
    render.remark(f"Check it: ttabench check {typed}")
    render.remark(f"Run it: ttabench eval --method {typed} --task streamingqa")
