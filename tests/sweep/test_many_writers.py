"""Several writers of one folder of runs at once, one of which is killed within a run."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections import Counter
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path

import pytest
import torch

from ttabench.core.types import Answer
from ttabench.records.samples import EpisodeCost, Sample, query_to_store, read_samples
from ttabench.records.schema import load_record
from ttabench.run import runner
from ttabench.sweep import engines, suite

METHODS = ["none", "icl", "rag", "window", "snapkv", "h2o", "kvzip", "qttt", "templora"]
TASK = {"task": "streamingqa", "source": "mini", "task_set": {"documents": 16}}
WRITERS, QUERIES, KILLED_IN_RUN = 8, 16, 3


class Writer:
    """A process that goes through all runs from its own start. Answers are given without delay."""

    def __init__(self, number: int, log: Path) -> None:
        self.number, self.log, self.begun = number, log, 0

    def note(self, *words: object) -> None:
        with self.log.open("a") as file:
            file.write(" ".join(map(str, words)) + "\n")

    def run_episodes(
        self, context: runner.RunContext, task: runner.Task, folder: runner.RunFolder, _: object
    ) -> runner.BatchSize:
        self.begun += 1
        metrics = dict.fromkeys(context.per_query_metrics(), 1.0)
        (episode,) = task.episodes()
        queries = episode.queries()
        for query in queries[len(folder.resume_episodes([episode], metrics)[0]) :]:
            answer = Answer(prediction=query.answers[0], logprobs=(-1.0,), tokens=(4,))
            ask = query_to_store(query)
            common = {"context_tokens": 800, "ask_ms": 1.0, "metrics": metrics}
            folder.append([Sample(episode=episode.key, ask=ask, answer=answer, **common)])
            self.note("answered", folder.path.name, query.key)
            if (self.number, self.begun, query) == (0, KILLED_IN_RUN, queries[QUERIES // 2]):
                os.kill(os.getpid(), signal.SIGKILL)
        sizes = dict.fromkeys(("pieces", "tokens_read", "state_bytes", "patch_bytes"), 16)
        peaks = dict.fromkeys(("adapt_peak_bytes", "ask_peak_bytes"), 9)
        seconds = {"adapt_seconds": 0.1, "encode_seconds": 0.0}
        folder.finish_episode(EpisodeCost(episode=episode.key, **sizes, **peaks, **seconds))
        return runner.BatchSize(context.batch_size)

    def run_jobs(self, jobs: Sequence[engines.Job], out: Path) -> None:
        runner.run_episodes = self.run_episodes
        torch.set_num_threads(1)  # The thread pool of the parent does not exist after a fork.
        first = len(jobs) * self.number // WRITERS
        list(engines.run_jobs([*jobs[first:], *jobs[:first]], out, self, engines.Resources()))

    def __call__(
        self, jobs: Sequence[engines.Job], _: engines.Resources
    ) -> Iterator[engines.JobReport]:
        for job in jobs:
            report = engines.run_job(job)
            self.note(report.status, report.id)
            yield report


@pytest.mark.skipif(not hasattr(os, "fork"), reason="refused: no forks here")
def test_no_run_is_lost_damaged_or_made_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells = {"methods": METHODS, "tasks": [TASK], "seeds": [0, 1, 2, 3]}
    jobs, out, log = suite.plan_jobs(suite.expand_suite(cells)), tmp_path / "runs", tmp_path / "log"
    import_module("pandas")
    # Plan once before the fork, like the model.
    plans = {
        (job.request.method, job.seed): engines.make_plan(job.request, job.seed) for job in jobs
    }
    monkeypatch.setattr(engines, "make_plan", lambda request, seed: plans[request.method, seed])
    engines.MODEL_CACHE.get(jobs[0].request)
    process = multiprocessing.get_context("fork").Process
    writers = [
        process(target=Writer(number, log).run_jobs, args=(jobs, out)) for number in range(WRITERS)
    ]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert [writer.exitcode for writer in writers] == [-signal.SIGKILL, *[0] * (WRITERS - 1)]
    notes = Counter(log.read_text().splitlines())
    statuses = Counter(note.split()[0] for note in notes.elements())
    assert (statuses["failed"], statuses["continued"]) == (0, 1)
    assert statuses["new"] + statuses["continued"] == len(jobs)
    answered = [count for note, count in notes.items() if note.startswith("answered")]
    assert answered == [1] * len(jobs) * QUERIES
    for job in jobs:
        samples = read_samples(out / job.id, ["key"], record=load_record(out / job.id))
        assert len(samples["key"]) == QUERIES
    assert not [path for path in out.rglob("*") if path.suffix in (".jsonl", ".part")]
