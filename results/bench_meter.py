"""What measuring costs: the share of an evaluation's time that its meter takes.

    python results/bench_meter.py                         streamingqa's twin under full context, on nano
    python results/bench_meter.py --method mac --task superglue

Two ways. Counted: the seconds of one empty phase (the fastest of many) times the phases of the evaluation, over the
evaluation's seconds; it says the same on a busy machine. Compared: processor seconds of the evaluation with the meter
and with one that does nothing, in turn; it needs an idle one. The aim is at most 2 %.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from ttabench.core.meter import Meter
from ttabench.run import runner
from ttabench.run.evaluation import ModelCache, execute
from ttabench.run.plan import make_plan
from ttabench.run.request import RunRequest

AIM = 0.02


class Blind:
    """A meter that measures nothing and counts its phases."""

    phases = 0

    def __init__(self, device: str) -> None:  # noqa: ARG002  # a meter's argument
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.cpu_seconds: defaultdict[str, float] = defaultdict(float)
        self.peak_bytes: defaultdict[str, int] = defaultdict(int)
        self.last_seconds = self.last_cpu_seconds = 0.0

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Nothing but the body."""
        self.seconds[name] += 0.0
        Blind.phases += 1
        yield


def evaluation(
    request: RunRequest, models: ModelCache, meter: type[Meter] | type[Blind]
) -> tuple[float, float]:
    """Wall and processor seconds of one evaluation under a meter."""
    runner.Meter = meter  # type: ignore[assignment, misc]  # the one thing that differs
    with tempfile.TemporaryDirectory() as folder:
        wall, processor = time.perf_counter(), time.process_time()
        execute(make_plan(request, 0), models, Path(folder))
        return time.perf_counter() - wall, time.process_time() - processor


def empty_phase(tries: int = 500) -> float:
    """Seconds of a phase with nothing in it, the fastest of so many."""
    meter, best = Meter("cpu"), float("inf")
    for _ in range(tries):
        start = time.perf_counter()
        with meter.phase("empty"):
            pass
        best = min(best, time.perf_counter() - start)
    return best


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--method", default="icl")
    parser.add_argument("--task", default="streamingqa")
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    request, models = RunRequest(method=options.method, task=options.task), ModelCache()
    evaluation(request, models, Blind)
    Blind.phases = 0
    blind, seen = [], []
    for _ in range(options.repeat):
        blind.append(evaluation(request, models, Blind))
        seen.append(evaluation(request, models, Meter))
    phases, seconds = Blind.phases // options.repeat, empty_phase()
    wall = min(seconds for seconds, _ in seen)
    with_meter, without = (median(processor for _, processor in runs) for runs in (seen, blind))
    print(
        f"{options.method} on {options.task}: {wall:.2f} s, {phases} phases of {1e6 * seconds:.0f} us."
    )
    print(
        f"counted:  {100 * phases * seconds / wall:.3f} % of the evaluation, at most {100 * AIM:.0f} % are allowed"
    )
    print(
        f"compared: {100 * (with_meter / without - 1):+.1f} % processor time ({with_meter:.2f} s, {without:.2f} s)"
    )
    if phases * seconds > AIM * wall:
        raise SystemExit("Measuring costs too much.")


if __name__ == "__main__":
    main()
