"""Metrics as modules of Hugging Face `evaluate`: the same figures, alone and beside others."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest

from ttabench.core.errors import UnknownName, UserError
from ttabench.core.types import Ask, Generate
from ttabench.stats.estimate import estimated
from ttabench.stats.evaluation import NAMES, load
from ttabench.stats.figures import Written
from ttabench.stats.metrics import METRICS

PREDICTIONS = ["Pier 4, by the sea", "212 passengers", "nothing", "Nothing 3"]
REFERENCES = [["pier 4"], ["212", "212 passengers"], ["goat 7"], ["nothing 3"]]


def ours(name: str, references: list[list[str]]) -> float:
    corpus = METRICS[name].corpus
    if corpus is not None:
        pairs = zip(PREDICTIONS, references, strict=True)
        found = estimated(corpus, [Written(str(i), given, golds[0]) for i, (given, golds) in enumerate(pairs)])
        return found.mean
    asks = [Ask(prompt="", key="q", want=Generate(answers=tuple(golds))) for golds in references]
    return statistics.fmean(METRICS[name](p, a) for p, a in zip(PREDICTIONS, asks, strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_a_module_gives_the_mean_of_our_metric(name: str, tmp_path: Path) -> None:
    module = load(name, cache_dir=str(tmp_path))
    assert module.compute(predictions=PREDICTIONS, references=REFERENCES) == {name: ours(name, REFERENCES)}
    for prediction, golds in zip(PREDICTIONS, REFERENCES, strict=True):
        module.add(prediction=prediction, reference=golds)
    assert module.compute() == {name: ours(name, REFERENCES)}


def test_unknown_metrics_and_missing_answers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match="f11"):
        load("f11")
    with pytest.raises(UserError, match="Reference 1 has no gold answer"):
        load("em", cache_dir=str(tmp_path)).compute(predictions=["a", "b"], references=[["a"], []])
