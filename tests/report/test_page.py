"""The page of a comparison: its contents, and the escaping of texts from samples."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from tests.conftest import Command, error_line
from tests.records.test_records import sample, store_samples
from tests.report.test_compare import asked, compare, stepped, stored
from ttabench.core.errors import UserError
from ttabench.records.samples import digest_of
from ttabench.records.schema import SAMPLES_FILE
from ttabench.report.charts import by_bytes, by_kept_share, by_step, by_time
from ttabench.report.comparison_tables import group_title
from ttabench.report.page import csp_digest, disagreeing_samples, libraries, page
from ttabench.report.pictures import SUFFIXES, styles, write
from ttabench.report.verdict import make_verdict

HOSTILE = "</script><script>alert(1)</script><!-- \x1b[2J\x00 \u2028 & <img src=x onerror=alert(2)> \u202e"
VOID = {"meta", "link", "br", "img", "input"}


class Read(HTMLParser):
    """A page as a browser would take it: its elements, and the text of each kind."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.elements: list[tuple[str, Mapping[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {}
        self.feed(text)
        self.close()
        assert self.open == [], "an element is not closed"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.setdefault(self.open[-1] if self.open else "", []).append(data)

    def of(self, tag: str) -> list[Mapping[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]

    def said(self, tag: str) -> str:
        return "\n".join(self.texts.get(tag, ()))


def answering(
    folder: Path,
    run: str,
    answers: Mapping[str, tuple[str, float]],
    method: str,
    prompt: str = "Who?",
) -> Path:
    """A run of a method that gave these answers, each with its f1."""
    values = {key: value for key, (_, value) in answers.items()}
    path = stored(folder, run, values, method=method)
    rows = []
    for key, (prediction, value) in answers.items():
        plain = asked(sample(key, value=value), prompt=prompt)
        answer = replace(plain.answer, prediction=prediction)
        rows.append(replace(plain, answer=answer).to_row())
    store_samples(path, rows)
    return path


def rows_of(spec: Any) -> list[dict[str, Any]]:
    """What a chart draws."""
    (rows,) = spec["datasets"].values() if "datasets" in spec else [spec["data"]["values"]]
    return list(rows)


@pytest.fixture
def folders(tmp_path: Path) -> list[Path]:
    """Runs of four methods; two of them disagree on two of three queries."""
    right, wrong = ("Ada", 1.0), ("Bob", 0.0)
    return [
        answering(tmp_path, "r1", {"a": wrong, "b": wrong, "c": wrong}, "none"),
        answering(tmp_path, "r2", {"a": right, "b": right, "c": right}, "icl"),
        answering(tmp_path, "r3", {"a": right, "b": wrong, "c": right}, "mac"),
        answering(tmp_path, "r4", {"a": wrong, "b": right, "c": right}, "lora"),
    ]


def test_verdict_first_then_tables_charts_samples_and_runs(folders: list[Path]) -> None:
    found = compare(folders)
    read = Read(page(found))
    assert [attributes.get("id") for attributes in read.of("section")] == [
        "verdict",
        "tables",
        "blocks",
        "runs",
    ]
    assert all(sentence in read.said("p") for sentence in make_verdict(found).sentences)
    ids = {attributes.get("id") for attributes in read.of("table")}
    assert ids >= {"lines", "differences", "run-table"}
    assert len([each for each in read.of("details") if each.get("class") == "sample"]) == 2
    assert all(run in read.said("summary") for run in ("r1", "r2", "r3", "r4"))
    assert "Who?" in read.said("span"), "a closed sample is known by its question"
    assert "ttabench eval --method mac --task t" in read.said("dd")
    assert all(each.get("scope") in ("col", "row") for each in read.of("th"))
    labelled = [each for each in read.of("div") if each.get("role") in ("img", "region")]
    assert all(each.get("aria-label") for each in labelled)
    assert len(read.of("caption")) == len(read.of("table"))


def test_no_home_folder_is_passed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = tmp_path / "home" / "ada"
    here.mkdir(parents=True)
    monkeypatch.chdir(here)
    path = stored(
        tmp_path,
        "r1",
        {"a": 1.0},
        checkpoint=f"{here}/adapters/mine",
        base_checkpoint="/home/bob/models/base",
        settings={"file": "/Users/carl/notes.txt", "home": "/home/bob", "kept": "/opt/models/tiny"},
    )
    text = page(compare([path, stored(tmp_path, "r2", {"a": 0.0}, method="mac")]))
    assert not re.findall(r"/(?:home|Users)/\w+", text)
    assert all(
        told in text
        for told in ("checkpoint = mine", "base_checkpoint = base", "notes.txt", "tiny")
    )


def test_nothing_in_it_is_fetched_and_only_its_own_scripts_may_run(folders: list[Path]) -> None:
    text = page(compare(folders))
    read = Read(text)
    for _, attributes in read.elements:
        for name in ("src", "href", "action", "data", "poster", "srcset"):
            assert (attributes.get(name) or "#").startswith(("#", "data:")), (name, attributes)
    (policy,) = [each["content"] or "" for each in read.of("meta") if each.get("http-equiv")]
    assert "default-src 'none'" in policy
    scripts = re.findall(r"<script(?: type=\"module\")?>(.*?)</script>", text, re.S)
    assert len(scripts) == 4
    assert set(re.findall(r"'sha256-[^']+'", policy)) == {csp_digest(script) for script in scripts}
    assert not re.search(r"url\((?!data:)|@import", read.said("style"))


def test_texts_of_samples_stay_texts(tmp_path: Path) -> None:
    answers = [{"a": (HOSTILE, 1.0), HOSTILE: ("x", 0.0)}, {"a": ("Ada", 0.0), HOSTILE: ("y", 1.0)}]
    folders = [
        answering(tmp_path, f"r{place}", own, method, prompt=HOSTILE)
        for place, (own, method) in enumerate(zip(answers, ["mac", f"lora{HOSTILE}"], strict=True))
    ]
    text = page(compare(folders), remarks=[HOSTILE])
    read = Read(text)
    assert len(read.of("script")) == 5
    assert read.of("img") == []
    assert "\\x1b[2J\\x00" in read.said("pre")
    assert not re.search("[\x00-\x08\x0b-\x1f\u202e]", text.replace(libraries().tables, ""))
    for element in ("pre", "td", "p"):
        assert "</script><script>alert(1)</script>" in read.said(element), element
    (charts,) = re.findall(
        r'<script type="application/json" id="charts">(.*?)</script>', text, re.S
    )
    assert "</script><script>alert(1)</script>" in str(json.loads(charts))


def test_samples_are_those_on_which_methods_disagree_the_widest_first(folders: list[Path]) -> None:
    (group,) = compare(folders).groups
    found = disagreeing_samples(group, most=1)
    assert found["count"] == 2, (
        "that icl and none differ on the third is no disagreement of methods"
    )
    (first,) = found["shown"]
    assert (first["key"], first["prompt"], first["gold"]) == ("a", "Who?", "Ada")
    assert {side["label"]: (side["prediction"], side["gain"]) for side in first["sides"]} == {
        "icl": ("Ada", "100.0"),
        "mac": ("Ada", "100.0"),
        "none": ("Bob", "0.0"),
        "lora": ("Bob", "0.0"),
    }
    assert first["sides"][0]["nats"] == "-1.50 (2 tokens)"
    assert disagreeing_samples(group, most=0)["shown"] == []


def test_what_is_not_stored_of_samples_is_reported(tmp_path: Path, folders: list[Path]) -> None:
    for folder in folders:
        rows = [sample(key, value=float(folder.name in ("r2", "r3"))).to_row() for key in "abc"]
        hidden = {
            "prompt": digest_of("Who?"),
            "prediction": digest_of("Ada"),
            "answers": [digest_of("Ada")],
        }
        store_samples(folder, [{**row, **hidden} for row in rows])
    (group,) = compare(folders).groups
    found = disagreeing_samples(group, most=5)
    assert "texts" in found["note"]
    assert {
        (each["prompt"], each["gold"], side["prediction"])
        for each in found["shown"]
        for side in each["sides"]
    } == {("", "", "")}
    text = page(compare(folders))
    assert "sha256:" not in re.sub(r"<(script|style).*?</\1>", "", text, flags=re.S)
    for folder in folders:
        (folder / SAMPLES_FILE).unlink()
    (group,) = compare(folders).groups
    found = disagreeing_samples(group, most=5)
    assert (found["shown"], found["count"]) == ([], 0)
    assert "no stored answers" in found["note"]


def test_charts_say_what_the_records_do(tmp_path: Path, folders: list[Path]) -> None:
    steps = [
        stepped(tmp_path, "s1", {1: 0.2, 4: 0.4}, task="u"),
        stepped(tmp_path, "s2", {1: 0.3, 4: 0.5}, task="u", method="mac"),
    ]
    found = compare([*folders, *steps])
    look = styles(row.method for row in found.method_rows)
    for group in found.groups:
        for draw, against in ((by_bytes, "kept bytes"), (by_time, "milliseconds per query")):
            assert (chart := draw(group, look))
            assert chart.title == f"f1 against {against}"
    assert by_step(found.groups[0], look) is None
    chart = by_step(found.groups[1], look)
    assert chart
    assert "n = 2;" in chart.caption
    assert [(row["label"], row["x"], row["n"]) for row in rows_of(chart.spec)] == [
        (label, step, "2") for label in ("icl", "mac") for step in (1, 4)
    ]
    spec = by_bytes(found.groups[0], look).spec  # type: ignore[union-attr]
    assert {row["label"]: (row["x"], round(row["value"], 1)) for row in rows_of(spec)} == {
        "none": (1024, 0.0),
        "icl": (1024, 100.0),
        "mac": (1024, 66.7),
        "lora": (1024, 66.7),
    }
    assert by_kept_share(found.groups[0], look) is None, "no row has a budget"
    (group,) = compare(
        [
            *folders[:2],
            *(
                stored(
                    tmp_path,
                    f"k{share}",
                    {"a": share, "b": 0.5},
                    method="lora",
                    keep=share,
                    about={"cost": {"kept_share": share / 2}},
                )
                for share in (0.2, 0.4)
            ),
        ]
    ).groups
    chart = by_kept_share(group, look)
    assert chart
    assert sorted(row["x"] for row in rows_of(chart.spec)) == [0.0, 0.1, 0.2, 1.0]
    chart = by_bytes(group, look)
    assert chart
    assert sorted(row["x"] for row in rows_of(chart.spec)) == pytest.approx(
        [102.4, 204.8, 1024, 1024]
    ), "kept shares of the bytes of icl"
    names = [(row["name"], row["x"]) for row in rows_of(chart.spec) if "name" in row]
    assert sorted(names) == [("icl", 1024), ("lora", pytest.approx(204.8)), ("none", 1024)]
    assert look["mac"][0] in json.dumps(spec)
    assert '"#000000"' in json.dumps(spec), "baselines are black"
    read = Read(page(found))
    assert all(group_title(group) in read.said("h3") for group in found.groups), (
        "several groups, one page"
    )


def test_the_command_writes_it_and_refuses_what_compare_refuses(
    ttabench: Command, folders: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for _ in range(2):  # a page replaces an earlier one
        ran = ttabench("report", *folders, "-o", "a.html", "--samples", 1)
        assert ran.code == 0, ran.err
    assert "a.html (runs: 4, " in ran.out
    assert Path("a.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    for words in (["nothing/here"], [*folders, "--metric", "f2"]):
        assert error_line(ttabench("report", *words)) == error_line(ttabench("compare", *words))
    for file in ("a.pdf", "no/a.html"):
        assert file in error_line(ttabench("report", *folders, "-o", file))
    assert not Path("report.html").exists()


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_picture_replaces_an_earlier_one_and_no_other(tmp_path: Path, suffix: str) -> None:
    figure, path = Figure(), tmp_path / f"mine{suffix}"
    figure.savefig(path)
    theirs = path.read_bytes()
    with pytest.raises(UserError, match="mine"):
        write(figure, path)
    assert path.read_bytes() == theirs
    path.unlink()
    for _ in range(2):
        write(figure, path)
