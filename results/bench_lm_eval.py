"""How long few-shot evaluation takes under lm-eval's own `hf` model and under ours, at the same numbers.

    python results/bench_lm_eval.py                                      COPA and SST-2 rows of the miniature world
    python results/bench_lm_eval.py --copa DIR --sst2 DIR --threads 2    published files: *.jsonl with train and val,
                                                                         train.tsv and dev.tsv

Both models run in one process on one folder of weights, in turn; lm-eval's tasks, templates and demonstrations, which
are the same for every document, serve both. First it prints what token counts allow: `hf` reads all demonstrations for
every option of every document, we read them once, then each query with its options. It writes `bench_lm_eval.md` and
`bench_lm_eval.csv`; they are measured, never typed.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
TEMPLATES = {"copa": "super_glue/copa/default.yaml", "sst2": "glue/sst2/default.yaml"}
Rows = list[dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One task at one number of demonstrations."""

    task: str
    source: str
    shots: int
    documents: int
    hf_tokens: int
    """Tokens that `hf` feeds through the model; padding not counted."""
    our_tokens: int
    hf_seconds: float
    """Median time of the whole evaluation, building the prompts and scoring them."""
    our_seconds: float
    hf_model_seconds: float
    """Median time inside the model's `loglikelihood`."""
    our_model_seconds: float
    hf_accuracy: float
    our_accuracy: float
    largest_difference: float
    """Of any option's log-likelihood."""

    @property
    def allowed(self) -> float:
        """How many times fewer tokens we read."""
        return self.hf_tokens / self.our_tokens


def published(task: str, folder: Path) -> dict[str, Rows]:
    """Rows of the published files."""
    if task == "copa":
        names = {"train": "train.jsonl", "validation": "val.jsonl"}
        return {
            split: [json.loads(line) for line in (folder / name).read_text(encoding="utf-8").splitlines()]
            for split, name in names.items()
        }
    found = {}
    for split, name in {"train": "train.tsv", "validation": "dev.tsv"}.items():
        with (folder / name).open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
        found[split] = [{"sentence": row["sentence"], "label": int(row["label"])} for row in rows]
    return found


def write_task(task: str, rows: dict[str, Rows], folder: Path) -> None:
    """lm-eval's own template on local rows, with the same demonstrations for every document."""
    import lm_eval

    files = {}
    for split, some in rows.items():
        path = folder / f"{task}-{split}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in some), encoding="utf-8")
        files[split] = str(path)
    template = Path(lm_eval.__file__).parent / "tasks" / TEMPLATES[task]
    config = {
        "include": str(template), "task": f"bench_{task}", "dataset_path": "json", "dataset_name": None,
        "dataset_kwargs": {"data_files": files}, "fewshot_split": "train", "fewshot_config": {"sampler": "first_n"},
    }  # fmt: skip
    (folder / f"bench_{task}.yaml").write_text(json.dumps(config), encoding="utf-8")


def beginning_with_bos(lm: Any) -> Any:
    """The base model's tokenizer for `hf`, which begins texts with BOS as ours do."""
    from tokenizers.processors import TemplateProcessing

    tokenizer = deepcopy(lm.tokenizer)
    if lm.bos_ids:
        bos = str(tokenizer.bos_token)
        template = TemplateProcessing(single=f"{bos} $A", special_tokens=[(bos, lm.bos_ids[0])])
        tokenizer.backend_tokenizer.post_processor = template
    return tokenizer


def timed(model: Any) -> list[float]:
    """Seconds of each later call of the model's `loglikelihood`."""
    seconds: list[float] = []
    plain: Callable[..., Any] = model.loglikelihood

    def measure(*arguments: Any, **named: Any) -> Any:
        begin = time.perf_counter()
        found = plain(*arguments, **named)
        seconds.append(time.perf_counter() - begin)
        return found

    model.loglikelihood = measure
    return seconds


def token_counts(samples: Sequence[dict[str, Any]], lm: Any) -> tuple[int, int]:
    """Tokens that `hf` and we feed through the model, from the prompts themselves."""
    from ttabench.harness.splitting import common_cut

    pairs = [argument for sample in samples for argument in sample["arguments"]]
    cut = common_cut([context for context, *_ in pairs], "\n\n")
    start = len(lm.bos_ids)
    forwards = {context + continuation: lm.encode(context + continuation) for context, continuation, *_ in pairs}
    hf = sum(len(row) for row in {tuple(ids[:-1]) for ids in forwards.values()}) + start * len(forwards)
    prefix = len(lm.encode(pairs[0][0][:cut]))
    queries = {context: len(lm.encode(context[cut:])) for context, *_ in pairs}
    options = sum(
        len(lm.encode(context[cut:] + continuation)) - queries[context] - 1 for context, continuation, *_ in pairs
    )
    return hf, start + prefix + sum(queries.values()) + options


def evaluations(models: dict[str, Any], task: str, shots: int, folder: Path, limit: int) -> Iterator[tuple[str, Any]]:
    """One evaluation by each model, in turn, for ever: (whose, (seconds, results))."""
    from lm_eval.evaluator import simple_evaluate
    from lm_eval.tasks import TaskManager

    manager = TaskManager(include_defaults=False, include_path=str(folder))
    while True:
        for whose, model in models.items():
            loaded = manager.load([f"bench_{task}"])["tasks"][f"bench_{task}"]
            begin = time.perf_counter()
            found = simple_evaluate(
                model=model, tasks=[loaded], num_fewshot=shots, limit=limit, task_manager=manager, bootstrap_iters=0
            )
            yield whose, (time.perf_counter() - begin, found)


def measure(task: str, shots: int, models: dict[str, Any], clocks: dict[str, list[float]], options: Any) -> Measured:
    """Warm up once, then time both models in turn."""
    whole: dict[str, list[float]] = {whose: [] for whose in models}
    results: dict[str, Any] = {}
    runs = evaluations(models, task, shots, options.folder, options.limit)
    for number in range((options.repeat + 1) * len(models)):
        whose, (seconds, found) = next(runs)
        name = f"bench_{task}"
        results[whose] = found["results"][name], sorted(found["samples"][name], key=lambda each: each["doc_id"])
        if number < len(models):
            clocks[whose].clear()
            if whose == "ours":
                counts = token_counts(results[whose][1], models["ours"].lm)
                print(f"{task}, {shots} shots: {counts[0]:,} tokens against {counts[1]:,}; that allows "
                      f"{counts[0] / counts[1]:.1f} x", flush=True)  # fmt: skip
        else:
            whole[whose].append(seconds)
    scores = {w: [r[0] for sample in s for r in sample["filtered_resps"]] for w, (_, s) in results.items()}
    medians = {whose: statistics.median(clocks[whose][-options.repeat :]) for whose in models}
    return Measured(
        task=task, source=options.sources[task], shots=shots, documents=len(results["ours"][1]),
        hf_tokens=counts[0], our_tokens=counts[1],
        hf_seconds=statistics.median(whole["hf"]), our_seconds=statistics.median(whole["ours"]),
        hf_model_seconds=medians["hf"], our_model_seconds=medians["ours"],
        hf_accuracy=results["hf"][0]["acc,none"], our_accuracy=results["ours"][0]["acc,none"],
        largest_difference=max(abs(a - b) for a, b in zip(scores["hf"], scores["ours"], strict=True)),
    )  # fmt: skip


def write(found: Sequence[Measured], options: Any) -> None:
    """The table and its figures."""
    import lm_eval
    import torch

    from ttabench.environment import hardware

    with (options.out / "bench_lm_eval.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, [*asdict(found[0]), "threads", "batch_size"], lineterminator="\n")
        writer.writeheader()
        for each in found:
            writer.writerow({**asdict(each), "threads": options.threads, "batch_size": options.batch_size})
    lines = [
        "# Few-shot evaluation: lm-eval's `hf` and `ttabench` (`icl`)", "",
        f"Base {options.model}, lm-eval {lm_eval.__version__}, torch {torch.__version__}, {options.threads} threads of "
        f"{hardware()['cpu']}, batches of {options.batch_size}, median of {options.repeat} alternating runs.", "",
        "| task | rows | shots | documents | accuracy hf / ours | largest difference | s hf | s ours | times | "
        "model only: s hf | s ours | times | tokens allow | reached |",
        "| --- | --- " + "| ---: " * 12 + "|",
    ]  # fmt: skip
    for e in found:
        whole, inside = e.hf_seconds / e.our_seconds, e.hf_model_seconds / e.our_model_seconds
        lines.append(
            f"| {e.task} | {e.source} | {e.shots} | {e.documents} | {e.hf_accuracy:.3f} / {e.our_accuracy:.3f} | "
            f"{e.largest_difference:.1e} | {e.hf_seconds:.2f} | {e.our_seconds:.2f} | {whole:.1f} | "
            f"{e.hf_model_seconds:.2f} | {e.our_model_seconds:.2f} | {inside:.1f} | {e.allowed:.1f} | "
            f"{100 * inside / e.allowed:.0f} % |"
        )
    lines += [
        "", "`s` is the whole evaluation, prompts built by lm-eval for both; `model only` is scoring with tokenising. "
        "`tokens allow` is how many times fewer tokens pass the model; `reached` is the model's share of that.",
    ]  # fmt: skip
    text = "\n".join(lines) + "\n"
    (options.out / "bench_lm_eval.md").write_text(text, encoding="utf-8")
    print(text)


def arguments() -> argparse.Namespace:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--copa", type=Path, help="folder of train.jsonl and val.jsonl")
    parser.add_argument("--sst2", type=Path, help="folder of train.tsv and dev.tsv")
    parser.add_argument("--shots", default="30,10")
    parser.add_argument("--limit", type=int, default=100, help="documents asked")
    parser.add_argument("--model", default="nano", help="nano, or a folder written by save_pretrained")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--out", type=Path, default=HERE)
    return parser.parse_args()


def main() -> int:
    """Measure and write; leaves with 1 where the numbers of the two are not the same."""
    options = arguments()
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["HF_DATASETS_CACHE"] = f"{scratch}/cache"
        options.folder = Path(scratch)
        import torch
        from lm_eval.models.huggingface import HFLM

        from ttabench.harness import AdaptedLM
        from ttabench.hub import NANO_FOLDER
        from ttabench.mini.demonstrations import superglue

        torch.set_num_threads(options.threads)
        options.sources = {}
        for task in TEMPLATES:
            folder = getattr(options, task)
            options.sources[task] = "files" if folder else "mini"
            write_task(
                task, published(task, folder) if folder else superglue(task, "test", 0, queries=100), options.folder
            )
        weights = str(NANO_FOLDER) if options.model == "nano" else options.model
        ours = AdaptedLM.create_from_arg_obj(
            {"method": "icl", "model": options.model, "dtype": "float32", "device": "cpu"},
            {"batch_size": options.batch_size},
        )
        hf = HFLM(
            pretrained=weights, tokenizer=beginning_with_bos(ours.lm), dtype="float32", device="cpu",
            batch_size=options.batch_size,
        )  # fmt: skip
        models = {"hf": hf, "ours": ours}
        clocks = {whose: timed(model) for whose, model in models.items()}
        counts = [int(text) for text in options.shots.split(",")]
        found = [measure(task, shots, models, clocks, options) for task in TEMPLATES for shots in counts]
    write(found, options)
    return int(any(e.largest_difference > 1e-3 or e.hf_accuracy != e.our_accuracy for e in found))


if __name__ == "__main__":
    sys.exit(main())
