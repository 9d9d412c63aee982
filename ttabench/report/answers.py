"""What runs answered, read once from their samples; runs whose samples are damaged are named and left out.

answers, damaged = answers_of([(Path("runs/3f0c2a9b71de"), record)], "f1")
joined([answers["3f0c2a9b71de"]]).values
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ttabench.core.errors import UserError
from ttabench.records.sample_files import has_samples
from ttabench.report.pairing import Place, Run, Values, answered, steps_of


class Answers(NamedTuple):
    """Answers of runs."""

    values: Values
    """Terms of the metric by query, see `pairing.answered`."""
    steps: Mapping[Place, int]
    """Where in the stream each was asked; nothing of runs that have no figures by step."""


def answers_of(runs: Sequence[Run], metric: str) -> tuple[dict[str, Answers | None], list[str]]:
    """(answers of each run by its id, a line for every run whose samples are damaged).

    Answers are None where none are kept.

    Args:
        runs: to read.
        metric: each run's main one for "".
    """
    answers: dict[str, Answers | None] = {}
    damaged = []
    for run in runs:
        folder, record = run
        try:
            answers[record.id] = _answers_of(run, metric or record.main_metric) if has_samples(folder) else None
        except UserError as error:
            damaged.append(str(error))
    return answers, damaged


def _answers_of(run: Run, metric: str) -> Answers:
    stepwise = any(row.step is not None for row in run[1].rows)
    return Answers(answered([run], metric), steps_of([run]) if stepwise else {})


def joined(answers: Sequence[Answers | None]) -> Answers:
    """Of several runs, queries in order; nothing where one of them kept no answers."""
    kept = [run for run in answers if run is not None]
    if len(kept) < len(answers):
        return Answers({}, {})
    values: dict[Any, Any] = {query: value for run in kept for query, value in run.values.items()}
    steps = {place: step for run in kept for place, step in run.steps.items()}
    return Answers({query: values[query] for query in sorted(values)}, steps)
