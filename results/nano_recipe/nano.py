"""The nano LM: recipe and training command of the base model that ships with the package.

    python -m results.nano_recipe.nano --out ttabench/assets/nano        # about an hour and a half on two cores

The card beside the weights names the place where this recipe lay then, `ttabench.mini`: runs are known by its digest.

A small Llama (grouped-query attention, RoPE, tied embeddings) with a byte-level BPE, trained on the training split of
the miniature world only. Three things make it learn to *use* its context: layers that start quiet, so that words can be
compared (`trainer`); attention that is taught where names and answers stand (`teaching`); and a curriculum: documents
that only the entity tells apart, then all nine families, then ever longer contexts, and at last a larger base of the
rotary frequencies, with which it is taught to answer over 8,192 tokens (`far`).
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
    """Warm-up, constant, then a cosine to 5 % of the peak over the last third of the `total` tokens."""
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
    """Train the nano LM and write a plain transformers folder to `out`; a training that was stopped there goes on.

    Args:
        share: shortens every stage to this share (for tests and trials).
        start: folder of a model that the stages before the last have made; the last one begins with its weights.

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
    """The stages of ever longer sequences, by tokens."""
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
    """The last stage, by steps."""
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
    """Command line of the recipe."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder of the trained model")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--share", type=float, default=1.0, help="share of the curriculum's tokens")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--start", type=Path, help="folder of a model to begin the last stage with")
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
