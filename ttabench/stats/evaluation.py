"""Text metrics as modules of Hugging Face `evaluate`, alone or combined with others; works offline.

    import evaluate
    from ttabench.stats.evaluation import load_metric

    both = evaluate.combine([load_metric("f1"), load_metric("em_prefix")])
    both.compute(predictions=["212 passengers"], references=[["212", "212 people"]])
    # {"f1": 0.667, "em_prefix": 1.0}

Values equal those of records: fractions, averaged over queries.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ttabench.core.errors import UserError
from ttabench.core.types import Generate, Query
from ttabench.stats.clusters import Observation
from ttabench.stats.estimate import estimate
from ttabench.stats.metrics import METRICS, Metric, metric

TEXT_METRICS = tuple(
    name for name, known_metric in METRICS.items() if known_metric.function or known_metric.corpus
)


def load_metric(name: str, cache_dir: str | None = None) -> Any:
    """Load a metric of `TEXT_METRICS` as an `evaluate.Metric`, without downloading anything.

    `compute(predictions, references)` returns `{name: mean}`. A reference is one gold answer or a
    list of them, the target first; see `metrics`. Inputs are kept in memory. `evaluate` writes only
    to `cache_dir`.

    Raises:
        UserError: the metric needs log-probabilities.
    """
    chosen = metric(name)
    if name not in TEXT_METRICS:
        raise UserError(
            f"The metric {name} needs log-probabilities.", f"Use one of: {', '.join(TEXT_METRICS)}."
        )
    return _evaluate_class(chosen)(config_name=name, cache_dir=cache_dir, keep_in_memory=True)


def mean(
    chosen: Metric, predictions: Sequence[str], references: Sequence[str | Sequence[str]]
) -> float:
    """Compute the figure of all queries, for most metrics a mean.

    Raises:
        UserError: a reference has no gold answer.
    """
    golds = [(gold,) if isinstance(gold, str) else tuple(gold) for gold in references]
    if () in golds:
        fault = f"Reference {golds.index(())} has no gold answer."
        raise UserError(fault, "Add one, or a list with the target first.")
    values = list[Observation]()
    for index, (prediction, answers) in enumerate(zip(predictions, golds, strict=True)):
        query = Query(prompt="", key=str(index), want=Generate(answers=answers))
        target = answers[0]
        terms = (prediction, target, False) if chosen.corpus else (chosen(prediction, query), 1.0)
        values.append(Observation(query.key, terms))
    estimated = estimate(values, chosen.figure)
    assert estimated is not None, "answers always have a figure"
    return estimated.mean


def _evaluate_class(chosen: Metric) -> Any:
    """A class per metric, because `evaluate` distinguishes modules by their class."""
    import datasets
    import evaluate

    text = datasets.Value("string")
    forms = [datasets.Sequence(text), text]

    class EvaluateMetric(evaluate.Metric):  # type: ignore[misc]  # evaluate has no types
        def _info(self) -> Any:
            return evaluate.MetricInfo(
                description=chosen.summary,
                citation="",
                inputs_description="predictions: texts; references: a gold answer or a list each",
                features=[
                    datasets.Features({"predictions": text, "references": form}) for form in forms
                ],
            )

        def _compute(self, *, predictions: list[str], references: list[Any]) -> dict[str, float]:
            return {chosen.name: mean(chosen, predictions, references)}

    EvaluateMetric.__name__ = f"ttabench_{chosen.name}"
    return EvaluateMetric
