"""`ttabench list methods | tasks | models | adapters | runs`: what there is, as tables or JSON."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from ttabench import cost
from ttabench.core import __version__, amounts, architectures
from ttabench.core.architectures import NANO
from ttabench.core.digests import FileCache, short_hash
from ttabench.core.errors import UnknownName, UserError
from ttabench.methods import registry
from ttabench.methods.checkpoints import CheckpointHeader, read_header, trained_tasks
from ttabench.methods.settings import describe_settings, resolve_preset
from ttabench.methods.spec import MethodSpec
from ttabench.records.schema import RECORD_FILE, RUNS_FILE
from ttabench.run.request import MODEL_ALIASES
from ttabench.run.resolve import ADAPTERS_FOLDER, bundled_adapters, find_adapters
from ttabench.terminal import render
from ttabench.terminal.table import Cell, Table

LISTS = ("methods", "tasks", "models", "adapters", "runs")
EPISODES_COLUMN = "pieces an episode × queries a piece"
COLUMNS = (
    "adapter",
    "#parameters",
    "trained on",
    EPISODES_COLUMN,
    "rate",
    "#seed",
    "#steps",
    "#pieces read",
    "#queries",
    "labels",
    "#tokens",
    "#minutes",
    "lies in",
    "chosen on",
)
CACHE_VERSION = 2
"""Another number where lines of runs come to say something else, so that none is remembered."""
JSON_ONLY_COLUMNS = (EPISODES_COLUMN, "rate", "#pieces read", "#queries", "#minutes", "chosen on")
"""Of an adapter, which --json has."""
GOLD_LOSSES = ("retrieval_aux", "attention_aux")
"""Weights of MAC's losses that are told which document holds the answer (`Ask.source_key`)."""


def show(
    what: str, name: str, out: Path, *, method: str = "", task: str = "", json: bool = False
) -> None:
    """Print a list (of runs those of a method, of a task)."""
    if what not in LISTS:
        raise UnknownName("list", what, list(LISTS))
    if name and what != "methods":
        raise UserError(
            f"`list {what}` takes no name, got {name!r}.", f"Run `ttabench list {what}`."
        )
    if what != "runs" and (method or task):
        raise UserError(
            "--method and --task choose among runs.", "Run `ttabench list runs`, or leave them out."
        )
    tables: dict[str, Callable[[], Table]] = {
        "methods": (lambda: settings_table(name, nano=True)) if name else methods_table,
        "tasks": tasks_table,
        "models": models_table,
        "adapters": adapters_table,
        "runs": lambda: _runs_table(out, method, task),
    }
    table = tables[what]()
    for column in JSON_ONLY_COLUMNS if what == "adapters" and not json else ():
        table = table.without(column)
    render.print_tables([table], "json" if json else "table")


def _table(
    title: str, heads: Mapping[str, str], data: list[dict[str, Cell]], caption: str = ""
) -> Table:
    """Rows of data as they are read: under each heading the cells of one key."""
    rows = tuple(tuple(str(row[key]) for key in heads) for row in data)
    return Table(
        title=title, columns=tuple(heads.values()), rows=rows, data=tuple(data), caption=caption
    )


def methods_table() -> Table:
    """Every registered method."""
    others, faults = registry.installed()
    for fault in faults:
        render.print_note(f"Note: {fault}")
    specs = [*registry.methods().values(), *others.values(), *registry.families().values()]
    data: list[dict[str, Cell]] = [
        {
            "method": spec.name,
            "summary": spec.summary,
            "growth": spec.growth,
            "presets": ", ".join(spec.presets),
            "looks_at_question": spec.query_aware,
            "trainable": spec.trainable,
            "paper": spec.paper,
        }
        for spec in specs
    ]
    rows = tuple(
        (
            spec.name,
            spec.summary,
            spec.growth,
            "question" * spec.query_aware,
            "trained" * spec.trainable,
            ", ".join(spec.presets),
            spec.paper,
        )
        for spec in specs
    )
    columns = ("method", "what it keeps", "state grows", "looks at", "", "presets", "arXiv")
    return Table(
        title="methods",
        columns=columns,
        rows=rows,
        data=tuple(data),
        names=("method", "arXiv"),
        spare=("presets", "", "looks at", "state grows"),
        caption="Settings of one: ttabench list methods NAME",
    )


def settings_table(method: str, spec: MethodSpec | None = None, *, nano: bool = False) -> Table:
    """The settings of one method (`spec`, where it is there already): type, default, meaning; with `nano` the value in
    the preset of that model, too."""
    spec = spec or registry.find_method(method)
    preset, meanings = resolve_preset(spec, "", NANO) if nano else "", field_docs(spec.Settings)
    data: list[dict[str, Cell]] = [
        {
            "setting": key,
            "type": kind,
            "default": str(default),
            "meaning": meanings.get(key, ""),
            **({"preset": str(getattr(spec.presets[preset], key))} if preset else {}),
        }
        for key, kind, default in describe_settings(spec)
    ]
    heads = {
        key: f"in {preset}" if key == "preset" else key
        for key in ("setting", "type", "default", *["preset"] * bool(preset), "meaning")
    }
    caption = f"Set one with --set key=value.{' Presets: ' + ', '.join(spec.presets) if spec.presets else ''}"
    if spec.trainable:
        caption += "\nA checkpoint, shipped or given, brings its own settings."
    table = _table(f"settings of {method}", heads, data, caption)
    return replace(table, names=("setting",), spare=("type", *("default",) * bool(preset)))


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
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(
                    value=ast.Constant(value=str(text))
                ):
                    texts_by_field[name] = " ".join(text.split())
    return texts_by_field


def tasks_table() -> Table:
    """Every shipped task card."""
    from ttabench.readers.cards import card_names, load_card
    from ttabench.readers.sources import default_source

    data: list[dict[str, Cell]] = []
    for card in map(load_card, card_names()):
        on_hub, usual = (
            card.source.hub is not None or bool(card.parts),
            default_source(card, nano=False),
        )
        data.append(
            {
                "task": card.name,
                "title": card.title,
                "reader": card.reader,
                "metrics": ", ".join(card.metrics),
                "chance": card.chance,
                "main_metric": card.main_metric,
                "sources": ", ".join(
                    [
                        *(["mini"] if card.twin else []),
                        *([usual] if on_hub or usual != "hub" else []),
                    ]
                ),
                "splits": ", ".join(card.splits),
                "arxiv": card.arxiv,
                "licence": card.licence,
            }
        )
    heads = {
        "task": "task",
        "title": "title",
        "reader": "reader",
        "main_metric": "main metric",
        "sources": "sources",
        "splits": "splits",
        "arxiv": "arXiv",
    }
    table = _table(
        "tasks",
        heads,
        data,
        "Files and folders go to --source; a card of your own to --task PATH.yaml.",
    )
    return replace(
        table,
        names=("task", "reader", "main metric", "sources", "arXiv"),
        spare=("splits", "reader", "sources", "arXiv"),
    )


def models_table() -> Table:
    """Every base model known by name."""
    rows, data = list[tuple[str, ...]](), list[dict[str, Cell]]()
    for name in architectures.model_names():
        shape, known = cost.shape_of(name), architectures.ARCHITECTURES.get(name)
        hub = known.hub if known else "ships with ttabench"
        where = f"{known.package.requirement}, else {hub}" if known and known.package else hub
        parameters = shape.parameters if shape else None
        sizes = (
            (str(shape.layers), str(shape.hidden), f"{shape.heads}/{shape.kv_heads}")
            if shape
            else ("-", "-", "-")
        )
        rows.append((name, amounts.format_count(parameters), *sizes, where))
        data.append({"model": name, "parameters": parameters, "hub": hub})
    standing = ", ".join(
        f"{name} ({model} on {checkpoint})" for name, (model, checkpoint) in MODEL_ALIASES.items()
    )
    return Table(
        title="models",
        columns=("model", "#params", "#layers", "#width", "#heads/kv", "where"),
        rows=tuple(rows),
        data=tuple(data),
        names=("model",),
        spare=("#heads/kv", "#width", "#layers", "where"),
        caption=f"Or a folder, a .gguf file or a hub id; {standing}. All but nano build with --random-weights, for "
        "profiles.",
    )


def _runs_table(out: Path, method: str, task: str) -> Table:
    from ttabench.report.selection import refuse_all_damaged, run_folders
    from ttabench.report.tables import RunLine, runs_table

    if not out.is_dir():
        raise UserError(
            f"There are no runs in {out}.", "Run `ttabench eval`, or name the folder with --out."
        )
    memory = FileCache(f"runs/{short_hash(f'{CACHE_VERSION} {__version__} {out.absolute()}')}")
    lines, damaged = list[RunLine](), list[str]()
    for folder_with_runs in run_folders(out):
        found: dict[str, RunLine] = {}
        packed, folders = (
            [*folder_with_runs.glob(RUNS_FILE)],
            sorted(folder_with_runs.glob(f"*/{RECORD_FILE}")),
        )
        for file in [*packed, *folders]:
            try:  # a run in a folder of its own stands for the same, packed: then what is packed does not tell all
                runs, faults = (
                    _read_lines(file)
                    if folders and file in packed
                    else memory.get_or_compute(file, _read_lines)
                )
            except UserError as error:
                damaged.append(str(error))
                continue
            damaged += faults
            found |= {name: (cells, data) for name, cells, data in runs}
        made = sorted(found, key=lambda name: (found[name][1]["created"], name))
        lines += [
            (found[name][0], {**found[name][1], "path": str(folder_with_runs / name)})
            for name in made
        ]
    memory.save()
    refuse_all_damaged(len(lines), damaged)
    for line in damaged:
        render.print_note(f"Left out: {line}")
    return runs_table(
        [
            line
            for line in lines
            if method in ("", line[1]["method"]) and task in ("", line[1]["task"])
        ]
    )


def _read_lines(file: Path) -> tuple[list[Any], list[str]]:
    """Of each run that a file holds its folder's name and its line, and what is damaged."""
    from ttabench.report.selection import load_runs, packed_run_dates
    from ttabench.report.tables import run_line

    stored = load_runs(packed_run_dates(file.parent) if file.name == RUNS_FILE else [file.parent])
    return [(folder.name, *run_line(record)) for folder, record in stored.runs], list(
        stored.damaged
    )


def adapters_table() -> Table:
    """Every adapter that is here, a row each."""
    words, here = bundled_adapters(), find_adapters()
    data = [
        {
            "adapter": name,
            **_training_cells(read_header(folder)),
            "lies_in": "package" if folder.is_relative_to(ADAPTERS_FOLDER) else "results/adapters",
            "chosen_on": words[name],
        }
        for name, folder in here.items()
    ]
    rows = tuple(tuple(_format_cell(name, value) for name, value in row.items()) for row in data)
    caption = (
        "Load one with --checkpoint shipped:NAME. Rate: the highest. Labels: what training was told beside texts and "
        "answers. Minutes beside other work, on one or two cores."
    )
    if elsewhere := sorted(words.keys() - here.keys()):
        caption += f" In results/adapters of the project's repository, not installed: {', '.join(elsewhere)}."
    return Table(
        title="adapters",
        columns=COLUMNS,
        rows=rows,
        data=tuple(data),
        caption=caption,
        names=("adapter",),
    )


def _training_cells(header: CheckpointHeader) -> dict[str, Cell]:
    training = header.training
    config = training["config"]
    data = config["data"]
    options = "".join(f" {option}" for option in data["options"])
    after = ", after an earlier stage" if data.get("begins") else ""
    return {
        "parameters": header.parameters,
        "trained_on": f"{' + '.join(trained_tasks(training))}{options}, {data['source']} {data['split']}{after}",
        "episodes": f"{', '.join(map(str, data['documents']))} × {data['questions']}",
        "rate": f"{config['lr']:g} {config['schedule']} {config.get('optimizer', 'adam')}",
        "seed": config["seed"],
        "steps": training["steps"],
        "pieces_read": training["observes"],
        "queries": training["asks"],
        "labels": "gold documents"
        if any(header.settings.get(name) for name in GOLD_LOSSES)
        else "none",
        "tokens": training.get("tokens"),
        "minutes": training["seconds"] / 60,
    }


def _format_cell(name: str, value: Cell) -> str:
    if name in ("parameters", "tokens"):
        return amounts.format_count(value) if isinstance(value, int) else ""
    return (
        f"{value:.0f}"
        if name == "minutes"
        else f"{value:,}"
        if isinstance(value, int)
        else str(value)
    )
