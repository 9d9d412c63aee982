"""A registry finds objects by name, imports them late, and executes files only for the user."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ttabench.core.errors import UnknownName, UserError
from ttabench.core.registry import Registry
from ttabench.methods.registry import find_installed

COLOURS = Registry[object](
    "colour",
    {"red": 1, "path": "colorsys:rgb_to_hsv"},
    in_module=lambda module, _: {
        name: value for name, value in vars(module).items() if isinstance(value, int)
    },
    accept=lambda value, source: (value, source.name),
)


def test_builtin_objects_are_imported_at_their_use() -> None:
    sys.modules.pop("colorsys", None)
    assert ("path" in COLOURS, list(COLOURS), COLOURS.find("red")) == (True, ["red", "path"], 1)
    assert "colorsys" not in sys.modules
    assert COLOURS["path"] is sys.modules["colorsys"].rgb_to_hsv


@pytest.mark.parametrize(
    ("text", "name", "expected"),
    [
        ("blue = 1", "", (1, "blue")),
        ("blue = 1\ngreen = 2", ":green", (2, "green")),
        ("blue = 1\ngreen = 2", "", "blue, green"),
        ("blue = 1", ":bleu", "Did you mean 'blue'?"),
        ("", "", "ttabench new colour"),
        ("red = 1", "", "red"),
        ("Blue = 1", "", "Blue"),
    ],
)
def test_objects_of_files(tmp_path: Path, text: str, name: str, expected: object) -> None:
    file = tmp_path / "mine.py"
    file.write_text(text)
    if isinstance(expected, tuple):
        assert COLOURS.find(f"{file}{name}") == expected
    else:
        with pytest.raises(UserError, match=r"mine\.py") as raised:
            COLOURS.find(f"{file}{name}")
        assert str(expected) in str(raised.value)


def test_unknown_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UnknownName, match="Did you mean 'red'"):
        COLOURS.find("rad")
    (tmp_path / "mine.py").write_text("blue = 1")
    with pytest.raises(UnknownName, match=r"\./mine\.py"):
        COLOURS.find("mine")


@pytest.mark.parametrize("name", ["{}", "{}:tail", "icl+{}", "{}+icl"])
def test_names_in_records_execute_no_file(tmp_path: Path, name: str) -> None:
    file = tmp_path / "mine.py"
    file.write_text(f"from pathlib import Path\nPath({str(tmp_path / 'executed')!r}).touch()\n")
    with pytest.raises(UserError, match=r"mine\.py"):
        find_installed(name.format(file))
    assert not (tmp_path / "executed").exists()
