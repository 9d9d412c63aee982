"""The suites of real English data under SmolLM2-135M, and their tables; run by `results/make.py --english --data DIR`.

    results/english/SUITE/RUN_ID/run.json     records; the answered queries hold others' texts and are not kept here
    results/english/SUITE.md                  a line a method, a column a size; floor (none) and ceiling (icl) first

Data lie under DIR as published: squad/, metaicl/, superglue/, sst2/, arc/, hellaswag/, piqa/, pg19/. Choices are made
on other texts than tables ask: prompts on articles 0 to 12 of SQuAD; presses and TempLoRA's rate on articles 10 and 11,
which the LoRA under `smollm2-135m-qa` has not seen either; TempLoRA's rate for books on training books. Tables ask
articles 12 to 24, the published rows of the other tasks and the test books.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import exp, log
from pathlib import Path
from statistics import fmean, stdev

from grids import spread, table

from ttabench.records import Row, RunRecord, load_record

HERE = Path(__file__).resolve().parent / "english"
MODEL, TUNED = "smollm2-135m", "smollm2-135m-qa"
CHOSEN, HELD, ASKED = "articles=0:12", "articles=10:12", "articles=12:24"
DOCUMENT_TOKENS = 190
"""Of a paragraph of SQuAD under SmolLM2's tokenizer, about: what `window` keeps is counted in tokens."""
SHOT_TOKENS = {"superglue": 110, "arc_easy": 40, "arc_challenge": 45, "hellaswag": 115, "piqa": 45}
"""Of a demonstration, about."""
SHARES = (0.1, 0.2, 0.5)
TRIED = ("KnormPress", "RandomPress", "StreamingLLMPress", "TOVAPress", "KeyDiffPress", "ExpectedAttentionPress",
         "LagKVPress", "NonCausalAttnPress", "LeverageScorePress", "CompactorPress", "PyramidKVPress", "CURPress",
         "AdaKVPress(SnapKVPress)", "AdaKVPress(ExpectedAttentionPress)")  # fmt: skip
PRESSES = ("CompactorPress", "ExpectedAttentionPress", "AdaKVPress(SnapKVPress)")
"""The best three of suite `presses` by F1, but StreamingLLMPress, which is `window`."""
PROMPTS = ("bare", "qa", "short", "instruction")
RATES = ("5e-5", "3e-4", "1e-3", "3e-3")
DOCUMENT_RATE, BOOK_RATE = "3e-4", "3e-4"
"""The best of suites `templora-documents` and `templora-books`."""


@dataclass(frozen=True)
class Cell:
    """One run of every seed: its line and column in the table, and the words of `ttabench eval`."""

    line: str
    column: str
    words: tuple[str, ...]
    state: str = "own"
    """Whose, of a command that runs all of them."""


@dataclass(frozen=True)
class Suite:
    """A table."""

    about: str
    source: str
    """Folder under DIR."""
    cells: tuple[Cell, ...]
    seeds: str = "0,1,2"
    quick: bool = False
    """Whether `--quick` runs it, with fewer queries of one draw."""
    metrics: tuple[str, ...] = ("",)
    """A table each; "" is the task's main metric."""


def kept(tokens: float) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Methods that keep a share of the context: (line, words); `tokens` is how long the context is, about."""
    for share in SHARES:
        told = f"{share:.0%}".replace("%", " %")
        yield f"window {told}", ("window", "--set", f"recent={max(8, round(share * tokens))}")
        yield f"snapkv {told}", ("snapkv", "--set", f"budget={share}")
        yield f"h2o {told}", ("h2o", "--set", f"heavy={share / 2}", "--set", f"recent={share / 2}")


def pressed(presses: Sequence[str]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Presses of kvpress at a fifth of the context."""
    for press in presses:
        yield f"kvpress {press} 20 %", (f"kvpress:{press}", "--set", "budget=0.2")


def ends() -> Iterator[tuple[str, tuple[str, ...]]]:
    """Floor and ceiling."""
    yield "none", ("none",)
    yield "icl", ("icl",)


def told_squad(model: str, articles: str, documents: int) -> tuple[str, ...]:
    """Words of the task."""
    sizes = ("--task-set", articles, "--task-set", f"documents={documents}")
    return ("--task", "squad_seq", "--model", model, *sizes)


def squad_base() -> Iterator[Cell]:
    """The model as it comes: how far its floor lies below its ceiling."""
    for documents in (4, 8, 16, 32):
        for line, words in ends():
            yield Cell(line, f"{documents} documents", ("--method", *words, *told_squad(MODEL, ASKED, documents)))


def squad_tuned() -> Iterator[Cell]:
    """Question streams of real paragraphs."""
    for documents in (4, 8, 16, 32):
        methods = [*ends(), *kept(documents * DOCUMENT_TOKENS), *pressed(PRESSES)]
        for line, words in methods:
            yield Cell(line, f"{documents} documents", ("--method", *words, *told_squad(TUNED, ASKED, documents)))
        if documents <= 8:  # a paragraph takes about as long as 40 paragraphs that are only read
            learned = ("templora", "--set", f"lr={DOCUMENT_RATE}", *told_squad(TUNED, ASKED, documents))
            yield from swapped(f"{documents} documents", learned)


def swapped(column: str, words: tuple[str, ...], name: str = "templora") -> Iterator[Cell]:
    """A method that adapts: its own state, another text's, and none."""
    for state, line in (("own", name), ("other", f"{name}, another text's state"), ("none", f"{name}, empty state")):
        yield Cell(line, column, ("--method", *words, "--swap-state"), state)


def presses() -> Iterator[Cell]:
    """All presses that read once, at a fifth of ten documents."""
    for line, words in [*ends(), *pressed(TRIED)]:
        yield Cell(line, "10 documents", ("--method", *words, *told_squad(TUNED, HELD, 10)))


def document_rates() -> Iterator[Cell]:
    """TempLoRA on five documents."""
    told = told_squad(TUNED, HELD, 5)
    for line, words in ends():
        yield Cell(line, "5 documents", ("--method", *words, *told))
    for rate in RATES:
        yield Cell(f"templora, lr {rate}", "5 documents", ("--method", "templora", "--set", f"lr={rate}", *told))


def prompts() -> Iterator[Cell]:
    """Every prompt on the validation articles, 8 documents."""
    for examples in (0, 1, 3):
        for prompt in PROMPTS:
            for chat in ("--chat-template", "--no-chat-template"):
                line = f"{prompt}, {examples} examples{', chat template' if chat == '--chat-template' else ''}"
                told = told_squad(MODEL, CHOSEN, 8)
                asked = ("--task-set", f"prompt={prompt}", "--task-set", f"examples={examples}", chat, "--limit", "32")
                for method in ("none", "icl"):
                    yield Cell(line, method, ("--method", method, *told, *asked))


def shots(task: str, counts: Sequence[int]) -> Iterator[Cell]:
    """Demonstrations of one task."""
    limit = {"superglue": "150", "hellaswag": "60"}.get(task, "100")
    told = ("--task", task, "--model", MODEL, "--limit", limit)
    for count in counts:
        column = (*told, "--task-set", f"shots={count}")
        for line, words in ends() if count else list(ends())[:1]:
            yield Cell(line, f"{count} shots", ("--method", *words, *column))
        if count == max(counts):
            for line, words in [*kept(count * SHOT_TOKENS[task]), *pressed(PRESSES)]:
                yield Cell(line, f"{count} shots", ("--method", *words, *column))
            learned = ("templora", "--preset", "streamadapter", "--set", f"lr={DOCUMENT_RATE}", *column)
            yield from swapped(f"{count} shots", learned)


def metaicl() -> Iterator[Cell]:
    """All test tasks that are there, asked after 1 to 16 demonstrations of one pass."""
    told = ("--task", "metaicl", "--model", MODEL, "--limit", "400")
    for line, words in [*ends(), *kept(16 * 40)]:
        yield Cell(line, "1 to 16 shots", ("--method", *words, *told))


def book_rates() -> Iterator[Cell]:
    """TempLoRA on three training books of 4,096 tokens."""
    told = ("--task", "pg19", "--model", MODEL, "--split", "train", "--task-set", "tokens=4k", "--task-set", "books=3")
    yield Cell("window", "", ("--method", "window", "--preset", "book", *told))
    for rate in RATES[:-1]:
        words = ("--method", "templora", "--preset", "streamadapter-book", "--set", f"lr={rate}")
        yield Cell(f"templora, lr {rate}", "", (*words, *told))


def books() -> Iterator[Cell]:
    """Four test books."""
    told = ("--task", "pg19", "--model", MODEL, "--task-set", "tokens=4k,8k,16k")
    for line, words in (("none", ("none",)), ("window", ("window", "--preset", "book"))):
        yield Cell(line, "", ("--method", *words, *told))
    learned = ("templora", "--preset", "streamadapter-book", "--set", "recompute=no", "--set", f"lr={BOOK_RATE}")
    yield from swapped("", (*learned, *told))


def long_books() -> Iterator[Cell]:
    """The same books, 64k tokens of each."""
    told = ("--task", "pg19", "--model", MODEL, "--task-set", "tokens=4k,16k,64k")
    for line, words in (("none", ("none",)), ("window", ("window", "--preset", "book"))):
        yield Cell(line, "", ("--method", *words, *told))


TITLES = {"f1": "F1", "answer_nll": "Nats a token of the target answer", "ppl": "Perplexity"}
FEW_SHOT = {"superglue": ".", "arc_easy": "arc", "arc_challenge": "arc", "hellaswag": "hellaswag", "piqa": "piqa"}
"""Tasks of demonstrations, and where their files lie."""
SQUAD, READ = "squad/dev-v1.1.json", ("f1", "answer_nll")
SUITES: Mapping[str, Suite] = {
    "prompts": Suite("SQuAD by prompt, validation articles, 8 documents, 32 questions", SQUAD, tuple(prompts()), "0",
                     metrics=READ),
    "presses": Suite(f"Presses under {TUNED}, validation articles, 10 documents", SQUAD, tuple(presses()), "0",
                     metrics=READ),
    "templora-documents": Suite(f"TempLoRA's rate under {TUNED}, validation articles, 5 documents", SQUAD,
                                tuple(document_rates()), "0", metrics=READ),
    "templora-books": Suite("TempLoRA's rate, perplexity of three training books", "pg19", tuple(book_rates()), "0"),
    "squad-base": Suite(f"SQuAD paragraphs under {MODEL}", SQUAD, tuple(squad_base()), metrics=READ),
    "squad-qa": Suite(f"SQuAD paragraphs under {TUNED}", SQUAD, tuple(squad_tuned()), quick=True, metrics=READ),
    "metaicl": Suite("MetaICL over its test tasks that are there", "metaicl", tuple(metaicl())),
    **{
        task: Suite(f"{task}, accuracy", source, tuple(shots(task, (0, 5, 10))), quick=task == "arc_easy")
        for task, source in FEW_SHOT.items()
    },
    "pg19": Suite("PG-19, perplexity by tokens read of four test books", "pg19", tuple(books()), "0"),
    "pg19-64k": Suite("PG-19, perplexity by tokens read of four test books", "pg19", tuple(long_books()), "0"),
}  # fmt: skip


def shelved(data: Path) -> str:
    """A link to the data below the repository, relative to it, so that records do not hold anybody's paths."""
    place = HERE.parent / "scratch" / "data"
    place.parent.mkdir(exist_ok=True)
    if place.is_symlink():
        place.unlink()
    place.symlink_to(data, target_is_directory=True)
    os.chdir(HERE.parent.parent)
    return str(place.relative_to(HERE.parent.parent))


def run(names: Sequence[str], data: str, quick: bool) -> None:
    """Every run of these suites that is not stored yet, and an index of what belongs where."""
    for name in names:
        suite, out = SUITES[name], HERE / ("quick" if quick else "") / name
        out.mkdir(parents=True, exist_ok=True)
        index: dict[str, dict[str, list[str]]] = {}
        for cell in suite.cells:
            if quick and (cell.column not in ("8 documents", "10 shots") or "--swap-state" in cell.words):
                continue
            few = ["--limit", "40"] if quick else []
            seeds = "0" if quick else suite.seeds
            words = [*cell.words, "--source", f"{data}/{suite.source}", "--seeds", seeds, *few, "--out", str(out)]
            ids = [each for each in stored(words) if load_record(out / each).state_of == cell.state]
            index.setdefault(cell.line, {})[cell.column] = ids
            (out / "index.json").write_text(json.dumps(index, indent=1) + "\n", encoding="utf-8")


def make(names: Sequence[str], data: Path, *, quick: bool, only_tables: bool) -> None:
    """Run these suites, or all (`quick`: the few that a first look takes), and write `english.md`."""
    wanted = list(names) or [name for name, suite in SUITES.items() if suite.quick or not quick]
    if not only_tables:
        run(wanted, shelved(data.resolve()), quick)
    folder = HERE / "quick" if quick else HERE
    tables = [written(name, folder) for name in SUITES if (folder / name / "index.json").is_file()]
    head = (
        "# Real English data under SmolLM2-135M\n\nMean over draws ± standard error over draws; of one run, its own.\n"
    )
    (folder / "README.md").write_text("\n".join([head, *tables]), encoding="utf-8")


def stored(words: Sequence[str]) -> list[str]:
    """Ids of the runs of a command, which are run where they are not stored."""
    import contextlib
    import io

    from ttabench import cli

    print("ttabench eval", *words, flush=True)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        code = cli.run(["eval", *words, "--quiet"])
    if code:
        raise SystemExit(f"ttabench eval {' '.join(words)} left with {code}")
    return [Path(line).name for line in printed.getvalue().splitlines() if line.strip()]


def written(name: str, folder: Path) -> str:
    """The table of a suite, from its records alone."""
    suite, out = SUITES[name], folder / name
    index = json.loads((out / "index.json").read_text(encoding="utf-8"))
    runs = {(line, column): [load_record(out / each) for each in ids]
            for line, cells in index.items() for column, ids in cells.items()}  # fmt: skip
    columns = list(dict.fromkeys(column for _, column in runs))
    lengths = sorted({row.step for each in runs.values() for run in each for row in run.rows if row.step is not None})
    by_step = lengths if columns in ([""], ["1 to 16 shots"]) else []
    head = ("", *(f"{step:,}" for step in by_step)) if by_step else ("", *columns)
    told = [f"## {name}\n\n{suite.about}.\n"]
    for metric in suite.metrics:
        shown = [
            (line, *([figure(runs[line, columns[0]], metric, step) for step in by_step] if by_step else
                     [figure(runs.get((line, column), []), metric) for column in columns]))
            for line in index
        ]  # fmt: skip
        shared = {metric or run.main_metric for each in runs.values() for run in each}
        told.append(f"{TITLES.get(min(shared), min(shared))}:\n\n{table(head, shown, 1)}")
    told.append(by_book({line: found for (line, _), found in runs.items()}))
    return "\n".join([*told, room(runs, columns)])


def side_by_side(names: Sequence[str], column: str, folder: Path) -> str:
    """The main metric of several suites in one column each, a line a method."""
    cells: dict[str, dict[str, str]] = {}
    for name in names:
        for line, found in json.loads((folder / name / "index.json").read_text(encoding="utf-8")).items():
            if column in found:
                runs = [load_record(folder / name / each) for each in found[column]]
                cells.setdefault(line, {})[name] = figure(runs)
    shown = [(line, *(found.get(name, "") for name in names)) for line, found in cells.items()]
    return table(("", *names), shown, 1)


def shown_in_readme(folder: Path = HERE) -> str:
    """What the README shows of these suites: those that were run."""
    there = [name for name in SUITES if (folder / name / "index.json").is_file()]
    told = [written(name, folder).replace("## ", "### ", 1) for name in ("squad-qa", "pg19") if name in there]
    if few := [name for name in FEW_SHOT if name in there]:
        head = "### Ten demonstrations\n\nPer cent right, mean over three draws ± standard error over draws."
        told.append(f"{head}\n\n{side_by_side(few, '10 shots', folder)}")
    return "\n".join(told)


def figure(runs: Sequence[RunRecord], metric: str = "", step: int | None = None) -> str:
    """The figure of some runs: mean over draws with its error over draws; of one run, its own error."""
    rows = [row for run in runs if (row := value(run, metric or run.main_metric, step)) is not None]
    if not rows:
        return ""
    scale = 1 if rows[0].metric.startswith(("ppl", "answer")) else 100
    if len(rows) > 1:
        return spread([scale * row.value for row in rows], 1 if scale == 100 else 3)
    error = "" if rows[0].stderr is None else f" ± {scale * rows[0].stderr:.{1 if scale == 100 else 3}f}"
    return f"{scale * rows[0].value:.{1 if scale == 100 else 3}f}{error}"


def by_book(lines: Mapping[str, Sequence[RunRecord]], base: str = "window") -> str:
    """Differences from a method book by book, which is what books leave to compare; empty for other tasks."""
    books = {
        line: {row.part: log(row.value) for run in runs for row in run.rows
               if row.metric == "ppl" and row.step is None and row.part not in (None, "mean")}
        for line, runs in lines.items()
    }  # fmt: skip
    if not books.get(base):
        return ""
    shown = []
    for line, found in books.items():
        changes = [100 * (exp(found[book] - nats) - 1) for book, nats in books[base].items() if book in found]
        if line != base and changes:
            shown.append((line, spread(changes, 2), f"{sum(each < 0 for each in changes)} of {len(changes)}"))
    head = ("", f"perplexity from that of {base}, per cent", "books below it")
    return f"Paired by book, mean ± standard error over books:\n\n{table(head, shown, 1)}"


def value(run: RunRecord, metric: str, step: int | None = None) -> Row | None:
    """The row of a metric: of the mean over sub-tasks where there are several, of all books together."""
    rows = [row for row in run.rows if row.metric == metric and row.step == step and row.part in (None, "mean")]
    wanted = None if metric == "ppl" else "mean"
    return max(rows, key=lambda row: row.part == wanted, default=None)


def room(runs: Mapping[tuple[str, str], Sequence[RunRecord]], columns: Sequence[str]) -> str:
    """Where floor and ceiling lie so close that a method could show nothing between them."""
    told = []
    for column in columns:
        floor, ceiling = (
            [found.value for run in runs.get((line, column), []) if (found := value(run, run.main_metric))]
            for line in ("none", "icl")
        )
        if len(floor) != len(ceiling) or len(floor) < 2:
            continue
        gains = [100 * (high - low) for low, high in zip(floor, ceiling, strict=True)]
        mean, error = fmean(gains), stdev(gains) / len(gains) ** 0.5
        if mean < max(2 * error, 0):
            told.append(f"{column}: no room between floor and ceiling ({mean:.1f} ± {error:.1f} points).\n")
    return "".join(told)
