"""Suites of results/, defined in SUITE.yaml, and the extra tables of their pages.

    ttabench sweep results/unseen.yaml --out results/unseen

Every suite uses the synthetic versions of the tasks, with nano and the bundled adapters.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

LENGTHS = {"streamingqa": (4, 16, 64, 165, 1665), "squad_seq": (16, 64, 165)}
"""Documents of the question streams. At most 165 synthetic documents fit into nano's window."""
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
IN_BATCHES = (
    "--throughput --piece-tokens 64 --task metaicl --memory-limit 768MiB "
    "--row-seconds 30 --repeat 3 --generate 8"
)
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
"""Profiles of each table of costs: methods with a cache or a memory, and methods that change
weights, by tokens read; a generated adapter against finetuning and distillation on the same text
(Generative Adapter); one document (MAC's Figure 2); and queries in batches under a memory limit
(CCM's Table 1).
"""
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
"""Suites with a grid by number of documents of a question stream."""
BY_PART = ("superglue-fixed", "superglue-fresh", "unseen", "unseen-categories")
"""Suites with a grid by sub-task."""
BY_TASK = {
    "online": "-: the adapter was not trained on this task",
    "transfer": "adapters on tasks outside their training",
}
"""Suites with a grid by task, and its note on adapters for tasks outside their training."""
WITHOUT_PAIRS = (
    "adaptation-ratio",
    "nine",
    "diet-seeds",
    "online",
    "transfer",
    "forgetting",
    "composed",
)
"""Suites without the tables of `compare`: they have too many runs for all pairs, or show the pairs
themselves.
"""
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
"""Suites of adapters that are too large to be stored. results/SUITE/README.md has their training
commands.
"""
BY_TRAINING = ("ccm-seeds", "lamp-seeds", "streamingqa-seeds", "mac-seeds", "lessons", "diet-seeds")
"""Suites of adapters that differ in their training seed."""
UNSEEN = ("hellaswag", "winogrande", "openbookqa", "arc_easy", "arc_challenge", "piqa")
"""Tasks that no adapter was trained on."""
TWO_CONTEXTS = "composed"
"""Suite of summed states (composed.py), without a file of runs."""
READ_TO = "results/scratch/forgetting"
"""Folder of these states, as in forgetting.yaml."""
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
"""Methods that read documents once and are then tested on other text (forgetting.py)."""
TRANSFER = ("superglue-fixed", "superglue-fresh", "unseen")
"""Suites of one table: rules of the training, new rules, unseen tasks."""
BY_LENGTH = ("pg19", "generated-objectives")
"""Suites with a grid by length of the read text."""
BY_STATE = {
    "swap": "StreamAdapter on books: the same strides under the own, a swapped and an empty state."
}
"""Suites of one method with a grid by state, and the caption of the grid."""


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
