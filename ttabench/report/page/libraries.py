"""Scripts and styles that the page has in it: Vega-Lite for charts, DataTables for tables; none is fetched.

pip install 'ttabench[report]'          altair and vl-convert-python bring the first, itables the second
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

from ttabench.core.checked_file import read_text
from ttabench.core.errors import UserError

NEEDED = {"altair": "altair", "vl_convert": "vl-convert-python", "itables": "itables", "jinja2": "jinja2"}
"""Packages by the module that they bring."""
EXPORTED = re.compile(r"export\{[^}]*?\b(\w+) as default\b[^}]*\}")
"""Which name of the bundle of itables is DataTables."""


@dataclass(frozen=True, kw_only=True)
class Libraries:
    """Texts of scripts and of a style sheet, as they stand in the page."""

    charts: str
    """Sets `window.vegaEmbed`."""
    tables: str
    """A module that sets `window.DataTable`."""
    style: str
    """Of tables."""


def refuse_missing() -> None:
    """See that what the page is made of is installed.

    Raises:
        UserError: it is not.
    """
    missing = [package for module, package in NEEDED.items() if find_spec(module) is None]
    if missing:
        fault = f"`ttabench report` needs packages that are not installed: {', '.join(missing)}."
        raise UserError(fault, "Install them: pip install 'ttabench[report]'.")


@lru_cache(maxsize=1)
def libraries() -> Libraries:
    """The libraries, read once; the first takes seconds to be bundled."""
    import altair
    import itables
    import vl_convert

    version = ".".join(altair.SCHEMA_VERSION.removeprefix("v").split(".")[:2])
    folder = Path(itables.__file__).parent / "html"
    tables = read_text(folder / "dt_bundle.js")
    name = EXPORTED.search(tables)
    assert name is not None, "the bundle of itables exports no table"
    return Libraries(
        charts=closed(vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", vl_version=version)),
        tables=closed(f"{tables}\nwindow.DataTable = {name[1]};\n"),
        style=read_text(folder / "dt_bundle.css").replace("</", "<\\/"),
    )


def closed(script: str) -> str:
    """A script in which nothing ends the element that it stands in, or begins a comment there."""
    return re.sub(r"</(?=script)", r"<\\/", script, flags=re.IGNORECASE).replace("<!--", "<\\!--")
