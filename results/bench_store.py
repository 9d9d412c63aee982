"""A folder of runs under 64 writers, finding a run among 20,000, and what a sweep of every method takes on paper.

    python results/bench_store.py          bench_store.md; a quarter of an hour on two cores

Every writer goes through all runs as `ttabench sweep` does, each from another start; some kill themselves within a run.
All is real (plans, locks, journals, records) but the answers: the right ones, at once.
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
    """Let processes make all runs at once, so many of which are killed; counts of what came of it."""
    jobs = suite.plan_jobs(
        suite.expand_suite({"methods": METHODS, "tasks": [TASK], "seeds": list(range(seeds))})
    )
    log, begun = out.parent / "log", Counter[int]()
    engines.make_plan = cache(make_plan)
    import_module("pandas")
    for job in jobs:  # once, before the processes part: so is the model
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
                asks, metrics = episode.queries(), dict.fromkeys(context.per_query_metrics(), 1.0)
                for ask in asks[len(folder.resume_episodes([episode], metrics)[0]) :]:
                    answer = Answer(prediction=ask.answers[0], logprobs=(-1.0,), tokens=(4,))
                    folder.append(
                        [
                            Sample(
                                episode=episode.key,
                                ask=query_to_store(ask),
                                answer=answer,
                                metrics=metrics,
                                context_tokens=800,
                                ask_ms=1.0,
                            )
                        ]
                    )
                    note("asked", folder.path.name, ask.key)
                    if number < killed and begun[number] == THIRD and ask is asks[len(asks) // 2]:
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
    states, asked = (
        Counter(words[0] for words in lines),
        Counter(tuple(words) for words in lines if words[0] == "asked"),
    )
    made = Counter(words[1] for words in lines if words[0] in ("new", "continued"))
    folders = [out / job.id for job in jobs if is_stored(out / job.id)]
    return {
        "runs": len(jobs),
        "stored, with all samples": sum(
            bool(read_samples(each, record=load_record(each))) for each in folders
        ),
        "made once": sum(count == 1 for count in made.values()),
        "made twice": sum(count > 1 for count in made.values()),
        "failed": states["failed"],
        "asked for while another made them": states["busy"],
        "writers killed": sum(child.exitcode == -signal.SIGKILL for child in children),
        "their runs, continued by others": states["continued"],
        "queries answered": len(asked),
        "queries answered twice": sum(count > 1 for count in asked.values()),
        "files left half written": sum(
            path.suffix in (".jsonl", ".part") for path in out.rglob("*")
        ),
        "seconds": seconds,
        "seconds of the processor": spent() - processor,
        "runs a second": len(jobs) / seconds,
        "bytes a run": sum(file.stat().st_size for file in out.rglob("*.*") if file.is_file())
        / len(jobs),
    }


def spent() -> float:
    """Seconds of the processor, of processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def copied(runs: Path, out: Path) -> list[str]:
    """Runs of more seeds with the samples of these, as folders; their ids."""
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
    """Seconds of a command, the fastest of so many, and of the processor."""
    took = []
    for _ in range(repeats):
        began, before = time.perf_counter(), spent()
        subprocess.run(
            [sys.executable, "-m", "ttabench", *map(str, words)], check=True, capture_output=True
        )
        took.append((time.perf_counter() - began, spent() - before))
    return " | ".join(f"{seconds:.1f}" for seconds in min(took))


def searched(one: Path, out: Path, ids: list[str]) -> Iterator[tuple[str, str]]:
    """What is done, and what it takes."""
    schema._runs.cache_clear()
    began, before = time.perf_counter(), time.process_time()
    stored = sum(is_stored(out / name) for name in [*ids[:1000], *map(short_hash, ids[:1000])])
    check = f"{time.perf_counter() - began:.2f} | {time.process_time() - before:.2f}"
    yield (
        f"which of 2,000 runs are stored ({stored:,} are), as `sweep` asks before it begins",
        check,
    )
    yield "`show ID`, the only run of its folder", timed("show", ids[0], "--out", one, repeats=5)
    yield "`show ID`", timed("show", ids[77], "--out", out, repeats=5)
    yield "`show`, six digits of the id", timed("show", ids[77][:6], "--out", out, repeats=5)
    yield (
        "`list runs --json`, which reads every record",
        timed("list", "runs", "--json", "--out", out),
    )
    yield (
        "`list runs --json` again, which reads none",
        timed("list", "runs", "--json", "--out", out, repeats=3),
    )
    yield "`compare`, which reads every answer", timed("compare", "--out", out)


def on_paper() -> Iterator[str]:
    """How many methods have a cost; and what a sweep of them takes, by how much of the contexts a method reads."""
    sys.path.append(str(HERE.parent / "docs"))
    import reference  # the figures of a device, and of a method, as docs/reference/costs.md has them

    shape, hours = reference.cost.shape_of(reference.MODEL), dict[str, float]()
    costs = {
        spec.name: reference._on_paper(spec, reference.MODEL, TOKENS) for spec in reference.specs()
    }
    kinds: dict[str, list[str]] = {
        "read little or nothing": [],
        "read once": [],
        "read more, or train on it": [],
    }
    for name, cost in costs.items():
        if cost and name != "lora":  # which is `none` on other weights
            share = cost.adapt_flops / costs["icl"].adapt_flops
            kinds[list(kinds)[(share > 0.1) + (share > 1.1)]].append(name)
            moved = 2 * cost.parameters + QUESTIONS * shape.cache_bytes(cost.ask_slots, 2)
            asked = max(
                QUESTIONS * cost.ask_flops / reference.RATE, 128 * moved / reference.BANDWIDTH
            )
            hours[name] = CONTEXTS * (cost.adapt_flops / reference.RATE + asked) / 3600
    yield str(len(hours))
    yield "| methods | runs | a run, minutes | device hours |\n| --- | ---: | ---: | ---: |"
    for kind, names in kinds.items():
        own = sorted(names, key=hours.__getitem__)
        minutes = f"{60 * hours[own[0]]:.1f} to {60 * hours[own[-1]]:.1f}"
        named, spent_ = "`, `".join(own), CELLS * sum(hours[name] for name in own)
        yield f"| {kind}: `{named}` | {CELLS * len(own):,} | {minutes} | {spent_:.1f} |"
    total, longest = CELLS * sum(hours.values()), max(hours.values())
    yield f"| all | {CELLS * len(hours):,} | | {total:.1f} |\n"
    least = total / DEVICES
    yield f"On {DEVICES} devices that is {least:.2f} hours, and {least + longest:.2f} where a longest run comes last."


PAGE = """# A folder of runs at scale

`python results/bench_store.py`, on {cores} cores that others used at the same time.

## {writers} writers

Processes that go through the same runs at once, each from another start, as `ttabench sweep` does; some are killed with
signal 9 within their third run. Plans, locks, journals and records are real; answers come at once, 16 a run.

| | |
| --- | ---: |
{written}

## {stored:,} runs

Seconds of the clock and of the processor, of runs in folders of their own and of the same runs packed; of `show` the
fastest of five. Every command takes its own start, as the second line has it.

| | folders | processor | packed | processor |
| --- | ---: | ---: | ---: | ---: |
{searched}

## {asked:,} runs on 64 GPUs, on paper

{methods} methods on 100 tasks and seeds under `llama-3-8b` in bfloat16; a run has 64 contexts of 16k tokens and asks 16
questions each (32 tokens, 128 written) together. Seconds of an H100 as in docs/reference/costs.md: at least so much,
nothing was measured, and loading is not counted. What trains whole weights keeps 90 GiB, which needs two such devices.

{paper}

They ask {queries:,} queries. Packed, at the {each:.0f} bytes a query of the suites in this folder, they take {store}.
"""


def write(writers: int = 64, killed: int = 8, seeds: int = 200) -> None:
    """The page."""
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
    asked = sum(ParquetFile(file).metadata.num_rows for file in files if file.name == SAMPLES_FILE)
    paper = list(on_paper())
    methods = int(paper.pop(0))
    each, queries = (
        sum(file.stat().st_size for file in files) / asked,
        methods * CELLS * CONTEXTS * QUESTIONS,
    )
    page = PAGE.format(
        cores=os.cpu_count(),
        writers=writers,
        stored=STORED,
        searched="\n".join(lines),
        paper="\n".join(paper),
        written="\n".join(f"| {name} | {count:,.0f} |" for name, count in counts.items()),
        asked=methods * CELLS,
        methods=methods,
        queries=queries,
        each=each,
        store=format_bytes(round(each * queries)),
    )
    (HERE / "bench_store.md").write_text(page, encoding="utf-8")


if __name__ == "__main__":
    write()
