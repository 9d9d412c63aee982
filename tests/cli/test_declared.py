"""Tests of options that are declared once: what is added in one file is an option, part of a run, and checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import typer
from typer.testing import CliRunner

from ttabench.cli.options import takes
from ttabench.core.declared import HOW, RUN, Declared
from ttabench.records.run_fields import batch_size


@dataclass(frozen=True, kw_only=True)
class Kinds:
    """A field of every kind."""

    word: Annotated[str, Declared("A word.", RUN, flags=("--word", "-w"))] = "a"
    task: Annotated[str, Declared("Listed first.", RUN)] = "t"
    number: Annotated[int | None, Declared("A number.", HOW)] = None
    many: Annotated[tuple[str, ...], Declared("Several.", HOW, flags=("--one",))] = ()
    sizes: Annotated[tuple[int, ...], Declared("As text.", HOW, kind=str)] = (1,)
    size: Annotated[int, Declared("A size.", HOW, parse=batch_size)] = 32
    either: Annotated[bool | None, Declared("Either.", HOW, flags=("--either/--or",))] = None
    hidden: int = 3


def typed(*words: str, without: tuple[str, ...] = (), **defaults: Any) -> Any:
    """What a command is handed."""
    found = []
    app = typer.Typer()

    @app.command()
    @takes("kinds", Kinds, without=without, **defaults)
    def command(kinds: Any, other: bool = False) -> None:
        found.append((kinds, other))

    result = CliRunner().invoke(app, list(words))
    return found[0] if found else result.output


def test_a_command_is_handed_what_was_typed() -> None:
    assert typed("--other", without=("sizes",)) == (Kinds(), True)
    words = ["-w", "b", "--number", "4", "--one", "x", "--one", "y", "--size", "auto", "--or", "--task", "u"]
    wanted = Kinds(word="b", number=4, many=("x", "y"), size=0, either=False, task="u")
    assert typed(*words, without=("sizes",)) == (wanted, False)
    assert typed(without=("sizes",), word="z")[0].word == "z"
