"""Makes everything in this folder: runs the suites, then computes their tables. Nothing here is typed by hand.

    python results/make.py                       run what is missing, then write every table and the README's
    python results/make.py streamingqa-16        one suite
    python results/make.py --tables              tables only, from the records that are there
    python results/make.py --profile             what methods cost on this machine; seconds, so leave it idle
    python results/make.py unseen --seeds 0 --limit 20 --out results/scratch/trial      a trial, which writes only there

A suite is a folder of run records (`ttabench eval --out results/SUITE`) and a table `SUITE.md` (`ttabench compare`, and
grids of what was varied).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import grids

HERE = Path(__file__).parent
SEEDS = "0,1,2"
CAPS = ("random", "average_random", "average_nearest")
FITS = 32
"""Most documents of a twin that stand in nano's window; beyond, full context keeps the newest tokens."""
TOKENS = 3_840
"""What nano's window holds beside a prompt and an answer."""
LENGTHS = {"streamingqa": (4, 16, 32, 64, 256, 1665), "squad_seq": (16, 64)}


def stream(task: str, documents: int) -> list[str]:
    """Task options; short streams ask more, enough for a standard error of a few points."""
    options = ["--task", task, "--task-set", f"documents={documents}"]
    return [*options, "--task-set", "questions=4"] if documents <= FITS else options


def online(task: str, documents: int) -> list[list[str]]:
    """Closed book, full context, and MAC with one aggregation and, where there are several groups, with a tree."""
    reading = ["icl"] if documents <= FITS else ["icl", "--set", "truncate=left"]
    trees = [["mac", "--set", "hierarchy=16"]] if documents > 16 else []
    return [["--method", *chosen, *stream(task, documents)] for chosen in (["none"], reading, ["mac"], *trees)]


def reductions(documents: int) -> list[list[str]]:
    """MAC with all of its bank and with three quarters of it, by each rule of the paper's Figure 7."""
    cap = 1250 if documents == 1665 else documents * 3 // 4
    capped = [["mac", "--set", f"bank_cap={cap}", "--set", f"bank_reduce={rule}"] for rule in CAPS]
    return [["--method", *chosen, *stream("streamingqa", documents)] for chosen in (["mac"], *capped)]


RATIOS = tuple(round(0.1 * tenths, 1) for tenths in range(1, 11))
SHOTS = (0, 1, 3, 5, 10, 15, 20, 25, 30)
OTHER_WORDS = ("superglue", "arc_easy", "arc_challenge", "piqa")
"""Tasks for which StreamAdapter's Table 10 has other words."""
UNSEEN = ("hellaswag", "winogrande", "openbookqa", "arc_easy", "arc_challenge", "piqa")
FIFTH = {
    "superglue": 52, "hellaswag": 44, "winogrande": 30, "openbookqa": 26, "arc_easy": 37, "arc_challenge": 38,
    "piqa": 38, "metaicl": 41,
}  # fmt: skip
"""A fifth of the tokens of ten demonstrations of a twin (metaicl: of sixteen), the mean over its sub-tasks; a test
holds them to the twins."""


def evicting(recent: int) -> list[list[str]]:
    """A fifth of the keys and values by each rule (`recent` is that fifth in tokens)."""
    return [
        ["snapkv", "--preset", "streamadapter"],
        ["h2o", "--preset", "streamadapter"],
        ["window", "--set", f"recent={recent}"],
    ]


def demonstrations(task: str, options: list[str], recent: int) -> list[list[str]]:
    """Nothing, everything, and a fifth of the keys and values by each rule."""
    chosen = [["none"], ["icl"], *evicting(recent)]
    return [["--method", *words, "--task", task, *options] for words in chosen]


def ratios(task: str) -> list[list[str]]:
    """The share of ten demonstrations that is adapted to; the others stand in the window (StreamAdapter, Table 9)."""
    whole = [["--method", name, "--task", task, *shots(10)] for name in ("none", "icl")]
    adapted = [
        ["--method", *words, "--task", task, *shots(10), "--task-set", f"ratio={ratio}"]
        for words in evicting(FIFTH[task])[:2]
        for ratio in RATIOS
    ]
    return [*whole, *adapted]


def scaling(task: str) -> list[list[str]]:
    """Full context by number of demonstrations (StreamAdapter, Table 8), and the evicting methods at two of them."""
    whole = [["--method", "icl", "--task", task, *shots(k)] for k in SHOTS]
    kept = [
        ["--method", *words, "--task", task, *shots(k)] for k in (10, 20) for words in evicting(FIFTH[task] * k // 10)
    ]
    return [*whole, *kept]


def shots(count: int) -> list[str]:
    """Demonstrations in front of the queries."""
    return ["--task-set", f"shots={count}"]


SUITES: dict[str, list[list[str]]] = {
    **{f"{task}-{n}": online(task, n) for task, lengths in LENGTHS.items() for n in lengths},
    **{f"reductions-{n}": reductions(n) for n in LENGTHS["streamingqa"][1:]},
    "superglue-shots": scaling("superglue"),
    "superglue-30": demonstrations("superglue", shots(30), 160),
    "metaicl": demonstrations("metaicl", [], FIFTH["metaicl"]),
    "unseen": [words for task in UNSEEN for words in demonstrations(task, shots(10), FIFTH[task])],
    "other-words": [
        words
        for task in OTHER_WORDS
        for words in demonstrations(task, [*shots(10), "--task-set", "template=other"], FIFTH[task])
    ],
    "adaptation-ratio": [*ratios("superglue"), *ratios("openbookqa")],
    "retention": [
        ["--method", "mac", "--task", "streamingqa", "--task-set", "kind=retention", "--task-set", "documents=1600"]
    ],
}
OPTION_VARIED = {"superglue-shots": "shots", "adaptation-ratio": "ratio"}
"""Suites with a grid by values of a task option."""
BY_PART = ("superglue-30", "unseen", "other-words")
"""Suites with a grid by sub-task."""
WITHOUT_PAIRS = ("adaptation-ratio",)
"""Too many runs to compare every pair."""
IN_README = ("streamingqa-16", "squad_seq-16", "superglue-30")


def ttabench(*words: str) -> str:
    """Run the command line and return what it printed."""
    done = subprocess.run([sys.executable, "-m", "ttabench", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"ttabench {' '.join(words)}\n{done.stderr}")
    return done.stdout


def run(suite: str, out: Path, seeds: str, limit: int | None) -> None:
    """Every run of a suite; those that are stored already come back at once."""
    few = ["--limit", str(limit)] if limit is not None else []
    for words in SUITES[suite]:
        print(suite, *words, flush=True)
        ttabench("eval", *words, *few, "--seeds", seeds, "--out", str(out / suite), "--quiet")


def entries(suite: str) -> list[Mapping[str, object]]:
    """The lines of a suite's comparison, exact."""
    found: list[Mapping[str, object]] = json.loads(ttabench("compare", "--out", str(HERE / suite), "--json"))["runs"]
    return found


def has_runs(suite: str, out: Path = HERE) -> bool:
    """Whether a suite was run at all."""
    return any((out / suite).glob("*/run.json"))


def share(low: float, high: float, value: float) -> str:
    """How much of the gap between two methods a third one closes."""
    return f"{100 * (value - low) / (high - low):.0f} %" if high > low else "-"


def overview() -> str:
    """Closed book, full context and MAC by length of the stream, one line each."""
    lines = ["| task | documents | none | icl | mac | mac hierarchy=16 | mac's share of the gap none to icl |"]
    lines.append("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for task, lengths in LENGTHS.items():
        for count in filter(lambda n: has_runs(f"{task}-{n}"), lengths):
            found: dict[str, tuple[float, float]] = {}
            for entry in entries(f"{task}-{count}"):
                tree = "hierarchy=16" in str(entry["label"])
                found[f"{entry['method']}{' tree' * tree}"] = (float(str(entry["value"])), float(str(entry["stderr"])))
            cells = [
                f"{100 * found[key][0]:.1f} ± {100 * found[key][1]:.1f}" if key in found else ""
                for key in ("none", "icl", "mac", "mac tree")
            ]
            whole = count <= FITS
            part = share(found["none"][0], found["icl"][0], found["mac"][0]) if whole else "(window)"
            lines.append(f"| {task} | {count} | {' | '.join(cells)} | {part} |")
    legend = f"F1 in per cent ± standard error, three seeds. (window): icl holds the last {TOKENS:,} tokens."
    return "\n".join(lines) + f"\n\n{legend}\n"


def grid_of(suite: str, out: Path) -> str:
    """The grids of a suite that varies a task option, or has several tasks or sub-tasks."""
    if suite in OPTION_VARIED:
        runs, option = grids.records(out / suite), OPTION_VARIED[suite]
        cells = {"main metric, per cent": grids.quality, "bytes of state": grids.state}
        return "\n".join(f"**{name}**\n\n{grids.by_option(runs, option, cell)}" for name, cell in cells.items()) + "\n"
    if suite in BY_PART:
        return f"**main metric by task, per cent**\n\n{grids.by_part(grids.records(out / suite))}\n"
    return ""


def write_suites(out: Path) -> dict[str, str]:
    """Write `SUITE.md` for every suite that has runs, and return what `ttabench compare` says of each."""
    made: dict[str, str] = {}
    for suite in (suite for suite in SUITES if has_runs(suite, out)):
        paired = suite not in WITHOUT_PAIRS
        made[suite] = ttabench("compare", "--out", str(out / suite), "--format", "markdown") if paired else ""
        (out / f"{suite}.md").write_text(f"# {suite}\n\n{grid_of(suite, out)}{made[suite]}", encoding="utf-8")
    return made


def write_readme(made: Mapping[str, str]) -> None:
    """The README's part between its markers."""
    readme = HERE.parent / "README.md"
    before, rest = readme.read_text(encoding="utf-8").split("<!-- results -->\n")
    _, after = rest.split("<!-- /results -->")
    shown = "\n".join([overview(), *(f"### {suite}\n\n{made[suite]}" for suite in IN_README if suite in made)])
    readme.write_text(f"{before}<!-- results -->\n{shown}<!-- /results -->{after}", encoding="utf-8")


def measure() -> None:
    """`profile.md`, `profile.svg` and the record behind them: what every method costs on this machine, 1k to 64k."""
    words = ("profile", "--prefill", "1k,4k,16k,64k", "--out", str(HERE / "profile"))
    text = ttabench(*words, "--plot", str(HERE / "profile.svg"), "--format", "markdown")
    (HERE / "profile.md").write_text(f"# profile\n\n![cost by prefill](profile.svg)\n\n{text}", encoding="utf-8")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suites", nargs="*", choices=[[], *SUITES], help="which suites; all by default")
    parser.add_argument("--tables", action="store_true", help="only compute the tables")
    parser.add_argument("--out", type=Path, default=HERE, help="another folder: a trial, which leaves the README alone")
    parser.add_argument("--seeds", default=SEEDS)
    parser.add_argument("--limit", type=int, help="most queries a run asks")
    parser.add_argument("--profile", action="store_true", help="only measure cost: ten minutes of an idle machine")
    options = parser.parse_args()
    if options.profile:
        measure()
        return
    trial = options.out.resolve() != HERE.resolve()
    if (options.seeds != SEEDS or options.limit is not None) and not trial:
        parser.error("other seeds or a limit make a trial: give --out as well")
    if not options.tables:
        for suite in options.suites or SUITES:
            run(suite, options.out, options.seeds, options.limit)
    made = write_suites(options.out)
    if not trial:
        write_readme(made)


if __name__ == "__main__":
    main()
