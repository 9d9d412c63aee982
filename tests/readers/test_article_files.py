"""ArchivalQA in the layout of CaMeLS and MAC, and from the published pairs with a folder of articles of the user's."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from tests.qa_files import shared, steps, write_csv
from ttabench.readers import load

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
