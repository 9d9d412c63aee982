"""Rows and columns of the suites of real English data (english.py), with the command of each cell."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

MODEL, TUNED, GEMMA = "smollm2-135m", "smollm2-135m-qa", "gemma3-270m"
PROMPT_ARTICLES, VALIDATION_ARTICLES, TEST_ARTICLES = (
    "articles=0:12",
    "articles=10:12",
    "articles=12:24",
)
SHARES = (0.1, 0.2, 0.5)
TRIED = (
    "KnormPress",
    "RandomPress",
    "StreamingLLMPress",
    "TOVAPress",
    "KeyDiffPress",
    "ExpectedAttentionPress",
    "LagKVPress",
    "NonCausalAttnPress",
    "LeverageScorePress",
    "CompactorPress",
    "PyramidKVPress",
    "CURPress",
    "AdaKVPress(SnapKVPress)",
    "AdaKVPress(ExpectedAttentionPress)",
)
PRESSES = ("CompactorPress", "ExpectedAttentionPress", "AdaKVPress(SnapKVPress)")
"""Best three of suite `presses` by F1, without StreamingLLMPress, which equals `window`."""
PROMPTS = ("bare", "qa", "short", "instruction")
RATES = ("5e-5", "3e-4", "1e-3", "3e-3")
QUESTIONS = {"arc_challenge": "50", "piqa": "50", "hellaswag": "40"}
"""Queries per draw for tasks of demonstrations with fewer than 100, so that all tables take hours
and not a day.
"""
DOCUMENT_RATE, SHOT_RATE = "3e-4", "3e-4"
"""Best rate of suite `templora-documents`."""
ONLINE: Mapping[str, tuple[str, ...]] = {"uniform": (), "salient_spans": ("--set", "spans=rule")}
ONLINE_RATES, ONLINE_RATE = ("6e-6", "2.5e-5", "1e-4", "4e-4"), "1e-4"
"""Learning rates from the paper's smallest on. 1e-4 has the best F1 on the validation articles
(`online-rates`).
"""


@dataclass(frozen=True)
class Cell:
    """One run of every seed: row, column, and arguments of `ttabench eval`."""

    line: str
    column: str
    words: tuple[str, ...]
    state: str = "own"
    """State of the run, for a command that runs several states."""


def kept(*, streamed: bool = False) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield (row, arguments) of methods with a budget.

    Args:
        streamed: True if the task has queries while it reads. A window then has no share of the unread text.
    """
    if streamed:
        yield "window 128 tokens", ("window", "--set", "recent=128")
    for share in SHARES:
        percent = f"{100 * share:.0f} %"
        if not streamed:
            yield (
                f"window {percent}",
                ("window", "--set", "mode=postprefill", "--set", f"recent={share}"),
            )
        yield f"snapkv {percent}", ("snapkv", "--set", f"budget={share}")
        yield (
            f"h2o {percent}",
            ("h2o", "--set", f"heavy={share / 2}", "--set", f"recent={share / 2}"),
        )


def pressed(presses: Sequence[str]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield presses of kvpress at a fifth of the context."""
    for press in presses:
        yield f"kvpress {press} 20 %", (f"kvpress:{press}", "--set", "budget=0.2")


def ends() -> Iterator[tuple[str, tuple[str, ...]]]:
    """No-context and full-context baselines."""
    yield "none", ("none",)
    yield "icl", ("icl",)


def squad_arguments(model: str, articles: str, documents: int) -> tuple[str, ...]:
    """Return the arguments of the task."""
    sizes = ("--task-set", articles, "--task-set", f"documents={documents}")
    return ("--task", "squad_seq", "--model", model, *sizes)


def squad_base() -> Iterator[Cell]:
    """Yield the base model, for its improvement of full context over no context."""
    for documents in (4, 8, 16, 32):
        for line, words in ends():
            yield Cell(
                line,
                f"{documents} documents",
                ("--method", *words, *squad_arguments(MODEL, TEST_ARTICLES, documents)),
            )


def squad_tuned() -> Iterator[Cell]:
    """Yield question streams of real paragraphs. Streams of 32 have 40 queries per draw and a
    budget of a fifth only.
    """
    for documents in (4, 8, 16, 32):
        few = ("--limit", "40") if documents == 32 else ()
        for line, words in [*ends(), *kept(), *pressed(PRESSES)]:
            if documents == 32 and line.endswith((" 10 %", " 50 %")):
                continue
            arguments = (*words, *squad_arguments(TUNED, TEST_ARTICLES, documents), *few)
            yield Cell(line, f"{documents} documents", ("--method", *arguments))
        if documents <= 8:  # TempLoRA needs as long for one paragraph as reading needs for 40.
            learned = (
                "templora",
                "--set",
                f"lr={DOCUMENT_RATE}",
                *squad_arguments(TUNED, TEST_ARTICLES, documents),
            )
            yield from swapped(f"{documents} documents", learned)


KEPT = ("window", "snapkv", "h2o", "random_slots", "kvzip", "attention_matching", "rag")
"""Methods with a budget, on documents."""
TOGETHER: Mapping[str, tuple[str, ...]] = {
    "rag 10 % + kvzip 10 %": ("rag+kvzip", "rag_read=0.1", "kvzip_budget=0.1"),
    "kvzip 20 % + templora": ("kvzip+templora", "kvzip_budget=0.2", f"templora_lr={DOCUMENT_RATE}"),
}
"""Combinations of two methods, within the budget of each part alone."""
SETS = (4, 8, 16)
"""Numbers of documents that are read together."""


def one_budget(model: str, more: Sequence[str] = (), sets: Sequence[int] = SETS) -> Iterator[Cell]:
    """Yield all 60 paragraphs of the test articles once, in disjoint sets; the runs of keep.yaml,
    as `sweep` makes them.
    """
    for documents in sets:
        sizes = ("kind=grouped", f"group_documents={documents}", *more)
        arguments = (
            *squad_arguments(model, TEST_ARTICLES, 60),
            *(word for size in sizes for word in ("--task-set", size)),
        )
        column = f"{documents} documents"
        for line, words in ends():
            yield Cell(line, column, ("--method", *words, *arguments))
        for method, share in product(KEPT, SHARES):
            if (method, share, documents) != (
                "h2o",
                0.5,
                16,
            ):  # This takes more than an hour, because it evicts while decoding.
                line = f"{method} {100 * share:.0f} %"
                yield Cell(line, column, ("--method", method, "--keep", str(share), *arguments))
        if documents == 4 and not more:
            yield Cell(
                "templora",
                column,
                ("--method", "templora", "--set", f"lr={DOCUMENT_RATE}", *arguments),
            )
            for line in ("qttt", "in_place_ttt", "cartridge"):
                yield Cell(line, column, ("--method", line, *arguments))
            for line, (method, *settings) in TOGETHER.items():
                words = (word for setting in settings for word in ("--set", setting))
                yield Cell(line, column, ("--method", method, *words, *arguments))


def swapped(column: str, words: tuple[str, ...], name: str = "templora") -> Iterator[Cell]:
    """Yield a method under its own, a swapped and an empty state."""
    for state, line in (
        ("own", name),
        ("other", f"{name}, another text's state"),
        ("none", f"{name}, empty state"),
    ):
        yield Cell(line, column, ("--method", *words, "--swap-state"), state)


def online_rates() -> Iterator[Cell]:
    """Yield learning rates of finetuning on each paragraph once, on ten validation paragraphs."""
    options = squad_arguments(TUNED, VALIDATION_ARTICLES, 10)
    for line, words in ends():
        yield Cell(line, "10 documents", ("--method", *words, *options))
    for rate in ONLINE_RATES:
        for method, more in ONLINE.items():
            words = ("--method", method, *more, "--set", f"lr={rate}", *options)
            yield Cell(f"{method}, lr {rate}", "10 documents", words)


def remembered() -> Iterator[Cell]:
    """Yield full context, window, retrieval and finetuning after 8, 32 and 60 paragraphs, 40
    queries per draw.

    Sixty paragraphs are all of the test articles. Their 10,000 tokens exceed the model's positions.
    Finetuning on more than eight would take longer than all other cells together, and has no cells.
    """
    for documents in (8, 32, 60):
        options, column = (
            (*squad_arguments(TUNED, TEST_ARTICLES, documents), "--limit", "40"),
            f"{documents} documents",
        )
        whole = ("icl", "--set", "truncate=left") if documents == 60 else ("icl",)
        plain = {
            "none": ("none",),
            "icl": whole,
            "window 1,024 tokens": ("window", "--set", "recent=1024"),
            "rag, bm25": ("rag", "--set", "top=3"),
            "rag, MiniLM": ("rag", "--set", "top=3", "--set", "retriever=dense"),
        }
        for line, words in plain.items():
            yield Cell(line, column, ("--method", *words, *options))
        for method, more in ONLINE.items() if documents == 8 else ():
            yield from swapped(
                column, (method, *more, "--set", f"lr={ONLINE_RATE}", *options), method
            )
    few = (*squad_arguments(TUNED, TEST_ARTICLES, 8), "--limit", "40")
    options = ("--set", "rag.top=3", "--set", f"templora.lr={DOCUMENT_RATE}", *few)
    yield from swapped("8 documents", ("rag+templora", *options), "rag+templora")


def presses() -> Iterator[Cell]:
    """Yield all presses that read once, at a fifth of ten documents."""
    for line, words in [*ends(), *pressed(TRIED)]:
        yield Cell(
            line,
            "10 documents",
            ("--method", *words, *squad_arguments(TUNED, VALIDATION_ARTICLES, 10)),
        )


def document_rates() -> Iterator[Cell]:
    """Yield TempLoRA on five documents."""
    options = squad_arguments(TUNED, VALIDATION_ARTICLES, 5)
    for line, words in ends():
        yield Cell(line, "5 documents", ("--method", *words, *options))
    for rate in RATES:
        yield Cell(
            f"templora, lr {rate}",
            "5 documents",
            ("--method", "templora", "--set", f"lr={rate}", *options),
        )


def prompts() -> Iterator[Cell]:
    """Yield every prompt on the validation articles, 8 documents."""
    for examples in (0, 1, 3):
        for prompt in PROMPTS:
            for chat in ("--chat-template", "--no-chat-template"):
                line = f"{prompt}, {examples} examples{', chat template' if chat == '--chat-template' else ''}"
                words = squad_arguments(MODEL, PROMPT_ARTICLES, 8)
                arguments = (
                    "--task-set",
                    f"prompt={prompt}",
                    "--task-set",
                    f"examples={examples}",
                    chat,
                    "--limit",
                    "32",
                )
                for method in ("none", "icl"):
                    yield Cell(line, method, ("--method", method, *words, *arguments))


def shots(task: str, counts: Sequence[int]) -> Iterator[Cell]:
    """Yield the demonstrations of one task."""
    options = ("--task", task, "--model", MODEL, "--limit", QUESTIONS.get(task, "100"))
    for count in counts:
        column = (*options, "--task-set", f"shots={count}")
        for line, words in ends() if count else list(ends())[:1]:
            yield Cell(line, f"{count} shots", ("--method", *words, *column))
        if count == max(counts):
            for line, words in [*kept(), *pressed(PRESSES)]:
                yield Cell(line, f"{count} shots", ("--method", *words, *column))
            learned = ("templora", "--preset", "streamadapter", "--set", f"lr={SHOT_RATE}", *column)
            yield from swapped(f"{count} shots", learned)


def metaicl() -> Iterator[Cell]:
    """Yield all available test tasks, with queries after 1 to 16 demonstrations of one pass."""
    options = ("--task", "metaicl", "--model", MODEL, "--limit", "400")
    for line, words in [*ends(), *kept(streamed=True)]:
        yield Cell(line, "1 to 16 shots", ("--method", *words, *options))


def shot_rates() -> Iterator[Cell]:
    """Yield TempLoRA on ten demonstrations, validation rows."""
    options = (
        "--task",
        "arc_easy",
        "--model",
        MODEL,
        "--split",
        "validation",
        "--task-set",
        "shots=10",
        "--limit",
        "100",
    )
    for line, words in ends():
        yield Cell(line, "10 shots", ("--method", *words, *options))
    for rate in ("1e-5", *RATES):
        words = ("--method", "templora", "--preset", "streamadapter", "--set", f"lr={rate}")
        yield Cell(f"templora, lr {rate}", "10 shots", (*words, *options))


DIALOGUE_RATE = "3e-4"
"""TempLoRA's rate, as chosen for demonstrations: five passes over each chunk, too."""


def dialogues() -> Iterator[Cell]:
    """Yield the next turn of a dialogue by the number of turns read before the prompt turn."""
    options = ("--task", "dailydialog", "--model", MODEL, "--limit", "400")
    yield Cell("none", "", ("--method", "none", *options))
    yield from (cell for cell in swapped("", ("icl", *options), "icl") if cell.state != "none")
    for line, words in [*kept(streamed=True)]:
        if line.endswith((" 20 %", " 50 %")):
            yield Cell(line, "", ("--method", *words, *options))
    for recent in (16, 32):
        yield Cell(
            f"window {recent} tokens",
            "",
            ("--method", "window", "--set", f"recent={recent}", *options),
        )
    learned = (
        "templora",
        "--preset",
        "streamadapter",
        "--set",
        f"lr={DIALOGUE_RATE}",
        *options[:-1],
        "50",
    )
    yield from (cell for cell in swapped("", learned) if cell.state != "none")


def at_budget(options: Sequence[str]) -> Iterator[Cell]:
    """Yield the baselines, and every method that compresses a cache, at half and at a fifth of it."""
    for line, words in ends():
        yield Cell(line, "", ("--method", *words, *options))
    for method, share in product((name for name in KEPT if name != "rag"), (0.2, 0.5)):
        yield Cell(
            f"{method} {100 * share:.0f} %",
            "",
            ("--method", method, "--keep", str(share), *options),
        )


def dialogues_at_budget() -> Iterator[Cell]:
    """Yield the same turns of dialogues; the runs of keep-dialogues.yaml."""
    return at_budget(("--task", "dailydialog", "--model", MODEL, "--limit", "400"))


TALK = "results/english/ccm-dialogues"
"""Adapters trained for this table: `first` (a LoRA with full context on dialogues), `concat` and
`merge` on top of it.
"""


def compressed() -> Iterator[Cell]:
    """Yield the next turn of a dialogue with trained memories, and the alternatives of equal size.

    Every row uses the LoRA of the paper's first stage, so `icl` is its upper bound. A window of 24
    slots has as many bytes as `ccm concat` after twelve turns, and more before.
    """
    options = (
        "--task",
        "dailydialog",
        "--model",
        MODEL,
        "--base-checkpoint",
        f"{TALK}/first",
        "--limit",
        "400",
    )
    yield Cell("none", "", ("--method", "none", *options))
    yield from (cell for cell in swapped("", ("icl", *options), "icl") if cell.state != "none")
    for update in ("concat", "merge"):
        yield from swapped(
            "", ("ccm", "--checkpoint", f"{TALK}/{update}", *options), f"ccm {update}"
        )
    yield Cell("window 24 tokens", "", ("--method", "window", "--set", "recent=24", *options))
    yield from (
        Cell(line, "", ("--method", *words, *options))
        for line, words in kept(streamed=True)
        if line.endswith(" 50 %")
    )


EVERY = "every turn"


def sessions() -> Iterator[Cell]:
    """Yield the next turn of a session. Each turn is read after it was scored; no earlier session
    is available.
    """
    options = ("--task", "msc", "--model", MODEL, "--task-set", "ask=turns")
    yield Cell("none", EVERY, ("--method", "none", *options))
    yield from (cell for cell in swapped(EVERY, ("icl", *options), "icl") if cell.state != "none")
    yield Cell("window 32 tokens", EVERY, ("--method", "window", "--set", "recent=32", *options))
    yield from (
        Cell(line, EVERY, ("--method", *words, *options))
        for line, words in kept(streamed=True)
        if line.endswith(" 50 %")
    )
