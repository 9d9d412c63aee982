"""The page: what a comparison has, put into the template beside this module; one file for a browser, fetching nothing.

    write_atomically(Path("report.html"), page(compared(runs)))

Vega-Lite draws charts (altair, vl-convert-python), DataTables sorts tables (itables). The page's own policy
(`Content-Security-Policy`) lets only the scripts run that were put there, by their digests.
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
from ttabench.core.errors import printable
from ttabench.core.files import read_text
from ttabench.records.local_paths import without_homes
from ttabench.records.samples import is_digest, kept_text
from ttabench.report import pictures
from ttabench.report.blocks import called
from ttabench.report.compare import Block, Comparison
from ttabench.report.comparison_tables import GLOSSARY, differences_table, entries_table, not_paired, overview, title_of
from ttabench.report.differences import worth
from ttabench.report.entries import plain, running, shown
from ttabench.report.show import Cells, gold, likelihood, prediction, tail
from ttabench.report.stored import Place, Query, cells_of, seed_of
from ttabench.report.tables import about_tables
from ttabench.report.verdict import sentences
from ttabench.stats.metrics import known
from ttabench.terminal.table import Bold, Table

if TYPE_CHECKING:
    from ttabench.report.charts import Chart

TEMPLATE, STYLE, SCRIPT = "page.html", "page.css", "page.js"
HERE = Path(__file__).parent
NEEDED = {"altair": "altair", "vl_convert": "vl-convert-python", "itables": "itables", "jinja2": "jinja2"}
"""Packages that the page is made of, by the module that they bring."""
EARLY = 'document.documentElement.dataset.scripts = "yes";'
"""Runs before anything is shown: of long tables only the first page."""
SENTENCES = 6
"""Of the verdict; of more, the others open at a click."""
SAMPLES = 20
"""Queries of a block that are shown, by default."""
Row: TypeAlias = dict[str, str]
MISSING = -1e308
"""Order of a number that is not known."""
UNITS = {"KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
NUMBER = re.compile(r"<?(-?[\d,]+(?:\.\d+)?(?:e[+-]\d+)?)(?: (\w+))?")
COLUMNS = ("mode", "step", "prompt", "prediction", "answers", "logprobs", "tokens", "subtask")
LONGEST_PROMPT, LONGEST_ANSWER, LONGEST_QUESTION = 2000, 800, 120


class Libraries(NamedTuple):
    """Texts of scripts and of a style sheet, as they stand in the page."""

    charts: str
    """Sets `window.vegaEmbed`."""
    tables: str
    """A module that sets `window.DataTable`."""
    style: str


@lru_cache(maxsize=1)
def libraries() -> Libraries:
    """The libraries, read once; the first takes seconds to be bundled."""
    import altair
    import itables
    import vl_convert

    version = ".".join(altair.SCHEMA_VERSION.removeprefix("v").split(".")[:2])  # as vl-convert takes it
    folder = Path(itables.__file__).parent / "html"
    tables = read_text(folder / "dt_bundle.js")
    name = re.search(r"export\{[^}]*?\b(\w+) as default\b[^}]*\}", tables)
    assert name is not None, "the bundle of itables exports no table"
    return Libraries(
        charts=closed(vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", vl_version=version)),
        tables=closed(f"{tables}\nwindow.DataTable = {name[1]};\n"),
        style=read_text(folder / "dt_bundle.css").replace("</", "<\\/"),
    )


def closed(script: str) -> str:
    """A script in which nothing ends the element that it stands in, or begins a comment there."""
    return re.sub(r"</(?=script)", r"<\\/", script, flags=re.IGNORECASE).replace("<!--", "<\\!--")


def page(comparison: Comparison, *, samples: int = SAMPLES, remarks: Sequence[str] = ()) -> str:
    """The page of a comparison, with so many queries of each block at most, and remarks on what was left out."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    from ttabench.report.charts import charts_of

    environment = Environment(
        loader=FileSystemLoader(HERE), autoescape=True, undefined=StrictUndefined, finalize=_finalized,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    look = pictures.styles(entry.method for entry in comparison.entries)
    specs: list[dict[str, Any]] = []

    def placed(charts: Sequence[Chart]) -> list[tuple[int, Chart]]:
        """Charts, each with its place among all of the page."""
        specs.extend(chart.spec for chart in charts)
        return list(enumerate(charts, len(specs) - len(charts)))

    blocks: list[dict[str, Any]] = [
        {"name": block.place.name, "title": title_of(block), "charts": placed(charts_of(block, look)),
         "several": len(block.entries) > 1, "not_paired": not_paired(block), "samples": disagreeing(block, samples)}
        for block in comparison.blocks
    ]  # fmt: skip
    first = blocks[0]["charts"][:1]
    if len(blocks) == 1:  # of several, it stands with its block, too
        del blocks[0]["charts"][:1]
    scripts, script = libraries(), read_text(HERE / SCRIPT)
    policy = "default-src 'none'; img-src data: blob:; style-src 'unsafe-inline'; script-src 'unsafe-eval' " + " ".join(
        map(digest, (EARLY, scripts.charts, scripts.tables, script))
    )
    runs = sum(len(entry.runs) for entry in comparison.entries)
    return environment.get_template(TEMPLATE).render(
        version=__version__, title=f"{runs:,} {'run' if runs == 1 else 'runs'} compared",
        sentences=list(sentences(comparison)), most=SENTENCES, remarks=remarks,
        tables=tables_of(comparison), first=first, blocks=blocks, aside=comparison.aside,
        runs=list(about_runs(comparison)),
        charts=embedded(specs), policy=policy, script=script, scripts=scripts, style=read_text(HERE / STYLE),
        early=EARLY,
    )  # fmt: skip


def digest(script: str) -> str:
    """The source of a policy that lets this script run."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode('utf-8')).digest()).decode('ascii')}'"


def embedded(value: Any) -> str:
    """JSON that can stand in an element of HTML: nothing in it ends the element, or a line of a script."""
    text = without_homes(json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":")))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _finalized(value: Any) -> Any:
    """A value as a template puts it into the page: control characters are shown, and no home folder is."""
    return printable(without_homes(value)) if type(value) is str else value


class Cell(NamedTuple):
    """A cell as it is read and as it is sorted: numbers by their size, what is missing before them."""

    text: str
    order: float | str = ""
    strong: bool = False


def tables_of(comparison: Comparison) -> list[dict[str, Any]]:
    """All blocks beside each other, where there are several; every line; every difference. One block is not named."""
    blocks = comparison.blocks
    lines, pairs = list[Row](), list[Row]()
    for block in blocks:
        name = {"block": called(block.place, [other.place for other in blocks])} if len(blocks) > 1 else {}
        for row in _rows(entries_table(block, every=True)):
            value = f"#{block.place.metric} ± stderr"
            cells = [("#value ± stderr" if column == value else column, cell) for column, cell in row.items()]
            cells[1:1] = [("metric", block.place.metric)]
            lines.append(name | dict(cells))
        pairs += [name | row for row in (_rows(differences_table(block)) if block.differences else ())]
    tables = [_shown("lines", "Lines", "", lines), _shown("differences", "Differences", "", pairs)]
    if len(blocks) > 1 and (whole := overview(blocks)) is not None:
        rows = [{column or "block": cell for column, cell in row.items()} for row in _rows(whole)]
        caption = f"{whole.title}; none is the floor, icl the ceiling; the best of the others is bold."
        tables.insert(0, _shown("overview", "All blocks", caption, rows))
    return [table for table in tables if table["rows"]]


def _rows(table: Table) -> list[Row]:
    return [dict(zip(table.columns, row, strict=True)) for row in table.rows]


def _shown(name: str, title: str, caption: str, rows: Sequence[Row]) -> dict[str, Any]:
    """A table of the page, `name` is its id there, from rows of cells by their columns; those of numbers begin with
    "#"."""
    columns = list(dict.fromkeys(column for row in rows for column in row))
    meanings = [meaning for column, meaning in GLOSSARY.items() if column in columns]
    return {
        "name": name, "title": title, "caption": " ".join(filter(None, [*meanings, caption])),
        "columns": [column.removeprefix("#") for column in columns],
        "rows": [[_cell(row.get(column, ""), column) for column in columns] for row in rows],
    }  # fmt: skip


def _cell(text: str, column: str) -> Cell:
    order: float | str = text
    if column.startswith("#"):
        match = NUMBER.match(text)
        order = float(match[1].replace(",", "")) * UNITS.get(match[2], 1.0) if match else MISSING
    return Cell(text, order, isinstance(text, Bold))


def about_runs(comparison: Comparison) -> Iterator[dict[str, Any]]:
    """Every run that stands in a block, in the order of their lines: its facts, all settings and all costs."""
    places = [block.place for block in comparison.blocks]
    for entry in comparison.entries:
        for record in entry.records:
            row, (about, settings, costs, _) = record.value(entry.metric), about_tables(record, everything=True)
            yield {
                "id": record.id, "label": entry.label, "block": called(entry.place, places), "seed": seed_of(record),
                "value": f"{row.metric} {shown(row.metric, row.value, row.stderr)}" if row else "",
                "facts": list(zip(about.columns[1:], about.rows[0][1:], strict=True)),
                "settings": "\n".join(f"{name} = {value}" for name, value, _ in settings.rows),
                "costs": "\n".join(f"{name} = {value}" for name, value in costs.rows),
            }  # fmt: skip


def disagreeing(block: Block, most: int) -> dict[str, Any]:
    """The queries of a block that its methods did not answer equally well: so many at most (`shown`), how many there
    are (`count`), and which columns are not kept (`note`)."""
    if not any(entry.values for entry in block.entries):
        return {"shown": [], "count": 0, "note": "Answers are not stored with these runs, only their figures."}
    gains: dict[Query, dict[int, float]] = {}  # by the place of the line in the block; more is better
    for place, entry in enumerate(block.entries):
        for query, value in entry.values.items():
            if (gain := worth(value, block.place.metric)) is not None:
                gains.setdefault(query, {})[place] = gain
    methods = running(block.entries)
    among = {place for place, entry in enumerate(block.entries) if len(methods) < 2 or entry in methods}
    counted = {query: [gain for place, gain in own.items() if place in among] for query, own in gains.items()}
    apart = {query: max(own, default=0.0) - min(own, default=0.0) for query, own in counted.items()}
    chosen = sorted((query for query in apart if apart[query] > 0), key=lambda query: (-apart[query], query))
    first = chosen[:most]
    texts = [cells_of(entry.runs, COLUMNS) for entry in block.entries] if first else []
    hidden = any(is_digest(str(cells.get("prompt", ""))) for own in texts for cells in own.values())
    note = "Scores are stored with these runs, and not the texts of prompts and answers." if hidden else ""
    shown = [_disagreement(block, query, gains[query], texts) for query in first]
    return {"shown": shown, "count": len(chosen), "note": note}


def _disagreement(
    block: Block, query: Query, gains: Mapping[int, float], texts: Sequence[Mapping[Place, Cells]]
) -> dict[str, Any]:
    """One query, and what every line that was asked it answered, the best first."""
    ordered = sorted(gains, key=lambda place: -gains[place])
    kept = [texts[place].get(query[:3], {}) for place in ordered]
    first = next(filter(None, kept), {})
    seed, episode, key = query[:3]
    step = f"step {first['step']:,}" if first.get("step") else ""
    prompt = kept_text(str(first.get("prompt") or ""))
    metric = block.place.metric
    sides = [
        {"label": block.entries[place].marked, "prediction": prediction(cells, LONGEST_ANSWER) if cells else "",
         "nats": likelihood(cells),  # a query's figure, or nats where the metric is no mean over queries (`ppl`)
         "gain": f"{abs(gains[place]):,.2f} nats" if known(metric).ratio else plain(metric, abs(gains[place]))}
        for place, cells in zip(ordered, kept, strict=True)
    ]  # fmt: skip
    return {
        "key": key, "place": ", ".join(filter(None, [str(first.get("subtask") or episode), f"seed {seed}", step])),
        "question": tail(" ".join(prompt.split()), LONGEST_QUESTION), "prompt": tail(prompt, LONGEST_PROMPT),
        "gold": gold(first)[:LONGEST_ANSWER], "sides": sides,
    }  # fmt: skip
