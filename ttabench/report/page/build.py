"""The page: what a comparison has, put into the template beside this module; one file for a browser, fetching nothing.

    write_page(compared(runs), Path("report.html"))

Vega-Lite draws charts (altair, vl-convert-python), DataTables sorts tables (itables). The page's own policy
(`Content-Security-Policy`) lets only the scripts run that were put there, by their digests.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ttabench.core.checked_file import read_text
from ttabench.core.errors import printable
from ttabench.core.files import write_atomically
from ttabench.core.version import __version__
from ttabench.records.local_paths import without_homes
from ttabench.report import pictures
from ttabench.report.compare import Comparison
from ttabench.report.comparison_tables import legend, not_paired, title_of
from ttabench.report.page.samples import disagreeing
from ttabench.report.page.tables import about_runs, steps_of, tables_of
from ttabench.report.verdict import sentences

if TYPE_CHECKING:
    from ttabench.report.charts import Chart

TEMPLATE, STYLE, SCRIPT = "page.html", "page.css", "page.js"
HERE = Path(__file__).parent
NEEDED = {**pictures.NEEDED, "itables": "itables", "jinja2": "jinja2"}
"""Packages that the page is made of, by the module that they bring."""
EARLY = 'document.documentElement.dataset.scripts = "yes";'
"""Runs before anything is shown: of long tables only the first page."""
SENTENCES = 6
"""Of the verdict; of more, the others open at a click."""
SAMPLES = 20
"""Queries of a block that are shown, by default."""


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
    import itables
    import vl_convert

    folder = Path(itables.__file__).parent / "html"
    tables = read_text(folder / "dt_bundle.js")
    name = re.search(r"export\{[^}]*?\b(\w+) as default\b[^}]*\}", tables)
    assert name is not None, "the bundle of itables exports no table"
    return Libraries(
        charts=closed(vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", vl_version=pictures.vega_lite())),
        tables=closed(f"{tables}\nwindow.DataTable = {name[1]};\n"),
        style=read_text(folder / "dt_bundle.css").replace("</", "<\\/"),
    )


def closed(script: str) -> str:
    """A script in which nothing ends the element that it stands in, or begins a comment there."""
    return re.sub(r"</(?=script)", r"<\\/", script, flags=re.IGNORECASE).replace("<!--", "<\\!--")


def write_page(comparison: Comparison, path: Path, *, samples: int = SAMPLES, remarks: Sequence[str] = ()) -> None:
    """Write the page of a comparison, with so many queries of each block at most, and remarks on what was left out."""
    write_atomically(path, page(comparison, samples=samples, remarks=remarks))


def page(comparison: Comparison, *, samples: int = SAMPLES, remarks: Sequence[str] = ()) -> str:
    """The text of the page, see `write_page`."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    from ttabench.report.charts import along, charts_of, explanation, heading, over_blocks

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

    curves = placed([along(over, look, named=True) for over in over_blocks(comparison.blocks)])
    blocks: list[dict[str, Any]] = [
        {"name": block.place.name, "title": title_of(block), "steps": steps_of(block),
         "charts": placed(list(charts_of(block, look))),
         "several": len(block.entries) > 1, "not_paired": not_paired(block), "samples": disagreeing(block, samples)}
        for block in comparison.blocks
    ]  # fmt: skip
    first = (curves or [chart for block in blocks[:1] for chart in block["charts"]])[:1]
    if len(blocks) == 1:  # of several, it stands with its block, too
        del blocks[0]["charts"][:1]
    scripts, script = libraries(), read_text(HERE / SCRIPT)
    policy = "default-src 'none'; img-src data: blob:; style-src 'unsafe-inline'; script-src 'unsafe-eval' " + " ".join(
        map(digest, (EARLY, scripts.charts, scripts.tables, script))
    )
    runs = sum(len(entry.runs) for entry in comparison.entries)
    title = f"{runs:,} {'run' if runs == 1 else 'runs'} compared"
    return environment.get_template(TEMPLATE).render(
        version=__version__, title=", ".join(filter(None, [title, heading(comparison.blocks)])),
        sentences=list(sentences(comparison)), most=SENTENCES, remarks=remarks,
        tables=tables_of(comparison), first=first, curves=curves, blocks=blocks, aside=comparison.aside,
        runs=list(about_runs(comparison)), explanation=explanation(comparison), legend=legend(comparison),
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
