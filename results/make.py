"""Makes everything in this folder: runs the suites, then computes their tables. Nothing here is typed by hand.

    python results/make.py                       run what is missing, then write every table and the README's
    python results/make.py streamingqa-16        one suite
    python results/make.py --tables              tables only, from the records that are there

A suite is a folder of run records (`ttabench eval --out results/SUITE`) and a table `SUITE.md` (`ttabench compare`).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

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


def demonstrations(task: str, options: list[str], recent: int) -> list[list[str]]:
    """Nothing, everything, and a fifth of the keys and values by each rule (`recent` is that fifth in tokens)."""
    chosen = [
        ["none"],
        ["icl"],
        ["snapkv", "--preset", "streamadapter"],
        ["h2o", "--preset", "streamadapter"],
        ["window", "--set", f"recent={recent}"],
    ]
    return [["--method", *words, "--task", task, *options] for words in chosen]


def shots(count: int) -> list[str]:
    """Demonstrations in front of the queries."""
    return ["--task-set", f"shots={count}"]


SUITES: dict[str, list[list[str]]] = {
    **{f"{task}-{n}": online(task, n) for task, lengths in LENGTHS.items() for n in lengths},
    **{f"reductions-{n}": reductions(n) for n in LENGTHS["streamingqa"][1:]},
    "superglue-shots": [["--method", "icl", "--task", "superglue", *shots(k)] for k in (0, 1, 3, 5, 10, 20, 30)],
    "superglue-30": demonstrations("superglue", shots(30), 160),
    "metaicl": demonstrations("metaicl", [], 48),
    "retention": [
        ["--method", "mac", "--task", "streamingqa", "--task-set", "kind=retention", "--task-set", "documents=1600"]
    ],
}
IN_README = ("streamingqa-16", "squad_seq-16", "superglue-30")


def ttabench(*words: str) -> str:
    """Run the command line and return what it printed."""
    done = subprocess.run([sys.executable, "-m", "ttabench", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"ttabench {' '.join(words)}\n{done.stderr}")
    return done.stdout


def run(suite: str) -> None:
    """Every run of a suite; those that are stored already come back at once."""
    for words in SUITES[suite]:
        print(suite, *words, flush=True)
        ttabench("eval", *words, "--seeds", SEEDS, "--out", str(HERE / suite), "--quiet")


def entries(suite: str) -> list[Mapping[str, object]]:
    """The lines of a suite's comparison, exact."""
    found: list[Mapping[str, object]] = json.loads(ttabench("compare", "--out", str(HERE / suite), "--json"))["runs"]
    return found


def has_runs(suite: str) -> bool:
    """Whether a suite was run at all."""
    return any((HERE / suite).glob("*/run.json"))


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


def write_tables() -> None:
    """`SUITE.md` for every suite that has runs, and the README's part between its markers."""
    made = {
        suite: ttabench("compare", "--out", str(HERE / suite), "--format", "markdown")
        for suite in SUITES
        if has_runs(suite)
    }
    for suite, text in made.items():
        (HERE / f"{suite}.md").write_text(f"# {suite}\n\n{text}", encoding="utf-8")
    readme = HERE.parent / "README.md"
    before, rest = readme.read_text(encoding="utf-8").split("<!-- results -->\n")
    _, after = rest.split("<!-- /results -->")
    shown = "\n".join([overview(), *(f"### {suite}\n\n{made[suite]}" for suite in IN_README if suite in made)])
    readme.write_text(f"{before}<!-- results -->\n{shown}<!-- /results -->{after}", encoding="utf-8")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suites", nargs="*", choices=[[], *SUITES], help="which suites; all by default")
    parser.add_argument("--tables", action="store_true", help="only compute the tables")
    options = parser.parse_args()
    if not options.tables:
        for suite in options.suites or SUITES:
            run(suite)
    write_tables()


if __name__ == "__main__":
    main()
