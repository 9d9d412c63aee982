"""What the documentation says of methods, tasks and models that the package knows itself, as parts of pages.

    parts()["methods/mac.md"]      beside methods.md, tasks.md, models.md, adapters.md

`docs/assemble.py` puts them into the pages, between `<!-- part methods/mac -->` and `<!-- /part -->`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from pathlib import Path

from ttabench import cost
from ttabench.core.amounts import count, size
from ttabench.cost import Workload
from ttabench.methods import registry
from ttabench.methods.recipe import Recipe
from ttabench.methods.spec import MethodSpec
from ttabench.report.adapters import adapters_table
from ttabench.report.listing import methods_table, models_table, settings_table, tasks_table
from ttabench.terminal.render import as_markdown
from ttabench.terminal.table import Table

MODEL, LENGTHS, PIECE = "llama-3-8b", {"1k": 1024, "64k": 65536}, 256
"""Load that costs on paper are shown for: bfloat16, pieces of so many tokens, 32 asked and 128 written."""
PACKAGE = Path(__file__).resolve().parents[1]
STREAM = "stream"
"""The preset that `profile` takes where a method has it."""


def parts() -> dict[str, str]:
    """Markdown by path: the four lists, and what is known of each method."""
    pages = {
        "methods.md": _linked(methods_table()),
        "tasks.md": tasks_table(),
        "models.md": models_table(),
        "adapters.md": adapters_table(),
    }
    return {name: _bare(table) for name, table in pages.items()} | {
        f"methods/{page_of(spec)}.md": method_part(spec) for spec in specs()
    }


def specs() -> list[MethodSpec]:
    """Every method of ttabench's own, and for each family what stands for its members."""
    return [*registry.methods().values(), *(family.stands_for for family in registry.families().values())]


def page_of(spec: MethodSpec) -> str:
    """The name of a method's page: its own, or that of its family."""
    return spec.name.partition(":")[0]


def method_part(spec: MethodSpec) -> str:
    """Settings, presets, recipes and cost on paper of a method."""
    tables = [_settings(spec), _presets(spec), _recipes(spec), _costs(spec)]
    text = "\n".join(as_markdown(table) for table in tables if table is not None)
    return text or "It has no settings, and nothing to keep or to compute.\n"


def _settings(spec: MethodSpec) -> Table | None:
    if not fields(spec.Settings):
        return None
    table = settings_table(spec.name, spec)
    return replace(table, title="Settings", caption="")


def _presets(spec: MethodSpec) -> Table | None:
    """Settings that each preset changes."""
    plain = asdict(spec.Settings())
    rows = []
    for name, preset in spec.presets.items():
        changed = _changes(asdict(preset), plain)
        rows.append((f"`{name}`", changed or "the defaults"))
    return Table(title="Presets", columns=("preset", "settings that differ"), rows=tuple(rows)) if rows else None


def _recipes(spec: MethodSpec) -> Table | None:
    """How `ttabench train` trains each preset."""
    rows = [(f"`{name}`", _recipe(recipe)) for name, recipe in spec.recipes.items()]
    if not rows:
        return None
    caption = f"What differs from {_changes(asdict(Recipe()), {})}."
    return Table(title="Recipes of `ttabench train`", columns=("preset", "recipe"), rows=tuple(rows), caption=caption)


def _recipe(recipe: Recipe) -> str:
    """Fields that differ from the usual recipe, and in front of them the stage that is trained before."""
    own = _changes(asdict(replace(recipe, first=None)), asdict(Recipe()))
    if (before := recipe.first) is None:
        return own
    given = ", ".join(f"`{text}`" for text in (*before.settings, *before.task_options))
    return f"first `{before.method}` with {given}, by {_recipe(before.recipe)}; then {own}"


def _changes(values: Mapping[str, object], plain: Mapping[str, object]) -> str:
    """`key=value` of all that differ, as they are typed."""
    changed = {key: value for key, value in values.items() if key not in plain or value != plain[key]}
    return ", ".join(f"`{key}={_typed(value)}`" for key, value in changed.items())


def _typed(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _costs(spec: MethodSpec) -> Table | None:
    """Cost on paper at two lengths."""
    shape = cost.shape_of(MODEL)
    assert shape is not None, f"{MODEL} has a shape"
    preset = next((name for name in (STREAM, MODEL) if name in spec.presets), "")
    settings = asdict(spec.presets[preset]) if preset else {}
    rows = []
    for length, tokens in LENGTHS.items():
        work = Workload(pieces=(PIECE,) * (tokens // PIECE), prompt_tokens=32, new_tokens=128, value_bytes=2)
        paper_cost = registry.cost_of(spec, settings, shape, work)
        if paper_cost is None:
            return None
        numbers = (count(paper_cost.added_parameters), size(paper_cost.state_bytes))
        rows.append((length, *numbers, count(paper_cost.adapt_flops), count(paper_cost.ask_flops)))
    title = f"Cost on paper under {MODEL}, bfloat16" + (f", preset `{preset}`" if preset else "")
    columns = ("tokens read", "#parameters added", "#state", "#operations to adapt", "#operations a query")
    return Table(title=title, columns=columns, rows=tuple(rows))


def _linked(table: Table) -> Table:
    """Methods with links to their pages, seen from docs/; each lies beside the code of its method."""
    places = {page.stem: page.relative_to(PACKAGE.parent).as_posix() for page in PACKAGE.glob("methods/*/*.md")}
    rows = [(f"[`{name}`](../{places[name.partition(':')[0]]})", *cells) for name, *cells in table.rows]
    return replace(table, rows=tuple(rows))


def _bare(table: Table) -> str:
    """A list of names without its title: the page has one."""
    return as_markdown(table).split("\n", 2)[2]
