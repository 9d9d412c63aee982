"""Pictures and curves of a comparison: what is drawn is what the records say."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from tests.conftest import Command, one_line
from tests.places import ROOT
from tests.records.test_records import sample, store_samples
from tests.report.test_compare import asked, stored
from ttabench.core.types import At
from ttabench.records.samples import Looked
from ttabench.records.schema import load_record, save_record
from ttabench.report.charts import lines_of
from ttabench.report.compare import compare
from ttabench.report.curves import by_look, by_step, over_blocks
from ttabench.report.finding import runs_in
from ttabench.report.pictures import styles
from ttabench.report.plots import panels_of, plot, spec_of

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
    assert [(f"{one.metric} by {one.axis}", one.places, len(one.lines)) for one in curves] == [wanted]
    for line in curves[0].lines:
        assert len(line.points) > 1
        assert all(point.stderr is not None and point.n > 1 for point in line.points)
        assert [point.at for point in line.points] == sorted(point.at for point in line.points)


LOOKS = {
    "mac": [(0.9, 1, 0), (0.4, 2, 2), (0.2, 3, 3), (0.0, 0, 0)],
    "rag": [(0.5, 1, 0), (0.5, 2, 1), (0.5, 3, 2), (0.0, 4, 3)],
}
"""Share of the right piece, its rank, and how many were read after it."""


def test_how_questions_look_at_the_right_piece(tmp_path: Path) -> None:
    for method, looks in LOOKS.items():
        path = stored(tmp_path, method, {f"q{number}": 1.0 for number in range(4)}, method=method)
        looked = [Looked(gold_share=a, gold_rank=b, gold_age=c, kept_pieces=8) for a, b, c in looks]
        store_samples(path, [replace(sample(f"q{at}"), looked=look).flat() for at, look in enumerate(looked)])
    stored(tmp_path, "icl", {f"q{number}": 1.0 for number in range(4)})
    found, attended = by_look(compare(sorted(tmp_path.iterdir())).blocks[0])
    lines = {line.label: [(point.at, point.value) for point in line.points] for line in found.lines}
    assert lines["mac"] == [(1, 25.0), (2, 50.0), (4, 75.0), (8, 75.0)], "one was dropped"
    assert lines.keys() == {"mac", "rag"}, "full context tells nothing"
    (rows,) = lines_of(found, styles(LOOKS)).spec["datasets"].values()
    assert max(row["value"] for row in rows) == 100.0, "per cent, whatever the metric of the runs"
    (mac,) = attended.lines
    assert [(point.at, point.value, point.n) for point in mac.points] == [(0, 90.0, 1), (2, pytest.approx(30.0), 2)]


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
    content = plot(found, tmp_path / f"p.{suffix}", (900, 700)).read_bytes()
    assert content.startswith({"png": b"\x89PNG", "svg": b"<svg", "pdf": b"%PDF"}[suffix])
    if suffix == "png":
        with Image.open(tmp_path / "p.png") as picture:
            assert picture.size == (900, 700)
    if suffix == "svg":
        assert all(name in content for name in (b"none", b"bytes kept between queries", b"base nano"))


def test_the_command_draws_and_refuses(ttabench: Command, tmp_path: Path) -> None:
    for run, method in (("r1", "icl"), ("r2", "none")):
        stored(tmp_path, run, {"a": 1.0, "b": 0.0}, method=method)
    picture = tmp_path / "p.svg"
    assert ttabench("compare", "--out", tmp_path, "--plot", picture, "--json").json()["runs"]
    assert picture.stat().st_size > 5000
    assert ".png, .svg, .pdf" in one_line(ttabench("compare", "--out", tmp_path, "--plot", "p.gif"))
    assert "no size" in one_line(ttabench("compare", "--out", tmp_path, "--plot", picture, "--size", "wide"))
    assert "--plot FILE" in one_line(ttabench("compare", "--out", tmp_path, "--size", "800x600"))
    assert "no folder no/such" in one_line(ttabench("compare", "--out", tmp_path, "--plot", "no/such/p.png"))
