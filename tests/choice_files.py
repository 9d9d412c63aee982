"""Rows of multiple-choice tasks in their published layouts: awkward ones, and real ones where they are at hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.qa_files import shared

EDGE_CASE_ROWS: dict[str, list[dict[str, Any]]] = {
    "boolq": [{"passage": "A {question} in braces.", "question": "is {passage} kept", "label": 1}],
    "cb": [{"premise": " lead ", "hypothesis": "it ends. ", "label": 2}],
    "copa": [
        {
            "premise": "Wait!? ",
            "choice1": "I left.",
            "choice2": "NASA called.",
            "question": "effect",
            "label": 1,
        }
    ],
    "rte": [{"premise": "A.\nB.", "hypothesis": "C.", "label": 0}],
    "sst2": [{"sentence": "two blanks after  ", "label": 0}],
    "hellaswag": [
        {
            "activity_label": "Home [title] and  Garden",
            "ctx_a": " [header] How to [b]",
            "ctx_b": "a USEFUL thing",
            "endings": ["x [title] y", "[step] z", " lead", "two  blanks   here"],
            "label": "2",
        }
    ],
    "winogrande": [
        {"sentence": "_ said  it_ was  so. ", "option1": "Ann", "option2": "Ann", "answer": "1"}
    ],
    "openbookqa": [
        {
            "question_stem": "Which?",
            "choices": {"text": ["a", "b ", " c", "d"], "label": list("ABCD")},
            "answerKey": " B",
        }
    ],
    "arc_easy": [
        {
            "question": "Which one?",
            "choices": {"text": ["a", "b", "c"], "label": ["1", "2", "3"]},
            "answerKey": "3",
        }
    ],
    "piqa": [{"goal": "dresser", "sol1": "replace ", "sol2": "finish,  wood", "label": 0}],
}
RAW_FILES = {
    "boolq": "superglue/BoolQ/val.jsonl",
    "cb": "superglue/CB/val.jsonl",
    "copa": "superglue/COPA/val.jsonl",
    "rte": "superglue/RTE/val.jsonl",
    "sst2": "sst2/SST-2/dev.tsv",
    "hellaswag": "hellaswag/hellaswag_val.jsonl",
    "arc_easy": "arc/ARC-V1-Feb2018-2/ARC-Easy/ARC-Easy-Test.jsonl",
    "arc_challenge": "arc/ARC-V1-Feb2018-2/ARC-Challenge/ARC-Challenge-Test.jsonl",
    "piqa": "piqa/valid.jsonl",
}
LABEL_NAMES = {
    "cb": ["entailment", "contradiction", "neutral"],
    "rte": ["entailment", "not_entailment"],
}


def shared_rows(name: str, count: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """(published rows as they are, the same in the columns of the hub, which lm-eval reads)."""
    path = Path(shared(RAW_FILES[name]))
    lines = path.read_text(encoding="utf-8").splitlines()
    if path.suffix == ".tsv":
        cells = [line.split("\t") for line in lines[1 : count + 1]]
        raw: list[dict[str, Any]] = [
            {"sentence": sentence, "label": label} for sentence, label in cells
        ]
    else:
        raw = [json.loads(line) for line in lines[:count]]
    if name == "piqa":
        labels = path.with_name("valid-labels.lst").read_text(encoding="utf-8").split()
        raw = [{**row, "label": int(label)} for row, label in zip(raw, labels, strict=False)]
    return raw, [_hub_row(name, row) for row in raw]


def _hub_row(name: str, row: dict[str, Any]) -> dict[str, Any]:
    if name.startswith("arc"):
        question = row["question"]
        lists = {key: [choice[key] for choice in question["choices"]] for key in ("text", "label")}
        return {"question": question["stem"], "choices": lists, "answerKey": row["answerKey"]}
    label = LABEL_NAMES[name].index(row["label"]) if name in LABEL_NAMES else int(row["label"])
    return {**row, "label": str(label) if name == "hellaswag" else label}
