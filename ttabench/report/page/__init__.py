"""HTML page of a comparison: one self-contained file that loads nothing.

write_atomically(Path("report.html"), page(compare_runs(runs)))

Vega-Lite draws charts (altair, vl-convert-python), DataTables sorts tables (itables). The
`Content-Security-Policy` of the page allows only its own scripts, by their digests.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from ttabench.core import __version__
from ttabench.core.errors import escape_control_characters
from ttabench.core.files import read_text
from ttabench.records.local_paths import shorten_paths
from ttabench.records.samples import is_digest, text_or_empty
from ttabench.report import pictures
from ttabench.report.compare import Comparison, ComparisonGroup
from ttabench.report.comparison_tables import (
    GLOSSARY,
    differences_table,
    group_table,
    group_title,
    overview_table,
    standings_table,
    untested_pairs,
)
from ttabench.report.differences import oriented_values
from ttabench.report.groups import short_group_names
from ttabench.report.method_rows import contenders, format_row, format_without_error
from ttabench.report.show import SampleCells, gold, likelihood, prediction, tail
from ttabench.report.stored import QueryId, QueryKey, sample_cells, seed_of
from ttabench.report.tables import detail_tables
from ttabench.report.verdict import make_verdict
from ttabench.stats.metrics import metric_or_default
from ttabench.terminal.table import Bold, Table

if TYPE_CHECKING:
    from ttabench.report.charts import Chart

TEMPLATE, STYLE, SCRIPT = "page.html", "page.css", "page.js"
HERE = Path(__file__).parent
REQUIRED_PACKAGES = {
    "altair": "altair",
    "vl_convert": "vl-convert-python",
    "itables": "itables",
    "jinja2": "jinja2",
}
"""Packages that are needed to make the page, by module."""
EARLY_SCRIPT = 'document.documentElement.dataset.scripts = "yes";'
"""Runs before the page is shown, so that long tables show only their first rows."""
DEFAULT_SAMPLES = 20
"""Default number of queries that are shown per comparison group."""
Row: TypeAlias = dict[str, str]
MISSING_ORDER = -1e308
"""Sort key of a missing number."""
UNITS = {"KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
NUMBER = re.compile(r"<?(-?[\d,]+(?:\.\d+)?(?:e[+-]\d+)?)(?: (\w+))?")
COLUMNS = ("mode", "step", "prompt", "prediction", "answers", "logprobs", "tokens", "subtask")
MAX_PROMPT_CHARS, MAX_ANSWER_CHARS, MAX_QUESTION_CHARS = 2000, 800, 120


class Libraries(NamedTuple):
    """Scripts and style sheet of the libraries, escaped for the page."""

    charts: str
    """Script that sets `window.vegaEmbed`."""
    tables: str
    """Module that sets `window.DataTable`."""
    style: str
    """Style sheet of DataTables."""


@lru_cache(maxsize=1)
def libraries() -> Libraries:
    """Return the bundled libraries, cached because bundling takes seconds."""
    import altair
    import itables
    import vl_convert

    # vl-convert accepts major.minor only
    version = ".".join(altair.SCHEMA_VERSION.removeprefix("v").split(".")[:2])
    folder = Path(itables.__file__).parent / "html"
    tables = read_text(folder / "dt_bundle.js")
    name = re.search(r"export\{[^}]*?\b(\w+) as default\b[^}]*\}", tables)
    assert name is not None, "the bundle of itables exports no table"
    return Libraries(
        charts=escape_script(
            vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", vl_version=version)
        ),
        tables=escape_script(f"{tables}\nwindow.DataTable = {name[1]};\n"),
        style=read_text(folder / "dt_bundle.css").replace("</", "<\\/"),
    )


def escape_script(script: str) -> str:
    """Escape a script so that it cannot end its HTML element or begin a comment."""
    return re.sub(r"</(?=script)", r"<\\/", script, flags=re.IGNORECASE).replace("<!--", "<\\!--")


def page(
    comparison: Comparison, *, samples: int = DEFAULT_SAMPLES, remarks: Sequence[str] = ()
) -> str:
    """Return the HTML page of a comparison.

    Args:
        comparison: the comparison.
        samples: the maximum number of queries that are shown per comparison group.
        remarks: remarks on runs that are left out.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    from ttabench.report.charts import make_charts

    verdict = make_verdict(comparison)
    environment = Environment(
        loader=FileSystemLoader(HERE),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_printable_value,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    method_styles = pictures.styles(method_row.method for method_row in comparison.method_rows)
    specs: list[dict[str, Any]] = []

    def number_charts(charts: Sequence[Chart]) -> list[tuple[int, Chart]]:
        """Number charts by their index on the page."""
        specs.extend(chart.spec for chart in charts)
        return list(enumerate(charts, len(specs) - len(charts)))

    groups: list[dict[str, Any]] = [
        {
            "name": group.group_key.name,
            "title": group_title(group),
            "charts": number_charts(make_charts(group, method_styles)),
            "several": len(group.method_rows) > 1,
            "not_paired": untested_pairs(group),
            "samples": disagreeing_samples(group, samples),
        }
        for group in comparison.groups
    ]
    first = groups[0]["charts"][:1]
    if len(groups) == 1:  # with several groups, the chart is repeated at its group
        del groups[0]["charts"][:1]
    scripts, script = libraries(), read_text(HERE / SCRIPT)
    policy = (
        "default-src 'none'; img-src data: blob:; style-src 'unsafe-inline'; script-src 'unsafe-eval' "
        + " ".join(map(csp_digest, (EARLY_SCRIPT, scripts.charts, scripts.tables, script)))
    )
    runs = sum(len(method_row.runs) for method_row in comparison.method_rows)
    return environment.get_template(TEMPLATE).render(
        version=__version__,
        title=f"{runs:,} {'run' if runs == 1 else 'runs'} compared",
        sentences=verdict.sentences,
        notes=verdict.notes,
        remarks=remarks,
        tables=tables_of(comparison),
        first=first,
        groups=groups,
        excluded=comparison.excluded,
        runs=list(about_runs(comparison)),
        charts=escape_json(specs),
        policy=policy,
        script=script,
        scripts=scripts,
        style=read_text(HERE / STYLE),
        early=EARLY_SCRIPT,
    )


def csp_digest(script: str) -> str:
    """Return the source of a Content-Security-Policy that allows this script."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode('utf-8')).digest()).decode('ascii')}'"


def escape_json(value: Any) -> str:
    """Return JSON that is safe inside an HTML element: nothing in it ends the element."""
    text = shorten_paths(
        json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    )
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _printable_value(value: Any) -> Any:
    """Make a template value printable: control characters are escaped, and paths are shortened."""
    return escape_control_characters(shorten_paths(value)) if type(value) is str else value


class Cell(NamedTuple):
    """Cell with its text and sort key: numbers by value, after missing ones."""

    text: str
    order: float | str = ""
    strong: bool = False


def tables_of(comparison: Comparison) -> list[dict[str, Any]]:
    """Return the tables of the page: overview of several groups, method rows, and differences."""
    groups = comparison.groups
    method_rows, pairs, overview = list[Row](), list[Row](), list[Row]()
    for name, group in zip(short_group_names([g.group_key for g in groups]), groups, strict=True):
        place = {"group": name} if len(groups) > 1 else {}
        for row in _rows(group_table(group, all_columns=True)):
            method, (_, value), *others = row.items()
            metric = ("metric", group.group_key.metric)
            method_rows.append(place | dict([method, metric, ("#value ± stderr", value), *others]))
        if group.differences:
            pairs += [place | row for row in _rows(differences_table(group))]
    if len(groups) > 1 and (whole := overview_table(groups)) is not None:
        overview = [
            {column or "group": cell for column, cell in row.items()} for row in _rows(whole)
        ]
    standings = [] if (table := standings_table(groups)) is None else _rows(table)
    caption = "Baselines: none (no context), icl (full context). The best other row is bold."
    tables = [
        _shown("overview", "All comparison groups", caption, overview),
        _shown("standings", "Standings", "", standings),
        _shown("lines", "Method rows", "", method_rows),
        _shown("differences", "Differences", "", pairs),
    ]
    return [table for table in tables if table["rows"]]


def _rows(table: Table) -> list[Row]:
    return [dict(zip(table.columns, row, strict=True)) for row in table.rows]


def _shown(name: str, title: str, caption: str, rows: Sequence[Row]) -> dict[str, Any]:
    """Return a table of the page with `name` as its id; columns of numbers start with "#"."""
    columns = list(dict.fromkeys(column for row in rows for column in row))
    meanings = [meaning for column, meaning in GLOSSARY.items() if column in columns]
    return {
        "name": name,
        "title": title,
        "caption": " ".join(filter(None, [*meanings, caption])),
        "columns": [column.removeprefix("#") for column in columns],
        "rows": [[_cell(row.get(column, ""), column) for column in columns] for row in rows],
    }


def _cell(text: str, column: str) -> Cell:
    order: float | str = text
    if column.startswith("#"):
        match = NUMBER.match(text)
        order = (
            float(match[1].replace(",", "")) * UNITS.get(match[2], 1.0) if match else MISSING_ORDER
        )
    return Cell(text, order, isinstance(text, Bold))


def about_runs(comparison: Comparison) -> Iterator[dict[str, Any]]:
    """Yield each run with its facts, settings and costs, in the order of the method rows."""
    names = short_group_names([group.group_key for group in comparison.groups])
    for name, group in zip(names, comparison.groups, strict=True):
        for method_row in group.method_rows:
            for record in method_row.records:
                row = record.value(method_row.metric)
                about, settings, costs, _ = detail_tables(record, everything=True)
                yield {
                    "id": record.id,
                    "label": method_row.label,
                    "group": name,
                    "seed": seed_of(record),
                    "value": f"{row.metric} {format_row(row)}" if row else "",
                    "facts": list(zip(about.columns[1:], about.rows[0][1:], strict=True)),
                    "settings": "\n".join(f"{row[0]} = {row[1]}" for row in settings.rows),
                    "costs": "\n".join(map(" = ".join, costs.rows)),
                }


def disagreeing_samples(group: ComparisonGroup, most: int) -> dict[str, Any]:
    """Return the queries of a group on which methods disagree, largest difference first.

    Keys: `shown` has at most `most` of them, `count` is their number, and `note` says which columns
    are not stored.
    """
    method_rows, metric = group.method_rows, group.group_key.metric
    if not any(row.values for row in method_rows):
        return {"shown": [], "count": 0, "note": "These runs have no stored answers, only scores."}
    gains: dict[QueryId, dict[int, float]] = {}  # by index of the row; higher is better
    for place, method_row in enumerate(method_rows):
        oriented = oriented_values(method_row.values.values(), metric)
        for query, gain in zip(method_row.values, oriented, strict=False):  # [] for a corpus metric
            gains.setdefault(query, {})[place] = gain
    methods = contenders(method_rows)
    counted = {place for place, row in enumerate(method_rows) if len(methods) < 2 or row in methods}
    ranges: dict[QueryId, float] = {}
    for query, own in gains.items():
        among = [gain for place, gain in own.items() if place in counted] or [0.0]
        ranges[query] = max(among) - min(among)
    chosen = sorted(filter(ranges.get, ranges), key=lambda query: (-ranges[query], query))
    first = chosen[:most]
    seeds = {query[0] for query in first}
    texts = [
        sample_cells([run for run in row.runs if seed_of(run[1]) in seeds], COLUMNS)
        for row in method_rows
    ]
    hidden = any(is_digest(str(cells.get("prompt", ""))) for own in texts for cells in own.values())
    note = (
        "These runs have stored scores, but not the texts of prompts and answers." if hidden else ""
    )
    shown = [_disagreeing_sample(group, query, gains[query], texts) for query in first]
    return {"shown": shown, "count": len(chosen), "note": note}


def _disagreeing_sample(
    group: ComparisonGroup,
    query: QueryId,
    gains: Mapping[int, float],
    texts: Sequence[Mapping[QueryKey, SampleCells]],
) -> dict[str, Any]:
    """Return one query with the answers of all rows, best first."""
    ordered = sorted(gains, key=lambda place: -gains[place])
    kept = [texts[place].get(query[:3], {}) for place in ordered]
    first: SampleCells = next(filter(None, kept), {})
    seed, episode, key = query[:3]
    step = f"step {first['step']:,}" if first.get("step") else ""
    prompt = text_or_empty(str(first.get("prompt") or ""))
    metric = group.group_key.metric
    sides = [
        {
            "label": group.method_rows[place].marked_label,
            "prediction": prediction(cells, MAX_ANSWER_CHARS) if cells else "",
            "nats": likelihood(cells),
            # a ratio, such as `ppl`, has no score per query
            "gain": f"{abs(gains[place]):,.2f} nats"
            if metric_or_default(metric).ratio
            else format_without_error(metric, abs(gains[place])),
        }
        for place, cells in zip(ordered, kept, strict=True)
    ]
    return {
        "key": key,
        "place": ", ".join(
            filter(None, [str(first.get("subtask") or episode), f"seed {seed}", step])
        ),
        "question": tail(" ".join(prompt.split()), MAX_QUESTION_CHARS),
        "prompt": tail(prompt, MAX_PROMPT_CHARS),
        "gold": gold(first)[:MAX_ANSWER_CHARS],
        "sides": sides,
    }
