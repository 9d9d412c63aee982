"""Pictures and curves of a comparison: what is drawn is what the records say."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from tests.conftest import Command, one_line
from tests.places import ROOT
from tests.records.test_records import sample, store_samples
from tests.report.test_compare import asked, stored
from ttabench.core.types import At
from ttabench.records.schema import load_record, save_record
from ttabench.report.charts import by_step, over_blocks, panels_of, plot, spec_of
from ttabench.report.compare import compare
from ttabench.report.finding import runs_in

pytest.importorskip("altair")


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
    store_samples(path, [each.flat() for each in samples])
    return path


SUITES = {
    "recall": (["recall"], ("acc by tokens read since the answer, at most", [512, 1024, 2048, 4096, 8192], 21)),
    "documents": (["streamingqa-64", "streamingqa-165", "streamingqa-1665"], ("f1 by documents", [64, 165, 1665], 13)),
}
"""Committed suites, and what is drawn along: title, places, lines."""


@pytest.mark.parametrize("case", SUITES)
def test_curves_of_committed_suites_have_what_their_runs_varied(case: str) -> None:
    names, wanted = SUITES[case]
    found = compare([run for name in names for run in runs_in(ROOT / "results" / name)])
    curves = [*over_blocks(found.blocks), *(one for block in found.blocks for one in by_step(block))]
    assert [(one.title, one.places, len(one.lines)) for one in curves] == [wanted]
    for line in curves[0].lines.values():
        assert len(line) > 1
        assert all(point.stderr is not None and point.n > 1 for point in line)
        assert [point.at for point in line] == sorted(point.at for point in line)


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_a_picture_of_stored_runs(tmp_path: Path, suffix: str) -> None:
    folders = [
        stepped(tmp_path, "r1", {1: (0.2, 0.1), 4: (0.4, 0.1)}),
        stored(tmp_path, "r3", {"a": 1.0, "b": 0.0}, method="none"),
    ]
    found = compare(folders)
    panels = panels_of(found)
    assert [panel.title for panel in panels] == ["f1 against bytes of state", "f1 by pieces read before the query"]
    assert [len(one["layer"]) > 1 for one in spec_of(panels, found)["concat"]] == [True, True]
    plot(found, tmp_path / f"p.{suffix}")
    content = (tmp_path / f"p.{suffix}").read_bytes()
    assert content.startswith({"png": b"\x89PNG", "svg": b"<svg", "pdf": b"%PDF"}[suffix])
    if suffix == "png":
        with Image.open(tmp_path / "p.png") as picture:
            assert picture.width == 1600
    if suffix == "svg":
        assert all(name in content for name in (b"none", b"bytes kept between queries", b"base nano"))


def test_the_command_draws_and_refuses(ttabench: Command, tmp_path: Path) -> None:
    for run, method in (("r1", "icl"), ("r2", "none")):
        stored(tmp_path, run, {"a": 1.0, "b": 0.0}, method=method)
    picture = tmp_path / "p.svg"
    assert ttabench("compare", "--out", tmp_path, "--plot", picture, "--json").json()["runs"]
    assert picture.stat().st_size > 5000
    assert ".png, .svg, .pdf" in one_line(ttabench("compare", "--out", tmp_path, "--plot", "p.gif"))
    assert "no folder no/such" in one_line(ttabench("compare", "--out", tmp_path, "--plot", "no/such/p.png"))
