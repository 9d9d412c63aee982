"""`ttabench check` for a method, a base model, or a file of exported runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import isclose
from pathlib import Path
from typing import Annotated, Any

import typer

from ttabench.cli import options as o
from ttabench.cli.errors import apply_resource_limits
from ttabench.core.errors import UserError
from ttabench.methods import registry
from ttabench.records.run_fields import RunFields
from ttabench.records.schema import SUBMISSION_SUFFIX, packed_runs
from ttabench.run.request import RunRequest
from ttabench.terminal import render


@o.add_options("typed", RunRequest, only=o.RUN_OPTIONS["check"], typed_only=True)
def check(
    typed: Mapping[str, Any],
    method: Annotated[
        str,
        typer.Argument(
            help="Method to test: a name, or a Python file (./mine.py). Or exported runs (.parquet).",
            show_default=False,
        ),
    ] = "",
    threads: o.Threads = None,
    json: o.AsJson = False,
) -> None:
    """Test a method on tiny models or, with --model, the built-in methods on a base model.

    For exported runs (.parquet), test that their figures follow from the stored scores of queries.
    Prints one result per line. The exit code is 1 if a test fails.
    """
    if bool(method) == ("model" in typed):
        raise UserError(
            "`ttabench check` takes either a method or --model.",
            "Use one of them, such as `ttabench check mac`.",
        )
    if method.endswith(SUBMISSION_SUFFIX):
        if typed:
            raise UserError("Exported runs have no options.", "Remove all options but --json.")
        if not check_submission(Path(method), json=json):
            raise typer.Exit(1)
        return
    apply_resource_limits(threads, device=typed.get("device", "auto"))
    if not (_check_method(method, typed, json=json) if method else _check_model(typed, json=json)):
        raise typer.Exit(1)


def check_submission(file: Path, *, json: bool = False) -> bool:
    """Print one line per run of a file; return True if all pass.

    A run passes if the scores of its queries have the digests in its record and give its figures
    over all queries. Corpus metrics need texts, which are not exported; they are not computed again.
    """
    if not file.is_file():
        raise UserError(f"There is no file {file}.", "Fix the path, or write it: ttabench export.")
    faults = {name: _find_fault(file / name) for name in packed_runs(file)}
    if not faults:
        raise UserError(f"{file} contains no runs.", "Write it with `ttabench export`.")
    if json:
        runs = [{"id": name, "fault": fault or None} for name, fault in faults.items()]
        render.print_json({"file": str(file), "runs": runs})
    else:
        for name, fault in faults.items():
            render.print_line(f"BROKEN  {name}: {fault}" if fault else f"kept    {name}")
        kept = sum(not fault for fault in faults.values())
        render.print_line(f"{file}: {kept} of {len(faults)} runs pass.")
    return not any(faults.values())


def _find_fault(run: Path) -> str:
    """Return what is wrong with an exported run, or ""."""
    from ttabench.records.samples import has_samples, read_samples
    from ttabench.report.compare import FIGURE_TOLERANCE
    from ttabench.report.selection import load_run
    from ttabench.report.stored import load_values
    from ttabench.stats.estimate import estimate
    from ttabench.stats.metrics import metric_or_default

    try:
        record = load_run(run)
        if not has_samples(run):
            return "it has no scores of queries"
        read_samples(run, record=record)
        for row in record.rows:
            metric = metric_or_default(row.metric)
            if row.step is not None or row.subtask is not None or metric.corpus:
                continue
            found = estimate([*load_values([(run, record)], row.metric).values()], metric.figure)
            if found is None or not all(
                one == other or isclose(one or 0, other or 0, abs_tol=FIGURE_TOLERANCE)
                for one, other in [
                    (found.n, row.n),
                    (found.mean, row.value),
                    (found.stderr, row.stderr),
                ]
            ):
                return f"its queries do not give its {row.metric}"
    except UserError as error:
        return str(error)
    return ""


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
    from ttabench.lm.forward.capabilities import get_capabilities, require_capabilities
    from ttabench.lm.model import load

    names = ("model", "device", "dtype", "max_context")
    base = RunFields(**{name: typed[name] for name in names if name in typed})
    lm = load(base.model, device=base.device, dtype=base.dtype, max_context=base.max_context)
    require_capabilities(lm, "weights")  # methods are checked against the model's own logits
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
