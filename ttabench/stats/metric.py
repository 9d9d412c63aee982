"""What a metric is: a figure of answers, and how it is read.

Records keep `declared` of a metric that is not ttabench's own: its figures are shown wherever the records are.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from ttabench.core.types import Answer, Ask, Json
from ttabench.stats.figures import MEAN, Kind

DECLARED = ("scale", "digits", "higher_is_better", "least", "most")
"""Fields of a metric that its figures are read by."""


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A metric; call one of queries with a prediction and its `Ask`, and the log-probabilities of a choice."""

    name: str
    summary: str
    function: Callable[[str, Ask], float] | None = None
    """Of the predicted text."""
    of_choice: Callable[[Answer, Ask], float] | None = None
    """Of the log-probabilities of the options."""
    ratio: Kind | None = None
    """Of all scored stretches together; such a metric has no value for one query."""
    corpus: Kind | None = None
    """Of all answers together; such a metric has no value for one query, either."""
    scale: float = 100.0
    """Multiply by this to print (percent); stored values stay as they are."""
    digits: int = 1
    """Printed after the point."""
    higher_is_better: bool = True
    least: float | None = 0.0
    """No value of a query is below; None where there is no such number."""
    most: float | None = 1.0
    origin: str = ""
    """The package, or a digest of the file, that it is from; "" for ttabench's own."""

    @property
    def declared(self) -> dict[str, Json]:
        """What it is and how its figures are read, for a record."""
        return {name: getattr(self, name) for name in ("summary", *DECLARED)}

    def within(self, value: float) -> bool:
        """Whether a query may have this value."""
        return (self.least is None or value >= self.least) and (self.most is None or value <= self.most)

    @property
    def judge(self) -> Callable[[Any, Ask], float] | None:
        """Its function of one query; None of one that has no value for it."""
        return self.function or self.of_choice

    @property
    def kind(self) -> Kind:
        """What it sums over queries, with the range of its figures."""
        least, most = -math.inf if self.least is None else self.least, math.inf if self.most is None else self.most
        return self.ratio or self.corpus or Kind(observed=list, figure=replace(MEAN, least=least, most=most))

    def __call__(self, prediction: str, ask: Ask, scored: Answer | None = None) -> float:
        """The value for one query, from `least` to `most`."""
        if self.function is not None:
            return self.function(prediction, ask)
        assert self.of_choice is not None, f"metric {self.name} has no value for one query"
        assert scored is not None, f"metric {self.name} needs log-probabilities"
        return self.of_choice(scored, ask)
