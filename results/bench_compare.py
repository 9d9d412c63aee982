"""Benchmark of `ttabench compare` on many stored runs: wall and CPU seconds in separate processes.

python results/bench_compare.py              the packed suites of this folder, some 500 runs and all
of them
"""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from ttabench.report.selection import list_runs

HERE = Path(__file__).resolve().parent
SOME = 500
REPEATS = 3


def suites() -> list[Path]:
    """List the packed suites, real data last."""
    return [
        each.parent
        for each in (
            *sorted(HERE.glob("*/runs.parquet")),
            *sorted(HERE.glob("english/*/runs.parquet")),
        )
    ]


def some(folders: list[Path]) -> Iterator[Path]:
    """Yield suites until there are enough runs, without the largest."""
    count = 0
    for folder in sorted(folders, key=lambda each: len(list_runs(each))):
        if count >= SOME:
            return
        count += len(list_runs(folder))
        yield folder


def timed(folders: list[Path]) -> tuple[float, float]:
    """Return (wall seconds, CPU seconds) of one comparison."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    command = [sys.executable, "-m", "ttabench", "compare", *map(str, folders), "--format", "csv"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    took, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    return took, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    """Print one line per set of runs, with the fastest of several tries."""
    for folders in (list(some(suites())), suites()):
        runs = sum(len(list_runs(folder)) for folder in folders)
        clock, processor = min(timed(folders) for _ in range(REPEATS))
        print(f"{runs:,} runs in {len(folders)} suites: {clock:.1f} s, {processor:.1f} CPU s")


if __name__ == "__main__":
    main()
