"""Scores of a base model in the synthetic world, for the nano LM's model card.

    python -m results.nano_recipe.figures ttabench/assets/nano --split validation   # selection of recipes
    python -m results.nano_recipe.figures ttabench/assets/nano --first 9000         # unseen test worlds

Entities and rules are of one split, in worlds drawn from seeds from `--first` on, with full context
in the window. Question answering: exact match of the greedy answer. Demonstrations: option with the
highest log-likelihood. Running text: perplexity with and without the preceding context.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from results.nano_recipe import corpus
from ttabench.lm.forward.patching import prefill
from ttabench.lm.inference.answering import generate
from ttabench.lm.inference.scoring import option_logprobs, token_logprobs
from ttabench.lm.model import LM, load
from ttabench.lm.patch import Patch
from ttabench.mini import books, demonstrations, dialogue, profiles, qa
from ttabench.mini.world import SPLITS, rng

QUESTIONS: dict[
    str, tuple[Callable[..., list[dict[str, Any]]], Callable[[dict[str, Any]], tuple[str, str]]]
] = {
    "streamingqa": (qa.streamingqa, lambda row: (row["text"], row["answers"])),
    "squad_seq": (qa.squad_seq, lambda row: (row["context"], row["answers"]["text"][0])),
    "archivalqa": (qa.archivalqa, lambda row: (row["ans_paragraph"], row["answer"])),
}


@dataclass(frozen=True)
class Worlds:
    """Evaluation worlds: entities and rules of a split, drawn from seeds from `first` on."""

    split: str = "test"
    first: int = 0

    def seeds(self, count: int) -> range:
        """Return the seeds of `count` worlds."""
        return range(self.first, self.first + count)


TEST = Worlds()


def context(lm: LM, texts: Sequence[str]) -> Patch:
    """Return a patch with these texts as context."""
    ids = [token for text in texts for token in lm.encode(text)]
    return Patch(prefix=prefill(lm, Patch(), torch.tensor([ids]))) if ids else Patch()


def answering(lm: LM, task: str, documents: int, seeds: int, worlds: Worlds) -> float:
    """Return the exact match (%) over streams of `documents` documents. 0 documents means no
    context.
    """
    make, parts = QUESTIONS[task]
    right: list[bool] = []
    for seed in worlds.seeds(seeds):
        rows = make(worlds.split, seed, documents or 32)[:32]
        patch = context(
            lm,
            [f"{parts(row)[0]}\n\n" for row in make(worlds.split, seed, documents)]
            if documents
            else [],
        )
        written = generate(
            lm, patch, [lm.encode(row["question"]) for row in rows], max_new_tokens=4
        )
        right += [
            lm.decode(ids).strip() == parts(row)[1] for ids, row in zip(written, rows, strict=True)
        ]
    return 100 * sum(right) / len(right)


def metaicl(lm: LM, shots: int, tasks: int, worlds: Worlds) -> float:
    """Return the accuracy (%) on rules and label words that occur only in the demonstrations."""
    files = demonstrations.metaicl(worlds.split, worlds.first, tasks, max(shots, 1), 8)
    right: list[bool] = []
    for name in [name for name in files if name.endswith("_train")]:
        texts_shown = [
            f"Input: {row['input']} Output: {row['output']} " for row in files[name][:shots]
        ]
        rows = files[name.replace("_train", "_test")]
        items = [
            (
                lm.encode(f"Input: {row['input']} Output:"),
                [lm.encode(f" {o}") for o in _strings(row["options"])],
            )
            for row in rows
        ]
        best = [
            int(scores.argmax()) for scores in option_logprobs(lm, context(lm, texts_shown), items)
        ]
        right += [
            _strings(row["options"])[i] == row["output"] for i, row in zip(best, rows, strict=True)
        ]
    return 100 * sum(right) / len(right)


def _strings(value: object) -> list[str]:
    assert isinstance(value, list)
    return [str(item) for item in value]


def superglue(lm: LM, task: str, shots: int, draws: int, worlds: Worlds) -> float:
    """Return the accuracy (%) of one task over several draws of its rule."""
    right: list[bool] = []
    for seed in worlds.seeds(draws):
        rows = demonstrations.superglue(task, worlds.split, seed, max(shots, 2), 8)
        texts_shown = [
            "".join(s.text for s in _shown(task, row, row["label"])) + "\n\n"
            for row in rows["train"][:shots]
        ]
        labels = range(len(corpus.ANSWERS[task]))
        items = [
            (
                lm.encode(_shown(task, row, 0)[0].text),
                [lm.encode(_shown(task, row, label)[1].text) for label in labels],
            )
            for row in rows["validation"]
        ]
        best = [
            int(scores.argmax()) for scores in option_logprobs(lm, context(lm, texts_shown), items)
        ]
        right += [i == row["label"] for i, row in zip(best, rows["validation"], strict=True)]
    return 100 * sum(right) / len(right)


def _shown(task: str, row: dict[str, object], label: object) -> corpus.Segments:
    assert isinstance(label, int)
    return corpus.template(task, row | {"label": label}, corpus.ANSWERS[task][label])


def lamp(lm: LM, entries: int, users: int, worlds: Worlds) -> float:
    """Return the accuracy (%) of a new article's category among the 15, after entries of the same
    user's profile.
    """
    questions, golds = profiles.lamp(worlds.split, worlds.first, users, topics=4)
    gold = {each["id"]: each["output"] for each in _rows(golds["golds"])}
    options = [lm.encode(f" {name}") for name in profiles.NEWS]
    right: list[bool] = []
    for row in questions:
        profile = [
            f'the category for the article: "{e["text"]}" is "{e["category"]}"'
            for e in _rows(row["profile"])
        ]
        patch = context(lm, [", and ".join(profile[:entries]) + "\n"] if entries else [])
        article = str(row["input"]).partition(" article: ")[2]
        (scores,) = option_logprobs(
            lm, patch, [(lm.encode(f"{profiles.INSTRUCTION}\nInput: {article}\nOutput:"), options)]
        )
        right.append(profiles.NEWS[int(scores.argmax())] == gold[row["id"]])
    return 100 * sum(right) / len(right)


def remembering(lm: LM, sessions_read: int, worlds: Worlds, rows: int) -> float:
    """Return the exact match (%) of questions about facts of earlier sessions."""
    right: list[bool] = []
    for row in dialogue.msc(worlds.split, worlds.first, rows):
        question = row["self_instruct"]
        assert isinstance(question, dict)
        patch = context(lm, [sessions(row)] if sessions_read else [])
        (ids,) = generate(lm, patch, [lm.encode(str(question["B"]))], max_new_tokens=4)
        right.append(lm.decode(ids).strip() == question["A"])
    return 100 * sum(right) / len(right)


def _rows(value: object) -> list[dict[str, Any]]:
    assert isinstance(value, list)
    return value


def perplexity(lm: LM, text: str, before: int, stride: int, first: int = 1024) -> float:
    """Return the perplexity of strides of `stride` tokens, from token `first` on, each after
    `before` tokens.
    """
    ids = lm.encode(text)
    starts = range(first, min(len(ids), first + 4096) - stride, stride)
    items = [(ids[max(0, start - before) : start], ids[start : start + stride]) for start in starts]
    values = torch.cat(token_logprobs(lm, Patch(), items, batch_size=8))
    return math.exp(-values.mean().item())


def sessions(row: dict[str, Any]) -> str:
    """Format the earlier sessions of one Multi-Session Chat row, one turn per line."""
    turns = [[turn["text"] for turn in session["dialog"]] for session in row["previous_dialogs"]]
    lines = [
        [f"Speaker {1 + i % 2}: {text}" for i, text in enumerate(session)] for session in turns
    ]
    return "".join("\n".join(session) + "\n\n" for session in lines)


@torch.no_grad()
def figures(lm: LM, scale: int = 1, worlds: Worlds = TEST) -> dict[str, Any]:
    """Measure all scores. `scale` multiplies the number of streams, rules and draws."""
    split, first = worlds.split, worlds.first
    story = books.book(rng("pg19", split, first, 0), split, 9000)
    talk = "".join(
        f"\nA: {turn}" for turn in corpus.conversation(rng("figures", first), split, 400)
    )
    chat = "".join(sessions(row) for row in dialogue.msc(split, first, 12))
    counts = {0: 4, 4: 16, 16: 6, 32: 6, 64: 6, 165: 6}
    return {
        "exact_match": {
            task: {
                str(n): round(answering(lm, task, n, seeds * scale, worlds), 1)
                for n, seeds in counts.items()
            }
            for task in QUESTIONS
        },
        "accuracy": {
            "metaicl": {
                str(k): round(metaicl(lm, k, 40 * scale, worlds), 1) for k in (0, 1, 2, 4, 8, 16)
            }
        }
        | {
            task: {str(k): round(superglue(lm, task, k, 30 * scale, worlds), 1) for k in (0, 4, 16)}
            for task in demonstrations.LABELS_PER_TASK
        }
        | {
            "lamp": {str(k): round(lamp(lm, k, 64 * scale, worlds), 1) for k in (0, 4, 16)},
            "msc": {str(k): round(remembering(lm, k, worlds, 64 * scale), 1) for k in (0, 4)},
        },
        "perplexity": {
            "pg19": {
                str(n): round(perplexity(lm, story, n, 128, 4096), 3)
                for n in (0, 512, 1024, 2048, 4096)
            },
            "sessions": {str(n): round(perplexity(lm, chat, n, 32), 3) for n in (0, 512)},
            "dailydialog": {str(n): round(perplexity(lm, talk, n, 32), 3) for n in (0, 512)},
        },
    }


def main() -> None:
    """Print the scores of a model folder as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path, help="folder of the model")
    parser.add_argument(
        "--scale", type=int, default=1, help="multiplies the number of streams, rules and draws"
    )
    parser.add_argument("--split", choices=SPLITS, default="test")
    parser.add_argument("--first", type=int, default=0, help="seed of the first world")
    options = parser.parse_args()
    worlds = Worlds(options.split, options.first)
    print(json.dumps(figures(load(str(options.model)), options.scale, worlds), indent=1))


if __name__ == "__main__":
    main()
