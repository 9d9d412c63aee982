"""Every block of code in the README and the documentation runs, or is what it is said to be."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import typer.main
from typer.main import TyperGroup

from tests.conftest import Command
from tests.docs.pages import DOCS, Block, blocks, commands
from tests.places import ROOT
from ttabench.cli.app import app
from ttabench.core.declared import parse_assignments
from ttabench.methods import registry
from ttabench.methods.settings import build_settings, parse_settings, resolve_preset
from ttabench.readers import cards, load
from ttabench.readers.formats import is_readable
from ttabench.stats.metrics import metric

COMMANDS = commands()
OURS = {line: words[1:] for line, words in COMMANDS.items() if words[0] == "ttabench"}
FILES = [block for block in blocks("python") if block.title]
SCRIPTS: dict[str, str] = {}
"""The Python of a page, which runs as one."""
for each in blocks("python"):
    if not each.title and each.page != "README.md":
        SCRIPTS[each.page] = SCRIPTS.get(each.page, "") + each.code


def test_every_block_reports_what_it_is() -> None:
    for block in blocks():
        assert block.language in ("bash", "python", "yaml", "toml", "text"), block


def test_commands_of_ours_parse_and_name_what_there_is() -> None:
    group = typer.main.get_command(app)
    assert isinstance(group, TyperGroup)
    for words in {tuple(words) for words in OURS.values()}:
        names_what_there_is(group, words)


def names_what_there_is(group: TyperGroup, words: tuple[str, ...]) -> None:
    context = group.make_context("ttabench", list(words), resilient_parsing=False)
    command = group.get_command(context, words[0])
    assert command is not None, words
    typed = command.make_context(words[0], list(words[1:]), parent=context).params
    if words[0] in ("compare", "report", "export"):
        assert set(typed["task"] or ()) <= set(cards.CARDS)
        return
    task = typed.get("task") or None
    assert (
        task is None or task in cards.CARDS or task.endswith(".yaml") or is_readable(Path(task))
    ), task
    if words[0] == "eval" and task in cards.CARDS:
        told = [
            text for text in typed["task_options"] or () if not text.startswith("articles=")
        ]  # twins have few titles
        load(task, source="mini", options=parse_assignments(told, "--task-set"))
    for method in filter(None, [typed.get("method"), *(typed.get("methods") or "").split(",")]):
        if method.endswith((".py", ".parquet")) or method.startswith("kvpress:"):
            continue
        spec = registry.find_method(method)
        if words[0] not in ("profile", "list"):
            build_settings(
                spec,
                parse_settings(spec, parse_assignments(typed.get("settings") or ())),
                resolve_preset(spec, typed["preset"], "nano"),
            )


@pytest.mark.parametrize("page", ["docs/guide/faq.md", "docs/guide/comparisons.md"])
def test_every_command_of_a_page_of_questions_runs(
    page: str, ttabench: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "docs").symlink_to(ROOT / "docs")
    monkeypatch.chdir(tmp_path)
    asked = [words for line, words in OURS.items() if line.startswith(page)]
    assert len(asked) >= 8
    for words in asked:
        ran = ttabench(*words)
        assert ran.code == 0, (words, ran.err)
        assert ran.out, words


def test_every_other_command_is_of_something_that_is_there() -> None:
    sessions = re.findall(
        r"@nox\.session\ndef (\w+)", (ROOT / "noxfile.py").read_text(encoding="utf-8")
    )
    for line, (program, *words) in COMMANDS.items():
        match program, words:
            case "nox", ["-s", *named]:
                before = named[: named.index("--")] if "--" in named else named
                assert set(before) <= set(sessions), line
            case "python", [script, *options] if script.endswith(".py"):
                source = (ROOT / script).read_text(encoding="utf-8")
                assert all(f'"{word}"' in source for word in options if word.startswith("--")), line
            case _:
                assert program in (
                    "ttabench",
                    "pip",
                    "python3",
                    "python",
                    "pytest",
                    "pre-commit",
                ), line


@pytest.mark.parametrize("page", SCRIPTS)
def test_python_runs_and_prints_what_stands_after_it(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The blocks of a page, one after the other; those of the README run in tests/methods/test_session.py."""
    expected = re.findall(r"print\(.*\)  # (.*)", SCRIPTS[page])
    assert expected
    monkeypatch.chdir(tmp_path)
    exec(compile(SCRIPTS[page], page, "exec"), {"__name__": "__main__"})
    assert capsys.readouterr().out.splitlines() == expected


@pytest.mark.parametrize("block", FILES, ids=lambda block: block.title)
def test_a_method_written_in_a_page_keeps_every_promise_and_a_metric_is_one(
    block: Block, ttabench: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(block.title).write_text(block.code, encoding="utf-8")
    if "spec = " not in block.code:
        assert metric(f"./{block.title}", files=True).name
        return
    ran = ttabench("check", f"./{block.title}")
    assert ran.code == 0, ran.out + ran.err


def test_the_card_in_a_page_reads_the_rows_below_it(tmp_path: Path) -> None:
    (card,) = [each for each in blocks("yaml") if not each.title]
    (rows,) = [each.code for each in blocks("text") if each.page == card.page]
    (tmp_path / "office.yaml").write_text(card.code, encoding="utf-8")
    name, text = rows.removeprefix("# ").split("\n", 1)
    (tmp_path / name).write_text(text, encoding="utf-8")
    (episode,) = load(
        str(tmp_path / "office.yaml"), source=str(tmp_path / name), split="test", seed=0
    ).episodes()
    assert [ask.answers[0] for ask in episode.queries()] == ["room 12", "room 7"]


def test_a_suite_in_a_page_is_the_file_that_it_names() -> None:
    titled = [each for each in blocks("yaml") if each.title]
    assert titled
    for block in titled:
        assert (ROOT / block.title).read_text(encoding="utf-8") == block.code


def test_entry_points_in_pages_are_of_the_package_that_they_speak_of() -> None:
    found = list(blocks("toml"))
    assert found
    for block in found:
        for group, offers in tomllib.loads(block.code)["project"]["entry-points"].items():
            assert group in ("ttabench.methods", "ttabench.metrics", "ttabench.readers")
            for place in offers.values():
                renamed = place.replace("notebook", "my_name").replace("NOTEBOOK", "MY_NAME")
                module, _, name = renamed.partition(":")
                template = ROOT / "ttabench/assets/templates/package/my_name"
                path = template / module.replace(".", "/")
                file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
                assert re.search(rf"^(def )?{name}\b", file.read_text(encoding="utf-8"), re.M), (
                    place
                )


def test_the_notebook_runs_and_ends_in_a_figure(tmp_path: Path) -> None:
    notebook = json.loads((DOCS / "examples/first.ipynb").read_text(encoding="utf-8"))
    cells = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert not any(cell.get("outputs") for cell in notebook["cells"]), (
        "nothing in it can be out of date"
    )
    code = "\n".join(
        [
            *cells,
            "assert axes.get_xlabel() and len(axes.texts) == len(runs)",
            "figure.savefig('a.png')",
        ]
    )
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "MPLBACKEND": "Agg"}
    words = [sys.executable, "-c", code]
    done = subprocess.run(
        words, capture_output=True, text=True, cwd=tmp_path, env=variables, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "a.png").stat().st_size > 5000
