"""Tables of `bench_lm_eval.py`: cost of one task with a number of demonstrations, as CSV and
Markdown.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

TOLERANCE = 1e-3
"""Tolerance of an option's log-likelihood (nats)."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One task with one number of demonstrations. Seconds are medians; `*_times` are speed-ups over
    `hf`.
    """

    task: str
    source: str
    shots: int
    documents: int
    hf_tokens: int
    """Tokens that `hf` feeds through the model, without padding."""
    our_tokens: int
    allowed: float
    """Ratio of `hf`'s tokens to ours."""
    hf_seconds: float
    """Whole evaluation by lm-eval with its data loaded: prompts, scores, metrics."""
    harness_seconds: float
    """Whole evaluation by lm-eval with our model."""
    eval_seconds: float
    """Whole evaluation by `ttabench eval`, including reading its files. Nothing is stored."""
    hf_model_seconds: float
    """Time in the model's `loglikelihood`: tokenization and scoring."""
    harness_model_seconds: float
    harness_times: float
    eval_times: float
    reached: float
    """Speed-up of `ttabench eval` as a share of the one that token counts allow."""
    hf_accuracy: float
    harness_accuracy: float
    eval_accuracy: float
    largest_difference: float
    """Largest difference of an option's log-likelihood between `hf` and ours."""
    same_prompts: bool
    """True if prompts and options of all documents are identical."""

    @property
    def agrees(self) -> bool:
        """True if all three give the same results."""
        accuracies = {self.hf_accuracy, self.harness_accuracy, self.eval_accuracy}
        return self.same_prompts and self.largest_difference <= TOLERANCE and len(accuracies) == 1


def write(measured: Sequence[Measured], options: argparse.Namespace) -> None:
    """Write the Markdown table and the CSV file."""
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
        "| task | rows | shots | documents | tokens hf | tokens ours | possible speed-up | hf (s) | "
        "ours in lm-eval (s) | speed-up | ttabench eval (s) | speed-up | reached (%) | model only: hf (s) | "
        "ours in lm-eval (s) | accuracy of all three | largest difference (nats) |",
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
        "`files` are published rows, `mini` those of the synthetic world. All three use the same rows, demonstrations "
        f"and prompts ({'identical' if all(e.same_prompts for e in measured) else 'NOT IDENTICAL'}). "
        "Seconds are of whole evaluations with loaded models. lm-eval's data are loaded before; `ttabench eval` "
        "includes reading its files. `model only` is tokenization and scoring: lm-eval spends the other time on "
        "building prompts. `possible speed-up` is the ratio of `hf`'s tokens to ours. `reached` is the share of "
        "it that `ttabench eval` reaches.",
    ]
    text = "\n".join(lines) + "\n"
    (options.out / "bench_lm_eval.md").write_text(text, encoding="utf-8")
    print(text)
