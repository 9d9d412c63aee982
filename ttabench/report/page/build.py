"""The page: what a comparison has, put into the template beside this module.

    write_page(compared(runs), Path("report.html"))

Everything stands in one file. Its own policy (`Content-Security-Policy`) lets nothing be fetched and only the scripts
run that were put there: they are named by their digests, so that a text of a sample that looked like one would not.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ttabench.core.checked_file import read_text
from ttabench.core.files import write_atomically
from ttabench.core.printable import printable
from ttabench.core.version import __version__
from ttabench.report.compare import Block, Comparison
from ttabench.report.comparison_tables import title_of
from ttabench.report.curves import by_setting, by_step, over_blocks
from ttabench.report.difference_tables import legend, not_paired
from ttabench.report.page.libraries import libraries
from ttabench.report.page.runs import about_runs
from ttabench.report.page.samples import disagreeing
from ttabench.report.page.tables import steps_of, tables_of
from ttabench.report.plot_style import styles
from ttabench.report.plots import explanation, heading
from ttabench.report.verdict import sentences

if TYPE_CHECKING:
    from ttabench.report.page.drawing import Chart

TEMPLATE, STYLE, SCRIPT = "page.html", "page.css", "page.js"
HERE = Path(__file__).parent
EARLY = 'document.documentElement.dataset.scripts = "yes";'
"""Runs before anything is shown: of long tables only the first page."""
SENTENCES = 6
"""Of the verdict; of more, the others open at a click."""
SAMPLES = 20
"""Queries of a block that are shown, by default."""
WORDS = (
    ("block", "One task with one base model and one set of options: what is compared, is compared inside a block."),
    ("line", "A method with its settings. Seeds are pooled: each is another draw of texts, order or demonstrations."),
    ("leads", "Has the best figure among the methods; floor and ceiling do not count."),
    ("points", "Differences of figures in per cent, 0 to 100. Of perplexity and nats, lower is better."),
    ("state", "What a method keeps of the text once it has read it: a memory, changed weights, or keys and values."),
    ("another text's state, an empty one", "Controls: the same questions under the state of another text, and under "
     "none. Only a state that does better than both holds the text, and not practice in the task alone."),
    ("[95 % interval]", "Where a difference would lie in 95 of 100 repetitions with other texts or draws; one that "
     "includes 0 settles nothing."),
    ("Holm p", "How often chance alone gives such a difference, corrected for all pairs that were tested; below 0.05 "
     "we call the difference real."),
    ("untested", "Without the scores of single queries there is no interval, and the difference may be chance."),
    ("n", "Number of queries, all seeds together."),
    ("of gap", "How far a line goes from the floor (0 %) to the ceiling (100 %)."),
    ("ask ms, adapt s", "Milliseconds to answer a query, and seconds to read the text before."),
)  # fmt: skip
"""What those have to know who have not read the guide."""


def write_page(comparison: Comparison, path: Path, *, samples: int = SAMPLES, remarks: Sequence[str] = ()) -> None:
    """Write the page of a comparison.

    Args:
        comparison: the comparison.
        path: where to.
        samples: how many queries of each block are shown, at most.
        remarks: what was left out, a line each.

    Raises:
        UserError: samples that cannot be read, a folder that cannot be written.
    """
    write_atomically(path, page(comparison, samples=samples, remarks=remarks))


def page(comparison: Comparison, *, samples: int = SAMPLES, remarks: Sequence[str] = ()) -> str:
    """The text of the page, see `write_page`."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    from ttabench.report.page.charts import by_bytes, by_time
    from ttabench.report.page.lines import lines_of
    from ttabench.report.page.looks import found_and_attended

    environment = Environment(
        loader=FileSystemLoader(HERE), autoescape=True, undefined=StrictUndefined, finalize=_finalized,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    look = styles(entry.method for entry in comparison.entries)
    specs: list[dict[str, Any]] = []

    def placed(charts: Sequence[Chart | None]) -> list[tuple[int, Chart]]:
        """Charts that there are, each with its place among all of the page."""
        kept = [chart for chart in charts if chart is not None]
        specs.extend(chart.spec for chart in kept)
        return list(enumerate(kept, len(specs) - len(kept)))

    def charts(block: Block) -> list[Chart | None]:
        steps = [curves for curves in (by_step(block),) if curves is not None]
        along = [lines_of(curves, look) for curves in (*steps, *by_setting(block))]
        return [by_bytes(block, look), by_time(block, look), *along, *found_and_attended(block, look)]

    curves = placed([lines_of(over, look, named=True) for over in over_blocks(comparison.blocks)])
    blocks = [
        {"name": block.place.name, "title": title_of(block), "steps": steps_of(block),
         "charts": placed(charts(block)),
         "several": len(block.entries) > 1, "not_paired": not_paired(block), "samples": disagreeing(block, samples)}
        for block in comparison.blocks
    ]  # fmt: skip
    scripts = libraries()
    script = read_text(HERE / SCRIPT)
    policy = "default-src 'none'; img-src data: blob:; style-src 'unsafe-inline'; script-src 'unsafe-eval' " + " ".join(
        map(digest, (EARLY, scripts.charts, scripts.tables, script))
    )
    return environment.get_template(TEMPLATE).render(
        version=__version__, title=_title(comparison), sentences=list(sentences(comparison)), most=SENTENCES,
        remarks=remarks, words=WORDS, tables=tables_of(comparison), curves=curves, blocks=blocks,
        aside=comparison.aside, runs=list(about_runs(comparison)), explanation=explanation(comparison),
        legend=legend(comparison), charts=embedded(specs), policy=policy, script=script, scripts=scripts,
        style=read_text(HERE / STYLE), early=EARLY,
    )  # fmt: skip


def _title(comparison: Comparison) -> str:
    runs = sum(len(entry.runs) for entry in comparison.entries)
    return ", ".join(filter(None, [f"{runs:,} {'run' if runs == 1 else 'runs'} compared", heading(comparison.blocks)]))


def digest(script: str) -> str:
    """The source of a policy that lets this script run."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode('utf-8')).digest()).decode('ascii')}'"


def embedded(value: Any) -> str:
    """JSON that can stand in an element of HTML: nothing in it ends the element, or a line of a script."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _finalized(value: Any) -> Any:
    """A value as a template puts it into the page: control characters of texts are shown, and not obeyed."""
    return printable(value) if type(value) is str else value
