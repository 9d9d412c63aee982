"""Compare answers of nano on a GPU with those on the CPU, within eight minutes: `python -m tools.gpu`.

Every method answers queries of three synthetic tasks in three number formats. The CPU computes in
float32. Each row is printed and stored in results/gpu/ at once, so a kill loses none. The exit code
is 1 if fewer answers are equal than `MIN_EQUAL_SHARE` allows. Log-likelihoods are only reported.
Dropout is off, because the device draws its own random numbers.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:  # libraries that are missing are reported by `main`
    from ttabench.core.types import Json
    from ttabench.run.evaluation import ModelCache

TASKS: dict[str, dict[str, str]] = {
    "streamingqa": {"documents": "4"},
    "superglue": {"task": "cb", "shots": "4"},
    "dailydialog": {},
}
"""Tasks with generated, chosen and scored answers, and their options."""
SETTINGS = {"dropout": "0", "steps": "2"}
"""Settings for methods that have them."""
MIN_EQUAL_SHARE = {"float32": 1.0, "bfloat16": 0.75, "float16": 0.75}
"""Rounding decides between answers that are almost equally likely."""
KILL_AFTER_SECONDS = 20
"""Seconds after the end until the process exits, even if a kernel runs."""
STATUS = "status"
COLUMNS = (
    "method",
    "dtype",
    "answers",
    "same_share",
    "largest_difference_a_token",
    "verdict",
    STATUS,
)
Answer: TypeAlias = "tuple[str, list[float], list[int]]"
"""The generated or chosen text, with log-likelihoods and token counts of scored texts."""


class OutOfTime(BaseException):
    """Raised in a row that takes too long. Not an `Exception`, so that no library catches it."""


class Table:
    """A table that is printed and written to `folder` row by row, until its time is over."""

    def __init__(
        self,
        folder: Path,
        title: str,
        about: Mapping[str, Json],
        *,
        seconds: float,
        row_seconds: float,
    ) -> None:
        self.folder, self.title, self.about = folder, title, dict(about)
        self.row_seconds = row_seconds
        self.rows: list[dict[str, Json]] = []
        self._end = time.monotonic() + seconds
        self.timer = threading.Timer(seconds + KILL_AFTER_SECONDS, os._exit, (1,))
        self.timer.daemon = True
        self.timer.start()
        signal.signal(signal.SIGALRM, _raise_out_of_time)
        print("", title, "", *_header(), sep="\n", flush=True)

    def add(self, key: Mapping[str, Json], compute: Callable[[], Mapping[str, Json]]) -> None:
        """Add a row: `key`, then the cells that `compute` returns, or the reason why it did not."""
        from ttabench.core.environment import is_out_of_memory

        limit = min(self.row_seconds, self._end - time.monotonic())
        try:
            signal.setitimer(signal.ITIMER_REAL, max(limit, 1e-6))  # takes effect after the kernel
            cells = {STATUS: "ok", **compute()}
        except OutOfTime:
            cells = {STATUS: f"stopped after {limit:.0f} s" if limit > 0 else "left out: no time"}
        except ModuleNotFoundError as error:
            cells = {STATUS: f"left out: {error.name} is missing here"}
        except Exception as error:  # other rows may still work
            out_of_memory = is_out_of_memory(error)
            why = "out of memory" if out_of_memory else f"{type(error).__name__}: {error}"
            cells = {STATUS: " ".join(why.split())[:200]}
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        self.rows.append({**key, **cells})
        self._write()

    def _write(self) -> None:
        """Print the newest row and write all of them."""
        from ttabench.core.amounts import format_figure
        from ttabench.core.files import write_atomically

        lines = [
            _line(format_figure(column, row.get(column)) for column in COLUMNS) for row in self.rows
        ]
        print(lines[-1], flush=True)
        self.folder.mkdir(parents=True, exist_ok=True)
        about = ", ".join(f"{name} {value}" for name, value in self.about.items())
        page = "\n".join([f"# {self.title}", "", f"{about}.", "", *_header(), *lines, ""])
        write_atomically(self.folder / "answers.md", page)
        content = {"title": self.title, "about": self.about, "rows": self.rows}
        write_atomically(self.folder / "answers.json", json.dumps(content, indent=1) + "\n")


def _raise_out_of_time(*_: object) -> None:
    raise OutOfTime


def _header() -> list[str]:
    return [_line(column.replace("_", " ") for column in COLUMNS), _line("---" for _ in COLUMNS)]


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


def compare_answers(
    table: Table, device: str, methods: Sequence[str], dtypes: Sequence[str]
) -> bool:
    """Fill the table. Return True if enough answers are equal in every row."""
    from ttabench.run.evaluation import ModelCache

    models, expected = ModelCache(), dict[str, list[Answer]]()

    def compute(method: str, dtype: str) -> dict[str, Json]:
        if method not in expected:
            expected[method] = run_method(models, method, "cpu", "float32")
        answers = run_method(models, method, device, dtype)
        return compare_pairs(expected[method], answers, MIN_EQUAL_SHARE[dtype])

    for key in [{"method": method, "dtype": dtype} for dtype in dtypes for method in methods]:
        table.add(key, partial(compute, **key))
    return all(row.get("verdict") != "differs" for row in table.rows)


def run_method(models: ModelCache, method: str, device: str, dtype: str) -> list[Answer]:
    """Return the answers of a method to eight queries of each task."""
    from ttabench.methods import registry
    from ttabench.methods.settings import describe_settings
    from ttabench.records.samples import read_samples
    from ttabench.run.evaluation import execute
    from ttabench.run.plan import make_plan
    from ttabench.run.request import RunRequest

    known = {key for key, _, _ in describe_settings(registry.find_method(method))}
    settings = {key: value for key, value in SETTINGS.items() if key in known}
    answers: list[Answer] = []
    for task, options in TASKS.items():
        request = RunRequest(
            method=method,
            settings=settings,
            task=task,
            task_options=options,
            limit=8,
            device=device,
            dtype=dtype,
        )
        with TemporaryDirectory() as scratch:
            run = execute(make_plan(request, seed=0), models, Path(scratch))
            samples = read_samples(run.folder)
            answers += zip(
                samples["prediction"], samples["logprobs"], samples["tokens"], strict=True
            )
    return answers


def compare_pairs(
    expected: Sequence[Answer], answers: Sequence[Answer], min_share: float
) -> dict[str, Json]:
    """Return the cells of a row: the share of equal answers, and the largest difference in nats."""
    equal = [
        (ours, theirs)
        for ours, theirs in zip(expected, answers, strict=True)
        if ours[0] == theirs[0]
    ]
    differences = [
        abs(left - right) / max(1, tokens)
        for (_, left_logprobs, counts), (_, right_logprobs, _) in equal
        for left, right, tokens in zip(left_logprobs, right_logprobs, counts, strict=True)
    ]
    return {
        "answers": len(answers),
        "same_share": len(equal) / len(answers),
        "verdict": "as it should be" if len(equal) >= min_share * len(answers) else "differs",
        "largest_difference_a_token": max(differences, default=None),
    }


def parse_arguments(words: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m tools.gpu", description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--answers", default=",".join(MIN_EQUAL_SHARE), help="number formats")
    parser.add_argument("--methods", default="", help="separated by commas; all by default")
    parser.add_argument("--seconds", type=float, default=440.0, help="no row begins after this")
    parser.add_argument("--row-seconds", type=float, default=30.0, help="limit of each row")
    parser.add_argument("--out", type=Path, default=Path("results/gpu"))
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> int:
    """Run the program. Return its exit code."""
    options = parse_arguments(words)
    try:
        import torch

        from ttabench.core import environment
        from ttabench.methods import registry
        from ttabench.profiling.job import parse_method_names
    except ModuleNotFoundError as error:
        print(f"skipped: {error.name} is missing here")
        return 0
    if options.device.startswith("cuda") and not torch.cuda.is_available():
        print("skipped: no CUDA GPU is here")
        return 0
    about = {
        **environment.package_versions(),
        **environment.describe_hardware(),
        **environment.code_version(),
    }
    title = f"Answers on {options.device} compared with the CPU in float32"
    table = Table(
        options.out, title, about, seconds=options.seconds, row_seconds=options.row_seconds
    )
    methods = parse_method_names(options.methods, registry.methods())
    equal = compare_answers(table, options.device, methods, options.answers.split(","))
    table.timer.cancel()
    print(
        f"\nThe table is in {options.out}. Answers {'are' if equal else 'are not'} as they should be."
    )
    return 0 if equal else 1


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    sys.exit(main())
