"""ttabench: a benchmark of test-time adaptation of language models.

runs = [ttabench.evaluate(method=name, task="streamingqa") for name in ("none", "icl", "mac")]
runs[-1].table, runs[-1].samples
ttabench.compare(runs).verdict

session = ttabench.Session("nano", "mac")
session.read(["Ada Voss lives in Port Ansel."])
session.ask("Where does Ada Voss live?")

ttabench.train("lora", "superglue", out="mine", steps=20)

Public are the names of `__all__` here and in `ttabench.extend`, for methods, tasks and metrics.
"""

from typing import TYPE_CHECKING

from ttabench.core.lazy import lazy_names

if TYPE_CHECKING:
    from ttabench.core import __version__ as __version__
    from ttabench.core.errors import UserError as UserError
    from ttabench.run.session import Session as Session
    from ttabench.stats.evaluation import load_metric as load_metric
    from ttabench.sweep.api import (
        ComparisonResult as ComparisonResult,
        Run as Run,
        compare as compare,
        evaluate as evaluate,
        load as load,
    )
    from ttabench.training.config import TrainOptions as TrainOptions
    from ttabench.training.stages import train as train
else:
    __getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
