"""Tables of suite `override`: answers to queries about contexts that agree with, extend, or
contradict the model's knowledge.

rows.jsonl has 16 contexts of twelve facts, four of each kind, and a query about each. priors.csv has
the nats of every believed answer given its query alone, by model.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import grids
import pandas as pd

from ttabench.core.amounts import format_with_stderr
from ttabench.records.samples import read_samples
from ttabench.records.schema import RunRecord
from ttabench.stats.clusters import Observation
from ttabench.stats.estimate import difference, estimate

HERE = Path(__file__).resolve().parent / "override"
MODELS = ("smollm2-135m", "gemma3-270m")
KINDS = ("agree", "extend", "contradict")
METHODS = (*grids.METHODS, "kvzip")
LOST = "minus icl [95 %]"
"""Header of the difference from full context."""
STRONG = 1.5
"""Maximum nats of a strongly believed answer, about one correct guess in five."""


@cache
def lines() -> dict[str, dict[str, dict[str, str]]]:
    """Return the cells of every run by model, row and header: shares of queries (%)."""
    beliefs, answers = pd.read_csv(HERE / "priors.csv"), dict[str, dict[str, pd.DataFrame]]()
    for folder, run in sorted(grids.runs_of(HERE), key=lambda one: _place(one[1])):
        columns = ["episode", "key", "prompt", "prediction", "subtask", "contains_em"]
        model = str(run.model["name"])
        own = pd.DataFrame(read_samples(folder, columns)).merge(
            beliefs[beliefs["model"] == model], on="prompt", how="left"
        )
        answers.setdefault(model, {})[_name(run)] = own
    return {
        model: {name: _line(own, by_name["icl"]) for name, own in by_name.items()}
        for model, by_name in answers.items()
    }


def tables() -> str:
    """Return one table per model."""
    return "\n".join(
        f"**{model}**\n\n{grids.markdown(pd.DataFrame(rows).T)}" for model, rows in lines().items()
    )


def summary() -> str:
    """Return the table of docs/results/real-text.md: answers to contradicted queries, by model."""
    rows = [
        (f"`{name}`", *(lines()[model][name][key] for model in MODELS for key in (KINDS[2], LOST)))
        for name in lines()[MODELS[0]]
        if "," not in name  # Names with a comma have bfloat16 or a boost.
    ]
    heads = ("answers of the context (%)", "vs. icl [95 %]")
    columns = (f"{model}: {head}" for model in MODELS for head in heads)
    return grids.table(("method", *columns), rows, 1)


def _place(run: RunRecord) -> tuple[int, int, float, str]:
    """Return the sort key of a run: model, usual order of methods, descending budget."""
    method, keep = str(run.config["method"]), float(run.config["keep"] or 1)
    place = METHODS.index(method) if method in METHODS else len(METHODS)
    return MODELS.index(str(run.model["name"])), place, -keep, str(run.config["dtype"])


def _name(run: RunRecord) -> str:
    keep, dtype, boost = (run.config.get(name) for name in ("keep", "dtype", "boost"))
    name = f"{run.config['method']} {100 * keep:.0f} %" if keep else str(run.config["method"])
    name += f", {dtype}" if dtype != "auto" else ""
    return name + (f", boost {boost:g}" if boost not in (None, 1) else "")


def _line(answers: pd.DataFrame, full: pd.DataFrame) -> dict[str, str]:
    """Return the cells of a run. `full`: the answers with full context."""
    answers = answers.assign(
        believed=[
            str(old).lower() in text.lower()
            for old, text in zip(answers["believed"], answers["prediction"], strict=True)
        ]
    )
    by_kind = {kind: answers[answers["subtask"] == kind] for kind in KINDS}
    against, reference = by_kind["contradict"], full[full["subtask"] == "contradict"]
    assert against["key"].tolist() == reference["key"].tolist(), "answers are paired by query"
    paired = difference(_observed(against), _observed(reference))
    assert paired is not None, "a share is a number"
    lost = f"{100 * paired.value:.1f}"
    if paired.ci_low is not None and paired.ci_high is not None:
        lost += f" [{100 * paired.ci_low:.1f}, {100 * paired.ci_high:.1f}]"
    return {
        **{kind: _share(own) for kind, own in by_kind.items()},
        LOST: lost,
        "contradict, strong beliefs": _share(against[against["nats"] < STRONG]),
        "contradict, weak beliefs": _share(against[against["nats"] >= STRONG]),
        "contradict, belief answered": _share(against, "believed"),
    }


def _share(answers: pd.DataFrame, column: str = "contains_em") -> str:
    """Format a share with its standard error over contexts, per cent."""
    share = estimate(_observed(answers, column))
    assert share is not None, "a share is a number"
    return format_with_stderr(share.mean, share.stderr, 100)


def _observed(answers: pd.DataFrame, column: str = "contains_em") -> list[Observation]:
    return [
        Observation(str(context), (float(value), 1.0))
        for context, value in zip(answers["episode"], answers[column], strict=True)
    ]
