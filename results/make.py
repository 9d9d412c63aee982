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
from pathlib import Path

HERE = Path(__file__).parent
SEEDS = "0,1,2"
CAPS = ("random", "average_random", "average_nearest")


def online(task: str, documents: int, *, reductions: bool) -> list[list[str]]:
    """Closed book, full context and MAC; MAC also as a tree, and with three quarters of the bank."""
    common = ["--task", task, "--task-set", f"documents={documents}"]
    if documents <= 32:
        common += ["--task-set", "questions=4"]  # enough queries for a standard error below two points
    reading = ["icl"] if documents <= 32 else ["icl", "--set", "truncate=left"]
    settings = [["none"], reading, ["mac"], ["mac", "--set", "hierarchy=16"]]
    if reductions:
        cap = f"bank_cap={documents * 3 // 4}" if documents != 1665 else "bank_cap=1250"
        settings += [["mac", "--set", cap, "--set", f"bank_reduce={rule}"] for rule in CAPS]
    return [["--method", *setting, *common] for setting in settings]


SUITES: dict[str, list[list[str]]] = {
    **{f"streamingqa-{n}": online("streamingqa", n, reductions=True) for n in (4, 16, 32, 64, 256, 1665)},
    **{f"squad_seq-{n}": online("squad_seq", n, reductions=False) for n in (16, 64)},
    "retention": [
        ["--method", "mac", "--task", "streamingqa", "--task-set", "kind=retention", "--task-set", "documents=1600"]
    ],
}
IN_README = ("streamingqa-4", "streamingqa-16", "streamingqa-32", "squad_seq-16")


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


def table(suite: str) -> str:
    """The comparison of a suite as markdown, and the share of the none -> icl gap that each MAC recovers."""
    folder = str(HERE / suite)
    text = ttabench("compare", "--out", folder, "--format", "markdown")
    entries = json.loads(ttabench("compare", "--out", folder, "--json"))["runs"]
    values = {entry["label"]: entry["value"] for entry in entries}
    floor, ceiling = values.get("none"), next((v for k, v in values.items() if k.startswith("icl")), None)
    if floor is not None and ceiling is not None and ceiling > floor:
        shares = [
            f"{k} {100 * (v - floor) / (ceiling - floor):.0f} %" for k, v in values.items() if k.startswith("mac")
        ]
        if shares:
            text += f"\nShare of the gap from closed book to full context: {', '.join(shares)}.\n"
    return text


def write_tables() -> None:
    """`SUITE.md` for every suite that has runs, and the README's part between its markers."""
    made = {suite: table(suite) for suite in SUITES if any((HERE / suite).glob("*/run.json"))}
    for suite, text in made.items():
        (HERE / f"{suite}.md").write_text(f"# {suite}\n\n{text}", encoding="utf-8")
    readme = HERE.parent / "README.md"
    before, rest = readme.read_text(encoding="utf-8").split("<!-- results -->\n")
    _, after = rest.split("<!-- /results -->")
    shown = "\n".join(f"### {suite}\n\n{made[suite]}" for suite in IN_README if suite in made)
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
