"""TempLoRA's cost against an earlier revision: a real book through `eval`, and rows trained together or one by one.

    python results/bench_templora.py --before a69da08 --model FOLDER --source BOOKS

Each figure comes from a process of its own, revision after revision, one thread: CPU seconds tell the work where other
processes share the machine. `--before` is checked out into a temporary worktree.
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
ROWS = """
import json, sys, time, torch
from ttabench.core.types import Observe
from ttabench.lm.model import load
from ttabench.methods.templora.method import TempLora, TempLoraSettings
model, rank, unit, prefix, rows = sys.argv[1], *map(int, sys.argv[2:])
torch.set_num_threads(1)
lm = load(model)
method = TempLora(lm, TempLoraSettings(rank=rank, prefix=prefix, lr=1e-3, schedule="constant"))
source = torch.Generator().manual_seed(0)
ids = torch.randint(3, lm.vocab_size, (2, rows, unit), generator=source).tolist()
texts = [[Observe(text="", ids=tuple(row)) for row in piece] for piece in ids]
def read(of):
    state = method.begin(len(of))
    for piece in texts:
        state = method.adapt(state, [[piece[row] for row in of]])
    return state.tensors["factors"]
def timed(groups):
    start, cpu = time.perf_counter(), time.process_time()
    found = torch.cat([read(group) for group in groups])
    return found, time.perf_counter() - start, time.process_time() - cpu
read([0])
apart = timed([[row] for row in range(rows)])
together = timed([list(range(rows))])
print(json.dumps({"apart": apart[2], "together": together[2], "far": float((apart[0] - together[0]).abs().max())}))
"""


def main() -> None:
    """Measure and print two tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", required=True, help="the revision to compare with")
    parser.add_argument("--model", help="folder of a base model; without it only nano's rows are measured")
    parser.add_argument("--source", type=Path, help="books in the layout of pg19, for the first table")
    parser.add_argument("--repeat", type=int, default=1, help="passes over both revisions")
    given = parser.parse_args()
    with checked_out(given.before) as before:
        trees = {given.before: before, "this tree": ROOT}
        if given.model and given.source:
            print("| revision | CPU seconds | wall seconds | peak bytes | ppl |\n| --- | ---: | ---: | ---: | ---: |")
            for _ in range(given.repeat):
                for name, tree in trees.items():
                    print(f"| {name} | {' | '.join(book(tree, given.model, given.source))} |", flush=True)
        print("\n| revision | base | rank | unit | prefix | rows | one by one, CPU s | together | times | farthest |")
        print("| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
        cases = [("nano", rank, unit, 0, 8) for rank in (4, 64) for unit in (8, 16, 64, 256, 1024)]
        cases += [("nano", 64, unit, 512, 8) for unit in (64, 512)]
        cases += [(given.model, 64, unit, 0, 2) for unit in (16, 64, 256)] if given.model else []
        for case in cases:
            for name, tree in trees.items():
                print(f"| {name} | {' | '.join(rows(tree, *case))} |", flush=True)


@contextmanager
def checked_out(revision: str) -> Iterator[Path]:
    """A worktree of the revision, gone afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "before"
        subprocess.run(["git", "worktree", "add", "--detach", str(tree), revision], cwd=ROOT, check=True, stdout=2)
        try:
            yield tree
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", str(tree)], cwd=ROOT, check=True)


def run(tree: Path, *words: str) -> tuple[dict[str, object], float, float]:
    """What a Python process on that tree prints as JSON, its CPU seconds and its wall seconds."""
    environment = {**os.environ, "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run([sys.executable, *words], cwd=tree, env=environment, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    content: dict[str, object] = json.loads(done.stdout)
    return content, cpu, time.perf_counter() - start


def book(tree: Path, model: str, source: Path) -> list[str]:
    """CPU and wall seconds, peak resident bytes and perplexity of 2,048 tokens of one book, all of the command."""
    with tempfile.TemporaryDirectory() as out:
        words = ["-m", "ttabench", "eval", "--method", "templora", "--preset", "streamadapter-book", "--task", "pg19"]
        words += ["--source", str(source.resolve()), "--model", model, "--split", "validation", "--out", out, "--json"]
        record_of_run, cpu, wall = run(tree, *words, "--task-set", "tokens=2k", "--task-set", "books=1")
    record = record_of_run["runs"][0]  # type: ignore[index]
    value = next(row["value"] for row in record["rows"] if row["metric"] == "ppl")
    return [f"{cpu:.1f}", f"{wall:.1f}", f"{record['cost']['peak_memory_bytes']:,}", f"{value:.4f}"]


def rows(tree: Path, model: str, rank: int, unit: int, prefix: int, count: int) -> list[str]:
    """Two units of so many tokens a row: the rows one by one, then together."""
    content, _, _ = run(tree, "-c", ROWS, model, *map(str, (rank, unit, prefix, count)))
    apart, together, far = (float(str(content[key])) for key in ("apart", "together", "far"))
    sizes = [Path(model).name, str(rank), str(unit), str(prefix), str(count)]
    return [*sizes, f"{apart:.2f}", f"{together:.2f}", f"{apart / together:.2f}", f"{far:.0e}"]


if __name__ == "__main__":
    main()
