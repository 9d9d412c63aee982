"""Benchmark of prefill and decoding on a CPU in float32, against plain transformers with the same
weights.

    python results/bench_model.py --model FOLDER                       prefill, decoding and batched queries
    python results/bench_model.py --model FOLDER --threads 1 --repeat 9

Prefill is the work of `eval` on a context (method `icl`, from token ids to its state), compared
with the bare forward pass without head. Decoding is greedy, one token at a time after a context. It
is compared with a loop over the plain model with its own cache, and with the time to read all
weights from memory once, measured by summing them (an embedding tied to the head counts once).
Batched queries share one context that was read before; they are compared with the same queries one
by one. Both sides take turns, and figures are the fastest of all turns. Other load raises both
times, and affects their ratio less. It writes `bench_model.csv` and `bench_model.md`.
"""

from __future__ import annotations

import argparse
import csv
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch

from ttabench.core.types import Chunk
from ttabench.lm.forward.patching import prefill
from ttabench.lm.inference.answering import generate, greedy_tokens
from ttabench.lm.loading.hub import NANO_FOLDER
from ttabench.lm.model import LM, load
from ttabench.lm.patch import Patch
from ttabench.methods.icl import InContextSettings
from ttabench.methods.icl.method import InContext

HERE = Path(__file__).parent
Work = Callable[[], object]


@dataclass(frozen=True, kw_only=True)
class Row:
    """One comparison. Seconds are the fastest of all turns."""

    what: str
    model: str
    threads: int
    ours: float
    """Wall seconds."""
    ours_cpu: float
    """CPU seconds."""
    beside: str
    theirs: float
    theirs_cpu: float
    times: float
    """Ratio of their wall time to ours."""
    aim: str
    load: float
    """Load average of the last minute."""


class Bench:
    """One model, in ttabench and in transformers, with a number of threads."""

    def __init__(self, name: str, threads: int, repeat: int) -> None:
        from transformers import AutoModelForCausalLM

        self.name, self.threads, self.repeat = name, threads, repeat
        torch.set_num_threads(threads)
        self.lm: LM = load(name, device="cpu", dtype="float32")
        folder = NANO_FOLDER if name == "nano" else name
        self.plain: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self.generator = torch.Generator().manual_seed(0)

    def ids(self, count: int) -> list[int]:
        """Draw random tokens."""
        return torch.randint(
            10, self.lm.vocab_size - 10, (count,), generator=self.generator
        ).tolist()

    def pair(
        self, name: str, ours: Work, theirs: Work, beside: str, aim: str, units: int = 1
    ) -> Row:
        """Time both sides in turn."""
        measured: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
        for turn in range(2 * self.repeat + 2):
            mine = turn % 2 == 0
            begin, cpu = time.perf_counter(), time.process_time()
            (ours if mine else theirs)()
            if turn > 1:  # The first turn is a warm-up.
                seconds = (time.perf_counter() - begin) / units, (time.process_time() - cpu) / units
                measured[mine].append(seconds)
        best = {
            mine: [min(column) for column in zip(*pairs, strict=True)]
            for mine, pairs in measured.items()
        }
        row = Row(
            what=name,
            model=Path(self.name).name,
            threads=self.threads,
            ours=best[True][0],
            ours_cpu=best[True][1],
            beside=beside,
            theirs=best[False][0],
            theirs_cpu=best[False][1],
            times=best[False][0] / best[True][0],
            aim=aim,
            load=os.getloadavg()[0],
        )
        print(line(row), flush=True)
        return row

    def prefill(self, tokens: int) -> Row:
        """Compare reading a context through `icl` with the bare forward pass."""
        method, ids = InContext(self.lm, InContextSettings()), self.ids(tokens)
        chunk, start = Chunk(text="", ids=tuple(ids), joiner=""), method.begin(1)
        whole = torch.tensor([[*self.lm.bos_ids, *ids]])
        return self.pair(
            f"prefill of {tokens} tokens",
            lambda: method.adapt(start, [[chunk]]),
            lambda: self.plain.model(whole),
            "transformers' bare forward",
            "at least 0.95",
        )

    def decoding(self, context_tokens: int, count: int) -> Iterator[Row]:
        """Compare the seconds per token after a context."""
        ids = self.ids(context_tokens)
        patch = Patch(prefix=prefill(self.lm, Patch(), torch.tensor([ids])))
        name = f"decoding after {context_tokens} tokens, per token"

        def ours() -> None:
            for _ in greedy_tokens(self.lm, patch, [[11]], count):
                pass

        cache = self.plain.model(torch.tensor([[*self.lm.bos_ids, *ids]])).past_key_values
        length = cache.get_seq_length()

        def theirs() -> None:
            if (more := cache.get_seq_length() - length) > 0:
                cache.crop(-more)
            token = torch.tensor([[11]])
            for _ in range(count):
                token = (
                    self.plain(token, past_key_values=cache, use_cache=True)
                    .logits[:, -1]
                    .argmax(-1, keepdim=True)
                )

        aim = "1 ms" if self.name == "nano" else ""
        yield self.pair(name, ours, theirs, "transformers' loop", aim, units=count)
        weights = list(self.lm.model.parameters())  # Tied weights count once.
        size = sum(weight.nbytes for weight in weights)

        def stream() -> None:
            for _ in range(count):
                for each in weights:
                    each.sum()

        aim = "" if self.name == "nano" else "0.77 times (1.3x)"
        yield self.pair(
            name, ours, stream, f"{size / 1e6:.0f} MB of weights read once", aim, units=count
        )

    def together(self, rows: int, context_tokens: int, count: int, *, weighed: bool = False) -> Row:
        """Compare batched queries of 10 to 30 tokens with the same queries one by one.

        Each query generates `count` tokens. With `weighed`, the slots have biases per head.
        """
        prefix = prefill(self.lm, Patch(), torch.tensor([self.ids(context_tokens)]))
        if weighed:
            prefix = replace(
                prefix, bias_LBHP=tuple(torch.zeros(keys.shape[:3]) for keys in prefix.keys_LBHPD)
            )
        patch = Patch(prefix=prefix)
        prompts = [self.ids(10 + 20 * row // rows) for row in range(rows)]
        self.lm.eos_ids = frozenset()  # No stop token: every answer has the maximum length.
        return self.pair(
            f"{rows} queries on {context_tokens} tokens, {count} generated{', biased slots' if weighed else ''}",
            lambda: generate(self.lm, patch, prompts, max_new_tokens=count, batch_size=rows),
            lambda: generate(self.lm, patch, prompts, max_new_tokens=count, batch_size=1),
            "one by one",
            "4 times",
        )


def line(row: Row) -> str:
    """Format a table row."""
    ours, cpu, theirs, other = (
        f"{1e3 * figure:,.3g}" if figure < 0.1 else f"{1e3 * figure:,.0f}"
        for figure in (row.ours, row.ours_cpu, row.theirs, row.theirs_cpu)
    )
    return (
        f"| {row.model} | {row.threads} | {row.what} | {ours} | {cpu} | {row.beside} | {theirs} | {other} | "
        f"{row.times:.2f} | {row.aim} | {row.load:.1f} |"
    )


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", required=True, help="folder of the model to measure")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--contexts", default="1024,4096")
    parser.add_argument("--queries", default="16,64")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--out", type=Path, default=HERE)
    return parser.parse_args()


def measured(options: argparse.Namespace) -> Iterator[Row]:
    """Yield all comparisons."""
    for threads in map(int, options.threads.split(",")):
        small = Bench("nano", threads, max(options.repeat, 10))
        yield from small.decoding(500, 100)
        large = Bench(options.model, threads, options.repeat)
        for tokens in map(int, options.contexts.split(",")):
            yield large.prefill(tokens)
        yield from large.decoding(1024, 16)
        for rows in map(int, options.queries.split(",")):
            yield large.together(rows, 1024, 16)
            yield large.together(rows, 1024, 16, weighed=True)


def main() -> None:
    """Measure, print and write."""
    from ttabench.core.environment import describe_hardware

    options = arguments()
    with torch.no_grad():
        rows = list(measured(options))
    options.out.mkdir(parents=True, exist_ok=True)
    with (options.out / "bench_model.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Row)], lineterminator="\n")
        writer.writeheader()
        writer.writerows(asdict(row) for row in rows)
    head = [
        "# Prefill and decoding on a CPU in float32, compared with plain transformers",
        "",
        f"torch {torch.__version__}, {describe_hardware()['cpu']}, the fastest of {options.repeat} alternating "
        "turns (nano: at least 10).",
        "",
        "| model | threads | work | ms | CPU ms | compared with | ms | CPU ms | speed-up | target | load |",
        "| --- | ---: | --- | ---: | ---: | --- | ---: | ---: | ---: | --- | ---: |",
    ]
    text = "\n".join([*head, *map(line, rows)]) + "\n"
    (options.out / "bench_model.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
