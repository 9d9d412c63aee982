"""ttabench: a benchmark of test-time adaptation of language models.

session = ttabench.Session("nano", "mac")
session.read(["Ada Voss lives in Port Ansel."])
session.ask("Where does Ada Voss live?")
"""

from typing import TYPE_CHECKING, Any

from ttabench.core.version import __version__

if TYPE_CHECKING:
    from ttabench.run.session import Session

__all__ = ["Session", "__version__"]


def __getattr__(name: str) -> Any:
    """Import `Session`, and torch with it, only when it is used."""
    if name == "Session":
        from ttabench.run.session import Session

        return Session
    raise AttributeError(f"module 'ttabench' has no attribute {name!r}")


def __dir__() -> list[str]:
    """Names that are there, `Session` before its import, too: shells complete it."""
    return sorted({*globals(), *__all__})
