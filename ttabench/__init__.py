"""ttabench: a benchmark of test-time adaptation of language models.

runs = [ttabench.evaluate(method=name, task="streamingqa") for name in ("none", "icl", "mac")]
runs[-1].table, runs[-1].samples
ttabench.compare(runs).verdict

session = ttabench.Session("nano", "mac")
session.read(["Ada Voss lives in Port Ansel."])
session.ask("Where does Ada Voss live?")

ttabench.train("lora", "superglue", out="mine", steps=20)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ttabench.core import __version__

if TYPE_CHECKING:
    from ttabench.run.session import Session
    from ttabench.sweep.api import compare, evaluate, load
    from ttabench.training.stages import train

__all__ = ["Session", "__version__", "compare", "evaluate", "load", "train"]
_MODULES = {"Session": "run.session", "train": "training.stages"}


def __getattr__(name: str) -> Any:
    """Import a public object, with its dependencies, at its first use."""
    if name not in __all__:
        raise AttributeError(f"module 'ttabench' has no attribute {name!r}")
    return getattr(import_module(f"ttabench.{_MODULES.get(name, 'sweep.api')}"), name)


def __dir__() -> list[str]:
    """List all names, including those not imported yet, for completion in shells."""
    return sorted({*globals(), *__all__})
