"""Builder of this folder: tables and figures from the committed records. Nothing is typed by hand.

    python results/make.py tables       SUITE.md of every suite, and the tables of README and docs
    python results/make.py english      results/english/README.md, and the tables of real text
    python results/make.py claims       claims.md: the papers' claims, evaluated on the committed runs
    python results/make.py figures      the figures of the documentation
    python results/make.py profile      costs of methods on this machine; leave it idle
    python results/make.py pack results/unseen      pack finished runs into the files of their suite

Runs are made by `ttabench sweep results/SUITE.yaml --out results/SUITE`. Data of real text are read
from results/scratch/data (english/pages.yaml), and only their scores are committed (scores.parquet).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import english
import families
import grids
import matched_bytes
import override
import ruler
import states
from grids import Runs, runs_of, ttabench
from packing import pack
from papers.claims import claims_page
from papers.judging import TRIALS, load_stored_runs

from ttabench.report.selection import list_runs
from ttabench.report.stored import StoredRun

HERE = Path(__file__).resolve().parent
DOCS = HERE.parent / "docs"
IN_BATCHES = (
    "--throughput --piece-tokens 64 --task metaicl --memory-limit 768MiB "
    "--row-seconds 30 --repeat 3 --generate 8"
)
PROFILES = {
    "profile": ["--methods none,icl,window,snapkv,h2o,mac --prefill 1k,4k,16k,64k"],
    "profile-weights": ["--methods none,streamadapter,templora,lora --prefill 1k,4k,16k,64k"],
    "profile-adapters": ["--methods icl,generative_adapter,cpt,distill --prefill 512,2k,8k,32k"],
    "profile-online": ["--methods mac,camels --prefill 256"],
    "profile-batches": [
        f"--methods icl,ccm --prefill 1k {IN_BATCHES}",
        f"--methods ccm --set update=merge --prefill 1k {IN_BATCHES}",
    ],
}
"""Profiles of each table of costs: methods with a cache or a memory, and methods that change
weights, by tokens read; a generated adapter against finetuning and distillation on the same text
(Generative Adapter); one document (MAC's Figure 2); queries in batches under a memory limit (CCM's
Table 1).
"""
LENGTHS = {"streamingqa": (4, 16, 64, 165, 1665), "squad_seq": (16, 64, 165)}
"""Documents of the question streams. At most 165 synthetic documents fit into nano's window."""
TRANSFER = ("superglue-fixed", "superglue-fresh", "unseen")
UNSEEN = ("hellaswag", "winogrande", "openbookqa", "arc_easy", "arc_challenge", "piqa")
"""Tasks that no adapter was trained on."""
WITHOUT_PAIRS = {
    *("nine", "held-out", "diet-seeds", "matched-bytes"),
    *("adaptation-ratio", "online", "transfer", "forgetting", "composed"),
}
"""Suites without the tables of `compare`: they have too many runs, or show the pairs themselves."""


def by_option(option: str) -> Callable[[Runs], str]:
    """Return the grids of a suite by values of a task option."""
    cells = {"main metric (%)": grids.quality, "state size": grids.state_size}
    return lambda runs: "\n".join(
        f"**{name}**\n\n{grids.by_option(runs, option, cell)}" for name, cell in cells.items()
    )


def by_task(note: str, *, transfer: bool = False) -> Callable[[Runs], str]:
    """Return the grid of a suite by task, with its adapters."""
    head = (
        f"**main metric by task (ppl: perplexity) ± standard error over queries and draws; {note}**"
    )
    return lambda runs: (
        f"{head}\n\n{grids.by_task(runs, transfer=transfer)}\n{grids.adapters(runs)}"
    )


def by_training(runs: Runs) -> str:
    """Return the grid of a suite of adapters that differ in their training seed."""
    head = "Mean over draws by adapter; mean of trainings ± standard error over trainings."
    unseen = [run for run in runs if run[1].config["task"] in UNSEEN]
    more = f"\n**tasks outside of all trainings (%)**\n\n{grids.by_part(unseen)}" if unseen else ""
    return f"{head}\n\n{grids.by_training(runs)}{more}"


def sessions(runs: Runs) -> str:
    """Return the grids of separate queries, and of queries after earlier ones."""
    return "\n".join(
        f"**mode={mode}: score by kind of query (%)**\n\n"
        + grids.by_part([run for run in runs if run[1].config["task_options"]["mode"] == mode])
        for mode in ("requests", "turns")
    ).removesuffix("\n")


def titled(title: str, grid: Callable[[Runs], str]) -> Callable[[Runs], str]:
    """Return a grid under a title."""
    return lambda runs: f"**{title}**\n\n{grid(runs)}"


GRIDS: dict[str, Callable[[Runs], str]] = {
    **dict.fromkeys(("superglue-shots", "superglue-categories"), by_option("shots")),
    **dict.fromkeys(("adaptation-ratio", "ratio-superglue", "ratio-unseen"), by_option("ratio")),
    "context-length": by_option("group_tokens"),
    "hierarchy": titled("F1 by number of documents", grids.by_documents),
    **dict.fromkeys(
        (*TRANSFER, "unseen-categories"), titled("main metric by task (%)", grids.by_part)
    ),
    "online": by_task("-: the adapter was not trained on this task"),
    "transfer": by_task("adapters on tasks outside their training", transfer=True),
    **dict.fromkeys(("ccm-seeds", "lamp-seeds", "streamingqa-seeds"), by_training),
    **dict.fromkeys(("mac-seeds", "lessons", "diet-seeds"), by_training),
    **{
        suite: titled(
            f"{suite}: perplexity by tokens of a book, mean ± standard error over seeds",
            grids.by_length,
        )
        for suite in ("pg19", "generated-objectives")
    },
    "forgetting": titled("unrelated text, before and after reading", states.forgetting),
    "composed": titled("sums of two contexts' states", states.composed),
    "nine": lambda _: (
        f"{families.scores()}{families.costs()}{families.trainings()}".rstrip("\n") + "\n"
    ),
    "held-out": lambda _: families.scores("held-out").rstrip("\n") + "\n",
    "matched-bytes": lambda _: matched_bytes.tables().rstrip("\n"),
    "ruler": lambda _: ruler.tables(HERE / "ruler").removesuffix("\n"),
    "sessions": sessions,
    "override": lambda _: override.tables().removesuffix("\n"),
}
"""Grids at the top of the pages of suites."""


def suites() -> list[str]:
    """List the suites with committed runs."""
    return sorted(
        folder.name
        for folder in HERE.iterdir()
        if folder.is_dir() and folder.name not in (*TRIALS, "english") and list_runs(folder)
    )


def committed() -> list[Path]:
    """List the committed folders of runs: all suites, including real data."""
    real = (each for each in english.HERE.iterdir() if each.is_dir() and each.name not in TRIALS)
    return sorted([*(HERE / suite for suite in suites()), *real])


def head_of(suite: str) -> str:
    """Return the beginning of a suite's page: its name and its grids."""
    grid = GRIDS[suite](runs_of(HERE / suite)) + "\n" if suite in GRIDS else ""
    return f"# {suite}\n\n{grid}"


def streams() -> str:
    """Return the tables of question streams by number of documents, one per task."""
    parts = [
        f"**{task}: F1 by number of documents**\n\n"
        + grids.by_documents(
            [run for count in lengths for run in runs_of(HERE / f"{task}-{count}")]
        )
        for task, lengths in LENGTHS.items()
    ]
    legend = """Per cent ± standard error, three draws. *Swapped state*: the same queries under the state of other
documents. *(last 70 %)*: the share of the stream that fits into the window."""
    return "\n".join([*parts, legend, ""])


def demonstrations() -> str:
    """Return the table of ten demonstrations: rules of the training, new rules, and unseen tasks."""
    runs = {suite: runs_of(HERE / suite) for suite in TRANSFER}
    queries = {
        str(run.config["method"]): run.method["training"]["asks"]
        for own in runs.values()
        for _, run in own
        if run.config["method"] in ("lora", "streamadapter")
    }
    legend = """Accuracy (%) after ten demonstrations: mean over sub-tasks and three draws ± standard error over draws.
*superglue-fixed*: the rule of each sub-task that `streamadapter` and `lora` were trained on. *superglue-fresh*: the
same sub-tasks under new rules. *unseen*: six other tasks. The state has all demonstrations; with `ratio=0` they are in
the prompt. `lora` was trained on {lora:,} answers, `streamadapter` on {streamadapter:,}."""
    return f"{grids.over_tasks(runs)}\n{legend.format(**queries)}\n"


def session_summary() -> str:
    """Compare separate queries with queries after the earlier ones and their answers."""
    cells: dict[str, dict[str, list[StoredRun]]] = {}
    for one in runs_of(HERE / "sessions"):
        config, keep = one[1].config, one[1].config["keep"]
        if one[1].state_of == "own":
            name = f"{config['method']} {100 * keep:.0f} %" if keep else str(config["method"])
            cells.setdefault(name, {})[str(config["task_options"]["mode"])] = [one]

    def score(name: str, mode: str, part: str | None) -> float:
        ((_, run),) = cells[name][mode]
        (row,) = (
            row
            for row in run.rows
            if (row.metric, row.step, row.subtask) == (run.main_metric, None, part)
        )
        return 100 * row.value

    rows = []
    for name in sorted(cells, key=lambda name: -score(name, "requests", None)):
        parts = [f"{score(name, 'turns', part):.1f}" for part in ("first", "again")]
        rows.append((f"`{name}`", grids.quality(cells[name]["requests"]), *parts))
    head = ("method", "separate (%)", "in a session, new (%)", "in a session, repeated (%)")
    return grids.table(head, rows, 1)


def uncommitted() -> str:
    """Count the committed runs that were made from uncommitted code."""
    codes = {
        folder.relative_to(HERE).as_posix(): [run.code for _, run in runs_of(folder)]
        for folder in committed()
    }
    changed = {name: sum(bool(code.get("changed")) for code in own) for name, own in codes.items()}
    unknown = sum(not code for own in codes.values() for code in own)
    named = ", ".join(f"`{suite}` {count}" for suite, count in changed.items() if count)
    return f"""The repository stores {sum(map(len, codes.values())):,} runs. {sum(changed.values()):,} of them were made from uncommitted code
({named}). {unknown:,} runs of real text are older than the record of their commit.
"""


RESULTS, APPENDIX = DOCS / "results.md", DOCS / "results"
TABLES: dict[tuple[Path, str], Callable[[], str]] = {
    (RESULTS, "synthetic"): families.summary,
    (APPENDIX / "synthetic.md", "results"): families.scores,
    (APPENDIX / "synthetic.md", "held-out"): families.held_out,
    (APPENDIX / "synthetic.md", "equal-bytes"): matched_bytes.tables,
    (APPENDIX / "synthetic.md", "sessions"): session_summary,
    (APPENDIX / "training.md", "trainings"): families.trainings,
    (APPENDIX / "real-text.md", "override"): override.summary,
    (APPENDIX / "reproduce.md", "trees"): uncommitted,
    (HERE / "reading.md", "tables"): lambda: f"{streams()}\n{demonstrations()}",
}
"""Tables of README and documentation by page and marker."""
ENGLISH_TABLES: dict[tuple[Path, str], Callable[[], str]] = {
    (HERE.parent / "README.md", "english"): english.readme_table,
    (RESULTS, "equal-memory"): english.equal_memory,
    (RESULTS, "larger-contexts"): english.larger_contexts,
    (RESULTS, "combinations"): english.combinations,
    (RESULTS, "continued-text"): english.continued_text,
    (RESULTS, "memory"): english.memories,
    (APPENDIX / "real-text.md", "english"): english.full_table,
    (APPENDIX / "real-text.md", "by-bytes"): english.by_bytes,
    (APPENDIX / "real-text.md", "fewer-bits"): english.fewer_bits,
    (english.HERE / "reading.md", "tables"): english.reading,
}


def put(tables: dict[tuple[Path, str], Callable[[], str]]) -> None:
    """Replace the text between the markers of each table."""
    for (page, marker), make_table in tables.items():
        before, rest = page.read_text(encoding="utf-8").split(f"<!-- {marker} -->\n")
        _, after = rest.split(f"<!-- /{marker} -->")
        text = f"{before}<!-- {marker} -->\n{make_table()}<!-- /{marker} -->{after}"
        page.write_text(text, encoding="utf-8")


def write_tables() -> None:
    """Write the page of every suite, and the tables of synthetic tasks."""
    for suite in suites():
        text = head_of(suite)
        if suite not in WITHOUT_PAIRS:
            text += ttabench("compare", "--out", HERE / suite, "--format", "markdown")
        (HERE / f"{suite}.md").write_text(text, encoding="utf-8")
    put(TABLES)


def write_english() -> None:
    """Write the page of all suites of real data, and their tables."""
    (english.HERE / "README.md").write_text(english.readme(), encoding="utf-8")
    put(ENGLISH_TABLES)


def write_claims() -> None:
    """Write `claims.md`: every claim of the papers, from the committed runs."""
    text = claims_page(load_stored_runs(committed()))
    (HERE / "claims.md").write_text(text, encoding="utf-8")


def write_figures() -> None:
    """Write the figures of the documentation."""
    import figures

    for path in figures.write():
        print(path)


def profile() -> None:
    """Write `profile*.md`, `.svg` and their records: costs of methods on this machine."""
    for name, profiles in PROFILES.items():
        by_length = len(profiles) == 1 and "," in profiles[0].partition("--prefill ")[2]
        picture = ("--plot", HERE / f"{name}.svg") if by_length else ()
        tables = [
            ttabench("profile", *words.split(), "--out", HERE / name, *picture, "--format=markdown")
            for words in profiles
        ]
        head = f"![cost by prefill]({name}.svg)\n\n" if picture else ""
        text = f"# {name}\n\n{head}" + "\n".join(tables)
        (HERE / f"{name}.md").write_text(text, encoding="utf-8")


COMMANDS = {
    "tables": write_tables,
    "english": write_english,
    "claims": write_claims,
    "figures": write_figures,
    "profile": profile,
}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=[*COMMANDS, "pack"])
    parser.add_argument("folders", nargs="*", type=Path, help="suites, for `pack`")
    options = parser.parse_args()
    if options.command != "pack":
        COMMANDS[options.command]()
    for folder in options.folders:
        is_real = folder.resolve().is_relative_to(english.HERE)
        print(f"{folder}: {pack(folder, scores=is_real)} runs packed", flush=True)
