"""Rows and columns of the suites of real books (english.py), with the command of each cell."""

from __future__ import annotations

from collections.abc import Iterator

from english_cells import MODEL, RATES, Cell, at_budget, swapped

ADAPTER = "results/english/streamadapter-book/adapter"
BOOK_RATE = "3e-4"
"""Best learning rate of suite `templora-books`."""


def book_rates() -> Iterator[Cell]:
    """Yield TempLoRA on three training books of 4,096 tokens."""
    options = (
        "--task",
        "pg19",
        "--model",
        MODEL,
        "--split",
        "train",
        "--task-set",
        "tokens=4k",
        "--task-set",
        "books=3",
    )
    yield Cell("window", "", ("--method", "window", "--preset", "book", *options))
    for rate in RATES[:-1]:
        words = ("--method", "templora", "--preset", "streamadapter-book", "--set", f"lr={rate}")
        yield Cell(f"templora, lr {rate}", "", (*words, *options))


def books() -> Iterator[Cell]:
    """Yield the cells of four test books."""
    options = ("--task", "pg19", "--model", MODEL, "--task-set", "tokens=4k,8k,16k")
    for line, words in (("none", ("none",)), ("window", ("window", "--preset", "book"))):
        yield Cell(line, "", ("--method", *words, *options))
    learned = ("templora", "--preset", "streamadapter-book", "--set", f"lr={BOOK_RATE}")
    yield from swapped("", (*learned, *options))


def short_windows() -> Iterator[Cell]:
    """Yield the same books with a window of 256 tokens, which a StreamAdapter was trained with."""
    sizes = ("tokens=2k", "window=256", "stride=128")
    options = (
        "--task",
        "pg19",
        "--model",
        MODEL,
        *(word for size in sizes for word in ("--task-set", size)),
    )
    for line, words in (
        ("none", ("none",)),
        ("window", ("window", "--preset", "book", "--set", "recent=256")),
    ):
        yield Cell(line, "", ("--method", *words, *options))
    yield from swapped("", ("streamadapter", "--checkpoint", ADAPTER, *options), "streamadapter")


def long_books() -> Iterator[Cell]:
    """Yield the same books with 64k tokens of each."""
    options = ("--task", "pg19", "--model", MODEL, "--task-set", "tokens=4k,16k,64k")
    for line, words in (("none", ("none",)), ("window", ("window", "--preset", "book"))):
        yield Cell(line, "", ("--method", *words, *options))


CHUNKS = "results/english/generated-books"
"""Adapters trained for this table: `adapter` (a Generative Adapter), and `static` (a LoRA trained
on the same texts).
"""


def generated() -> Iterator[Cell]:
    """Yield cells for the next 128 tokens of a book, given the generated adapter of all earlier
    tokens and no window.
    """
    sizes = ("tokens=640,1152,2176", "window=256", "stride=128")
    words = (
        "--task",
        "pg19",
        "--model",
        MODEL,
        *(word for size in sizes for word in ("--task-set", size)),
    )
    yield Cell("none", "", ("--method", "none", *words))
    yield Cell(
        "window 256 tokens",
        "",
        ("--method", "window", "--preset", "book", "--set", "recent=256", *words),
    )
    yield Cell("static LoRA", "", ("--method", "lora", "--checkpoint", f"{CHUNKS}/static", *words))
    yield from swapped(
        "",
        ("generative_adapter", "--checkpoint", f"{CHUNKS}/adapter", *words),
        "generative_adapter",
    )


MEMORY = "results/english/ccm-books"
"""Adapter trained for this table: `adapter`, two COMP tokens per chunk of 64 tokens."""


def of_books(*sizes: str) -> tuple[str, ...]:
    """Return the options of books in chunks of 64 tokens. Each is scored, then read."""
    words = (*sizes, "stride=64")
    return (
        "--task",
        "pg19",
        "--model",
        MODEL,
        *(word for size in words for word in ("--task-set", size)),
    )


def remembered_books() -> Iterator[Cell]:
    """Yield cells for the next 64 tokens of a book, given a compressed memory of all earlier tokens
    and no window.

    The memory has 68 slots after 2,176 tokens, and fewer before.
    """
    words = of_books("tokens=640,1152,2176", "window=128")
    yield Cell("none", "", ("--method", "none", *words))
    yield from (cell for cell in swapped("", ("icl", *words), "icl") if cell.state != "none")
    yield Cell(
        "window 68 tokens",
        "",
        ("--method", "window", "--preset", "book", "--set", "recent=68", *words),
    )
    yield from swapped("", ("ccm", "--checkpoint", f"{MEMORY}/adapter", *words), "ccm")


def books_at_budget() -> Iterator[Cell]:
    """Yield the same chunks after a cache with a budget; the runs of keep-books.yaml."""
    return at_budget(of_books("tokens=640,1152,2176", "window=128"))


def streamed_books() -> Iterator[Cell]:
    """Yield a book as an endless stream with at most 160 slots, 8 of them compressed memory or
    older text.

    After 1,049 tokens every stride lies between two compressions.
    """
    words = of_books("tokens=2073,5145", "window=1049")
    stream = ("--set", "window=160")
    yield Cell("none", "", ("--method", "none", *words))
    short = ("ccm", "--set", "comp_tokens=2", *stream, "--set", "compress=false", *words)
    yield Cell("StreamingLLM, as many slots", "", ("--method", *short))
    learned = ("ccm", "--checkpoint", f"{MEMORY}/adapter", *stream, *words)
    yield from (cell for cell in swapped("", learned, "ccm") if cell.state != "none")
