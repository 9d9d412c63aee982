"""Benchmark of the run store: 64 concurrent writers, searches among 20,000 runs, and the estimated
cost of a large sweep.

    python results/bench_store.py          bench_store.md; a quarter of an hour on two cores

Every writer goes through all runs like `ttabench sweep`, each from another start. Some kill
themselves within a run. Plans, locks, journals and records are real. Only the answers are given:
the right ones, without delay.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory

from packing import pack
from pyarrow.parquet import ParquetFile

from ttabench.core.amounts import format_bytes
from ttabench.core.digests import short_hash
from ttabench.core.types import Answer
from ttabench.records import schema
from ttabench.records.samples import EpisodeCost, Sample, query_to_store, read_samples
from ttabench.records.schema import (
    RECORD_FILE,
    RUNS_FILE,
    SAMPLES_FILE,
    is_stored,
    load_record,
    record_text,
)
from ttabench.run import runner
from ttabench.run.plan import make_plan
from ttabench.sweep import engines, suite

HERE = Path(__file__).resolve().parent
TASK = {"task": "streamingqa", "source": "mini", "task_set": {"documents": 16}}
METHODS = [
    "none",
    "icl",
    "rag",
    "window",
    "snapkv",
    "h2o",
    "random_slots",
    "kvzip",
    "qttt",
    "templora",
]
COST = {
    "tokens_read": 800,
    "adapt_seconds": 0.1,
    "encode_seconds": 0.0,
    "adapt_peak_bytes": 9,
    "ask_peak_bytes": 9,
}
THIRD, STORED = 3, 20_000
"""The run in which a writer is killed; runs of the folder that is searched."""
CONTEXTS, TOKENS, QUESTIONS, CELLS, DEVICES = 64, 16_384, 16, 100, 64
"""Of a run on paper; tasks and seeds of a method; devices."""


def written(out: Path, writers: int, killed: int, seeds: int) -> dict[str, float]:
    """Let `writers` processes make all runs, `killed` of which are killed. Returns counts of the
    outcome.
    """
    jobs = suite.plan_jobs(
        suite.expand_suite({"methods": METHODS, "tasks": [TASK], "seeds": list(range(seeds))})
    )
    log, begun = out.parent / "log", Counter[int]()
    engines.make_plan = cache(make_plan)
    import_module("pandas")
    for job in jobs:  # Load once before the fork, like the model.
        engines.make_plan(job.request, job.seed)
    engines.MODEL_CACHE.get(jobs[0].request)

    def note(*words: object) -> None:
        with log.open("a") as file:
            file.write(" ".join(map(str, words)) + "\n")

    def one_by_one(
        some: Sequence[engines.Job], _: engines.Resources
    ) -> Iterator[engines.JobReport]:
        for job in some:
            report = engines.run_job(job)
            note(report.status, report.id, report.reason)
            yield report

    def write(number: int) -> None:
        def answers(
            context: runner.RunContext, task: runner.Task, folder: runner.RunFolder, _: object
        ) -> runner.BatchSize:
            begun[number] += 1
            for episode in task.episodes():
                queries_of_episode, metrics = (
                    episode.queries(),
                    dict.fromkeys(context.per_query_metrics(), 1.0),
                )
                for query in queries_of_episode[
                    len(folder.resume_episodes([episode], metrics)[0]) :
                ]:
                    answer = Answer(prediction=query.answers[0], logprobs=(-1.0,), tokens=(4,))
                    folder.append(
                        [
                            Sample(
                                episode=episode.key,
                                ask=query_to_store(query),
                                answer=answer,
                                metrics=metrics,
                                context_tokens=800,
                                ask_ms=1.0,
                            )
                        ]
                    )
                    note("asked", folder.path.name, query.key)
                    if (
                        number < killed
                        and begun[number] == THIRD
                        and query is queries_of_episode[len(queries_of_episode) // 2]
                    ):
                        os.kill(os.getpid(), signal.SIGKILL)
                folder.finish_episode(
                    EpisodeCost(
                        episode=episode.key, pieces=16, state_bytes=8, patch_bytes=8, **COST
                    )
                )
            return runner.BatchSize(context.batch_size)

        runner.run_episodes, first = answers, len(jobs) * number // writers
        turn = [*jobs[first:], *jobs[:first]]
        list(engines.run_jobs(turn, out, one_by_one, engines.Resources()))

    began, processor = time.perf_counter(), spent()
    children = [
        multiprocessing.get_context("fork").Process(target=write, args=(number,))
        for number in range(writers)
    ]
    for child in children:
        child.start()
    for child in children:
        child.join()
    seconds, engines.make_plan = time.perf_counter() - began, make_plan
    lines = [line.split()[:3] for line in log.read_text().splitlines()]
    states, answered = (
        Counter(words[0] for words in lines),
        Counter(tuple(words) for words in lines if words[0] == "asked"),
    )
    made = Counter(words[1] for words in lines if words[0] in ("new", "continued"))
    folders = [out / job.id for job in jobs if is_stored(out / job.id)]
    return {
        "runs": len(jobs),
        "runs stored with all samples": sum(
            bool(read_samples(each, record=load_record(each))) for each in folders
        ),
        "made once": sum(count == 1 for count in made.values()),
        "made twice": sum(count > 1 for count in made.values()),
        "failed": states["failed"],
        "runs requested while another writer made them": states["busy"],
        "writers killed": sum(child.exitcode == -signal.SIGKILL for child in children),
        "their runs, resumed by other writers": states["continued"],
        "queries answered": len(answered),
        "queries answered twice": sum(count > 1 for count in answered.values()),
        "incomplete files": sum(path.suffix in (".jsonl", ".part") for path in out.rglob("*")),
        "seconds": seconds,
        "CPU seconds": spent() - processor,
        "runs per second": len(jobs) / seconds,
        "bytes a run": sum(file.stat().st_size for file in out.rglob("*.*") if file.is_file())
        / len(jobs),
    }


def spent() -> float:
    """Return the CPU seconds of finished child processes."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def copied(runs: Path, out: Path) -> list[str]:
    """Copy the runs under more seeds into folders. Returns the run ids."""
    records, ids = (
        [load_record(path.parent) for path in sorted(runs.glob(f"*/{RECORD_FILE}"))],
        list[str](),
    )
    for number in range(STORED):
        record, id_, seed = (
            records[number % len(records)],
            short_hash(str(number)),
            number // len(METHODS),
        )
        config = record.config | {"method": METHODS[number % len(METHODS)], "seed": seed}
        rows = tuple(row.model_copy(update={"run": id_, "seed": seed}) for row in record.rows)
        new = {"id": id_, "config": config, "seeds": {"run": seed}, "rows": rows}
        (out / id_).mkdir(parents=True)
        (out / id_ / RECORD_FILE).write_text(
            record_text(record.model_copy(update=new)), encoding="utf-8"
        )
        os.link(runs / record.id / SAMPLES_FILE, out / id_ / SAMPLES_FILE)
        ids.append(id_)
    return ids


def timed(*words: object, repeats: int = 1) -> str:
    """Time a command. Returns wall seconds (fastest of `repeats`) and CPU seconds as table cells."""
    took = []
    for _ in range(repeats):
        began, before = time.perf_counter(), spent()
        subprocess.run(
            [sys.executable, "-m", "ttabench", *map(str, words)], check=True, capture_output=True
        )
        took.append((time.perf_counter() - began, spent() - before))
    return " | ".join(f"{seconds:.1f}" for seconds in min(took))


def searched(one: Path, out: Path, ids: list[str]) -> Iterator[tuple[str, str]]:
    """Yield (operation, times) of every search."""
    schema._runs.cache_clear()
    began, before = time.perf_counter(), time.process_time()
    stored = sum(is_stored(out / name) for name in [*ids[:1000], *map(short_hash, ids[:1000])])
    check = f"{time.perf_counter() - began:.2f} | {time.process_time() - before:.2f}"
    yield (f"look-up of 2,000 runs at the start of `sweep` ({stored:,} are stored)", check)
    yield "`show ID` in a folder with one run", timed("show", ids[0], "--out", one, repeats=5)
    yield "`show ID`", timed("show", ids[77], "--out", out, repeats=5)
    yield "`show` with six digits of the id", timed("show", ids[77][:6], "--out", out, repeats=5)
    yield ("`list runs --json` (reads every record)", timed("list", "runs", "--json", "--out", out))
    yield (
        "`list runs --json` again (reads no record)",
        timed("list", "runs", "--json", "--out", out, repeats=3),
    )
    yield "`compare` (reads every answer)", timed("compare", "--out", out)


def on_paper() -> Iterator[str]:
    """Yield the number of methods with a cost estimate, and the estimated time of a sweep by kind
    of method.
    """
    sys.path.append(str(HERE.parent / "docs"))
    import reference  # the figures of a device, and of a method, as docs/reference/costs.md has them

    shape, hours = reference.cost.shape_of(reference.MODEL), dict[str, float]()
    costs = {
        spec.name: reference._on_paper(spec, reference.MODEL, TOKENS) for spec in reference.specs()
    }
    kinds: dict[str, list[str]] = {
        "read little or no context": [],
        "read once": [],
        "read the context or train on it": [],
    }
    for name, cost in costs.items():
        if cost and name != "lora":  # It equals `none` with other weights.
            share = cost.adapt_flops / costs["icl"].adapt_flops
            kinds[list(kinds)[(share > 0.1) + (share > 1.1)]].append(name)
            moved = 2 * cost.parameters + QUESTIONS * shape.cache_bytes(cost.ask_slots, 2)
            query_seconds = max(
                QUESTIONS * cost.ask_flops / reference.RATE, 128 * moved / reference.BANDWIDTH
            )
            hours[name] = CONTEXTS * (cost.adapt_flops / reference.RATE + query_seconds) / 3600
    yield str(len(hours))
    yield "| methods | runs | minutes per run | device hours |\n| --- | ---: | ---: | ---: |"
    for kind, names in kinds.items():
        own = sorted(names, key=hours.__getitem__)
        minutes = f"{60 * hours[own[0]]:.1f} to {60 * hours[own[-1]]:.1f}"
        named, spent_ = "`, `".join(own), CELLS * sum(hours[name] for name in own)
        yield f"| {kind}: `{named}` | {CELLS * len(own):,} | {minutes} | {spent_:.1f} |"
    total, longest = CELLS * sum(hours.values()), max(hours.values())
    yield f"| all | {CELLS * len(hours):,} | | {total:.1f} |\n"
    least = total / DEVICES
    yield f"On {DEVICES} devices this takes {least:.2f} hours, or {least + longest:.2f} if a longest run comes last."


PAGE = """# A folder of runs at scale

`python results/bench_store.py`, on {cores} cores of a shared machine.

## {writers} writers

All processes go through the same runs, each from another start, like `ttabench sweep`. Some are killed with signal 9
within their third run. Plans, locks, journals and records are real; the 16 answers of a run take no time.

| | |
| --- | ---: |
{written}

## {stored:,} runs

Wall and CPU seconds, for runs in separate folders and for the same runs packed. `show`: the fastest of five. Every
command includes its start-up time, see the second row.

| | folders (s) | CPU s | packed (s) | CPU s |
| --- | ---: | ---: | ---: | ---: |
{searched}

## {runs:,} runs on 64 GPUs, estimated

{methods} methods on 100 tasks and seeds with `llama-3-8b` in bfloat16. A run has 64 contexts of 16k tokens, each with a
batch of 16 queries (32 tokens, 128 generated). Times are lower bounds for an H100 from docs/reference/costs.md, without
loading; nothing was measured. Methods that train all weights need 90 GiB, that is two such devices.

{paper}

They have {queries:,} queries. Packed, at {each:.0f} bytes per query as in the suites of this folder, they take {store}.
"""


def write(writers: int = 64, killed: int = 8, seeds: int = 200) -> None:
    """Write the page."""
    (HERE / "scratch").mkdir(exist_ok=True)
    with TemporaryDirectory(dir=HERE / "scratch") as folder:
        runs, big, packed, one = (Path(folder) / name for name in ("runs", "big", "packed", "one"))
        counts, ids = written(runs, writers, killed, seeds), copied(runs, big)
        shutil.copytree(big, packed, copy_function=os.link)
        shutil.copytree(big / ids[0], one / ids[0])
        pack(packed)
        both = zip(searched(one, big, ids), searched(one, packed, ids), strict=True)
        lines = [
            f"| {name} | {of_folders} | {of_packed} |"
            for (name, of_folders), (_, of_packed) in both
        ]
    files = [file for file in HERE.glob("*/*.parquet") if file.name in (RUNS_FILE, SAMPLES_FILE)]
    stored_queries = sum(
        ParquetFile(file).metadata.num_rows for file in files if file.name == SAMPLES_FILE
    )
    paper = list(on_paper())
    methods = int(paper.pop(0))
    each, queries = (
        sum(file.stat().st_size for file in files) / stored_queries,
        methods * CELLS * CONTEXTS * QUESTIONS,
    )
    page = PAGE.format(
        cores=os.cpu_count(),
        writers=writers,
        stored=STORED,
        searched="\n".join(lines),
        paper="\n".join(paper),
        written="\n".join(f"| {name} | {count:,.0f} |" for name, count in counts.items()),
        runs=methods * CELLS,
        methods=methods,
        queries=queries,
        each=each,
        store=format_bytes(round(each * queries)),
    )
    (HERE / "bench_store.md").write_text(page, encoding="utf-8")


if __name__ == "__main__":
    write()
