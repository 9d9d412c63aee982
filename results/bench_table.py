"""The table of `bench_lm_eval.py`: what one task took at one number of demonstrations, as CSV and Markdown."""

from __future__ import annotations

import argparse
import csv
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

TOLERANCE = 1e-3
"""Of an option's log-likelihood."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One task at one number of demonstrations. Seconds are medians; times say how often ours go into `hf`'s."""

    task: str
    source: str
    shots: int
    documents: int
    hf_tokens: int
    """Tokens that `hf` feeds through the model; padding not counted."""
    our_tokens: int
    allowed: float
    """How many times fewer tokens we read."""
    hf_seconds: float
    """The whole evaluation by lm-eval, its data loaded: prompts, scores, metrics."""
    harness_seconds: float
    """The same under our model."""
    eval_seconds: float
    """The whole evaluation by `ttabench eval`, its files read too; nothing is stored."""
    hf_model_seconds: float
    """Inside the model's `loglikelihood`: tokenising and scoring."""
    harness_model_seconds: float
    harness_times: float
    eval_times: float
    reached: float
    """Share of what token counts allow that `ttabench eval` reaches."""
    hf_accuracy: float
    harness_accuracy: float
    eval_accuracy: float
    largest_difference: float
    """Between `hf` and either of ours, of any option's log-likelihood."""
    same_prompts: bool
    """Prompts and options of all documents, letter by letter."""

    @property
    def agrees(self) -> bool:
        """Whether the three give the same numbers."""
        accuracies = {self.hf_accuracy, self.harness_accuracy, self.eval_accuracy}
        return self.same_prompts and self.largest_difference <= TOLERANCE and len(accuracies) == 1


def write(measured: Sequence[Measured], options: argparse.Namespace) -> None:
    """The table and its figures."""
    import lm_eval
    import torch

    from ttabench.core.environment import describe_hardware

    options.out.mkdir(parents=True, exist_ok=True)
    with (options.out / "bench_lm_eval.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(
            file, [*asdict(measured[0]), "threads", "batch_size"], lineterminator="\n"
        )
        writer.writeheader()
        for row in measured:
            writer.writerow(
                {**asdict(row), "threads": options.threads, "batch_size": options.batch_size}
            )
    lines = [
        "# Few-shot evaluation: lm-eval's `hf`, `ttabench` (`icl`) within lm-eval, and `ttabench eval`",
        "",
        f"Base {Path(options.model).name}, lm-eval {lm_eval.__version__}, torch {torch.__version__}, "
        f"{options.threads} threads of "
        f"{describe_hardware()['cpu']}, batches of {options.batch_size}, median of {options.repeat} alternating runs.",
        "",
        "| task | rows | shots | documents | tokens hf | ours | tokens allow | s hf | s within lm-eval | times | "
        "s ttabench eval | times | reached | model only: s hf | s within lm-eval | accuracy of all three | "
        "largest difference |",
        "| --- | --- " + "| ---: " * 15 + "|",
    ]
    for e in measured:
        accuracies = dict.fromkeys(
            f"{a:.3f}" for a in (e.hf_accuracy, e.harness_accuracy, e.eval_accuracy)
        )
        lines.append(
            f"| {e.task} | {e.source} | {e.shots} | {e.documents} | {e.hf_tokens:,} | {e.our_tokens:,} | "
            f"{e.allowed:.1f} | {e.hf_seconds:.2f} | {e.harness_seconds:.2f} | {e.harness_times:.1f} | "
            f"{e.eval_seconds:.2f} | {e.eval_times:.1f} | {100 * e.reached:.0f} % | {e.hf_model_seconds:.2f} | "
            f"{e.harness_model_seconds:.2f} | {' / '.join(accuracies)} | {e.largest_difference:.1e} |"
        )
    lines += [
        "",
        "`files` are published rows, `mini` those of the miniature world. The same rows, demonstrations and prompts "
        f"({'equal' if all(e.same_prompts for e in measured) else 'NOT EQUAL'} letter by letter) go all three ways. "
        "Seconds are of whole evaluations with models loaded; lm-eval's data are loaded before, `ttabench eval` reads "
        "its files within. `model only` is scoring with tokenising: the rest of the time within lm-eval goes into its "
        "own building of prompts. `tokens allow` is how many times fewer tokens pass our model than `hf`'s; `reached` "
        "is the share of that in the times of `ttabench eval`.",
    ]
    text = "\n".join(lines) + "\n"
    (options.out / "bench_lm_eval.md").write_text(text, encoding="utf-8")
    print(text)
