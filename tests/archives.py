"""Published archives as people unpack them: the exact folders and file names, with a few made-up rows.

Every row says in its text which file it stands in ("train", "dev", "test"), so that a test can tell what was asked.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.qa_files import write_jsonl

Rows = list[dict[str, Any]]


def put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def lines(path: Path, rows: Rows) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_jsonl(path, rows)


def _question(tag: str, number: int) -> dict[str, Any]:
    choices = [{"text": f"choice {letter}", "label": letter} for letter in "ABCD"]
    question = {"stem": f"{tag} question {number}", "choices": choices}
    return {"id": f"{tag}-{number}", "question": question, "answerKey": "B"}


def openbookqa(base: Path) -> None:
    data = base / "OpenBookQA-V1-Sep2018" / "Data"
    for split in ("train", "dev", "test"):
        rows = [_question(split, number) for number in range(4)]
        lines(data / "Main" / f"{split}.jsonl", rows)
        cells = [f"{row['id']}\t{row['question']['stem']}\tB\n" for row in rows]
        put(data / "Main" / f"{split}.tsv", "Question ID\tQuestion Stem\tAnswer\n" + "".join(cells))
        lines(data / "Additional" / f"{split}_complete.jsonl", [{**row, "fact1": "a fact"} for row in rows])


def arc(base: Path) -> None:
    top = base / "ARC-V1-Feb2018-2"
    for kind in ("Easy", "Challenge"):
        for name, tag in (("Train", "train"), ("Dev", "dev"), ("Test", "test")):
            stem = top / f"ARC-{kind}" / f"ARC-{kind}-{name}"
            rows = [_question(f"{kind} {tag}", number) for number in range(4)]
            lines(stem.with_suffix(".jsonl"), rows)
            put(stem.with_suffix(".csv"), "questionID,AnswerKey\n" + "".join(f"{row['id']},B\n" for row in rows))


def _sentence(tag: str, number: int) -> dict[str, Any]:
    return {"qID": f"{tag}{number}", "sentence": f"{tag} {number}: Ann saw Bea when _ left.", "option1": "Ann",
            "option2": "Bea"}  # fmt: skip


def winogrande(base: Path, sizes: tuple[str, ...] = ("xs", "s", "m", "l", "xl")) -> None:
    top = base / "winogrande_1.1"
    for stem in (*(f"train_{size}" for size in sizes), "dev"):
        tag = stem.replace("_", " ")
        lines(top / f"{stem}.jsonl", [{**_sentence(tag, number), "answer": "2"} for number in range(4)])
        put(top / f"{stem}-labels.lst", "2\n" * 4)
    lines(top / "test.jsonl", [_sentence("test", number) for number in range(4)])


def superglue(base: Path, top: str = "SuperGLUE") -> None:
    def rows(task: str, tag: str, number: int) -> dict[str, Any]:
        text = f"{tag} text {number}"
        return {
            "BoolQ": {"passage": text, "question": "is it so", "label": number % 2 == 0},
            "CB": {"premise": text, "hypothesis": "h", "label": "neutral"},
            "COPA": {"premise": f"{text}.", "choice1": "A.", "choice2": "B.", "question": "cause", "label": 1},
            "RTE": {"premise": text, "hypothesis": "h", "label": "entailment"},
        }[task] | {"idx": number}

    for task in ("BoolQ", "CB", "COPA", "RTE"):
        for split in ("train", "val", "test"):
            made = [rows(task, split, number) for number in range(4)]
            hidden = [{key: value for key, value in row.items() if key != "label"} for row in made]
            lines(base / top / task / f"{split}.jsonl", hidden if split == "test" else made)


def sst2(base: Path, top: str = "GLUE") -> None:
    for split in ("train", "dev"):
        rows = "".join(f"{split} sentence {number} \t1\n" for number in range(4))
        put(base / top / "SST-2" / f"{split}.tsv", f"sentence\tlabel\n{rows}")
    put(base / top / "SST-2" / "test.tsv", "index\tsentence\n0\ttest sentence 0\n")


def hellaswag(base: Path) -> None:
    data = base / "hellaswag" / "data"
    for split in ("train", "val", "test"):
        made = [
            {"ind": number, "activity_label": "Home", "ctx_a": f"{split} text {number}", "ctx_b": "", "split": split,
             "endings": ["a", "b", "c", "d"], "label": 1}
            for number in range(4)
        ]  # fmt: skip
        if split == "test":
            made = [{key: value for key, value in row.items() if key != "label"} for row in made]
        lines(data / f"hellaswag_{split}.jsonl", made)


def piqa(base: Path, top: str = "piqa/data", asked: str = "valid") -> None:
    for split in ("train", asked, "tests"):
        tag = "dev" if split == asked else split
        lines(base / top / f"{split}.jsonl", [{"goal": f"{tag} goal {i}", "sol1": "a", "sol2": "b"} for i in range(4)])
        if split != "tests":
            put(base / top / f"{split}-labels.lst", "0\n1\n1\n0\n")


def physicaliqa(base: Path) -> None:
    piqa(base, "physicaliqa-train-dev", "dev")


BUILD: dict[str, Callable[[Path], None]] = {
    "openbookqa": openbookqa, "arc": arc, "winogrande": winogrande, "superglue": superglue, "sst2": sst2,
    "hellaswag": hellaswag, "piqa": piqa, "physicaliqa": physicaliqa,
}  # fmt: skip
"""Archives by name: each is unpacked into a folder."""
