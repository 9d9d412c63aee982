"""ttabench: a benchmark of test-time adaptation of language models.

session = ttabench.Session("nano", "mac")
session.read(["Ada Voss lives in Port Ansel."])
session.ask("Where does Ada Voss live?")

ttabench.train("lora", "superglue", out="mine", steps=20)
"""

from typing import TYPE_CHECKING, Any

from ttabench.core.version import __version__

if TYPE_CHECKING:
    from ttabench.run.session import Session
    from ttabench.training.by_name import train

__all__ = ["Session", "__version__", "train"]


def __getattr__(name: str) -> Any:
    """Import `Session` and `train`, and torch with them, only when they are used."""
    if name == "Session":
        from ttabench.run.session import Session

        return Session
    if name == "train":
        from ttabench.training.by_name import train

        return train
    raise AttributeError(f"module 'ttabench' has no attribute {name!r}")


def __dir__() -> list[str]:
    """Names that are there, those before their import, too: shells complete them."""
    return sorted({*globals(), *__all__})
