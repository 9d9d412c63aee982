"""The suites of results/, whose runs stand in SUITE.yaml, and what their tables show beside `ttabench compare`.

    ttabench sweep results/unseen.yaml --out results/unseen

Every suite runs on the miniature twins, with nano and the adapters that the package brings.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

LENGTHS = {"streamingqa": (4, 16, 64, 165, 1665), "squad_seq": (16, 64, 165)}
"""Documents of the question streams; of at most 165 of a twin all stand in nano's window."""
SUITES = (
    "nine",
    "online",
    "transfer",
    "amortisers",
    "ccm",
    "ccm-seeds",
    "lamp-seeds",
    "streamingqa-seeds",
    "mac-seeds",
    "context-length",
    "generated-objectives",
    *(f"{task}-{n}" for task, lengths in LENGTHS.items() for n in lengths),
    "reductions-64",
    "reductions-1665",
    "hierarchy",
    "superglue-shots",
    "metaicl",
    "superglue-fixed",
    "superglue-fresh",
    "unseen",
    "lessons",
    "adaptation-ratio",
    "superglue-categories",
    "unseen-categories",
    "ratio-superglue",
    "ratio-unseen",
    "recall",
    "pg19",
    "swap",
    "retention",
    "forgetting",
    "composed",
    "retrieval",
    "ruler",
    "sessions",
    "override",
    "diet-seeds",
    "compaction",
    "boost",
)
IN_BATCHES = "--throughput --piece-tokens 64 --task metaicl --memory-limit 768MiB --row-seconds 30 --repeat 3 --generate 8"
PROFILES = {
    "profile": ("--methods none,icl,window,snapkv,h2o,mac --prefill 1k,4k,16k,64k",),
    "profile-weights": ("--methods none,streamadapter,templora,lora --prefill 1k,4k,16k,64k",),
    "profile-adapters": ("--methods icl,generative_adapter,cpt,distill --prefill 512,2k,8k,32k",),
    "profile-online": ("--methods mac,camels --prefill 256",),
    "profile-batches": (
        f"--methods icl,ccm --prefill 1k {IN_BATCHES}",
        f"--methods ccm --set update=merge --prefill 1k {IN_BATCHES}",
    ),
}
"""Profiles of each table of what methods cost: those with a cache or a memory, and those that change weights, by the
tokens read; an adapter made in one forward pass beside finetuning and distillation on the same text (Generative
Adapter); one document (MAC's Figure 2); and questions in batches that fit a limit of memory (CCM's Table 1)."""
OPTION_VARIED = {
    "superglue-shots": "shots",
    "superglue-categories": "shots",
    "adaptation-ratio": "ratio",
    "ratio-superglue": "ratio",
    "ratio-unseen": "ratio",
    "context-length": "group_tokens",
}
"""Suites with a grid by values of a task option."""
BY_DOCUMENTS = ("hierarchy",)
"""Suites with a grid by the documents of a question stream."""
BY_PART = ("superglue-fixed", "superglue-fresh", "unseen", "unseen-categories")
"""Suites with a grid by sub-task."""
BY_TASK = {
    "online": "-: its adapter was not trained on it",
    "transfer": "adapters on tasks that they were not trained on",
}
"""Suites with a grid by task, and what it says of adapters on tasks that they were not trained on."""
WITHOUT_PAIRS = (
    "adaptation-ratio",
    "nine",
    "diet-seeds",
    "online",
    "transfer",
    "forgetting",
    "composed",
)
"""Too many runs to compare every pair, or a table that has them."""
UNDER_STATES = ("forgetting",)
"""Suites of states that were read before, of one draw."""
ADAPTERS_ELSEWHERE = (
    "amortisers",
    "mac-seeds",
    "hierarchy",
    "online",
    "streamingqa-seeds",
    "diet-seeds",
)
"""Suites of adapters that are too large to be kept: results/SUITE/README.md has the commands that train them."""
BY_TRAINING = ("ccm-seeds", "lamp-seeds", "streamingqa-seeds", "mac-seeds", "lessons", "diet-seeds")
"""Suites of adapters that differ in their training's seed."""
UNSEEN = ("hellaswag", "winogrande", "openbookqa", "arc_easy", "arc_challenge", "piqa")
"""Tasks that no adapter was trained on."""
TWO_CONTEXTS = "composed"
"""The suite of states that were put together (composed.py), which has no file of runs."""
READ_TO = "results/scratch/forgetting"
"""Where these states lie; forgetting.yaml says so, too."""
READ_BY = {
    name: [name, *more]
    for name, *more in (
        ["none"],
        ["icl"],
        ["rag"],
        ["uniform"],
        ["salient_spans"],
        ["cpt"],
        ["templora", "--preset", "nano-demonstrations"],
        ["lora", "--checkpoint", "shipped:lora-superglue"],
        ["mac", "--checkpoint", "shipped:mac-streamingqa"],
        ["generative_adapter", "--checkpoint", "shipped:generative_adapter-streamingqa"],
    )
}
"""What reads documents once (forgetting.py), and then meets other text."""
TRANSFER = ("superglue-fixed", "superglue-fresh", "unseen")
"""Suites of one table: what was learned by heart, and what is read."""
BY_LENGTH = ("pg19", "generated-objectives")
"""Suites with a grid by the length up to which a text was read."""
BY_STATE = {
    "swap": "What StreamAdapter's state holds of a book: the same strides under another book's state, and none."
}
"""Suites of one method with a grid by whose state answered, and what that shows."""


def ttabench(*words: str) -> str:
    """Run the command line and return what it printed."""
    command = [sys.executable, "-m", "ttabench", *words]
    done = subprocess.run(
        command,
        cwd=Path(__file__).resolve().parent.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"ttabench {' '.join(words)}\n{done.stderr}")
    return done.stdout
