"""What StreamAdapter's state holds of a book: the same strides under the state of another book, and under none.

    python results/swap.py        writes swap.md; five minutes of one core

A state that only makes the model better at books of this kind helps as much when it comes from another book; what the
book's own state gains beyond that is memory. The tokens in the window are always the book's own.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import torch

from ttabench.lm import LM, load
from ttabench.methods import checkpoints
from ttabench.methods.base import BaseMethod, training_item
from ttabench.methods.streamadapter import StreamAdapter
from ttabench.readers import load as load_task
from ttabench.resolving import shipped_checkpoint
from ttabench.scoring import nll
from ttabench.types import Episode, Observe, State

HERE = Path(__file__).resolve().parent
STATES = ("none", "another book's", "its own")


def states(method: BaseMethod[Any], book: Episode) -> list[State]:
    """The state at every query of a book."""
    state, found = method.begin(1), []
    for step in book.steps:
        if isinstance(step, Observe):
            state = method.adapt(state, [step])
        else:
            found.append(state)
    return found


def with_state_of(own: State, other: State | None) -> State:
    """The window of one state, the weights of another (None: the base model's)."""
    h = torch.zeros_like(own.tensors["h"]) if other is None else other.tensors["h"]
    return replace(own, tensors={**own.tensors, "h": h})


def perplexities(lm: LM, method: BaseMethod[Any], books: Sequence[Episode]) -> list[float]:
    """Perplexity over all strides of two books, for each of `STATES`."""
    read = [states(method, book) for book in books]
    sums = [0.0] * len(STATES)
    tokens = 0
    for number, book in enumerate(books):
        for ask, own, other in zip(book.asks(), read[number], read[1 - number], strict=True):
            item = [training_item(lm, ask)]
            for place, used in enumerate((None, other, own)):
                summed, count = nll(lm, method.patch(with_state_of(own, used), [ask]), item)
                sums[place] += float(summed)
            tokens += count
    return [math.exp(each / tokens) for each in sums]


def written(found: Sequence[Sequence[float]], told: str) -> str:
    """The table: perplexities as means over seeds, and by how much each state lowers them, paired by seed."""
    lines = ["| state | perplexity | lower than without, per cent |", "| --- | ---: | ---: |"]
    for place, name in enumerate(STATES):
        gains = [100 * (1 - each[place] / each[0]) for each in found]
        error = stdev(gains) / math.sqrt(len(gains))
        lines.append(f"| {name} | {fmean(each[place] for each in found):.4f} | {fmean(gains):.2f} ± {error:.2f} |")
    own = [100 * (1 - each[2] / each[1]) for each in found]
    gain = f"{fmean(own):.2f} ± {stdev(own) / math.sqrt(len(own)):.2f} per cent"
    memory = f"Its own state lowers it below another book's by {gain}."
    head = f"# swap\n\n{(__doc__ or '').splitlines()[0]}\n\n"
    return head + "\n".join(lines) + f"\n\n{memory} {told}; ± standard error over seeds, paired.\n"


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", default="32k", help="of each book")
    parser.add_argument("--checkpoint", type=Path, default=shipped_checkpoint("streamadapter", "pg19", "nano"))
    parser.add_argument("--split", default="test")
    options = parser.parse_args()
    lm = load("nano", device="cpu")
    method = checkpoints.load(StreamAdapter, lm, options.checkpoint, {})
    found = []
    with torch.no_grad():
        for seed in range(3):
            task = load_task("pg19", split=options.split, seed=seed, options={"tokens": options.tokens, "books": "2"})
            found.append(perplexities(lm, method, list(task.episodes(lm))))
    text = written(found, f"Two books of {options.tokens} tokens a seed, three seeds, {options.split} split")
    if options == parser.parse_args([]):
        (HERE / "swap.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
