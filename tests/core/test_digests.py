"""Digests are of every byte; a large file is read once."""

from __future__ import annotations

from pathlib import Path

import pytest

from ttabench.core.digests import LARGE, digest

SIZE = 100 * 10**6


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """A file of 100 MB that takes no room."""
    file = tmp_path / "model.gguf"
    with file.open("wb") as handle:
        handle.truncate(SIZE)
    assert SIZE > LARGE
    return file


def put(file: Path, place: int, byte: bytes = b"x") -> None:
    with file.open("r+b") as handle:
        handle.seek(place)
        handle.write(byte)


@pytest.mark.parametrize("place", [0, SIZE // 2, SIZE - 1], ids=["first", "middle", "last"])
@pytest.mark.parametrize("inside", [False, True], ids=["file", "folder"])
def test_every_byte_of_a_large_file_counts(large: Path, place: int, inside: bool) -> None:
    what = large.parent if inside else large
    before = digest(what)
    put(large, place)
    assert digest(what) != before
    put(large, place, b"\0")
    assert digest(what) == before, "what it holds decides, not when it was written"


def test_a_large_file_is_read_once(large: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = digest(large)
    monkeypatch.setattr("hashlib.file_digest", None)
    assert digest(large) == before
