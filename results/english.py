"""Suites of real English data under SmolLM2-135M, and their tables; `english_run.py` runs them.

    results/english/SUITE/runs.parquet        records
    results/english/SUITE/scores.parquet      scores of the queries; the texts are under other licences and not stored
    results/english/SUITE/index.json          runs of each row and column
    results/english/README.md                 the tables (english_tables.py); baselines `none` and `icl` first

Data are read from DIR in the published formats: squad/, metaicl/, superglue/, sst2/, arc/,
hellaswag/, piqa/, pg19/, dailydialog/ and msc/. Sources of the committed tables:

- squad/dev-v1.1.json is the second half of XQuAD's English part (24 articles of SQuAD's `dev`, five
  paragraphs each, 558 questions), so draws of 32 documents of twelve articles share about half of
  them.
- pg19/ has four of PG-19's books as `test`, four as `validation` and 29 as `train`.
- msc/session_N/test.txt has the dialogues of all splits: 17 single sessions without other sessions
  of the same pair, rebuilt from the output of ParlAI's tests. Most stop before their end.
- The others are slices of the published files (the records have the number of rows). Demonstrations
  of hellaswag and piqa come from slices of their validation files.

Choices were made on other texts than those of the tables: prompts on articles 0 to 12; presses and
TempLoRA's rate on articles 10 and 11, which the LoRA of `smollm2-135m-qa` has not seen either;
TempLoRA's rates for demonstrations on validation rows of ARC-Easy, for books on training books; the
StreamAdapter on validation books. Tables use articles 12 to 24, the published rows of the other
tasks and the test books.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from english_books import (
    book_rates,
    books,
    books_at_budget,
    generated,
    long_books,
    remembered_books,
    short_windows,
    streamed_books,
)
from english_cells import (
    GEMMA,
    MODEL,
    TUNED,
    Cell,
    compressed,
    dialogues,
    dialogues_at_budget,
    document_rates,
    metaicl,
    one_budget,
    online_rates,
    presses,
    prompts,
    remembered,
    sessions,
    shot_rates,
    shots,
    squad_base,
    squad_tuned,
)

HERE = Path(__file__).resolve().parent / "english"


@dataclass(frozen=True)
class Suite:
    """A suite and its table."""

    about: str
    source: str
    """Folder under DIR."""
    cells: tuple[Cell, ...]
    seeds: str = "0,1,2"
    quick: bool = False
    """True if `--quick` runs it, with fewer queries of one draw."""
    metrics: tuple[str, ...] = ("",)
    """Metrics, one table each. "" is the task's main metric."""


FEW_SHOT = {
    "superglue": ".",
    "arc_easy": "arc",
    "arc_challenge": "arc",
    "hellaswag": "hellaswag",
    "piqa": "piqa",
}
"""Tasks of demonstrations, and their folders under DIR."""
SQUAD, READ = "squad/dev-v1.1.json", ("f1", "answer_nll")
SUITES: Mapping[str, Suite] = {
    "prompts": Suite(
        "XQuAD by prompt, validation articles, 8 documents, 32 questions",
        SQUAD,
        tuple(prompts()),
        "0",
        metrics=READ,
    ),
    "presses": Suite(
        f"Presses under {TUNED}, validation articles, 10 documents",
        SQUAD,
        tuple(presses()),
        "0",
        metrics=READ,
    ),
    "templora-documents": Suite(
        f"TempLoRA's rate under {TUNED}, validation articles, 5 documents",
        SQUAD,
        tuple(document_rates()),
        "0",
        metrics=READ,
    ),
    "templora-demonstrations": Suite(
        "TempLoRA's rate, ARC-Easy's validation rows, accuracy", "arc", tuple(shot_rates())
    ),
    "templora-books": Suite(
        "TempLoRA's rate, perplexity of three training books", "pg19", tuple(book_rates()), "0"
    ),
    "squad-base": Suite(
        f"XQuAD's articles 12 to 24 under {MODEL}", SQUAD, tuple(squad_base()), metrics=READ
    ),
    "squad-qa": Suite(
        f"XQuAD's articles 12 to 24 under {TUNED}",
        SQUAD,
        tuple(squad_tuned()),
        quick=True,
        metrics=READ,
    ),
    "keep": Suite(
        f"XQuAD's articles 12 to 24 under {TUNED}: all 60 paragraphs once, in disjoint sets, at one budget",
        SQUAD,
        tuple(one_budget(TUNED)),
        "0",
        metrics=READ,
    ),
    "keep-gemma": Suite(
        f"The same under {GEMMA}, three examples in front of each question",
        SQUAD,
        tuple(one_budget(GEMMA, ("prompt=qa", "examples=3"), (4,))),
        "0",
        metrics=READ,
    ),
    "keep-dialogues": Suite(
        "DailyDialog at one budget, perplexity of the next turn by turns read",
        "dailydialog",
        tuple(dialogues_at_budget()),
        "0",
    ),
    "keep-books": Suite(
        "PG-19 in chunks of 64 tokens at one budget, perplexity of four test books",
        "pg19",
        tuple(books_at_budget()),
        "0",
    ),
    "online-rates": Suite(
        f"Rates of online finetuning under {TUNED}, validation articles, 10 documents",
        SQUAD,
        tuple(online_rates()),
        "0",
        metrics=READ,
    ),
    "squad-memory": Suite(
        f"XQuAD's articles 12 to 24 under {TUNED}: full context, window, retrieval, and finetuning",
        SQUAD,
        tuple(remembered()),
        metrics=READ,
    ),
    "metaicl": Suite("MetaICL over its available test tasks", "metaicl", tuple(metaicl())),
    **{
        task: Suite(
            f"{task}, accuracy", source, tuple(shots(task, (0, 5, 10))), quick=task == "arc_easy"
        )
        for task, source in FEW_SHOT.items()
    },
    "pg19": Suite(
        "PG-19, perplexity by tokens read of four test books", "pg19", tuple(books()), "0"
    ),
    "pg19-256": Suite(
        "PG-19 through a window of 256 tokens, perplexity of four test books",
        "pg19",
        tuple(short_windows()),
        "0",
    ),
    "generated-books": Suite(
        "PG-19 in chunks of 128 tokens, perplexity of four test books",
        "pg19",
        tuple(generated()),
        "0",
    ),
    "ccm-books": Suite(
        "PG-19 in chunks of 64 tokens after a compressed memory, perplexity of four test books",
        "pg19",
        tuple(remembered_books()),
        "0",
    ),
    "ccm-stream": Suite(
        "PG-19 as an endless stream of at most 160 slots, perplexity of four test books",
        "pg19",
        tuple(streamed_books()),
        "0",
    ),
    "dailydialog": Suite(
        "DailyDialog, perplexity of the next turn by turns read: 80 dialogues each, 28 at 12 turns "
        "(TempLoRA 10 each)",
        "dailydialog",
        tuple(dialogues()),
        "0",
    ),
    "ccm-dialogues": Suite(
        "DailyDialog after the first stage of CCM, perplexity of the next turn by turns read: 80 "
        "dialogues each, 28 at 12 turns",
        "dailydialog",
        tuple(compressed()),
        "0",
    ),
    "msc": Suite(
        "Multi-Session Chat, perplexity of each turn by turns read: 17 single sessions",
        "msc",
        tuple(sessions()),
        "0",
    ),
    "pg19-64k": Suite(
        "PG-19, perplexity by tokens read of four test books", "pg19", tuple(long_books()), "0"
    ),
}
