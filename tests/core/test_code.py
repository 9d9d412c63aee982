"""A digest of code changes with the file and with every local module it imports, and with nothing else."""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from ttabench.core.errors import UserError
from ttabench.core.plugins import import_file, module_code_digest, package_code_digest
from ttabench.core.registry import entry_point_origin

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
COUNT = [
    name
    for name in FILES
    if "unused" not in name and "site-packages" not in name and name != "named.py"
]


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
    before = module_code_digest(import_file(folder / "mine.py"))
    assert module_code_digest(import_file(folder / "mine.py")) == before
    (folder / name).write_text(f"{FILES[name]}# edited\n")
    assert module_code_digest(import_file(folder / "mine.py")) != before


def test_an_edited_file_or_helper_is_executed_anew(tmp_path: Path) -> None:
    mine, helper = tmp_path / "mine.py", tmp_path / "helper_of_mine.py"
    helper.write_text("value = 1\n")
    mine.write_text("import helper_of_mine\ndef held():\n    return 10 + helper_of_mine.value\n")
    first = import_file(mine)
    assert import_file(mine) is first
    helper.write_text("value = 2\n")  # as long, in the same second
    assert import_file(mine).held() == 12
    mine.write_text(mine.read_text().replace("10", "20"))
    assert import_file(mine).held() == 22
    assert first.held() == 11, "what runs already stays as it was"


def test_helpers_of_one_name_belong_to_their_own_file(tmp_path: Path) -> None:
    held = []
    for value, name in enumerate("ab"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "helper_beside.py").write_text(f"value = {value}\n")
        mine = "import helper_beside\ndef held():\n    import helper_beside\n    return helper_beside.value\n"
        (tmp_path / name / "mine.py").write_text(mine)
    for name in "aba":
        held.append(import_file(tmp_path / name / "mine.py").held())
    assert held == [0, 1, 0]


def test_a_package_that_changed_after_its_import_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "edited_package.py").write_text("thing = 1\n")
    entry = EntryPoint("thing", "edited_package:thing", "group")
    assert entry_point_origin(entry) == entry_point_origin(entry)
    (tmp_path / "edited_package.py").write_text("thing = 2\n")
    with pytest.raises(UserError, match="changed"):
        entry_point_origin(entry)


def test_a_package_is_all_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "a_package" / "inner").mkdir(parents=True)
    (tmp_path / "a_package" / "__init__.py").write_text(
        "raise RuntimeError('it is not imported')\n"
    )
    digests = set()
    for text in ("", "# edited\n"):
        (tmp_path / "a_package" / "inner" / "part.py").write_text(text)
        (tmp_path / "a_module.py").write_text(text)
        digests |= {package_code_digest("a_package"), package_code_digest("a_module")}
    assert len(digests) == 4
    assert "a_package" not in sys.modules
    assert package_code_digest("no_such_package") == package_code_digest("nor_this_one"), (
        "whoever imports it says so"
    )
