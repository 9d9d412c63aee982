"""A digest of code changes with the file and with every local module it imports, and with nothing else."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ttabench.core.plugins import code_of_file, code_of_package

FILES = {
    "mine.py": "import json, torch\nimport above\nfrom pack import part\n\ndef later():\n    import lazy\n",
    "above.py": "import deeper\n",
    "deeper.py": "import ttabench.core.plugins\nimport above\n",
    "lazy.py": "",
    "pack/__init__.py": "from . import sibling\n",
    "pack/part.py": "from .inner import deep\n",
    "pack/sibling.py": "",
    "pack/inner/__init__.py": "",
    "pack/inner/deep.py": "from .. import cousin\nfrom ..cousin import value\n",
    "pack/cousin.py": "value = 1\n",
    "named.py": "",
    "unused.py": "",
    "pack/unused.py": "",
    ".venv/lib/python3.11/site-packages/foreign.py": "",
}
COUNT = [name for name in FILES if "unused" not in name and "site-packages" not in name and name != "named.py"]


@pytest.fixture(params=["where python looks", "only beside the file"])
def folder(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in FILES.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    if request.param == "where python looks":
        monkeypatch.syspath_prepend(str(tmp_path))
        monkeypatch.syspath_prepend(str(tmp_path / ".venv/lib/python3.11/site-packages"))
    return tmp_path


@pytest.mark.parametrize("name", COUNT)
def test_every_module_that_is_imported_counts(folder: Path, name: str) -> None:
    before = code_of_file(folder / "mine.py")
    assert code_of_file(folder / "mine.py") == before
    (folder / name).write_text(f"{FILES[name]}# edited\n")
    assert code_of_file(folder / "mine.py") != before


def test_a_package_is_all_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "a_package" / "inner").mkdir(parents=True)
    (tmp_path / "a_package" / "__init__.py").write_text("raise RuntimeError('it is not imported')\n")
    digests = set()
    for text in ("", "# edited\n"):
        (tmp_path / "a_package" / "inner" / "part.py").write_text(text)
        (tmp_path / "a_module.py").write_text(text)
        code_of_package.cache_clear()
        digests |= {code_of_package("a_package"), code_of_package("a_module")}
    code_of_package.cache_clear()
    assert len(digests) == 4
    assert "a_package" not in sys.modules
    assert code_of_package("no_such_package") == code_of_package("nor_this_one"), "whoever imports it says so"
