"""The public API: `ttabench` and `ttabench.extend`, and what examples import from them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from types import ModuleType

import pytest

import ttabench
import ttabench.extend
from tests.docs.pages import DOCS, blocks
from tests.places import ROOT
from tests.test_imports import HEAVY

MODULES = (ttabench, ttabench.extend)
PRIVATE = re.compile(
    r"\bttabench\.(?!extend\b)\w+(?:\.\w+)* import\b|\bimport ttabench\.(?!extend\b)"
)
INTERNALS_PAGE = "docs/extend/layout.md"
"""Page that explains private modules."""


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_public_names_exist(module: ModuleType) -> None:
    assert {"Session", "Method"} & set(module.__all__)
    assert all(getattr(module, name) is not None for name in module.__all__)
    assert set(module.__all__) <= set(dir(module))
    with pytest.raises(AttributeError, match="nope"):
        _ = module.nope


def test_import_of_specs_loads_nothing_heavy() -> None:
    code = (
        "import sys, ttabench.extend\nttabench.extend.MethodSpec, ttabench.extend.Cost, ttabench.UserError\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout == "[]\n", done.stderr


def examples() -> Iterator[tuple[str, str]]:
    """Yield the code that shows how to use or extend ttabench, by place."""
    for block in blocks("python"):
        if block.page != INTERNALS_PAGE:
            yield block.page, block.code
    for path in (ROOT / "ttabench/assets/templates").rglob("*.py"):
        yield str(path), path.read_text(encoding="utf-8")
    for path in DOCS.rglob("*.ipynb"):
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        yield str(path), "\n".join("".join(cell["source"]) for cell in cells)


def test_examples_import_public_names_only() -> None:
    found = [place for place, code in examples() if PRIVATE.search(code)]
    assert found == []
    assert PRIVATE.search("from ttabench.lm.patch import State")
