"""Our metrics of generated texts as modules of Hugging Face `evaluate`, alone or combined with others; offline.

    import evaluate
    from ttabench.stats.evaluation import load

    both = evaluate.combine([load("f1"), load("em_prefix")])
    both.compute(predictions=["212 passengers"], references=[["212", "212 people"]])  # {"f1": 0.667, "em_prefix": 1.0}

The figures are those of records: fractions, means over the queries.
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


def load(name: str, cache_dir: str | None = None) -> Any:
    """A metric of `TEXT_METRICS` as an `evaluate.Metric`; nothing is downloaded.

    Its `compute(predictions, references)` gives `{name: mean}`. A reference is one gold answer or a list of them, the
    target first, see `metrics`. What it is fed is kept in memory; `evaluate` itself writes to `cache_dir`.
    """
    chosen = metric(name)
    if name not in TEXT_METRICS:
        raise UserError(
            f"The metric {name} needs log-probabilities.",
            f"Metrics of texts: {', '.join(TEXT_METRICS)}.",
        )
    return _evaluate_class(chosen)(config_name=name, cache_dir=cache_dir, keep_in_memory=True)


def mean(
    chosen: Metric, predictions: Sequence[str], references: Sequence[str | Sequence[str]]
) -> float:
    """The figure of all queries, for most metrics a mean; a reference without a gold answer is refused."""
    golds = [(own,) if isinstance(own, str) else tuple(own) for own in references]
    if () in golds:
        fault = f"Reference {golds.index(())} has no gold answer."
        raise UserError(fault, "Give one, or a list of them, target first.")
    values = list[Observation]()
    for place, (prediction, own) in enumerate(zip(predictions, golds, strict=True)):
        query = Query(prompt="", key=str(place), want=Generate(answers=own))
        terms = (prediction, own[0], False) if chosen.corpus else (chosen(prediction, query), 1.0)
        values.append(Observation(query.key, terms))
    figure = estimate(values, chosen.figure)
    assert figure is not None, "answers have a figure"
    return figure.mean


def _evaluate_class(chosen: Metric) -> Any:
    """The class of the metric; `evaluate` asks for one each, so that modules can be told apart."""
    import datasets
    import evaluate

    text = datasets.Value("string")
    forms = [datasets.Sequence(text), text]

    class EvaluateMetric(evaluate.Metric):  # type: ignore[misc]  # evaluate ships no types, so its base class is Any
        def _info(self) -> Any:
            return evaluate.MetricInfo(
                description=chosen.summary,
                citation="",
                inputs_description="predictions: texts; references: one gold answer each, or a list, target first",
                features=[
                    datasets.Features({"predictions": text, "references": form}) for form in forms
                ],
            )

        def _compute(self, *, predictions: list[str], references: list[Any]) -> dict[str, float]:
            return {chosen.name: mean(chosen, predictions, references)}

    EvaluateMetric.__name__ = f"ttabench_{chosen.name}"
    return EvaluateMetric
