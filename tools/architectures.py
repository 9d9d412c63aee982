"""Test every method on tiny models of all causal architectures: `python -m tools.architectures [--write] [KIND ..]`.

Each result is "right", "refused: REASON", "wrong: ..." or "raised: ...". The exit code is 1 if a
result is wrong or raised. `--write` renews the table in docs/reference/architectures.md.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path

import torch

from tools.tiny_architectures import (
    KINDS,
    RELEASED,
    UNMADE,
    released_model,
    tiny_config,
    tiny_model,
)
from ttabench.contract.models import METHOD_SETTINGS, check_methods
from ttabench.core.errors import UserError
from ttabench.lm.forward.capability_probe import reference_logprobs
from ttabench.lm.model import LM
from ttabench.lm.texts import byte_tokenizer

PAGE = Path(__file__).resolve().parents[1] / "docs/reference/architectures.md"
MARKS = "<!-- architectures -->", "<!-- /architectures -->"
Results = Mapping[str, Mapping[str, str]]
"""Result by architecture and method. `{"made": REASON}` if there is no tiny model."""


def tiny_lm(kind: str) -> LM:
    """Create a tiny language model of an architecture."""
    return LM(tiny_model(kind), byte_tokenizer(), kind, random_weights=True)


def evaluate_methods(kind: str) -> dict[str, str]:
    """Return the result of every method on an architecture.

    The reference of the package is compared with transformers, too.
    """
    if kind in UNMADE:
        return {"made": UNMADE[kind]}
    ids_1T = torch.arange(60, 90)[None]
    try:
        lm = tiny_lm(kind)
        with torch.no_grad():
            logits_1TV = tiny_model(kind)(input_ids=ids_1T, use_cache=False).logits
    except UserError as error:
        return {"made": str(error)}
    except Exception as error:  # sizes that do not fit together raise anything
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        return {"made": reason.replace("|", "/")[:100]}
    results = check_methods(lm)
    with torch.no_grad():
        torch.testing.assert_close(
            reference_logprobs(lm, ids_1T),
            logits_1TV[0].log_softmax(-1),
            atol=1e-4,
            rtol=1e-4,
            equal_nan=True,
        )
    return results


def failures(results: Results) -> list[str]:
    """Return results that are neither right nor refused."""
    return [
        f"{kind} {method}: {result}"
        for kind, row in results.items()
        for method, result in row.items()
        if result.startswith(("wrong", "raised"))
    ]


def table(results: Results) -> list[str]:
    """Return Markdown lines: architectures with equal results share a row, most supported first."""
    made = {kind: row for kind, row in results.items() if "made" not in row}
    marks = {
        kind: tuple(row[name].split(":")[0] for name in METHOD_SETTINGS)
        for kind, row in made.items()
    }
    reasons = {}
    for kind, row in made.items():
        refusal = next((result for result in row.values() if result != "right"), "")
        sentence = refusal.removeprefix("refused: ").partition(") ")[2].partition(". ")[0]
        reasons[kind] = sentence.removeprefix("cannot be used here: ")
    lines = [
        "| architectures | " + " | ".join(METHOD_SETTINGS) + " | why |",
        "| --- |" + " --- |" * (len(METHOD_SETTINGS) + 1),
    ]

    def key(kind: str) -> tuple[int, tuple[str, ...], str]:
        return -marks[kind].count("right"), marks[kind], reasons[kind]

    for (_, mark_row, reason), kinds in groupby(sorted(made, key=key), key=key):
        shown = [
            "yes" if mark == "right" else "-" if mark == "refused" else mark for mark in mark_row
        ]
        lines.append(f"| {', '.join(kinds)} | {' | '.join(shown)} | {reason} |")
    right = sum(row["icl"] == "right" for row in made.values())
    missing = {kind: row["made"] for kind, row in results.items() if kind not in made}
    lines += [
        "",
        f"{len(results)} architectures: {right} are right under icl; {len(missing)} have no tiny model.",
        "",
        "| no tiny model | why |",
        "| --- | --- |",
    ]
    for reason, kinds in groupby(sorted(missing, key=missing.__getitem__), missing.__getitem__):
        lines.append(f"| {', '.join(kinds)} | {reason} |")
    return [*lines, "", *released_table(list(made))]


def released_table(kinds: Sequence[str]) -> list[str]:
    """Return Markdown lines: the released model and the layers of each tiny model."""
    lines = ["| architecture | released model | layers of the tiny model |", "| --- | --- | --- |"]
    for kind in (kind for kind in kinds if kind in RELEASED):
        config = tiny_config(kind).get_text_config()
        layers = getattr(config, "layer_types", None) or ["attention"] * config.num_hidden_layers
        runs = [(len(list(run)), name) for name, run in groupby(layers)]
        shown = ", ".join(f"{count} {name}" for count, name in runs)
        if shared := getattr(config, "num_kv_shared_layers", 0):
            shown += f"; the last {shared} share keys and values"
        lines.append(f"| {kind} | {released_model(kind)} | {shown} |")
    defaults = [
        f"{kind} ({released_model(kind)})" if released_model(kind) else kind
        for kind in kinds
        if kind not in RELEASED
    ]
    lead = "All others have the default configuration, for which transformers names these models: "
    return [*lines, "", f"{lead}{', '.join(defaults)}."]


def stored_results() -> dict[str, dict[str, str]]:
    """Read the results from the table of the page."""
    results: dict[str, dict[str, str]] = {}
    text = PAGE.read_text().partition(MARKS[0])[2].partition(MARKS[1])[0]
    for line in text.splitlines():
        cell, *marks, reason = [cell.strip() for cell in line.split("|")[1:-1]] or [""] * 3
        kinds = [kind for kind in cell.split(", ") if kind in KINDS]
        if len(marks) == len(METHOD_SETTINGS):
            row = ["right" if mark == "yes" else f"refused: (it) {reason}. " for mark in marks]
            results |= {kind: dict(zip(METHOD_SETTINGS, row, strict=True)) for kind in kinds}
        elif not marks:
            results |= {kind: {"made": reason} for kind in kinds}
    return results


def write_table(results: Results) -> None:
    """Renew the table of the page. Architectures without a new result keep their row."""
    known = {**stored_results(), **results}
    ordered = {kind: known[kind] for kind in KINDS if kind in known}
    text = PAGE.read_text()
    before, after = text.partition(MARKS[0])[0], text.partition(MARKS[1])[2]
    PAGE.write_text(before + "\n".join([MARKS[0], *table(ordered), MARKS[1]]) + after)


def main() -> int:
    """Run the program. Return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m tools.architectures", description=__doc__)
    parser.add_argument("kinds", nargs="*", metavar="KIND", help="all by default")
    parser.add_argument("--write", action="store_true", help=f"renew the table in {PAGE.name}")
    options = parser.parse_args()
    results = {}
    for kind in options.kinds or KINDS:
        results[kind] = evaluate_methods(kind)
        print(kind, results[kind], flush=True)
    if options.write:
        write_table(results)
    print("\n".join(table(results)))
    return 1 if failures(results) else 0


if __name__ == "__main__":
    sys.exit(main())
