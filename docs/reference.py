"""What the documentation says of methods, tasks and models that the package knows itself: `docs/assemble.py` puts it
into the pages, between `<!-- part methods/mac -->` and `<!-- /part -->`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from pathlib import Path

from ttabench import cost
from ttabench.core.amounts import count, size
from ttabench.cost import Workload
from ttabench.methods import registry
from ttabench.methods.spec import MethodSpec, Recipe
from ttabench.report import page as report_page
from ttabench.report.comparison_tables import GLOSSARY
from ttabench.report.listing import adapters_table, methods_table, models_table, settings_table, tasks_table
from ttabench.terminal.render import as_markdown
from ttabench.terminal.table import Table

MODEL, LENGTHS, PIECE = "llama-3-8b", {"1k": 1024, "64k": 65536}, 256
"""Load that costs on paper are shown for: bfloat16, pieces of so many tokens, 32 asked and 128 written."""
PACKAGE = Path(__file__).resolve().parents[1] / "ttabench"
STREAM = "stream"
"""The preset that `profile` takes where a method has it."""


def parts() -> dict[str, str]:
    """Markdown by path: the lists, and what is known of each method."""
    pages = {
        "methods.md": _linked(methods_table()),
        "tasks.md": tasks_table(),
        "models.md": models_table(),
        "adapters.md": adapters_table(),
        "glossary.md": glossary_table(),
    }
    return {name: _bare(table) for name, table in pages.items()} | {
        f"methods/{page_of(spec)}.md": method_part(spec) for spec in specs()
    }


def glossary_table() -> Table:
    """The words of tables and of the page, as these explain them."""
    headings = {word.lstrip("#"): line.partition(": ")[2] for word, line in GLOSSARY.items()}
    page = (report_page.HERE / report_page.TEMPLATE).read_text(encoding="utf-8")
    words = dict(re.findall("^<dt>(.*)</dt><dd>(.*)</dd>$", page, re.M))
    return Table(title="", columns=("word", "meaning"), rows=tuple((headings | words).items()))


def specs() -> list[MethodSpec]:
    """Every method of ttabench's own, and for each family what stands for its members."""
    return [*registry.methods().values(), *registry.families().values()]


def page_of(spec: MethodSpec) -> str:
    """The name of a method's page: its own, or that of its family."""
    return spec.name.partition(":")[0]


def method_part(spec: MethodSpec) -> str:
    """Settings, presets, recipes and cost on paper of a method."""
    tables = [replace(settings_table(spec.name, spec), title="Settings", caption="")] if fields(spec.Settings) else []
    plain = asdict(spec.Settings())
    rows = tuple((f"`{name}`", _changes(asdict(one), plain) or "the defaults") for name, one in spec.presets.items())
    tables += [Table(title="Presets", columns=("preset", "settings that differ"), rows=rows)] if rows else []
    recipes = tuple((f"`{name}`", _recipe(recipe)) for name, recipe in spec.recipes.items())
    title, caption = "Recipes of `ttabench train`", f"What differs from {_changes(asdict(Recipe()), {})}."
    tables += [Table(title=title, columns=("preset", "recipe"), rows=recipes, caption=caption)] if recipes else []
    text = "\n".join(map(as_markdown, [*tables, *_costs(spec)]))
    return text or "It has no settings, and nothing to keep or to compute.\n"


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
    typed = {key: ",".join(map(str, value)) if isinstance(value, tuple) else value for key, value in changed.items()}
    return ", ".join(f"`{key}={value}`" for key, value in typed.items())


def _costs(spec: MethodSpec) -> list[Table]:
    """Cost on paper at two lengths, where it is known."""
    shape = cost.shape_of(MODEL)
    assert shape is not None, f"{MODEL} has a shape"
    preset = next((name for name in (STREAM, MODEL) if name in spec.presets), "")
    settings = asdict(spec.presets[preset]) if preset else {}
    rows = []
    for length, tokens in LENGTHS.items():
        work = Workload(pieces=(PIECE,) * (tokens // PIECE), prompt_tokens=32, new_tokens=128, value_bytes=2)
        paper_cost = registry.cost_of(spec, settings, shape, work)
        if paper_cost is None:
            return []
        numbers = (count(paper_cost.added_parameters), size(paper_cost.state_bytes))
        rows.append((length, *numbers, count(paper_cost.adapt_flops), count(paper_cost.ask_flops)))
    title = f"Cost on paper under {MODEL}, bfloat16" + (f", preset `{preset}`" if preset else "")
    columns = ("tokens read", "#parameters added", "#state", "#operations to adapt", "#operations a query")
    return [Table(title=title, columns=columns, rows=tuple(rows))]


def _linked(table: Table) -> Table:
    """Methods with links to their pages, seen from docs/; each lies beside the code of its method."""
    places = {page.stem: page.relative_to(PACKAGE.parent).as_posix() for page in PACKAGE.glob("methods/*/*.md")}
    rows = [(f"[`{name}`](../{places[name.partition(':')[0]]})", *cells) for name, *cells in table.rows]
    return replace(table, rows=tuple(rows))


def _bare(table: Table) -> str:
    """A list of names without its title: the page has one."""
    return as_markdown(table).split("\n", 2)[2]
