"""What a base model can do in the miniature world: the figures of the nano LM's model card.

    python -m ttabench.mini.figures ttabench/assets/nano

Entities and rules of one split, the test split unless another is asked for (choose recipes on `--split validation`),
full context in the window. Question answering: exact match of the greedy answer.
Demonstrations: option with the highest log-likelihood. Running text: perplexity with and without the context before it.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from ttabench.lm.generation import generate
from ttabench.lm.model import LM, load
from ttabench.lm.patch import Patch
from ttabench.lm.patching import read
from ttabench.lm.scoring import choose, token_logprobs
from ttabench.mini import books, corpus, demonstrations, dialogue, qa
from ttabench.mini.world import SPLITS, rng

QUESTIONS: dict[str, tuple[Callable[..., list[dict[str, Any]]], Callable[[dict[str, Any]], tuple[str, str]]]] = {
    "streamingqa": (qa.streamingqa, lambda row: (row["text"], row["answers"])),
    "squad_seq": (qa.squad_seq, lambda row: (row["context"], row["answers"]["text"][0])),
    "archivalqa": (qa.archivalqa, lambda row: (row["ans_paragraph"], row["answer"])),
}


def context(lm: LM, texts: Sequence[str]) -> Patch:
    """A patch that holds these texts, read once."""
    ids = [token for text in texts for token in lm.encode(text)]
    return Patch(prefix=read(lm, Patch(), torch.tensor([ids]))) if ids else Patch()


def answering(lm: LM, task: str, documents: int, seeds: int, split: str) -> float:
    """Exact match, in per cent, over streams of `documents` documents; 0 documents is the closed book."""
    make, parts = QUESTIONS[task]
    right: list[bool] = []
    for seed in range(seeds):
        rows = make(split, seed, documents or 32)[:32]
        patch = context(lm, [f"{parts(row)[0]}\n\n" for row in make(split, seed, documents)] if documents else [])
        found = generate(lm, patch, [lm.encode(row["question"]) for row in rows], max_new_tokens=4)
        right += [lm.decode(ids).strip() == parts(row)[1] for ids, row in zip(found, rows, strict=True)]
    return 100 * sum(right) / len(right)


def metaicl(lm: LM, shots: int, tasks: int, split: str) -> float:
    """Accuracy, in per cent, on rules and label words that only the demonstrations reveal."""
    files = demonstrations.metaicl(split, 0, tasks, max(shots, 1), 8)
    right: list[bool] = []
    for name in [name for name in files if name.endswith("_train")]:
        shown = [f"Input: {row['input']} Output: {row['output']} " for row in files[name][:shots]]
        rows = files[name.replace("_train", "_test")]
        items = [
            (lm.encode(f"Input: {row['input']} Output:"), [lm.encode(f" {o}") for o in _strings(row["options"])])
            for row in rows
        ]
        best = [int(scores.argmax()) for scores in choose(lm, context(lm, shown), items)]
        right += [_strings(row["options"])[i] == row["output"] for i, row in zip(best, rows, strict=True)]
    return 100 * sum(right) / len(right)


def _strings(value: object) -> list[str]:
    assert isinstance(value, list)
    return [str(item) for item in value]


def superglue(lm: LM, task: str, shots: int, draws: int, split: str) -> float:
    """Accuracy, in per cent, of one task over several draws of its rule."""
    right: list[bool] = []
    for seed in range(draws):
        rows = demonstrations.superglue(task, split, seed, max(shots, 2), 8)
        shown = ["".join(s.text for s in _shown(task, row, row["label"])) + "\n\n" for row in rows["train"][:shots]]
        labels = range(len(corpus.ANSWERS[task]))
        items = [
            (lm.encode(_shown(task, row, 0)[0].text), [lm.encode(_shown(task, row, label)[1].text) for label in labels])
            for row in rows["validation"]
        ]
        best = [int(scores.argmax()) for scores in choose(lm, context(lm, shown), items)]
        right += [i == row["label"] for i, row in zip(best, rows["validation"], strict=True)]
    return 100 * sum(right) / len(right)


def _shown(task: str, row: dict[str, object], label: object) -> corpus.Segments:
    assert isinstance(label, int)
    return corpus.template(task, row | {"label": label}, corpus.ANSWERS[task][label])


def perplexity(lm: LM, text: str, before: int, stride: int) -> float:
    """Perplexity of stretches of `stride` tokens with `before` tokens of context in front of each."""
    ids = lm.encode(text)
    starts = range(1024, min(len(ids), 5120) - stride, stride)
    items = [(ids[max(0, start - before) : start], ids[start : start + stride]) for start in starts]
    values = torch.cat(token_logprobs(lm, Patch(), items, batch_size=8))
    return math.exp(-values.mean().item())


def sessions(row: dict[str, Any]) -> str:
    """The earlier sessions of one Multi-Session Chat row, a turn a line."""
    turns = [[turn["text"] for turn in session["dialog"]] for session in row["previous_dialogs"]]
    lines = [[f"Speaker {1 + i % 2}: {text}" for i, text in enumerate(session)] for session in turns]
    return "".join("\n".join(session) + "\n\n" for session in lines)


@torch.no_grad()
def figures(lm: LM, scale: int = 1, split: str = "test") -> dict[str, Any]:
    """All figures; `scale` multiplies the number of streams, rules and draws."""
    story = books.book(rng("pg19", split, 0, 0), split, 6000)
    talk = "".join(f"\nA: {turn}" for turn in dialogue.conversation(rng("figures"), split, 400))
    chat = "".join(sessions(row) for row in dialogue.msc(split, 0, 12))
    counts = {0: 4, 4: 16, 16: 6, 32: 6}
    return {
        "exact_match": {
            task: {str(n): round(answering(lm, task, n, seeds * scale, split), 1) for n, seeds in counts.items()}
            for task in QUESTIONS
        },
        "accuracy": {"metaicl": {str(k): round(metaicl(lm, k, 40 * scale, split), 1) for k in (0, 1, 2, 4, 8, 16)}}
        | {
            task: {str(k): round(superglue(lm, task, k, 30 * scale, split), 1) for k in (0, 4, 16)}
            for task in demonstrations.LABELS
        },
        "perplexity": {
            "pg19": {str(n): round(perplexity(lm, story, n, 128), 3) for n in (0, 1024)},
            "msc": {str(n): round(perplexity(lm, chat, n, 32), 3) for n in (0, 512)},
            "dailydialog": {str(n): round(perplexity(lm, talk, n, 32), 3) for n in (0, 512)},
        },
    }


def main() -> None:
    """Print the figures of a model folder as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path, help="folder of the model")
    parser.add_argument("--scale", type=int, default=1, help="multiplies the number of streams, rules and draws")
    parser.add_argument("--split", choices=SPLITS, default="test")
    options = parser.parse_args()
    print(json.dumps(figures(load(str(options.model)), options.scale, options.split), indent=1))


if __name__ == "__main__":
    main()
