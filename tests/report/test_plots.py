"""Pictures of a comparison: what is drawn is what the records say."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import Command, one_line
from tests.records.test_records import sample
from tests.report.test_compare import asked, stored
from ttabench.core.types import At
from ttabench.records.schema import SAMPLES_FILE, load_record, save_record, write_samples
from ttabench.report.compare import compare
from ttabench.report.plots import curves, plot
from ttabench.stats.aggregation import aggregate


def stepped(folder: Path, run: str, by_step: dict[int, tuple[float, float]], **more: object) -> Path:
    """A run with values and standard errors by step."""
    path = stored(folder, run, {"a": 1.0, "b": 0.0}, **more)  # type: ignore[arg-type]
    found = load_record(path)
    rows = [
        found.rows[0].model_copy(update={"step": step, "value": value, "stderr": stderr, "n": 10})
        for step, (value, stderr) in by_step.items()
    ]
    save_record(found.model_copy(update={"rows": (*found.rows, *rows)}), path)
    samples = [
        asked(sample(f"{step} {sign}", value=value + sign * stderr), at=At(count=step))
        for step, (value, stderr) in by_step.items()
        for sign in (-1, 1)
    ]
    write_samples(path / SAMPLES_FILE, [each.flat() for each in samples])
    return path


def test_curves_pool_seeds_by_step(tmp_path: Path) -> None:
    folders = [
        stepped(tmp_path, "r1", {1: (0.2, 0.1), 4: (0.4, 0.1)}),
        stepped(tmp_path, "r2", {1: (0.4, 0.1), 4: (0.8, 0.1)}, seed=1),
        stored(tmp_path, "r3", {"a": 1.0}, method="none"),
    ]
    (curve,) = curves(compare(folders).entries)
    assert curve.label == "icl"
    assert curve.steps == (1, 4)
    assert curve.values == pytest.approx((30.0, 60.0))
    four = ([0.1, 0.3, 0.3, 0.5], [0.3, 0.5, 0.7, 0.9])
    assert curve.errors == pytest.approx([100 * (aggregate(values).stderr or 0.0) for values in four])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_a_picture_of_stored_runs(tmp_path: Path, suffix: str) -> None:
    folders = [
        stepped(tmp_path, "r1", {1: (0.2, 0.1), 4: (0.4, 0.1)}),
        stored(tmp_path, "r3", {"a": 1.0, "b": 0.0}, method="none"),
    ]
    path = plot(compare(folders), tmp_path / f"p.{suffix}")
    content = path.read_bytes()
    assert content.startswith(b"\x89PNG" if suffix == "png" else b"<?xml")
    assert len(content) > 5000


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_command_draws_and_refuses(ttabench: Command, tmp_path: Path) -> None:
    stored(tmp_path, "r1", {"a": 1.0, "b": 0.0})
    picture = tmp_path / "p.svg"
    assert ttabench("compare", "--out", tmp_path, "--plot", picture, "--json").json()["runs"]
    assert picture.stat().st_size > 5000
    assert ".png or .svg" in one_line(ttabench("compare", "--out", tmp_path, "--plot", "p.pdf"))
    assert "no folder no/such" in one_line(ttabench("compare", "--out", tmp_path, "--plot", "no/such/p.png"))
    (tmp_path / "folder.svg").mkdir()
    assert "cannot be written" in one_line(ttabench("compare", "--out", tmp_path, "--plot", tmp_path / "folder.svg"))
    stored(tmp_path, "r2", {"a": 1.0}, task="elsewhere")
    before = picture.stat().st_size
    assert ttabench("compare", "--out", tmp_path, "--plot", picture).code == 0
    assert picture.stat().st_size > before, "a panel more"
