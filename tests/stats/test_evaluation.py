"""Metrics as modules of Hugging Face `evaluate`: the same figures, alone and beside others."""

from __future__ import annotations

from pathlib import Path

import pytest

from ttabench.core.errors import UnknownName, UserError
from ttabench.stats.evaluation import TEXT_METRICS, load_metric

PREDICTIONS = ["Pier 4, by the sea", "212 passengers", "nothing", "3"]
REFERENCES = [["pier 4"], ["212", "212 passengers"], ["goat 7"], ["3"]]
BY_HAND = {
    "em": 0.25,
    "em_prefix": 0.75,
    "f1": (2 / 3 + 2 / 3 + 0 + 1) / 4,
    "f1_max": (2 / 3 + 1 + 0 + 1) / 4,
}


@pytest.mark.parametrize("name", [*TEXT_METRICS])
def test_a_module_gives_the_mean_of_our_metric(name: str, tmp_path: Path) -> None:
    module = load_metric(name, cache_dir=str(tmp_path))
    found = module.compute(predictions=PREDICTIONS, references=REFERENCES)
    for prediction, golds in zip(PREDICTIONS, REFERENCES, strict=True):
        module.add(prediction=prediction, reference=golds)
    assert module.compute() == found
    assert found[name] == pytest.approx(BY_HAND.get(name, found[name]))


def test_unknown_metrics_and_missing_answers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match="f11"):
        load_metric("f11")
    with pytest.raises(UserError, match="Reference 1 has no gold answer"):
        load_metric("em", cache_dir=str(tmp_path)).compute(
            predictions=["a", "b"], references=[["a"], []]
        )
