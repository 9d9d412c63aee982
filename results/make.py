"""Builder of this folder: runs the suites, then computes their tables. Nothing here is typed by
hand.

    python results/make.py                       make the missing runs, then write every table
    python results/make.py streamingqa-16        one suite
    python results/make.py --tables              only the tables, from the stored records
    python results/make.py --profile             costs of methods on this machine; seconds, so leave it idle
    python results/make.py --quick               a trial of every suite: one draw, few queries, in results/scratch/quick
    python results/make.py --english --data DIR  real data under smollm2-135m, see english.py; --quick for a trial
    python results/make.py --english --data DIR --scores piqa   repeat the runs that have no scores per query
    python results/make.py unseen --seeds 0 --limit 20 --out results/scratch/trial      a trial, which writes only there
    python results/make.py claims                claims.md: the papers' claims, evaluated on the committed runs
    python results/make.py --pack                pack folders of runs into the files of their suite (or --english)

A suite consists of a file SUITE.yaml, a folder of runs (`ttabench sweep results/SUITE.yaml --out
results/SUITE`) and a table `SUITE.md` (`ttabench compare`, and grids of the varied options).
Finished runs are packed into `runs.parquet` and `samples.parquet`. Suites of real data also have
`scores.parquet`: samples without texts, which are committed. To add runs from another machine, copy
their folders (for real data with the index.json) into the suite, then use --pack and --tables.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path

import claims
import composed
import english
import english_run
import english_tables
import families
import forgetting
import grids
import override
import pages
import ruler_tables
from packing import pack
from papers.judging import TRIALS, load_stored_runs
from suites import (
    ADAPTERS_ELSEWHERE,
    BY_DOCUMENTS,
    BY_LENGTH,
    BY_PART,
    BY_STATE,
    BY_TASK,
    BY_TRAINING,
    OPTION_VARIED,
    PROFILES,
    READ_BY,
    READ_TO,
    SUITES,
    TWO_CONTEXTS,
    UNDER_STATES,
    UNSEEN,
    WITHOUT_PAIRS,
    ttabench,
)

from ttabench.cli import app as cli
from ttabench.report.selection import list_runs
from ttabench.report.stored import StoredRun

HERE = Path(__file__).resolve().parent
CLAIMS = "claims"
QUICK = 8
"""Queries per run in a quick trial."""


OF_THEIR_OWN: dict[str, Callable[[Path], str]] = {
    families.SUITE: lambda out: "".join(families.tables(out)),
    "ruler": lambda out: ruler_tables.written(out / "ruler"),
    "sessions": lambda out: "\n".join(
        f"**mode={mode}: score by kind of query (%)**\n\n{grids.by_part(runs)}"
        for mode in ("requests", "turns")
        if (
            runs := [
                run
                for run in grids.records(out / "sessions")
                if run.config["task_options"]["mode"] == mode
            ]
        )
    ),
    "override": lambda out: override.table(out / "override"),
    TWO_CONTEXTS: lambda out: (
        f"**sums of two contexts' states**\n\n{composed.table(grids.records(out / TWO_CONTEXTS))}\n"
    ),
}
"""Tables of suites with a special layout."""


def run(suite: str, options: argparse.Namespace) -> None:
    """Make every run of a suite that is not stored yet."""
    os.chdir(HERE.parent)
    if suite in ADAPTERS_ELSEWHERE and has_runs(suite, options.out):
        return
    if suite in UNDER_STATES:
        if has_runs(suite, options.out):
            return  # New states would differ from the stored ones, and so would their runs.
        forgetting.read(Path(READ_TO), READ_BY)
    if suite == TWO_CONTEXTS:
        composed.ask(Path(READ_TO).parent / suite, options.out / suite)
        pack(options.out / suite)
        return
    drawn = [] if options.seeds is None or suite in UNDER_STATES else ["--seeds", options.seeds]
    few = ["--limit", str(options.limit)] if options.limit is not None else []
    words = [f"results/{suite}.yaml", *drawn, "--jobs", str(options.jobs), *few]
    print("ttabench sweep", *words, flush=True)
    if code := cli.run(["sweep", *words, "--out", str(options.out / suite)]):
        raise SystemExit(f"ttabench sweep failed with exit code {code}")
    pack(options.out / suite)


def repack(options: argparse.Namespace) -> None:
    """Pack the named suites, or all suites with a folder (`--pack`)."""
    suites, folder = (
        (english.SUITES, english_folder(options)) if options.english else (SUITES, options.out)
    )
    for suite in (folder / name for name in options.suites or suites if (folder / name).is_dir()):
        print(f"{suite}: {pack(suite, scores=options.english)} runs packed", flush=True)


def has_runs(suite: str, out: Path = HERE) -> bool:
    """Return True if a suite has runs."""
    return bool(list_runs(out / suite))


def grid_of(suite: str, out: Path) -> str:
    """Return the grids of a suite that varies a task option, or has several tasks or sub-tasks."""
    if suite in OPTION_VARIED:
        runs, option = grids.runs_of(out / suite), OPTION_VARIED[suite]
        cells = {"main metric (%)": grids.quality, "state size": grids.state}
        return (
            "\n".join(
                f"**{name}**\n\n{grids.by_option(runs, option, cell)}"
                for name, cell in cells.items()
            )
            + "\n"
        )
    if suite in BY_DOCUMENTS:
        counts: dict[int, list[StoredRun]] = {}
        for folder, run in grids.runs_of(out / suite):
            counts.setdefault(int(run.config["task_options"]["documents"]), []).append(
                (folder, run)
            )
        return (
            f"**F1 by number of documents**\n\n{grids.by_documents(dict(sorted(counts.items())))}\n"
        )
    if suite in BY_PART:
        return f"**main metric by task (%)**\n\n{grids.by_part(grids.records(out / suite))}\n"
    if suite in BY_TASK:
        runs = grids.runs_of(out / suite)
        head = f"main metric by task (ppl: perplexity) ± standard error over queries and draws; {BY_TASK[suite]}"
        return f"**{head}**\n\n{grids.by_task(runs, transfer=suite == 'transfer')}\n{grids.adapters(runs)}\n"
    if suite in BY_TRAINING:
        head = "Mean over draws by adapter; mean of trainings ± standard error over trainings."
        runs = grids.records(out / suite)
        unseen = [run for run in runs if run.config["task"] in UNSEEN]
        parts = [f"{head}\n\n{grids.by_training(runs)}"]
        if unseen:
            parts.append(f"**tasks outside of all trainings (%)**\n\n{grids.by_part(unseen)}")
        return "\n".join(parts) + "\n"
    if suite in BY_STATE:
        head = f"{BY_STATE[suite]} Mean ± standard error over seeds; differences paired by seed."
        return f"{head}\n\n{grids.by_state(grids.records(out / suite))}\n"
    if suite in UNDER_STATES:
        return f"**unrelated text, before and after reading**\n\n{forgetting.table(grids.runs_of(out / suite))}\n"
    if suite in OF_THEIR_OWN:
        return OF_THEIR_OWN[suite](out)
    if suite in BY_LENGTH:
        text = f"{suite}: perplexity by tokens of a book, mean ± standard error over seeds"
        return f"**{text}**\n\n{grids.by_length(grids.records(out / suite))}\n"
    return ""


def write_suites(out: Path) -> None:
    """Write `SUITE.md` for every suite with runs: its grids, and the output of `ttabench compare`."""
    for suite in (suite for suite in SUITES if has_runs(suite, out)):
        text = f"# {suite}\n\n{grid_of(suite, out)}"
        if suite not in WITHOUT_PAIRS:
            text += ttabench("compare", "--out", str(out / suite), "--format", "markdown")
        (out / f"{suite}.md").write_text(text, encoding="utf-8")


def committed() -> list[Path]:
    """List the committed folders of runs: all suites, including real data."""
    kept = (
        folder for folder in (*HERE.iterdir(), *english.HERE.iterdir()) if folder.name not in TRIALS
    )
    return sorted(folder for folder in kept if folder.is_dir() and folder != english.HERE)


def write_claims() -> None:
    """Write `claims.md`: every claim of the papers, from the committed runs."""
    (HERE / "claims.md").write_text(
        claims.claims_page(load_stored_runs(committed())), encoding="utf-8"
    )


def measure() -> None:
    """Write `profile*.md`, `.svg` and their records: costs of methods on this machine, by tokens
    read.
    """
    for name, profiles in PROFILES.items():
        by_length = len(profiles) == 1 and "," in profiles[0].partition("--prefill ")[2]
        picture = ("--plot", str(HERE / f"{name}.svg")) if by_length else ()
        tables = [
            ttabench(
                "profile",
                *words.split(),
                "--out",
                str(HERE / name),
                *picture,
                "--format",
                "markdown",
            )
            for words in profiles
        ]
        head = f"![cost by prefill]({name}.svg)\n\n" if picture else ""
        (HERE / f"{name}.md").write_text(
            f"# {name}\n\n{head}" + "\n".join(tables), encoding="utf-8"
        )


def shelve(folder: Path, place: Path) -> None:
    """Link a data folder to a path below the repository, so that records do not contain its real
    path.
    """
    place.parent.mkdir(exist_ok=True)
    if place.is_symlink():
        place.unlink()
    place.symlink_to(folder.resolve(), target_is_directory=True)


def english_folder(options: argparse.Namespace) -> Path:
    """Return the folder of the suites of real data."""
    return english.HERE / "quick" if options.quick else english.HERE


def real(options: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    """Run the suites of real data (`--english`)."""
    if options.out != HERE or options.seeds is not None or options.limit is not None:
        parser.error("--english excludes --out, --seeds and --limit. Use --quick for a trial.")
    if unknown := [name for name in options.suites if name not in english.SUITES]:
        parser.error(
            f"--english has no suite {', '.join(unknown)}. Use: {', '.join(english.SUITES)}"
        )
    if not options.tables:
        if options.data is None or not options.data.is_dir():
            parser.error("--english needs data. Set --data to a folder with squad/, pg19/, ...")
        place = HERE / "scratch" / "data"
        shelve(options.data, place)
        os.chdir(HERE.parent)
        english_run.make(
            options.suites,
            place.relative_to(HERE.parent),
            quick=options.quick,
            scores=options.scores,
        )
    english_tables.write(english_folder(options))
    if not options.quick:
        pages.write_english()


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "suites",
        nargs="*",
        choices=[[], *SUITES, *english.SUITES, CLAIMS],
        help="suites to make (default: all)",
    )
    parser.add_argument("--tables", action="store_true", help="only compute the tables")
    parser.add_argument(
        "--out",
        type=lambda path: Path(path).resolve(),
        default=HERE,
        help="another folder, for a trial that does not change README and docs",
    )
    parser.add_argument("--seeds", help="seeds of a trial (default: those of each suite's file)")
    parser.add_argument("--limit", type=int, help="maximum number of queries per run")
    parser.add_argument("--jobs", type=int, default=1, help="number of parallel runs")
    parser.add_argument(
        "--profile", action="store_true", help="only measure costs; ten minutes on an idle machine"
    )
    parser.add_argument(
        "--english", action="store_true", help="make the suites of real English data"
    )
    parser.add_argument("--data", type=Path, help="folder of the published real data")
    parser.add_argument(
        "--quick",
        action="store_true",
        help="trial with one draw and few queries; with --english, few suites",
    )
    parser.add_argument(
        "--scores",
        action="store_true",
        help="with --english: repeat the runs without scores per query",
    )
    parser.add_argument(
        "--pack",
        action="store_true",
        help="only pack folders of runs into the files of their suite",
    )
    options = parser.parse_args()
    if CLAIMS in options.suites:
        write_claims()
        return
    if options.pack:
        repack(options)
        return
    if options.profile:
        measure()
        return
    if options.english:
        real(options, parser)
        return
    if unknown := [name for name in options.suites if name not in SUITES]:
        parser.error(f"{', '.join(unknown)} use real data. Add --english.")
    if options.quick:
        options.out, options.seeds, options.limit = HERE / "scratch" / "quick", "0", QUICK
    trial = options.out != HERE
    if (options.seeds is not None or options.limit is not None) and not trial:
        parser.error("--seeds and --limit are for trials. Set --out, too.")
    if not options.tables:
        for suite in options.suites or SUITES:
            run(suite, options)
    write_suites(options.out)
    if not trial:
        pages.write(committed())
        write_claims()


if __name__ == "__main__":
    main()
