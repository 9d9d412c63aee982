"""Benchmark of TempLoRA against an earlier revision, on a real book through `eval`.

    python results/bench_templora.py --before a69da08 --model FOLDER --source BOOKS

Each figure comes from a separate process with one thread; revisions alternate. CPU seconds are
comparable on a shared machine. `--before` is checked out into a temporary worktree.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--before", required=True, help="the revision to compare with")
    parser.add_argument("--model", required=True, help="folder of a base model")
    parser.add_argument(
        "--source", type=Path, required=True, help="folder of books in the layout of pg19"
    )
    parser.add_argument("--repeat", type=int, default=1, help="number of passes per revision")
    given = parser.parse_args()
    with checked_out(given.before) as before:
        trees = {given.before: before, "this tree": ROOT}
        print(
            "| revision | CPU seconds | wall seconds | peak bytes | ppl |\n| --- | ---: | ---: | ---: | ---: |"
        )
        for _ in range(given.repeat):
            for name, tree in trees.items():
                print(
                    f"| {name} | {' | '.join(book(tree, given.model, given.source))} |", flush=True
                )


@contextmanager
def checked_out(revision: str) -> Iterator[Path]:
    """Check out a revision into a temporary worktree."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "before"
        subprocess.run(
            ["git", "worktree", "add", "--detach", str(tree), revision],
            cwd=ROOT,
            check=True,
            stdout=2,
        )
        try:
            yield tree
        finally:
            subprocess.run(
                ["git", "worktree", "remove", "--force", str(tree)], cwd=ROOT, check=True
            )


def run(tree: Path, *words: str) -> tuple[dict[str, object], float, float]:
    """Run a Python process on a tree. Returns its JSON output, CPU seconds and wall seconds."""
    environment = {**os.environ, "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(
        [sys.executable, *words], cwd=tree, env=environment, check=True, capture_output=True
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    content: dict[str, object] = json.loads(done.stdout)
    return content, cpu, time.perf_counter() - start


def book(tree: Path, model: str, source: Path) -> list[str]:
    """Return CPU and wall seconds, peak resident bytes and perplexity of 2,048 tokens of a book,
    for the whole command.
    """
    with tempfile.TemporaryDirectory() as out:
        words = [
            "-m",
            "ttabench",
            "eval",
            "--method",
            "templora",
            "--preset",
            "streamadapter-book",
            "--task",
            "pg19",
        ]
        words += [
            "--source",
            str(source.resolve()),
            "--model",
            model,
            "--split",
            "validation",
            "--out",
            out,
            "--json",
        ]
        record_of_run, cpu, wall = run(
            tree, *words, "--task-set", "tokens=2k", "--task-set", "books=1"
        )
    record = record_of_run["runs"][0]  # type: ignore[index]
    value = next(row["value"] for row in record["rows"] if row["metric"] == "ppl")
    return [f"{cpu:.1f}", f"{wall:.1f}", f"{record['cost']['peak_memory_bytes']:,}", f"{value:.4f}"]


if __name__ == "__main__":
    main()
