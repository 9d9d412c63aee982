"""What methods cost on a base model of a published shape with random weights, and how that compares with transformers.

costs       seconds, peak memory and bytes kept of every method, the shortest contexts first; those on paper beside
beside      reading and decoding of `icl`; transformers' own forward and `generate` with sdpa on the same weights
"""

from __future__ import annotations

import argparse
import gc
from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import partial
from statistics import median
from typing import Any

import torch

from tests.gpu.report import STATUS, Report, Table
from ttabench.core.amounts import lengths
from ttabench.core.architectures import NANO
from ttabench.core.environment import seed_everything
from ttabench.core.meter import Meter
from ttabench.core.types import Json, Observe
from ttabench.lm.model import load
from ttabench.lm.verbs.generation import greedy_tokens
from ttabench.methods.base import BaseMethod
from ttabench.profiling.job import Job, Load, choose
from ttabench.profiling.measure import SPARE, adapt, ask, lift_positions, pieces, question
from ttabench.profiling.on_paper import table

METHODS = (
    "none", "icl", "window", "snapkv", "h2o", "kvzip", "ccm", "mac", "streamadapter", "generative_adapter", "templora",
)  # fmt: skip
ROW_SECONDS = 45.0
WARMING = 4
"""Pieces of a long context that warm up."""
TURNS = 3
"""Turns of ours and of theirs, after one each that warms up; the fastest counts."""
COSTS = (
    "method", "tokens", "read_seconds", "first_token_ms", "token_ms", "peak_bytes", "beside_model_bytes",
    "paper_keys_values_bytes", "kept_bytes", "paper_kept_bytes", STATUS,
)  # fmt: skip
BESIDE = ("what", "tokens", "ours_seconds", "theirs_seconds", "times_as_fast", STATUS)


class Costs:
    """Measures those of `METHODS` on one base model, loaded when this is made; `options` are those of the command."""

    def __init__(self, report: Report, options: argparse.Namespace, methods: Sequence[str]) -> None:
        self.report, self.lengths = report, lengths(options.lengths)
        self.methods = [name for name in METHODS if name in methods]
        self.load = Load(repeat=1, generate=options.generate)
        base = {"random_weights": options.shape != NANO, "device": options.device, "dtype": options.dtype}
        chosen = choose(",".join(METHODS))
        self.known: dict[str, tuple[int, float]] = {}
        """By method, the longest context that was read, in tokens, and how many seconds that took."""
        self.held: BaseMethod[Any] | None = None
        self.job = Job(model=options.shape, **base, chosen=chosen, lengths=self.lengths, load=self.load)
        seed_everything(0)
        self.lm = load(options.shape, **base)
        most = max(self.lengths) + self.load.prompt_tokens + options.generate + SPARE
        lift_positions(self.lm, most)

    def measure(self) -> None:
        """All tables: a length of all methods, what does not take long, then the next length, the quickest first."""
        base = f"{self.job.model} in {self.job.dtype} on {self.job.device}"
        costs = Table(self.report, "costs", f"What methods cost on {base}", COSTS)
        beside = Table(self.report, "beside", f"Beside transformers with sdpa: {base}", BESIDE)
        for place, tokens in enumerate(self.lengths):
            for name in sorted(self.methods, key=lambda name: self._expected(name, tokens)):
                costs.row({"method": name, "tokens": tokens}, ROW_SECONDS, partial(self._cost, name, tokens))
            for what in ("prefill", "decode") if place < 2 else ():
                beside.row({"what": what, "tokens": tokens}, ROW_SECONDS, partial(self._beside, what, tokens))

    def _method(self, name: str) -> BaseMethod[Any]:
        """A method; one stands on the device at a time."""
        if self.held is None or self.held.name != name:
            self.held = None
        gc.collect()
        torch.cuda.empty_cache()  # what earlier rows held
        if self.held is None:
            self.held = self.job.adapters()[name].build(self.lm)
        return self.held

    def _expected(self, name: str, tokens: int) -> float:
        """Seconds that reading takes if it goes on as it did."""
        last, seconds = self.known.get(name, (1, 0.0))
        return seconds * tokens / last

    def _cost(self, name: str, tokens: int) -> dict[str, Json]:
        """One pass after one that warms up; of long contexts a few pieces do. None begins that takes long."""
        if (expected := self._expected(name, tokens)) > min(ROW_SECONDS, self.report.left):
            return {STATUS: f"left out: would take about {expected:,.0f} s"}
        method, sizes, meter = self._method(name), self.load, Meter(self.lm.device)
        read = pieces(self.lm, tokens, sizes.piece_tokens)
        query = question(self.lm, sizes.prompt_tokens, sizes.generate)
        short, warming = tokens == min(self.lengths), Meter(self.lm.device)
        warm = adapt(self.lm, method, read if short else read[:WARMING], warming)
        ask(self.lm, method, warm, query, sizes.generate)
        del warm
        with meter.phase("idle"):
            pass
        state = adapt(self.lm, method, read, meter)
        seconds = meter.seconds["adapt"]
        self.known[name] = tokens, seconds
        asked = ask(self.lm, method, state, query, sizes.generate)
        peak, paper = max(meter.peak_bytes["adapt"], asked.peak_bytes), self._on_paper(name, tokens)
        return {
            "read_seconds": seconds, "first_token_ms": 1000 * asked.first_seconds,
            "token_ms": 1000 * median(asked.token_seconds),
            "peak_bytes": peak, "beside_model_bytes": peak - meter.peak_bytes["idle"],
            "paper_keys_values_bytes": max(paper["adapt_peak_kv_bytes"], paper["ask_peak_kv_bytes"]),
            "kept_bytes": state.nbytes, "paper_kept_bytes": paper["state_bytes"],
            "paper_read_flops": paper["adapt_flops"],
        }  # fmt: skip

    def _on_paper(self, name: str, tokens: int) -> dict[str, Json]:
        presets = {name: one["preset"] for name, one in self.job.chosen.items()}
        return table(self.job.model, [name], [tokens], self.load, presets=presets, dtype=self.job.dtype)[0]

    @torch.no_grad()
    def _beside(self, what: str, tokens: int) -> dict[str, Json]:
        """A context read in one piece, or tokens written behind it, in turns with the same weights under sdpa."""
        method, count = self._method("icl"), self.load.generate
        plain: Any = deepcopy(self.lm.model, {id(weight): weight for weight in self.lm.model.parameters()})
        plain.set_attn_implementation("sdpa")
        ids_BT = torch.randint(10, 1000, (1, tokens), generator=torch.Generator().manual_seed(0)).to(self.lm.device)
        read = partial(method.adapt, method.begin(1), [[Observe(text="", ids=tuple(ids_BT[0].tolist()), joiner="")]])
        works: dict[str, Callable[[], Any]] = {"ours": read, "theirs": partial(plain.base_model, ids_BT)}
        if what == "decode":
            patch, cache = method.patch(read(), []), works["theirs"]().past_key_values
            asked_BT = torch.cat([ids_BT, ids_BT[:, :1]], dim=1)
            length = {"max_new_tokens": count, "min_new_tokens": count, "do_sample": False, "pad_token_id": 0}

            def theirs() -> None:
                if (more := cache.get_seq_length() - tokens) > 0:
                    cache.crop(-more)
                plain.generate(asked_BT, attention_mask=torch.ones_like(asked_BT), past_key_values=cache, **length)

            works = {"ours": lambda: list(greedy_tokens(self.lm, patch, [[11]], count)), "theirs": theirs}
        best = dict.fromkeys(works, float("inf"))
        for turn in range(TURNS + 1):
            for name, work in works.items():
                meter = Meter(self.lm.device)
                with meter.phase(name):
                    work()
                best[name] = min(best[name], meter.seconds[name]) if turn else best[name]
        figures = {f"{name}_seconds": seconds for name, seconds in best.items()}
        return {**figures, "times_as_fast": best["theirs"] / best["ours"]}
