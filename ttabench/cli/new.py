"""`ttabench new KIND NAME`: a template of a method, task, metric or package."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import Annotated, Literal

import typer

from ttabench.cli import options as o
from ttabench.core.declared import EXECUTION_GROUP
from ttabench.core.errors import UserError
from ttabench.terminal import render

TEMPLATES = Path(__file__).parents[1] / "assets" / "templates"
"""A folder per kind. Its files and their names have the placeholders `my_name`, `MY_NAME` and
`MyName`."""
NEXT_COMMANDS = {
    "method": ("check {}.py", "eval --method {}.py --task streamingqa"),
    "eviction": ("check {}.py", "eval --method {}.py --task streamingqa --keep 0.2"),
    "task": ("eval --method icl --task {0}.yaml --source {0}.jsonl",),
    "metric": ("eval --method icl --task streamingqa --metric {}.py",),
    "package": (
        "check my_name",
        "eval --method my_name --task {0}/my_name.yaml --source {0}/my_name.jsonl",
    ),
}
"""Commands that use the files of a template, by kind."""


def new(
    kind: Annotated[
        Literal["method", "eviction", "task", "metric", "package"],
        typer.Argument(help="Kind of template."),
    ],
    name: Annotated[str, typer.Argument(help="Name: lower-case letters, digits and _.")],
    out: Annotated[
        Path, o.folder(EXECUTION_GROUP, "Folder to write the files to.", "--out", "-o")
    ] = Path(),
) -> None:
    """Write a template that works as it is, to be edited.

    method: a file that keeps the last tokens. eviction: a file that scores the slots of the KV
    cache. task: a card with sample data. metric: a file. package: an installable package with a
    method, a dataset reader, a metric and a test.
    """
    from ttabench.core.files import (
        make_writable_folder,
        read_text,
        refuse_foreign_path,
        write_atomically,
    )
    from ttabench.core.plugins import PLUGIN_NAME_PATTERN
    from ttabench.methods.registry import methods
    from ttabench.readers.cards import CARDS
    from ttabench.stats.metrics import METRICS

    if not PLUGIN_NAME_PATTERN.fullmatch(name) or name in (*methods(), *CARDS, *METRICS):
        hint = "Use lower-case letters, digits and _, and no name of ttabench's own."
        raise UserError(f"The name {name!r} is invalid or in use.", hint)
    class_name = "".join(part.capitalize() for part in name.split("_"))

    def fill_in(text: str) -> str:
        named = text.replace("my_name", name).replace("MyName", class_name)
        return named.replace("MY_NAME", name.upper())

    folder = TEMPLATES / kind
    paths = {
        out / fill_in(str(path.relative_to(folder))): path
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.suffix != ".pyc"
    }
    for path in paths:
        refuse_foreign_path(path, lambda _: False)
    for path, template in paths.items():
        make_writable_folder(path.parent, out)
        write_atomically(path, fill_in(read_text(template)))
        render.print_line(str(path))
    place = quote(str(out / name) if out.is_absolute() else f"./{out / name}")
    if kind == "package":
        render.print_note(f"Install: pip install -e {place}")
    for command in NEXT_COMMANDS[kind]:
        render.print_note(f"Run: ttabench {fill_in(command).format(place)}")
