"""Nano LM: recipe and training command of the bundled base model.

    python -m results.nano_recipe.nano --out ttabench/assets/nano        # about an hour and a half on two cores

The card of the weights names the recipe's earlier module, `ttabench.mini`, because run ids depend
on its digest.

A small Llama (grouped-query attention, RoPE, tied embeddings) with a byte-level BPE, trained only
on the training split of the synthetic world. Three things make it learn to *use* its context:
layers with small initial outputs, so that words stay comparable (`trainer`); losses on attention to
names and answers (`teaching`); and a curriculum. The curriculum has documents that differ only in
the entity, then all nine families, then ever longer contexts, and at last a larger base of the
rotary frequencies for answers over 8,192 tokens (`far`).
"""

from __future__ import annotations

import argparse
import json
import math
from itertools import islice
from pathlib import Path

from results.nano_recipe import far
from results.nano_recipe.far import FAR, FarStage
from results.nano_recipe.lessons import STAGES, batches
from results.nano_recipe.trainer import Trainer

WARMUP = 177_500
"""Tokens of linear warm-up."""


def learning_rate(seen: int, total: float, peak: float) -> float:
    """Return the rate: warm-up, constant, then a cosine to 5 % of the peak over the last third of
    `total` tokens.
    """
    if seen < WARMUP:
        return peak * seen / WARMUP
    done = seen / total
    return (
        peak
        if done < 0.67
        else peak * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * (done - 0.67) / 0.33)))
    )


def train(
    out: Path,
    *,
    seed: int = 0,
    share: float = 1.0,
    device: str = "cpu",
    peak: float = 1e-3,
    start: Path | None = None,
) -> dict[str, object]:
    """Train the nano LM and write a transformers folder to `out`. An interrupted training is
    resumed.

    Args:
        share: factor on the length of every stage, for tests and trials.
        start: model folder after all stages but the last, from which the last one starts.

    Returns:
        The training record: tokens, seconds, and the mean loss of each stage's last tenth.
    """
    import torch

    torch.manual_seed(seed)
    run = Trainer(out, seed=seed, share=share, device=device, peak=peak, start=start)
    _near(run)
    _far(run, FAR.shortened(share))
    return run.record()


def _near(run: Trainer) -> None:
    """Train the stages of growing lengths, counted in tokens."""
    total, end = run.share * sum(stage.tokens for stage in STAGES), 0.0
    for stage in STAGES if run.far is None else ():
        end += run.share * stage.tokens
        losses: list[float] = []
        for batch in islice(batches(run.tokenizer, stage, run.seed), run.skip(stage.name), None):
            if run.seen >= end:
                break
            losses.append(
                run.step(batch, stage.teaching(), learning_rate(run.seen, total, run.peak))
            )
            run.ended(stage.name, losses)
        run.close(stage.name, losses)


def _far(run: Trainer, stage: FarStage) -> None:
    """Train the last stage, counted in steps."""
    run.lengthen(stage)
    losses: list[float] = []
    first = run.skip(stage.name)
    for step, (batch, teaching) in enumerate(
        far.batches(run.tokenizer, stage, run.seed, first), first
    ):
        losses.append(run.step(batch, teaching, stage.rate(step, run.peak)))
        run.ended(stage.name, losses)
    run.close(stage.name, losses)


def main() -> None:
    """Run the command line of the recipe."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder of the trained model")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--share", type=float, default=1.0, help="share of the curriculum's tokens")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--start", type=Path, help="folder of a model to start the last stage from")
    options = parser.parse_args()
    record = train(
        options.out,
        seed=options.seed,
        share=options.share,
        device=options.device,
        start=options.start,
    )
    print(json.dumps(record))


if __name__ == "__main__":
    main()
