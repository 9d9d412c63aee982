"""`ttabench check METHOD` and `ttabench new method NAME`: what people see of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from shlex import quote

from ttabench.core.errors import UserError
from ttabench.core.files import write_atomically
from ttabench.methods import registry
from ttabench.methods.plugins import NAME
from ttabench.methods.settings import preset_for, settings_of, typed_settings
from ttabench.methods.spec import MethodSpec
from ttabench.terminal import render


def check(method: str, preset: str, changes: Sequence[str], *, json: bool) -> bool:
    """Print a verdict a line; whether every promise is kept.

    Raises:
        UserError: an unknown method or setting; no base of two layers suits the method.
    """
    spec = registry.find(method)
    settings = _settings(spec, preset, changes)
    from ttabench.contract.check import cases, verdicts
    from ttabench.core.environment import quiet_libraries

    quiet_libraries()
    checked, refused = cases(spec, settings)
    verdicts_shown = []
    for verdict in verdicts(checked):
        verdicts_shown.append(verdict)
        if not json:
            sentence = verdict.promise if verdict.kept else f"{verdict.promise}: {verdict.told}"
            render.print_line(f"{'kept' if verdict.kept else 'BROKEN':<8}{sentence}")
    kept = sum(verdict.kept for verdict in verdicts_shown)
    if json:
        about = {"method": spec.name, "bases": list(checked), "refused": refused}
        render.print_json({**about, "promises": [asdict(verdict) for verdict in verdicts_shown]})
    else:
        for line in refused:
            render.remark(f"Note: {line}")
        render.print_line(
            f"{spec.name} passes {kept} of {len(verdicts_shown)} checks (2-layer {' and '.join(checked)})."
        )
    return kept == len(verdicts_shown)


def check_model(model: str, device: str, dtype: str, *, json: bool) -> bool:
    """Print what methods give under a base model, one a line; whether each is right or refused.

    Raises:
        UserError: the model cannot be loaded, or nothing can be done with it.
    """
    from ttabench.contract.models import outcomes
    from ttabench.core.environment import quiet_libraries
    from ttabench.lm.forward.ways import ways_of
    from ttabench.lm.model import load

    quiet_libraries()
    lm = load(model, device=device, dtype=dtype)
    ways, said = ways_of(lm).record(lm), outcomes(lm)
    if json:
        render.print_json({"model": model, "architecture": str(lm.config.model_type), "ways": ways, "methods": said})
    else:
        for name, outcome in said.items():
            verdict, _, why = outcome.partition(": ")
            render.print_line(f"{verdict:<8}{name}{why and f': {why}'}")
        unusual = ", ".join(f"{part} {way}" for part, way in ways.items())
        render.remark(
            f"{lm.name} ({lm.config.model_type}) is run {f'with {unusual}' if unusual else 'in the usual way'}."
        )
    return all(outcome.startswith(("right", "refused")) for outcome in said.values())


def _settings(spec: MethodSpec, preset: str, changes: Sequence[str]) -> object:
    """The settings to check a method with: those typed, on top of a preset or of the defaults."""
    if preset or spec.checked is None:
        return settings_of(spec, typed_settings(spec, changes), preset_for(spec, preset, ""))
    at = replace(spec, presets={"checked": spec.checked})
    return settings_of(at, typed_settings(spec, changes), "checked")


def new(what: str, name: str, out: Path) -> None:
    """Write a method and its test.

    Raises:
        UserError: something else than a method, no name, a name that is taken, or files that are there.
    """
    from ttabench.contract.skeleton import files

    if what != "method":
        raise UserError(f"`ttabench new` makes a method, not {what[:40]!r}.", "Run `ttabench new method NAME`.")
    if not NAME.fullmatch(name):
        raise UserError(f"{name!r} is not a valid method name.", "Use lower-case letters, digits and _.")
    if name in registry.methods():
        raise UserError(f"ttabench has a method {name} already.", "Give another name.")
    written = files(name)
    for file in written:
        if (out / file).exists():
            raise UserError(f"{out / file} exists already.", "Give another name, or --out DIR.")
    try:
        out.mkdir(parents=True, exist_ok=True)
        for file, text in written.items():
            write_atomically(out / file, text)
    except OSError as error:
        raise UserError(f"{out} cannot be written: {error.strerror}.", "Give another --out.") from None
    for file in written:
        render.print_line(str(out / file))
    path = out / next(iter(written))
    typed = quote(str(path if path.is_absolute() else f"./{path}"))
    render.remark(f"Check it: ttabench check {typed}")
    render.remark(f"Run it: ttabench eval --method {typed} --task streamingqa")
