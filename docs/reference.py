"""What the documentation says of methods, tasks and models that the package knows itself: `docs/assemble.py` puts it
into the pages, between `<!-- part methods/mac -->` and `<!-- /part -->`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from importlib import import_module
from math import ceil
from pathlib import Path
from types import ModuleType

import ttabench
import ttabench.extend
from ttabench import cost
from ttabench.core.amounts import format_bytes, format_count
from ttabench.core.declared import format_assignments
from ttabench.cost import Workload
from ttabench.methods import registry
from ttabench.methods.spec import MethodSpec, Recipe
from ttabench.profiling.analytic import H100_FLOPS_PER_SECOND, training_table
from ttabench.profiling.gpus import GPUS
from ttabench.report import page as report_page
from ttabench.report.comparison_tables import GLOSSARY
from ttabench.report.listing import (
    adapters_table,
    methods_table,
    models_table,
    settings_table,
    tasks_table,
)
from ttabench.run.request import RunRequest
from ttabench.terminal.render import as_markdown
from ttabench.terminal.table import Table
from ttabench.training.config import TrainOptions
from ttabench.training.stages import plan_training

PUBLIC = (ttabench, ttabench.extend)
MODEL, LENGTHS, PIECE = "llama-3-8b", {"1k": 1024, "64k": 65536}, 256
"""Load that costs on paper are shown for: bfloat16, pieces of so many tokens, 32 asked and 128 written."""
PACKAGE = Path(__file__).resolve().parents[1] / "ttabench"
STREAM = "stream"
"""The preset that `profile` takes where a method has it."""
LARGE, MILLION = ("llama-3-8b", "llama-3-70b"), 2**20
TRAINED, SYSTEMS = (
    ("tinyllama-1.1b", "llama-3-8b"),
    ("ccm", "mac", "generative_adapter", "streamadapter"),
)
RECIPE = {"documents": (16,), "batch_documents": 16, "questions": 1, "steps": 1000}


def parts() -> dict[str, str]:
    """Markdown by path: the lists, and what is known of each method."""
    pages = {
        "methods.md": _linked(methods_table()),
        "tasks.md": tasks_table(),
        "models.md": models_table(),
        "adapters.md": adapters_table(),
        "glossary.md": glossary_table(),
        **{f"million/{model}.md": million_table(model) for model in LARGE},
        **{f"training/{model}.md": trainings_table(model) for model in TRAINED},
    }
    methods = {f"methods/{page_of(spec)}.md": method_part(spec) for spec in specs()}
    names = {f"api/{module.__name__}.md": public_names(module) for module in PUBLIC}
    return {name: _bare(table) for name, table in pages.items()} | methods | names


def public_names(module: ModuleType) -> str:
    """List the public names of a module, as the page of the API shows them."""
    file = Path(str(module.__file__)).relative_to(Path(ttabench.__file__).parents[1])
    names = [name for name in module.__all__ if not name.startswith("_")]
    return "".join(f"- [`{module.__name__}.{name}`](../{file})\n" for name in names)


def public_name(module: str, name: str) -> str:
    """Return where an object of a module is public: "ttabench.extend.State"; "" if it is private."""
    found = getattr(import_module(module), name, None)
    owners = [owner for owner in PUBLIC if name in owner.__all__ and getattr(owner, name) is found]
    return f"{owners[0].__name__}.{name}" if owners else ""


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
    tables = (
        [replace(settings_table(spec.name, spec), title="Settings", caption="")]
        if fields(spec.Settings)
        else []
    )
    plain = asdict(spec.Settings())
    rows = tuple(
        (f"`{name}`", _changes(asdict(one), plain) or "the defaults")
        for name, one in spec.presets.items()
    )
    tables += (
        [Table(title="Presets", columns=("preset", "settings that differ"), rows=rows)]
        if rows
        else []
    )
    recipes = tuple((f"`{name}`", _recipe(recipe)) for name, recipe in spec.recipes.items())
    title, caption = (
        "Recipes of `ttabench train`",
        f"What differs from {_changes(asdict(Recipe()), {})}.",
    )
    tables += (
        [Table(title=title, columns=("preset", "recipe"), rows=recipes, caption=caption)]
        if recipes
        else []
    )
    text = "\n".join(map(as_markdown, [*tables, *_costs(spec)]))
    return text or "It has no settings, and nothing to keep or to compute.\n"


def _recipe(recipe: Recipe) -> str:
    """Fields that differ from the usual recipe, and in front of them the stage that is trained before."""
    own = _changes(asdict(replace(recipe, first=None)), asdict(Recipe()))
    if (before := recipe.first) is None:
        return own
    texts = format_assignments({**before.settings, **before.task_options})
    given = ", ".join(f"`{text}`" for text in texts)
    return f"first `{before.method}` with {given}, by {_recipe(before.recipe)}; then {own}"


def _changes(values: Mapping[str, object], plain: Mapping[str, object]) -> str:
    """`key=value` of all that differ, as they are typed."""
    changed = {
        key: value for key, value in values.items() if key not in plain or value != plain[key]
    }
    typed = {
        key: ",".join(map(str, value)) if isinstance(value, tuple) else value
        for key, value in changed.items()
    }
    return ", ".join(f"`{key}={value}`" for key, value in typed.items())


def _costs(spec: MethodSpec) -> list[Table]:
    """Cost on paper at two lengths, where it is known."""
    preset, rows = _preset(spec, MODEL), []
    for length, tokens in LENGTHS.items():
        paper_cost = _on_paper(spec, MODEL, tokens)
        if paper_cost is None:
            return []
        numbers = (format_count(paper_cost.added_parameters), format_bytes(paper_cost.state_bytes))
        rows.append(
            (
                length,
                *numbers,
                format_count(paper_cost.adapt_flops),
                format_count(paper_cost.ask_flops),
            )
        )
    title = f"Analytic cost with {MODEL}, bfloat16" + (f", preset `{preset}`" if preset else "")
    columns = (
        "tokens read",
        "#parameters added",
        "#state",
        "#operations to adapt",
        "#operations a query",
    )
    return [Table(title=title, columns=columns, rows=tuple(rows))]


def _preset(spec: MethodSpec, model: str) -> str:
    return next((name for name in (STREAM, model) if name in spec.presets), "")


def _on_paper(spec: MethodSpec, model: str, tokens: int) -> cost.Cost | None:
    """The cost of reading so many tokens and asking once."""
    shape, preset = cost.shape_of(model), _preset(spec, model)
    assert shape is not None, f"{model} has a shape"
    work = Workload(
        chunk_tokens=(PIECE,) * (tokens // PIECE), prompt_tokens=32, new_tokens=128, value_bytes=2
    )
    return registry.compute_cost(spec, asdict(spec.presets[preset]) if preset else {}, shape, work)


def million_table(model: str) -> Table:
    """What a million tokens take under a model, and from how many queries on a method takes less time than full
    context."""
    shape, found = cost.shape_of(model), dict[str, tuple[float, float, int]]()
    assert shape is not None, f"{model} has a shape"
    for spec in specs():
        if paper := _on_paper(spec, model, MILLION):
            moved = 2 * paper.parameters + shape.cache_bytes(
                paper.ask_slots, 2
            )  # for each token that is written
            query = max(
                paper.ask_flops / H100_FLOPS_PER_SECOND, 128 * moved / GPUS["h100"].bytes_per_second
            )
            found[spec.name] = paper.adapt_flops / H100_FLOPS_PER_SECOND, query, paper.state_bytes
    whole_read, whole_query, _ = found["icl"]
    rows = []
    for name, (reading, query, held) in sorted(found.items(), key=lambda item: sum(item[1][:2])):
        queries = (reading - whole_read) / (whole_query - query) if query < whole_query else None
        less = "-" if queries is None else "always" if queries <= 1 else f"from {ceil(queries):,}"
        rows.append((f"`{name}`", format_bytes(held), f"{reading:,.0f}", f"{query:.1f}", less))
    columns = ("method", "#state", "#reading, s", "#a query, s", "less time than icl")
    return Table(title="", columns=columns, rows=tuple(rows))


def _linked(table: Table) -> Table:
    """Return the table of methods, with links to their pages relative to docs/."""
    places = {
        page.stem: page.relative_to(PACKAGE.parent).as_posix()
        for page in PACKAGE.glob("methods/*/*.md")
    }
    rows = [
        (f"[`{name}`](../{places[name.partition(':')[0]]})", *cells) for name, *cells in table.rows
    ]
    return replace(table, rows=tuple(rows))


def _bare(table: Table) -> str:
    """A list of names without its title: the page has one."""
    return as_markdown(table).split("\n", 2)[2]


def trainings_table(model: str) -> Table:
    """What the four systems take to train by one recipe, with layers kept and computed again on the way back."""
    rows = []
    for method in SYSTEMS:
        request = RunRequest(
            method=method,
            task="streamingqa",
            split="train",
            model=model,
            source="mini",
            random_weights=True,
        )
        options = [TrainOptions(recompute=again) for again in (False, True)]
        plans = [plan_training(request, RECIPE, each, Path("adapter")) for each in options]
        (kept, again) = (training_table(plan, "bfloat16").data[-1] for plan in plans)
        figures = [format_count(kept["trained_weights"]), format_count(kept["tokens"])]
        figures += [
            cell
            for one in (kept, again)
            for cell in (f"{one['h100_hours']:.2g}", format_bytes(one["memory_bytes"]))
        ]
        rows.append((f"`{method}`", *figures))
    columns = (
        "method",
        "#trained",
        "#tokens",
        "#H100 hours",
        "#memory",
        "#hours, recomputed",
        "#memory, recomputed",
    )
    return Table(title="", columns=columns, rows=tuple(rows))
