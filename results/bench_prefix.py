"""Benchmark of decoding after a prefix with per-head biases, against an earlier revision:
milliseconds per token.

    python results/bench_prefix.py --before ae7a983 --slots 512 --repeat 3

Prefixes of random keys and values, shared by all rows: plain, with a bias per head, with slots
hidden per head. Each pass is a separate process; revisions alternate, one thread. Figures are the
fastest of all passes. "farthest" is the largest difference between the first logits of both
revisions, relative to the largest logit. It writes `bench_prefix.md`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from bench_templora import checked_out

from ttabench.core.environment import describe_hardware

HERE = Path(__file__).resolve().parent

KINDS = ("plain", "bias", "hidden")
ROWS = (1, 16)
PASS = """
import json, sys, time, torch
from ttabench.lm.inference.answering import greedy_tokens
from ttabench.lm.model import load
from ttabench.lm.patch import Patch, Prefix
from ttabench.lm.forward.patching import forward
model, slots, tokens = sys.argv[1], *map(int, sys.argv[2:4])
torch.set_num_threads(1)
lm, drawn, found = load(model, device="cpu", dtype="float32"), torch.Generator().manual_seed(0), {}
layers, shape = range(lm.layers), (1, lm.kv_heads, slots)
def made(): return tuple(torch.randn(*shape, lm.head_dim, generator=drawn) for _ in layers)
plain = {"keys_LBHPD": made(), "values_LBHPD": made(), "next_position_B": torch.tensor([slots]), "holds_bos": True}
bias = {"bias_LBHP": tuple(torch.randn(*shape, generator=drawn) for _ in layers)}
def missed(): return torch.zeros(*shape).masked_fill(torch.rand(*shape, generator=drawn) > 0.5, -torch.inf)
hidden = {"bias_LBHP": tuple(missed() for _ in layers)}
kinds = {"plain": {}, "bias": bias, "hidden": hidden}
with torch.no_grad():
    for kind, more in kinds.items():
        patch = Patch(prefix=Prefix(**plain, **more))
        for rows in map(int, sys.argv[4:]):
            texts = [[11 + row] for row in range(rows)]
            logits, _ = forward(lm, patch, torch.tensor(texts))
            for _ in greedy_tokens(lm, patch, texts, 3): pass
            start = time.perf_counter()
            for _ in greedy_tokens(lm, patch, texts, tokens): pass
            seconds = (time.perf_counter() - start) / tokens
            found[f"{kind} {rows}"] = {"ms": 1000 * seconds, "logits": logits[:, -1].flatten().tolist()}
print(json.dumps(found))
"""
"""Script of one pass over all prefixes. It runs on any revision."""


def passed(tree: Path, model: str, slots: int, tokens: int) -> dict[str, Any]:
    """Run one pass. Returns milliseconds per token and the first logits by prefix and rows."""
    environment = {**os.environ, "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}
    words = [sys.executable, "-c", PASS, model, *map(str, (slots, tokens, *ROWS))]
    done = subprocess.run(words, cwd=tree, env=environment, check=True, capture_output=True)
    figures: dict[str, Any] = json.loads(done.stdout)
    return figures


def table(
    model: str, slots: int, before: list[dict[str, Any]], now: list[dict[str, Any]]
) -> list[str]:
    """Return one table row per prefix and number of rows."""
    lines = []
    for rows in ROWS:
        for kind in KINDS:
            case = f"{kind} {rows}"
            old, new = (min(each[case]["ms"] for each in passes) for passes in (before, now))
            first, second = (torch.tensor(passes[0][case]["logits"]) for passes in (before, now))
            far = float((first - second).abs().max() / first.abs().max())
            cells = [
                Path(model).name,
                str(slots),
                str(rows),
                kind,
                f"{old:.2f}",
                f"{new:.2f}",
                f"{old / new:.1f}",
            ]
            lines.append(f"| {' | '.join(cells)} | {far:.0e} |")
    return lines


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--before", required=True, help="the revision to compare with")
    parser.add_argument("--models", default="nano", help="names or folders, comma-separated")
    parser.add_argument("--slots", default="512", help="slots of the prefix, comma-separated")
    parser.add_argument("--tokens", type=int, default=32, help="tokens generated per row")
    parser.add_argument("--repeat", type=int, default=3, help="number of passes per revision")
    options = parser.parse_args()
    lines, loads = [], [os.getloadavg()[0]]
    with checked_out(options.before) as before:
        for model in options.models.split(","):
            for slots in map(int, options.slots.split(",")):
                old, new = [], []
                for _ in range(options.repeat):
                    old.append(passed(before, model, slots, options.tokens))
                    new.append(passed(HERE.parent, model, slots, options.tokens))
                    loads.append(os.getloadavg()[0])
                lines += table(model, slots, old, new)
                print("\n".join(lines), flush=True)
    head = [
        "# Decoding after a prefix with per-head biases",
        "",
        f"Before is revision {options.before}. torch {torch.__version__}, {describe_hardware()['cpu']}, one thread, "
        f"float32; the fastest of {options.repeat} passes of {options.tokens} tokens per row; "
        f"load average {min(loads):.1f} to {max(loads):.1f} during the measurement. All rows share the prefix.",
        "",
        "| model | slots | rows | prefix | before (ms/token) | now (ms/token) | speed-up | farthest |",
        "| --- | ---: | ---: | --- | ---: | ---: | ---: | ---: |",
    ]
    (HERE / "bench_prefix.md").write_text("\n".join([*head, *lines, ""]), encoding="utf-8")


if __name__ == "__main__":
    main()
