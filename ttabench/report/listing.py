"""`ttabench list methods | tasks | models | adapters | runs`, as tables or JSON."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

from ttabench import cost
from ttabench.core import __version__, amounts, architectures
from ttabench.core.architectures import NANO
from ttabench.core.digests import FileCache, short_hash
from ttabench.core.errors import UserError, require_known
from ttabench.methods import registry
from ttabench.methods.checkpoints import CheckpointHeader, read_header, trained_tasks
from ttabench.methods.settings import describe_settings, resolve_preset
from ttabench.methods.spec import MethodSpec
from ttabench.records.schema import RECORD_FILE, RUNS_FILE
from ttabench.run.adapters import ADAPTERS_FOLDER, bundled_adapters, find_adapters
from ttabench.run.request import MODEL_ALIASES
from ttabench.terminal import render
from ttabench.terminal.table import Columns, DataRow, Table

LISTS = ("methods", "tasks", "models", "adapters", "runs")
EPISODES_COLUMN = "chunks per episode × queries per chunk"
CACHE_VERSION = 3
"""Increase it when the cells of runs change, so that cached ones are not used."""
DOCS_ONLY_COLUMNS = (
    EPISODES_COLUMN,
    "learning rate",
    "#chunks read",
    "#queries",
    "#minutes",
    "selected on",
)
"""Columns of adapters that a screen does not show."""
GOLD_LOSSES = ("retrieval_aux", "attention_aux")
"""Weights of MAC's losses that use the gold document of a query (`Query.source_key`)."""


def show(
    what: str,
    name: str,
    out: Path,
    *,
    method: str = "",
    task: str = "",
    stale: bool = False,
    json: bool = False,
) -> None:
    """Print a list; runs can be filtered by method and task, and by changed inputs (`stale`).

    Raises:
        UserError: the list is unknown, or an option does not apply to it.
    """
    require_known("list", what, LISTS)
    if name and what != "methods":
        raise UserError(
            f"`list {what}` takes no name, got {name!r}.", f"Run `ttabench list {what}`."
        )
    if what != "runs" and (method or task or stale):
        raise UserError(
            "--method, --task and --stale filter runs only.",
            "Remove them, or run `ttabench list runs`.",
        )
    tables: dict[str, Callable[[], Table]] = {
        "methods": (lambda: settings_table(name, nano=True)) if name else methods_table,
        "tasks": tasks_table,
        "models": models_table,
        "adapters": adapters_table,
        "runs": lambda: _runs_table(out, method, task, stale),
    }
    table = tables[what]()
    if what == "adapters":
        table = table.without(*DOCS_ONLY_COLUMNS)
    render.print_tables([table], "json" if json else "table")


def methods_table() -> Table:
    """Return all registered and installed methods."""
    others, faults = registry.methods().installed()
    for fault in faults:
        render.print_note(f"Note: {fault}")
    data = [
        {
            "method": spec.name,
            "summary": spec.summary,
            "growth": spec.growth,
            "presets": ", ".join(spec.presets),
            "looks_at_question": spec.query_aware,
            "trainable": spec.trainable,
            "paper": spec.paper,
        }
        for spec in [*registry.methods().values(), *others.values(), *registry.families().values()]
    ]
    columns = {
        "method": "method",
        "state": "summary",
        "state growth": "growth",
        "query-aware": "looks_at_question",
        "trainable": "trainable",
        "presets": "presets",
        "arXiv": "paper",
    }
    return Table.of(
        "methods",
        data,
        columns,
        names=("method", "arXiv"),
        spare=("presets", "trainable", "query-aware", "state growth"),
        caption="Settings of one method: ttabench list methods NAME",
    )


def settings_table(method: str, spec: MethodSpec | None = None, *, nano: bool = False) -> Table:
    """Return the settings of a method: name, type, default and meaning.

    With `nano`, a further column has the values of the preset for the model `nano`.
    """
    spec = spec or registry.find_method(method)
    preset = resolve_preset(spec, "", NANO) if nano else ""
    meanings = field_docs(spec.Settings)
    data = [
        {
            "setting": key,
            "type": kind,
            "default": str(default),
            "meaning": meanings.get(key, ""),
            **({"preset": str(getattr(spec.presets[preset], key))} if preset else {}),
        }
        for key, kind, default in describe_settings(spec)
    ]
    columns = {
        **{key: key for key in ("setting", "type", "default")},
        **({f"in {preset}": "preset"} if preset else {}),
        "meaning": "meaning",
    }
    caption = "Set one with --set key=value."
    if spec.presets:
        caption += f" Presets: {', '.join(spec.presets)}"
    if spec.trainable:
        caption += "\nA checkpoint has its own settings."
    spare = ("type", "default") if preset else ("type",)
    title = f"settings of {method}"
    return Table.of(title, data, columns, caption=caption, names=("setting",), spare=spare)


def field_docs(settings: type[Any]) -> dict[str, str]:
    """Return the docstrings of the fields of a class, also inherited ones; empty without source."""
    if members := getattr(settings, "MADE_OF", ()):
        docs = [(label, field_docs(member)) for label, member in members]
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
    """Return all bundled task cards."""
    from ttabench.readers.cards import CARDS
    from ttabench.readers.sources import default_source

    data = []
    for card in CARDS.values():
        source = default_source(card, nano=False)
        is_published = card.source.hub is not None or bool(card.parts) or source != "hub"
        data.append(
            {
                "task": card.name,
                "title": card.title,
                "reader": card.reader,
                "metrics": ", ".join(card.metrics),
                "chance": card.chance,
                "main_metric": card.main_metric,
                "sources": ", ".join(["mini"] * bool(card.twin) + [source] * is_published),
                "splits": ", ".join(card.splits),
                "arxiv": card.arxiv,
                "licence": card.licence,
            }
        )
    columns = {
        **{key: key for key in ("task", "title", "reader")},
        "main metric": "main_metric",
        "sources": "sources",
        "splits": "splits",
        "arXiv": "arxiv",
    }
    return Table.of(
        "tasks",
        data,
        columns,
        caption="Use --source for files and folders, and --task PATH.yaml for your own card.",
        names=("task", "reader", "main metric", "sources", "arXiv"),
        spare=("splits", "reader", "sources", "arXiv"),
    )


def models_table() -> Table:
    """Return all base models that have a name."""
    data = []
    for name in architectures.model_names():
        shape, known = cost.shape_of(name), architectures.ARCHITECTURES.get(name)
        hub = known.hub if known else "bundled with ttabench"
        sizes = (shape.layers, shape.hidden, f"{shape.heads}/{shape.kv_heads}") if shape else "---"
        data.append(
            {
                "model": name,
                "parameters": shape.parameters if shape else None,
                "hub": hub,
                **dict(zip(("_layers", "_width", "_heads"), map(str, sizes), strict=True)),
                "_source": f"{known.package.requirement}, else {hub}"
                if known and known.package
                else hub,
            }
        )
    aliases = ", ".join(
        f"{name} ({model} with {checkpoint})" for name, (model, checkpoint) in MODEL_ALIASES.items()
    )
    columns: Columns = {
        "model": "model",
        "#parameters": lambda row: amounts.format_count(row["parameters"]),
        "#layers": "_layers",
        "#width": "_width",
        "#heads/kv": "_heads",
        "source": "_source",
    }
    return Table.of(
        "models",
        data,
        columns,
        names=("model",),
        spare=("#heads/kv", "#width", "#layers", "source"),
        caption=f"Or use a folder, a .gguf file or a hub id. Aliases: {aliases}."
        " Use --random-weights to profile any model except nano without its weights.",
    )


def _runs_table(out: Path, method: str, task: str, stale: bool) -> Table:
    from ttabench.report.selection import load_run, refuse_all_damaged, run_folders
    from ttabench.report.tables import find_changes, runs_table

    if not out.is_dir():
        raise UserError(
            f"There are no runs in {out}.",
            "Run `ttabench eval` first, or set the folder with --out.",
        )
    cache = FileCache(f"runs/{short_hash(f'{CACHE_VERSION} {__version__} {out.absolute()}')}")
    rows, damaged = list[DataRow](), list[str]()
    for folder_with_runs in run_folders(out):
        found: dict[str, DataRow] = {}
        packed = [*folder_with_runs.glob(RUNS_FILE)]
        folders = sorted(folder_with_runs.glob(f"*/{RECORD_FILE}"))
        for file in [*packed, *folders]:
            try:  # folders replace packed runs, so their list is not cached by the packed file
                runs, faults = (
                    _read_rows(file)
                    if folders and file in packed
                    else cache.get_or_compute(file, _read_rows)
                )
            except UserError as error:
                damaged.append(str(error))
                continue
            damaged += faults
            found |= dict(runs)
        by_date = sorted(found, key=lambda name: (found[name]["created"], name))
        rows += [{**found[name], "path": str(folder_with_runs / name)} for name in by_date]
    cache.save()
    refuse_all_damaged(len(rows), damaged)
    for message in damaged:
        render.print_note(f"Left out: {message}")
    rows = [row for row in rows if method in ("", row["method"]) and task in ("", row["task"])]
    if stale:
        changes = [find_changes(load_run(Path(row["path"]))) for row in rows]
        rows = [
            {**row, "changed": change} for row, change in zip(rows, changes, strict=True) if change
        ]
    return runs_table(rows)


def _read_rows(file: Path) -> tuple[list[tuple[str, DataRow]], list[str]]:
    """Return (folder name, row) of each run in a file, and messages on damaged runs."""
    from ttabench.report.selection import load_runs, packed_run_dates
    from ttabench.report.tables import run_data

    stored = load_runs(packed_run_dates(file.parent) if file.name == RUNS_FILE else [file.parent])
    return [(folder.name, run_data(record)) for folder, record in stored.runs], [*stored.damaged]


def adapters_table() -> Table:
    """Return all installed adapters."""
    selected_on, installed = bundled_adapters(), find_adapters()
    data = [
        {
            "adapter": name,
            **_training_cells(read_header(folder)),
            "lies_in": "package" if folder.is_relative_to(ADAPTERS_FOLDER) else "results/adapters",
            "chosen_on": selected_on[name],
        }
        for name, folder in installed.items()
    ]
    columns: Columns = {
        "adapter": "adapter",
        "#parameters": lambda row: amounts.format_count(row["parameters"]),
        "trained on": "trained_on",
        EPISODES_COLUMN: "episodes",
        "learning rate": "rate",
        "#seed": "seed",
        "#steps": "steps",
        "#chunks read": "pieces_read",
        "#queries": "queries",
        "labels": "labels",
        "#tokens": lambda row: amounts.format_count(row["tokens"]) if row["tokens"] else "",
        "#minutes": lambda row: f"{row['minutes']:.0f}",
        "folder": "lies_in",
        "selected on": "chosen_on",
    }
    caption = (
        "Load one with --checkpoint shipped:NAME. Learning rate: maximum, schedule and optimizer. "
        "Labels: supervision other than texts and answers. Minutes: on one or two shared CPU cores."
    )
    if missing := sorted(selected_on.keys() - installed.keys()):
        caption += f" In results/adapters of the repository, not installed: {', '.join(missing)}."
    return Table.of("adapters", data, columns, caption=caption, names=("adapter",))


def _training_cells(header: CheckpointHeader) -> DataRow:
    training = header.training
    config = training["config"]
    data = config["data"]
    options = "".join(f" {option}" for option in data["options"])
    after = ", after an earlier stage" if data.get("begins") else ""
    has_gold = any(header.settings.get(name) for name in GOLD_LOSSES)
    return {
        "parameters": header.parameters,
        "trained_on": f"{' + '.join(trained_tasks(training))}{options}, {data['source']} {data['split']}{after}",
        "episodes": f"{', '.join(map(str, data['documents']))} × {data['questions']}",
        "rate": f"{config['lr']:g} {config['schedule']} {config.get('optimizer', 'adam')}",
        "seed": config["seed"],
        "steps": training["steps"],
        "pieces_read": training["observes"],
        "queries": training["asks"],
        "labels": "gold documents" if has_gold else "none",
        "tokens": training.get("tokens"),
        "minutes": training["seconds"] / 60,
    }
