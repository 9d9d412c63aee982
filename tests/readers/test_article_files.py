"""ArchivalQA in the layout of CaMeLS and MAC, and from the published pairs with a folder of articles of the user's."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from tests.qa_files import refusal, shared, steps, write_csv
from ttabench.readers import load
from ttabench.readers.article_files import Paragraph, paragraphs

NITF = """<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE nitf SYSTEM "http://www.nitf.org/IPTC/NITF/3.3/specification/dtd/nitf-3-3.dtd">
<nitf><head><pubdata date.publication="{day}T000000"/></head>
<body><body.content><block class="lead_paragraph"><p>The lead.</p></block>
<block class="full_text"><p>The {name} library reopened
  on Monday.</p><p> </p><p>Tomas &amp; Reyes moved <b>40,000</b> books.</p></block></body.content></body></nitf>"""


def pair(number: int, para: str, **more: str) -> dict[str, str]:
    held = {"answer": "May 1, 1988", "org_answer": "Monday", "answer_start": "9", "source": "rand"}
    return {"id": f"val_{number}", "question": f"When was {number}?", "para_id": para, **held, **more}


def corpus(folder: Path, years: list[int]) -> Path:
    """Published pairs about one article a year, and the articles as the corpus has them."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, year in enumerate(years):
        place = folder / "nyt_corpus" / "data" / str(year) / "01" / "31"
        place.mkdir(parents=True, exist_ok=True)
        text = NITF.format(day=f"{year}0131", name=f"Street {number}")
        (place / f"{number:07}.xml").write_text(text, encoding="utf-8")
    write_csv(folder / "ArchivalQA_val.csv", [pair(i, f"{i}_0") for i in range(len(years))])
    return folder


def test_pairs_are_joined_with_articles_and_cut_by_year(tmp_path: Path) -> None:
    source = corpus(tmp_path, [1987, 1990, 1991, 2001, 2003, 2004, 2007])
    counts = {}
    for split in ("qa_train", "qa_validation", "train", "validation", "test"):
        task = load("archivalqa", source=str(source), split=split)
        counts[split] = task.n_asks
        assert sum(task.dropped.values()) == 7 - task.n_asks
        assert all("is not of" in reason for reason in task.dropped)
    assert counts == {"qa_train": 2, "qa_validation": 1, "train": 1, "validation": 1, "test": 2}
    task = load("archivalqa", source=str(source), options={"order": "chronological", "prompt": "bare"})
    assert steps(task) == (
        ["The Street 5 library reopened on Monday.", "The Street 6 library reopened on Monday."],
        [("When was 5?", ("May 1, 1988",)), ("When was 6?", ("May 1, 1988",))],
    )
    cut = f"5 rows of {source} were left out: its article is not of 2004 to 2007"
    assert task.notes == ("all documents of the source are read: 2", cut)
    assert load("archivalqa", source=str(source / "ArchivalQA_val.csv")).n_asks == 2, "a file is cut like a folder"
    shutil.copy(source / "ArchivalQA_val.csv", source / "mine.csv")
    assert load("archivalqa", source=str(source / "mine.csv")).n_asks == 7, "a file of one's own is not cut"


def test_what_pairs_do_not_fit_is_counted_by_reason(tmp_path: Path) -> None:
    source = corpus(tmp_path, [2004, 2005])
    pairs = [
        pair(0, "0_0"), pair(1, "1_1"), pair(2, "1_1", org_answer="40,000"),
        pair(3, "1_2"), pair(4, "9_0"), pair(5, "1"),
    ]  # fmt: skip
    write_csv(source / "ArchivalQA_val.csv", pairs)
    task = load("archivalqa", source=str(source), options={"order": "file"})
    assert task.dropped == {"its paragraph does not hold the answer": 1, "no article": 3}
    assert steps(task)[0] == ["The Street 0 library reopened on Monday.", "Tomas & Reyes moved 40,000 books."]
    write_csv(source / "ArchivalQA_val.csv", pairs[1:2])
    assert "is usable (its paragraph does not hold the answer: 1)" in refusal("archivalqa", source=str(source))


def test_articles_as_text(tmp_path: Path) -> None:
    place = tmp_path / "articles" / "2005" / "03" / "07"
    place.mkdir(parents=True)
    (place / "12.txt").write_text("It reopened\non Monday.\r\n \r\nBooks came.\n", encoding="utf-8")
    (place / "0013.txt").write_text("One line.\nOn Monday.\n", encoding="utf-8")
    assert paragraphs(tmp_path, ["12_0", "12_1", "13_1", "13_2", "14_0", "x"]) == {
        "12_0": Paragraph("It reopened on Monday.", "2005-03-07", "12", 0),
        "12_1": Paragraph("Books came.", "2005-03-07", "12", 1),
        "13_1": Paragraph("On Monday.", "2005-03-07", "13", 1),
    }
    write_csv(tmp_path / "ArchivalQA_val.csv", [pair(0, "12_0"), pair(1, "0013_1")])
    task = load("archivalqa", source=str(tmp_path))
    assert sorted(steps(task)[0]) == ["It reopened on Monday.", "On Monday."]
    shutil.move(place / "12.txt", tmp_path / "articles" / "12.txt")
    assert load("archivalqa", source=str(tmp_path)).dropped == {"its article says no date": 1}


def test_published_layouts(tmp_path: Path) -> None:
    source = shared("archivalqa/made_up_schema")
    for split in ("qa_train", "qa_validation", "train", "validation", "test"):
        task = load("archivalqa", source=source, split=split)
        assert (task.n_asks, task.dropped) == (2, {})
    pairs: Any = Path(shared("archivalqa/readme_rows.csv"))
    (tmp_path / "articles").mkdir()
    shutil.copy(pairs, tmp_path / "pairs.csv")
    (tmp_path / "articles" / "1043631.txt").write_text("\n".join(["Other."] * 15 + ["He won Wimbledon."]))
    task = load("archivalqa", source=str(tmp_path / "pairs.csv"))
    assert steps(task)[0] == ["He won Wimbledon."]
    assert task.dropped == {"no article": 3}
