"""Pictures of a comparison: what is drawn is what the records say."""

from __future__ import annotations

from pathlib import Path

import pytest
from matplotlib.figure import Figure
from PIL import Image

from tests.conftest import Command, one_line
from tests.places import ROOT
from tests.records.test_records import sample, store_samples
from tests.report.test_compare import asked, stored
from ttabench.core.types import At
from ttabench.records.schema import load_record, save_record
from ttabench.report.compare import Comparison, compare
from ttabench.report.curves import Curves, by_setting
from ttabench.report.finding import runs_in
from ttabench.report.pictures import MARKERS, styles
from ttabench.report.plots import drawn, panels_of, plot


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
    "recall": (["recall"], [("acc by tokens read since the answer, at most", [512, 1024, 2048, 4096, 8192], 21)]),
    "shots": (["superglue-shots"], [("acc by shots", [0, 1, 3, 10, 30], 7)]),
    "documents": (["streamingqa-64", "streamingqa-165", "streamingqa-1665"],
                  [("f1 by documents", [64, 165, 1665], 13)]),
}  # fmt: skip
"""Committed suites, and what is drawn along: title, places, lines."""


@pytest.mark.parametrize("case", SUITES)
def test_curves_of_committed_suites_have_what_their_runs_varied(case: str) -> None:
    names, wanted = SUITES[case]
    found = compare([run for name in names for run in runs_in(ROOT / "results" / name)])
    panels = [panel for panel in panels_of(found) if isinstance(panel, Curves)]
    assert [(f"{panel.metric} by {panel.axis}", panel.places, len(panel.lines)) for panel in panels] == wanted
    for panel in panels:
        for line in panel.lines:
            assert len(line.points) > 1
            assert all(point.stderr is not None and point.n > 1 for point in line.points)
            assert [point.at for point in line.points] == sorted(point.at for point in line.points)
    figure = drawn(panels, found)
    assert all(axes.get_xlabel() == panel.axis for axes, panel in zip(figure.axes, panels, strict=True))
    assert all(", n = " in axes.get_title() for axes in figure.axes)
    assert "base nano" in figure.get_suptitle()


def test_lines_along_a_setting_differ_in_nothing_else_and_the_ends_are_level(tmp_path: Path) -> None:
    def run(name: str, method: str, value: float, **settings: object) -> Path:
        return stored(tmp_path, name, {"a": value, "b": 0.0}, method=method, settings=settings)

    folders = [
        run("none", "none", 0.0), run("icl", "icl", 1.0),
        run("s1", "snapkv", 0.2, budget=0.1, pool="avg"), run("s2", "snapkv", 0.4, budget=0.5, pool="avg"),
        run("s3", "snapkv", 0.6, budget=0.9, pool="avg"), run("s4", "snapkv", 0.8, budget=0.1, pool="max"),
    ]  # fmt: skip
    (block,) = compare(folders).blocks
    (found,) = by_setting(block)
    assert (found.axis, found.places, found.counts) == ("budget", [0.1, 0.5, 0.9], [2])
    assert [(line.label, line.level, [point.value for point in line.points]) for line in found.lines] == [
        ("none", True, [0.0, 0.0]), ("icl", True, [0.5, 0.5]), ("snapkv pool=avg", False, [0.1, 0.2, 0.3]),
    ]  # fmt: skip
    assert by_setting(compare(folders[:4]).blocks[0]) == [], "two points of one method are in the picture by bytes"
    figure = drawn([found], compare(folders))
    level = [line for line in figure.axes[0].get_lines() if line.get_linestyle() == ":"]
    assert [list(line.get_xdata()) for line in level] == [[0.1, 0.9]] * 2
    assert "Dotted" in figure.legends[0].get_title().get_text()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_a_picture_of_stored_runs(tmp_path: Path, suffix: str) -> None:
    folders = [
        stepped(tmp_path, "r1", {1: (0.2, 0.1), 4: (0.4, 0.1)}),
        stored(tmp_path, "r3", {"a": 1.0, "b": 0.0}, method="none"),
    ]
    path = plot(compare(folders), tmp_path / f"p.{suffix}")
    content = path.read_bytes()
    assert content.startswith({"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}[suffix])
    assert len(content) > 5000
    if suffix == "png":
        with Image.open(path) as usual, Image.open(plot(compare(folders), tmp_path / "s.png", (900, 700))) as small:
            assert (usual.size, small.size) == ((1600, 1000), (900, 700))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_command_draws_and_refuses(ttabench: Command, tmp_path: Path) -> None:
    stored(tmp_path, "r1", {"a": 1.0, "b": 0.0})
    picture = tmp_path / "p.svg"
    assert ttabench("compare", "--out", tmp_path, "--plot", picture, "--json").json()["runs"]
    assert picture.stat().st_size > 5000
    assert ".png, .svg, .pdf" in one_line(ttabench("compare", "--out", tmp_path, "--plot", "p.gif"))
    for bad in ("wide", "10000x900"):
        assert "no size" in one_line(ttabench("compare", "--out", tmp_path, "--plot", picture, "--size", bad))
    assert "--plot FILE" in one_line(ttabench("compare", "--out", tmp_path, "--size", "800x600"))
    assert "no folder no/such" in one_line(ttabench("compare", "--out", tmp_path, "--plot", "no/such/p.png"))
    (tmp_path / "folder.svg").mkdir()
    assert "cannot be written" in one_line(ttabench("compare", "--out", tmp_path, "--plot", tmp_path / "folder.svg"))
    stored(tmp_path, "r2", {"a": 1.0}, task="elsewhere")
    before = picture.stat().st_size
    assert ttabench("compare", "--out", tmp_path, "--plot", picture).code == 0
    assert picture.stat().st_size > before, "a panel more"


def by_bytes(found: Comparison) -> Figure:
    return drawn(found.blocks, found)


def test_budgets_of_a_method_have_one_colour_and_a_line(tmp_path: Path) -> None:
    folders = [stored(tmp_path, f"snapkv{budget}", {"a": 1.0, "b": 0.0}, method="snapkv", settings={"budget": budget})
               for budget in (0.5, 0.1, 0.2)]  # fmt: skip
    for folder, kept in zip(folders, (5000, 1000, 2000), strict=True):
        record = load_record(folder)
        save_record(record.model_copy(update={"cost": {**record.cost, "state_bytes": kept}}), folder)
    folders += [stored(tmp_path, f"templora{state}", {"a": 1.0, "b": 0.0}, method="templora", state_of=state)
                for state in ("own", "other")]  # fmt: skip
    figure = by_bytes(compare([*folders, stored(tmp_path, "mac", {"a": 1.0, "b": 0.0}, method="mac")]))
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["snapkv", "templora", "mac"]
    assert "Lines join settings of one method." in legend.get_title().get_text()
    assert "Hollow: another" in legend.get_title().get_text()
    (axes,) = figure.axes
    assert [text.get_text() for text in axes.texts] == ["budget=0.1", "budget=0.2", "budget=0.5", "templora",
                                                         "another text's state", "mac"]  # fmt: skip
    (joined,) = [line for line in axes.get_lines() if len(line.get_xdata()) == 3]
    assert list(joined.get_xdata()) == sorted(joined.get_xdata()), "by bytes"
    marks = [line for line in axes.get_lines() if line.get_marker() in MARKERS]
    assert len({line.get_color() for line in marks}) == 3, "six lines, three methods"
    assert [line.get_markerfacecolor() for line in marks].count("white") == 1, "the state of another text"


def test_nothing_is_clipped_or_hidden_and_colours_are_those_of_the_page(tmp_path: Path) -> None:
    """Six lines with one figure, and names that are longer than a panel is wide."""
    pytest.importorskip("altair")
    from ttabench.report.page.charts import by_bytes as chart

    folders = [stored(tmp_path, f"{method}{task}", {"a": 1.0, "b": 0.0}, method=method, task=task, source="file:dev")
               for method in ("none", "mac", "h2o", "rag", "lora", "a_method_of_a_very_long_name_indeed")
               for task in ("one", "a_task_of_a_very_long_name" * 3)]  # fmt: skip
    found = compare(folders)
    figure = drawn(found.blocks, found)
    whole = figure.bbox
    texts = [
        *figure.texts,
        *(axes.title for axes in figure.axes),
        *(text for axes in figure.axes for text in axes.texts),
    ]
    boxes = [text.get_window_extent() for text in [*texts, *figure.legends]]
    assert all(whole.x0 <= box.x0 and box.x1 <= whole.x1 and whole.y0 <= box.y0 and box.y1 <= whole.y1 for box in boxes)
    drawn_chart = chart(found.blocks[0], styles(entry.method for entry in found.entries))
    scale = drawn_chart.spec["layer"][0]["encoding"]["color"]["scale"]
    assert dict(zip(scale["domain"], scale["range"], strict=True)) == {
        text.get_text(): handle.get_color()
        for text, handle in zip(figure.legends[0].get_texts(), figure.legends[0].legend_handles, strict=True)
    }
