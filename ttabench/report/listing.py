"""`ttabench list methods | tasks | models | runs`: what there is, as tables or JSON."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from ttabench import cost
from ttabench.core import architectures, render
from ttabench.core.errors import UnknownName, UserError
from ttabench.core.render import Cell, Table
from ttabench.methods import registry
from ttabench.methods.settings import describe_settings
from ttabench.methods.spec import MethodSpec
from ttabench.run.resolve import STANDING

WHAT = ("methods", "tasks", "models", "runs")


def show(what: str, name: str, out: Path, json: bool) -> None:
    """Print a list.

    Raises:
        UnknownName: no such list, or no such method.
        UserError: a name where none is taken; a corrupted record.
    """
    if what not in WHAT:
        raise UnknownName("list", what, list(WHAT))
    if name and what != "methods":
        raise UserError(f"`list {what}` takes no name, got {name!r}.", f"Run `ttabench list {what}`.")
    tables: dict[str, Callable[[], Table]] = {
        "methods": (lambda: settings_table(name)) if name else methods_table,
        "tasks": tasks_table,
        "models": models_table,
        "runs": lambda: _runs_table(out),
    }
    render.show([tables[what]()], "json" if json else "table")


def methods_table() -> Table:
    """Every registered method."""
    rows: list[tuple[str, ...]] = []
    data: list[Mapping[str, Cell]] = []
    others, faults = registry.installed()
    for fault in faults:
        render.remark(f"Note: {fault}")
    families = [family.stands_for for family in registry.families().values()]
    for spec in [*registry.methods().values(), *others.values(), *families]:
        looks, trained = ("question" if spec.looks_at_question else ""), ("trained" if spec.trainable else "")
        presets = ", ".join(spec.presets)
        rows.append((spec.name, spec.summary, spec.growth, looks, trained, presets, spec.paper))
        data.append({
            "method": spec.name, "summary": spec.summary, "growth": spec.growth, "presets": presets,
            "looks_at_question": spec.looks_at_question, "trainable": spec.trainable, "paper": spec.paper,
        })  # fmt: skip
    columns = ("method", "what it does", "state grows", "looks at", "", "presets", "arXiv")
    caption = "Settings of one: ttabench list methods NAME"
    return Table(title="methods", columns=columns, rows=tuple(rows), data=tuple(data), caption=caption)


def settings_table(method: str, spec: MethodSpec | None = None) -> Table:
    """The settings of one method: type, default, meaning.

    Args:
        method: its name.
        spec: the method, where it is there already.
    """
    spec = spec or registry.find(method)
    meanings = field_docs(spec.Settings)
    described = [(key, kind, default, meanings.get(key, "")) for key, kind, default in describe_settings(spec)]
    data = [
        {"setting": key, "type": kind, "default": str(default), "meaning": meaning}
        for key, kind, default, meaning in described
    ]
    rows = tuple((key, kind, str(default), meaning) for key, kind, default, meaning in described)
    caption = f"Set one with --set key=value.{' Presets: ' + ', '.join(spec.presets) if spec.presets else ''}"
    columns = ("setting", "type", "default", "meaning")
    return Table(title=f"settings of {method}", columns=columns, rows=rows, data=tuple(data), caption=caption)


def field_docs(settings: type[Any]) -> dict[str, str]:
    """The docstring under each field of a class and of those it inherits from; empty where no source can be read."""
    found: dict[str, str] = {}
    for cls in reversed(settings.__mro__[:-1]):
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(cls)))
        except (OSError, TypeError):
            continue
        body = tree.body[0].body if isinstance(tree.body[0], ast.ClassDef) else []
        for field, after in pairwise(body):
            match field, after:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    found[name] = " ".join(text.split())
    return found


def tasks_table() -> Table:
    """Every shipped task card."""
    from ttabench.readers.cards import load_card, names

    rows: list[tuple[str, ...]] = []
    data: list[Mapping[str, Cell]] = []
    for name in names():
        card = load_card(name)
        on_hub = card.source.hub is not None or bool(card.parts)
        sources = "mini, hub" if card.twin and on_hub else "mini" if card.twin else "hub"
        splits, metrics = ", ".join(card.splits), ", ".join(card.metrics)
        rows.append((name, card.title, card.reader, card.main_metric, sources, splits, card.arxiv))
        data.append({
            "task": name, "title": card.title, "reader": card.reader, "metrics": metrics, "chance": card.chance,
            "main_metric": card.main_metric, "sources": sources, "splits": splits, "arxiv": card.arxiv,
            "licence": card.licence,
        })  # fmt: skip
    columns = ("task", "title", "reader", "main metric", "sources", "splits", "arXiv")
    caption = "Files and folders go to --source; a card of your own to --task PATH.yaml."
    return Table(title="tasks", columns=columns, rows=tuple(rows), data=tuple(data), caption=caption)


def models_table() -> Table:
    """Every base model known by name."""
    rows: list[tuple[str, ...]] = []
    data: list[Mapping[str, Cell]] = []
    for name in architectures.names():
        shape = cost.shape_of(name)
        known = architectures.ARCHITECTURES.get(name)
        hub = known.hub if known else "ships with ttabench"
        where = f"{known.package.requirement}, else {hub}" if known and known.package else hub
        parameters = shape.parameters if shape else None
        sizes = (str(shape.layers), str(shape.hidden), f"{shape.heads}/{shape.kv_heads}") if shape else ("-", "-", "-")
        rows.append((name, render.count(parameters), *sizes, where))
        data.append({"model": name, "parameters": parameters, "hub": hub})
    columns = ("model", "#parameters", "#layers", "#width", "#heads/kv", "where")
    standing = ", ".join(f"{name} ({model} on {checkpoint})" for name, (model, checkpoint) in STANDING.items())
    caption = (
        f"Or a folder, a .gguf file or a hub id; {standing}. All but nano build with --random-weights, for profiles."
    )
    return Table(title="models", columns=columns, rows=tuple(rows), data=tuple(data), caption=caption)


def _runs_table(out: Path) -> Table:
    from ttabench.records.schema import load_record
    from ttabench.report.finding import runs_in
    from ttabench.report.tables import runs_table

    if not out.is_dir():
        raise UserError(f"There are no runs in {out}.", "Run `ttabench eval`, or name the folder with --out.")
    return runs_table([(load_record(folder), folder) for folder in runs_in(out)])
