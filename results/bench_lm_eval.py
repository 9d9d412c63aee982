"""Speed of few-shot evaluation: lm-eval's own `hf` model, `icl` as a model of lm-eval, and
`ttabench eval`.

    python results/bench_lm_eval.py                                      COPA and SST-2 rows of the synthetic world
    python results/bench_lm_eval.py --copa DIR --sst2 DIR --threads 2    published files too: *.jsonl with train and
                                                                         val, train.tsv and dev.tsv

All three run in one process, in turn, on one folder of weights, with the same rows and
demonstrations in the same order. Prompts must be identical. First it prints the speed-up that token
counts allow: `hf` reads all demonstrations for every option of every document, ttabench reads them
once, then each query with its options. It writes `bench_lm_eval.md` and `bench_lm_eval.csv`. Exit
code 1 means that the three results differ.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench_rows import TEMPLATES, Source, prepare, published, synthetic_rows
from bench_table import Measured, write

HERE = Path(__file__).parent


@dataclass(frozen=True, kw_only=True)
class Evaluated:
    """One evaluation by one implementation. Documents are in the order of evaluation."""

    seconds: float
    accuracy: float
    prompts: list[list[tuple[str, str]]]
    """(whole context, option) of every option of every document."""
    scores: list[list[float]]
    model_seconds: float = 0.0


def timed(model: Any) -> list[float]:
    """Record the seconds of each later call of the model's `loglikelihood`."""
    seconds: list[float] = []
    plain: Callable[..., Any] = model.loglikelihood

    def measure(*arguments: Any, **named: Any) -> Any:
        begin = time.perf_counter()
        value = plain(*arguments, **named)
        seconds.append(time.perf_counter() - begin)
        return value

    model.loglikelihood = measure
    return seconds


def by_lm_eval(model: Any, source: Source, shots: int) -> Evaluated:
    """Run one evaluation with lm-eval. Its data are loaded before the clock starts."""
    from lm_eval.evaluator import simple_evaluate
    from lm_eval.tasks import TaskManager

    name = source.lm_eval_name
    manager = TaskManager(include_defaults=False, include_path=str(source.folder))
    loaded = manager.load([name])["tasks"][name]
    clock = timed(model)
    try:
        begin = time.perf_counter()
        evaluated = simple_evaluate(
            model=model,
            tasks=[loaded],
            num_fewshot=shots,
            task_manager=manager,
            bootstrap_iters=0,
            verbosity="ERROR",
        )
        seconds = time.perf_counter() - begin
    finally:
        del model.loglikelihood
    assert evaluated is not None, "one process has all results"
    samples = sorted(evaluated["samples"][name], key=lambda sample: sample["doc_id"])
    return Evaluated(
        seconds=seconds,
        accuracy=evaluated["results"][name]["acc,none"],
        prompts=[
            [(context, option) for context, option, *_ in sample["arguments"]] for sample in samples
        ],
        scores=[[score for score, _ in sample["filtered_resps"]] for sample in samples],
        model_seconds=sum(clock),
    )


@dataclass
class Kept:
    """In-memory replacement for the run folder."""

    samples: dict[str, Any] = field(default_factory=dict)

    def resume_episodes(self, episode: Any, metrics: Any) -> tuple[Sequence[Any], bool]:  # noqa: ARG002  # the runner's
        """Report that nothing was answered before."""
        return (), False

    def append(self, samples: Sequence[Any]) -> None:
        """Store samples."""
        self.samples.update((sample.key, sample) for sample in samples)

    def finish_episode(self, cost: Any) -> None:
        """Ignore costs, because they are measured outside."""


def by_eval(method: Any, batch_size: int, source: Source, shots: int) -> Evaluated:
    """Run one evaluation like `ttabench eval`, from the files to the metric."""
    from ttabench.core.types import Choose, no_progress, wants_of_kind
    from ttabench.run.runner import RunContext, run_episodes
    from ttabench.stats.metrics import metric

    begin = time.perf_counter()
    task, kept = source.ours(shots), Kept()
    supports_mode = tuple(map(metric, task.card.metrics))
    bench = RunContext(lm=method.lm, method=method, metrics=supports_mode, batch_size=batch_size)
    run_episodes(bench, task, kept, no_progress)
    accuracy = statistics.fmean(
        sample.metrics[task.card.main_metric] for sample in kept.samples.values()
    )
    seconds = time.perf_counter() - begin
    (episode,) = task.episodes()
    context = "".join(
        (chunk.joiner if number else "") + chunk.text
        for number, chunk in enumerate(episode.chunks())
    )
    queries = episode.queries()
    return Evaluated(
        seconds=seconds,
        accuracy=accuracy,
        prompts=[
            [(context + query.joiner + query.prompt, option) for option in want.options]
            for query, want in zip(queries, wants_of_kind(queries, Choose), strict=True)
        ],
        scores=[list(kept.samples[query.key].answer.logprobs) for query in queries],
    )


def token_counts(prompts: Sequence[Sequence[tuple[str, str]]], lm: Any) -> tuple[int, int]:
    """Count the tokens that `hf` and ttabench feed through the model."""
    from ttabench.harness.reading import shared_prefix_chars

    pairs = [pair for options in prompts for pair in options]
    cut = shared_prefix_chars([context for context, _ in pairs])
    start = len(lm.bos_ids)
    forwards = {context + option: lm.encode(context + option) for context, option in pairs}
    hf = sum(len(row) for row in {tuple(ids[:-1]) for ids in forwards.values()}) + start * len(
        forwards
    )
    prefix = len(lm.encode(pairs[0][0][:cut]))
    queries = {context: len(lm.encode(context[cut:])) for context, _ in pairs}
    options = sum(
        len(lm.encode(context[cut:] + option)) - queries[context] - 1 for context, option in pairs
    )
    return hf, start + prefix + sum(queries.values()) + options


def measure(
    source: Source, shots: int, models: dict[str, Any], options: argparse.Namespace
) -> Measured:
    """Warm up once, then time all three in turn."""
    routes: dict[str, Callable[[], Evaluated]] = {
        "hf": lambda: by_lm_eval(models["hf"], source, shots),
        "harness": lambda: by_lm_eval(models["harness"], source, shots),
        "eval": lambda: by_eval(models["harness"].method, options.batch_size, source, shots),
    }
    by_route = {route: run() for route, run in routes.items()}
    hf_tokens, our_tokens = token_counts(by_route["hf"].prompts, models["harness"].lm)
    allowed = hf_tokens / our_tokens
    print(
        f"{source.task} ({source.kind}), {shots} shots: {hf_tokens:,} tokens against {our_tokens:,}; "
        f"possible speed-up {allowed:.1f} x",
        flush=True,
    )
    rounds = [{route: run() for route, run in routes.items()} for _ in range(options.repeat)]
    whole = {
        route: statistics.median(one_round[route].seconds for one_round in rounds)
        for route in routes
    }
    inside = {
        route: statistics.median(one_round[route].model_seconds for one_round in rounds)
        for route in routes
    }
    theirs = by_route["hf"]
    return Measured(
        task=source.task,
        source=source.kind,
        shots=shots,
        documents=len(theirs.prompts),
        hf_tokens=hf_tokens,
        our_tokens=our_tokens,
        allowed=allowed,
        hf_seconds=whole["hf"],
        harness_seconds=whole["harness"],
        eval_seconds=whole["eval"],
        hf_model_seconds=inside["hf"],
        harness_model_seconds=inside["harness"],
        harness_times=whole["hf"] / whole["harness"],
        eval_times=whole["hf"] / whole["eval"],
        reached=whole["hf"] / whole["eval"] / allowed,
        hf_accuracy=theirs.accuracy,
        harness_accuracy=by_route["harness"].accuracy,
        eval_accuracy=by_route["eval"].accuracy,
        largest_difference=max(
            largest(theirs.scores, by_route[route].scores) for route in ("harness", "eval")
        ),
        same_prompts=theirs.prompts == by_route["harness"].prompts == by_route["eval"].prompts,
    )


def largest(some: Sequence[Sequence[float]], others: Sequence[Sequence[float]]) -> float:
    """Return the largest difference between two tables of scores."""
    pairs = zip(some, others, strict=True)
    return max(abs(a - b) for row, other in pairs for a, b in zip(row, other, strict=True))


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--copa", type=Path, help="folder of train.jsonl and val.jsonl")
    parser.add_argument("--sst2", type=Path, help="folder of train.tsv and dev.tsv")
    parser.add_argument(
        "--published", action="store_true", help="skip the rows of the synthetic world"
    )
    parser.add_argument("--shots", default="30,10")
    parser.add_argument("--limit", type=int, default=100, help="number of documents")
    parser.add_argument(
        "--model", default="nano", help="nano, or a folder written by save_pretrained"
    )
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--out", type=Path, default=HERE)
    return parser.parse_args()


def sources(options: argparse.Namespace, scratch: Path, shots: Sequence[int]) -> list[Source]:
    """Return the published rows of the options, then those of the synthetic world unless excluded."""
    made = []
    for kind in ("files",) if options.published else ("files", "mini"):
        for task in TEMPLATES:
            folder: Path | None = getattr(options, task)
            if kind == "mini" or folder is not None:
                rows = (
                    synthetic_rows(task, options.limit)
                    if kind == "mini" or folder is None
                    else published(task, folder)
                )
                source = Source(
                    task=task, kind=kind, folder=scratch / f"{task}-{kind}", limit=options.limit
                )
                made.append(prepare(task, rows, source, shots))
    return made


def main() -> int:
    """Measure and write the page. Returns 1 if the three results differ."""
    options = arguments()
    shots = [int(text) for text in options.shots.split(",")]
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["HF_DATASETS_CACHE"] = f"{scratch}/cache"
        import torch
        from lm_eval.models.huggingface import HFLM

        from ttabench.harness import AdaptedLM
        from ttabench.lm.loading.hub import NANO_FOLDER

        torch.set_num_threads(options.threads)
        ours = AdaptedLM.create_from_arg_obj(
            {"method": "icl", "model": options.model, "dtype": "float32", "device": "cpu"},
            {"batch_size": options.batch_size},
        )
        hf = HFLM(
            pretrained=str(NANO_FOLDER) if options.model == "nano" else options.model,
            tokenizer=ours.lm.tokenizer,
            dtype="float32",
            device="cpu",
            batch_size=options.batch_size,
        )
        models = {"hf": hf, "harness": ours}
        measured = [
            measure(source, count, models, options)
            for source in sources(options, Path(scratch), shots)
            for count in shots
        ]
    write(measured, options)
    return int(not all(row.agrees for row in measured))


if __name__ == "__main__":
    sys.exit(main())
