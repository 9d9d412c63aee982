"""`ttabench list methods | tasks | models | adapters | runs`: what there is, as tables or JSON."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from ttabench import cost
from ttabench.core import amounts, architectures
from ttabench.core.architectures import NANO
from ttabench.core.errors import UnknownName, UserError
from ttabench.methods import registry
from ttabench.methods.settings import describe_settings, preset_for
from ttabench.methods.spec import MethodSpec
from ttabench.run.request import STANDING
from ttabench.terminal import render
from ttabench.terminal.table import Cell, Table

WHAT = ("methods", "tasks", "models", "adapters", "runs")


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """Filters of a list: folder, method and task of runs; model and preset of a method's settings."""

    out: Path
    method: str = ""
    task: str = ""
    model: str = NANO
    preset: str = ""


def show(what: str, name: str, wanted: Wanted, json: bool) -> None:
    """Print a list; what can be listed where none is named.

    Raises:
        UnknownName: no such list, no such method, no such preset.
        UserError: a name or a filter where none is taken; a corrupted record.
    """
    if what and what not in WHAT:
        raise UnknownName("list", what, list(WHAT))
    if name and what != "methods":
        raise UserError(f"`list {what}` takes no name, got {name!r}.", f"Run `ttabench list {what}`.")
    if what != "runs" and (wanted.method or wanted.task):
        raise UserError("--method and --task choose among runs.", "Run `ttabench list runs`, or leave them out.")
    if not name and (wanted.preset or wanted.model != NANO):
        raise UserError("--model and --preset are of one method.", "Run `ttabench list methods NAME`.")
    tables: dict[str, Callable[[], Table]] = {
        "": lambda: _overview(wanted.out),
        "methods": (lambda: _settings(name, wanted)) if name else _methods,
        "tasks": tasks_table,
        "models": models_table,
        "adapters": _adapters,
        "runs": lambda: _runs_table(wanted),
    }
    render.show([tables[what]()], "json" if json else "table")


def _overview(out: Path) -> Table:
    """Kinds of lists, and how many items each has."""
    from ttabench.readers.cards import names
    from ttabench.report.adapters import shipped
    from ttabench.report.finding import ids_in

    counts = (
        ("methods", len(registry.methods()) + len(registry.families()), "how to adapt; `list methods NAME`: settings"),
        ("tasks", len(names()), "what is read and asked"),
        ("models", len(architectures.names()), "base models known by name"),
        ("adapters", len(shipped()), "trained parameters of methods that ship"),
        ("runs", len(ids_in(out)), f"what is stored in {out}"),
    )
    rows = tuple((f"list {kind}", str(count), meaning) for kind, count, meaning in counts)
    data: tuple[Mapping[str, Cell], ...] = tuple(
        {"list": kind, "count": count, "meaning": meaning} for kind, count, meaning in counts
    )
    columns = ("ttabench", "#there are", "of what")
    return Table(title="lists", columns=columns, rows=rows, data=data, names=("ttabench",))


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
    columns = ("method", "what it keeps", "state grows", "looks at", "", "presets", "arXiv")
    caption = "Settings of one: ttabench list methods NAME"
    return Table(title="methods", columns=columns, rows=tuple(rows), data=tuple(data), caption=caption)


def _methods() -> Table:
    """The same for people: a line a method."""
    table = methods_table()
    for column in ("state grows", "looks at", "", "presets"):
        table = table.without(column)
    return replace(table, names=("method", "arXiv"))


def _adapters() -> Table:
    """The adapters that ship, for people: a line an adapter."""
    from ttabench.report.adapters import EPISODES, adapters_table

    table = adapters_table()
    for column in (EPISODES, "rate", "#pieces read", "#queries", "#minutes", "chosen on"):
        table = table.without(column)
    return replace(table, caption=f"{table.caption} All of it: --json.")


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


def _settings(method: str, wanted: Wanted) -> Table:
    """The same for people: default and preset side by side, the type before the meaning."""
    spec = registry.find(method)
    table, preset = settings_table(method, spec), preset_for(spec, wanted.preset, wanted.model)
    values = [str(getattr(spec.presets[preset], row[0])) for row in table.rows] if preset else []
    rows: list[tuple[str, ...]] = [
        (key, default, f"({_kind(kind)}) {meaning}".rstrip()) for key, kind, default, meaning in table.rows
    ]
    columns: tuple[str, ...] = ("setting", "default", "meaning")
    if preset:
        rows = [(*row[:2], value, row[2]) for row, value in zip(rows, values, strict=True)]
        columns = ("setting", "default", f"in {preset}", "meaning")
        data = tuple({**row, "preset": value} for row, value in zip(table.data, values, strict=True))
        table = replace(table, data=data)
    caption = f"{table.caption}\n{_taken(spec, wanted, preset)}"
    spare = columns[1:-2]  # the defaults, where a preset stands beside them
    return replace(table, columns=columns, rows=tuple(rows), names=columns[:1], caption=caption, spare=spare)


def _kind(kind: str) -> str:
    """A type as it is typed: `auto or yes or no`, `list of str`."""
    return kind.replace("'", "").replace("tuple[", "list of ").replace(", ...]", "")


def _taken(spec: MethodSpec, wanted: Wanted, preset: str) -> str:
    """Which settings `eval` begins with."""
    sentence = f"`eval --model {wanted.model}` begins with " + (f"preset {preset}" if preset else "the defaults")
    if wanted.preset:
        sentence = f"`eval --preset {preset}` begins with that preset"
    more = "; a checkpoint, shipped or given, brings its own settings." if spec.trainable else "."
    return sentence + (more if not wanted.preset else ".")


def field_docs(settings: type[Any]) -> dict[str, str]:
    """The docstring under each field of a class and of those it inherits from; empty where no source can be read."""
    if made_of := getattr(settings, "MADE_OF", ()):
        docs = [(label, field_docs(part)) for label, part in made_of]
        return {f"{label}_{key}": text for label, own in docs for key, text in own.items()}
    texts_by_field: dict[str, str] = {}
    for cls in reversed(settings.__mro__[:-1]):
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(cls)))
        except (OSError, TypeError):
            continue
        body = tree.body[0].body if isinstance(tree.body[0], ast.ClassDef) else []
        for field, after in pairwise(body):
            match field, after:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    texts_by_field[name] = " ".join(text.split())
    return texts_by_field


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
    return Table(
        title="tasks", columns=columns, rows=tuple(rows), data=tuple(data), caption=caption,
        names=("task", "reader", "main metric", "sources", "arXiv"), spare=("splits", "reader", "sources", "arXiv"),
    )  # fmt: skip


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
        rows.append((name, amounts.count(parameters), *sizes, where))
        data.append({"model": name, "parameters": parameters, "hub": hub})
    columns = ("model", "#params", "#layers", "#width", "#heads/kv", "where")
    standing = ", ".join(f"{name} ({model} on {checkpoint})" for name, (model, checkpoint) in STANDING.items())
    caption = (
        f"Or a folder, a .gguf file or a hub id; {standing}. All but nano build with --random-weights, for profiles."
    )
    return Table(
        title="models", columns=columns, rows=tuple(rows), data=tuple(data), caption=caption, names=("model",),
        spare=("#heads/kv", "#width", "#layers", "where"),
    )  # fmt: skip


def _runs_table(wanted: Wanted) -> Table:
    from ttabench.report.finding import runs_below
    from ttabench.report.loading import loaded
    from ttabench.report.tables import runs_table

    if not wanted.out.is_dir():
        raise UserError(f"There are no runs in {wanted.out}.", "Run `ttabench eval`, or name the folder with --out.")
    stored = loaded(runs_below(wanted.out))
    for line in stored.damaged:
        render.remark(f"Left out: {line}")
    kept = [
        (record, folder)
        for folder, record in stored.runs
        if wanted.method in ("", record.config.get("method")) and wanted.task in ("", record.config.get("task"))
    ]
    if not kept and (wanted.method or wanted.task):
        asked = " and ".join(filter(None, [wanted.method, wanted.task]))
        raise UserError(f"No run in {wanted.out} is of {asked}.", f"See `ttabench list runs --out {wanted.out}`.")
    return runs_table(kept)
