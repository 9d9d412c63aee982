"""GGUF files as base models: read, kept as copies, and joined from the parts that packages bring."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
import torch

from tests import gguf_file
from ttabench.core import architectures
from ttabench.core.architectures import Architecture, Package
from ttabench.core.errors import UserError
from ttabench.lm.loading import gguf_files, hub
from ttabench.lm.loading.hub import model_digest
from ttabench.lm.model import load


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own for every test."""
    monkeypatch.setenv("TTABENCH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "models"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    gguf_file.write(tmp_path / "tiny.gguf")
    return tmp_path / "tiny.gguf"


def test_a_file_is_the_model_it_was_made_of(tmp_path: Path) -> None:
    file = tmp_path / "tiny.gguf"
    original = gguf_file.write(file).eval()
    lm = load(str(file), device="cpu")
    assert lm.describe()["weights"] == "Q8_0, dequantised"
    assert (lm.layers, lm.heads, lm.kv_heads, lm.max_positions) == (2, 4, 2, 256)
    ids = torch.tensor([lm.encode("he went in")])
    with torch.no_grad():
        ours, exact = lm.logits(lm.decoder(ids).last_hidden_state), original(ids).logits
    assert (ours - exact).abs().max() < 0.05 * exact.abs().max()


def test_a_part_of_a_split_model_names_the_first_one(tmp_path: Path) -> None:
    for number in (1, 2):
        file = tmp_path / f"tiny-0000{number}-of-00002.gguf"
        gguf_file.write(file, parts=2)
        with pytest.raises(UserError, match=r"2 parts.*--merge tiny-00001-of-00002\.gguf"):
            load(str(file), device="cpu")


def test_the_copy_is_used_the_second_time(
    file: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = load(str(file), device="cpu")
    monkeypatch.setattr(gguf_files, "dequantise", None)
    again = load(str(file), device="cpu")
    assert again.fingerprint == first.fingerprint
    assert again.describe()["weights"] == first.describe()["weights"]
    (folder,) = cache.glob("tiny-*")
    told = json.loads((folder / "copy.json").read_text())
    assert told["source"] == "tiny.gguf"
    assert "quantization_config" not in json.loads((folder / "config.json").read_text())


PARTS = ("tiny_gguf_part1/data/tiny.gguf.part00", "tiny_gguf_part2/data/tiny.gguf.part01")


@pytest.fixture
def parts(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Two packages that bring a GGUF file as model `tiny-parts`; whoever imports one fails."""
    data, site = file.read_bytes(), tmp_path / "site"
    for number, part in enumerate(PARTS):
        (site / part).parent.mkdir(parents=True)
        (site / part.partition("/")[0] / "__init__.py").write_text("raise RuntimeError('imported')")
        (site / part).write_bytes(data[number * 10_000 : None if number else 10_000])
    package = Package(
        requirement="tiny-gguf==1.0", files=PARTS, sha256=hashlib.sha256(data).hexdigest()
    )
    known = Architecture(hub="nobody/none", model_type="llama", config={}, package=package)
    monkeypatch.setitem(architectures.ARCHITECTURES, "tiny-parts", known)  # type: ignore[arg-type]
    monkeypatch.syspath_prepend(site)
    return [site / part for part in PARTS]


def test_parts_of_packages_are_joined_once(
    parts: list[Path], file: Path, cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (joined,) = {hub.find_source("tiny-parts") for _ in range(2)}
    assert Path(joined).parent == cache
    assert Path(joined).read_bytes() == file.read_bytes()
    assert caplog.text.count("Joining the 2 parts of tiny-parts") == 1
    assert model_digest("tiny-parts") == model_digest(str(file)), (
        "the same model as the file by its path"
    )
    assert load("tiny-parts", device="cpu").fingerprint == load(str(file), device="cpu").fingerprint
    Path(joined).write_bytes(b"GGUF, changed since")
    assert hub.find_source("tiny-parts") == joined
    assert Path(joined).read_bytes() == file.read_bytes()
    parts[0].write_bytes(b"not looked at again")
    assert hub.find_source("tiny-parts") == joined


@pytest.mark.parametrize("damage", ["{}", "[]", "{", '{"weights": {}'])
def test_a_damaged_copy_is_refused_in_one_line(file: Path, cache: Path, damage: str) -> None:
    load(str(file), device="cpu")
    (copy,) = cache.glob("tiny-*/copy.json")
    copy.write_text(damage)
    with pytest.raises(UserError, match=r"copy\.json"):
        load(str(file), device="cpu")


def test_nothing_is_reported_of_a_file_that_is_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "odd.gguf").write_bytes(b"GGUF" + bytes(99))
    with pytest.raises(UserError, match=r"odd\.gguf"):
        load(str(tmp_path / "odd.gguf"), device="cpu")
    assert not caplog.messages
