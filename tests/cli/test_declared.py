"""Tests of options that are declared once: what is added in one file is an option, part of a run, and checked."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.testing import CliRunner

from tests.places import ROOT
from ttabench.cli.options import takes
from ttabench.core.declared import HOW, RUN, Declared
from ttabench.records import run_fields
from ttabench.records.run_fields import batch_size

WIDER = """    heat: Annotated[float, Declared("How warm answers are.", WHAT)] = 0.0
    state_of: str = "own"
"""
SCRIPT = """
import sys, types
import ttabench.records
module = types.ModuleType("ttabench.records.run_fields")
sys.modules[module.__name__] = ttabench.records.run_fields = module
exec(compile(open(sys.argv[1], encoding="utf-8").read(), sys.argv[1], "exec"), module.__dict__)

import json
from pathlib import Path
from ttabench.cli import app
from ttabench.core.errors import UserError
from ttabench.records.schema import load_record
from ttabench.report.about import command_of

out = Path(sys.argv[2])
base = ["eval", "--method", "none", "--task", "streamingqa", "--task-set", "documents=2", "--limit", "2",
        "--out", str(out), "--quiet"]
assert app.run(base) == 0
assert app.run([*base, "--heat", "0.5"]) == 0
first, second = sorted((load_record(each) for each in out.iterdir()), key=lambda each: each.config["heat"])
assert (first.config["heat"], second.config["heat"]) == (0.0, 0.5)
print("id:", first.id)
assert "--heat" not in command_of(first)[0]
assert "--heat 0.5" in command_of(second)[0]
file = out / second.id / "run.json"
told = json.loads(file.read_text())
told["config"]["heat"] = "hot"
file.write_text(json.dumps(told))
try:
    load_record(file.parent)
except UserError as error:
    assert "config.heat" in str(error), error
else:
    raise AssertionError("a text passes for a number")
assert app.run(["train", "--help"]) == 0
"""
"""An option more than the package has: what follows from it without another line."""


def test_an_option_is_added_in_one_file(tmp_path: Path) -> None:
    source = Path(run_fields.__file__).read_text(encoding="utf-8")
    (tmp_path / "wider.py").write_text(source.replace('    state_of: str = "own"\n', WIDER), encoding="utf-8")
    words = [sys.executable, "-c", SCRIPT, str(tmp_path / "wider.py"), str(tmp_path / "runs")]
    found = subprocess.run(words, capture_output=True, text=True, cwd=ROOT, check=False)
    assert found.returncode == 0, found.stderr
    assert "--heat" in found.stdout
    plain = [sys.executable, "-m", "ttabench", "eval", "--method", "none", "--task", "streamingqa", "--task-set",
             "documents=2", "--limit", "2", "--out", str(tmp_path / "plain"), "--quiet"]  # fmt: skip
    stored = subprocess.run(plain, capture_output=True, text=True, cwd=ROOT, check=True).stdout.strip()
    assert f"id: {Path(stored).name}\n" in found.stdout, "an option at its default changes no id"


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


def typed(*words: str, said: bool = False, without: tuple[str, ...] = (), **defaults: Any) -> Any:
    """What a command is handed."""
    found = []
    app = typer.Typer()

    @app.command()
    @takes("kinds", Kinds, said=said, without=without, **defaults)
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


def test_a_command_is_handed_only_what_was_said() -> None:
    assert typed(typed_only=True)[0] == {}
    assert typed("--or", "--sizes", "2,3", typed_only=True)[0] == {"either": False, "sizes": "2,3"}
