"""Digests are of every byte; those of large files are remembered, and never wrongly."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from ttabench.core import digests
from ttabench.core.digests import MIN_CACHED_DIGEST_BYTES, digest_path
from ttabench.core.errors import UserError

SIZE = 100 * 10**6


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the test's own."""
    monkeypatch.setenv("TTABENCH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "digests.json"


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """A file of 100 MB that takes no room."""
    file = tmp_path / "model.gguf"
    with file.open("wb") as handle:
        handle.truncate(SIZE)
    assert SIZE > MIN_CACHED_DIGEST_BYTES
    return file


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that were just written count as old."""
    monkeypatch.setattr(digests, "SETTLED_SECONDS", -60.0)


@pytest.fixture
def readings(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Every file that is hashed from here on."""
    found: list[Path] = []
    original = digests.sha256_of

    def reading(file: Path) -> str:
        found.append(file)
        return original(file)

    monkeypatch.setattr(digests, "sha256_of", reading)
    return found


def put(file: Path, place: int, byte: bytes = b"x") -> None:
    with file.open("r+b") as handle:
        handle.seek(place)
        handle.write(byte)


@pytest.mark.parametrize("place", [0, SIZE // 2, SIZE - 1], ids=["first", "middle", "last"])
@pytest.mark.parametrize("inside", [False, True], ids=["file", "folder"])
def test_every_byte_of_a_large_file_counts(large: Path, place: int, inside: bool) -> None:
    what = large.parent if inside else large
    before = digest_path(what)
    put(large, place)
    assert digest_path(what) != before
    put(large, place, b"\0")
    assert digest_path(what) == before, "what it holds decides, not when it was written"


def test_a_large_file_is_read_once(large: Path, settled: None, readings: list[Path]) -> None:
    assert digest_path(large) == digest_path(large)
    assert readings == [large]


def test_a_cache_that_is_broken_or_cannot_be_kept_costs_one_reading(
    large: Path, settled: None, readings: list[Path], cache: Path
) -> None:
    digest_path(large)
    cache.write_text("{")
    assert digest_path(large) == digest_path(large)
    assert readings == [large] * 2
    cache.unlink()
    cache.mkdir()
    digest_path(large)
    assert readings == [large] * 3


def test_what_another_process_keeps_meanwhile_stays(
    tmp_path: Path, settled: None, cache: Path
) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    one.write_text("1")
    other.write_text("2")

    def slow(file: Path) -> str:
        digests.cached_digest(other, lambda _: "b")
        return "a"

    assert digests.cached_digest(one, slow) == "a"
    kept = [
        digests.cached_digest(file, lambda file: f"{file} is read again") for file in (one, other)
    ]
    assert kept == ["a", "b"]


@pytest.mark.parametrize("value", [None, "", [], {}, [1], ["a", "b"], 5, "0" * 64])
def test_an_entry_of_the_cache_that_is_damaged_is_computed_again(
    large: Path, settled: None, readings: list[Path], cache: Path, value: object
) -> None:
    before = digest_path(large)
    for number in range(-1, 3):
        stored = json.loads(cache.read_text())
        for place, entry in stored.items():
            stored[place] = value if number < 0 else [*entry[:number], value, *entry[number + 1 :]]
        cache.write_text(json.dumps(stored))
        assert digest_path(large) == before
    assert readings == [large] * 5


def test_a_length_that_the_header_of_weights_does_not_say_is_refused_unread(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    save_file({"a": torch.zeros(2)}, file)
    os.truncate(file, 2**40)
    for path in (file, tmp_path):
        with pytest.raises(UserError, match=r"model\.safetensors"):
            digest_path(path)
