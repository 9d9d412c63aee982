"""Benchmark of the meter: its share of the time of an evaluation.

    python results/bench_meter.py                         synthetic StreamingQA with full context, on nano
    python results/bench_meter.py --method mac --task superglue

Two measurements. "counted" is the time of one empty phase (fastest of many) times the number of
phases, over the time of the evaluation; it does not depend on other load. "compared" is the CPU
time of the evaluation with the meter and with a meter that does nothing, in turn; it needs an idle
machine. The limit is 2 %.
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
    """Meter that measures nothing and counts its phases."""

    phases = 0

    def __init__(self, device: str) -> None:  # noqa: ARG002  # a meter's argument
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.cpu_seconds: defaultdict[str, float] = defaultdict(float)
        self.peak_bytes: defaultdict[str, int] = defaultdict(int)
        self.last_seconds = self.last_cpu_seconds = 0.0

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Run the body only."""
        self.seconds[name] += 0.0
        Blind.phases += 1
        yield


def evaluation(
    request: RunRequest, models: ModelCache, meter: type[Meter] | type[Blind]
) -> tuple[float, float]:
    """Return wall and CPU seconds of one evaluation with a meter."""
    runner.Meter = meter  # type: ignore[assignment, misc]  # the one thing that differs
    with tempfile.TemporaryDirectory() as folder:
        wall, processor = time.perf_counter(), time.process_time()
        execute(make_plan(request, 0), models, Path(folder))
        return time.perf_counter() - wall, time.process_time() - processor


def empty_phase(tries: int = 500) -> float:
    """Return the seconds of an empty phase, the fastest of `tries`."""
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
        f"counted:  {100 * phases * seconds / wall:.3f} % of the evaluation (limit {100 * AIM:.0f} %)"
    )
    print(
        f"compared: {100 * (with_meter / without - 1):+.1f} % processor time ({with_meter:.2f} s, {without:.2f} s)"
    )
    if phases * seconds > AIM * wall:
        raise SystemExit("The meter exceeds its time limit. Reduce the work per phase.")


if __name__ == "__main__":
    main()
