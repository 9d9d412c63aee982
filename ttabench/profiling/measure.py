"""One method at one length: seconds, peaks and bytes of reading the context, the first token, and the tokens after.

The first pass warms up and is counted, not timed; where a pass takes too long, one is both."""

from __future__ import annotations

import math
import time
from contextlib import closing, nullcontext
from dataclasses import dataclass, field
from itertools import count, pairwise
from statistics import median
from typing import Any

import torch

from ttabench.core.meter import Meter, largest
from ttabench.core.types import Ask, Generate, Observe
from ttabench.lm.forward.patching import follows_text, text_start
from ttabench.lm.forward.tokens import prompt_ids
from ttabench.lm.model import LM
from ttabench.lm.patch import State
from ttabench.lm.verbs.generation import greedy_tokens
from ttabench.methods.base import BaseMethod, tokens_read
from ttabench.methods.session import Session
from ttabench.profiling.counting import Counter
from ttabench.profiling.load import Load
from ttabench.profiling.rows import Figure, Row, added, exactly, figure, measured, peak

TRIED = 4
"""A part of what a row may take: a pass that takes more is not repeated."""
WARMING = 4
"""Tokens written to warm up, and pieces read where a whole pass takes too long for it."""
ROOM = 100_000
"""Sentence numbers between two readers of a batch."""


@dataclass(kw_only=True)
class Asked:
    """One answer."""

    first_seconds: float
    token_seconds: list[float]
    cpu_seconds: float
    peak_bytes: int | None
    patch_bytes: int


@dataclass(kw_only=True)
class Measuring:
    """Measures a method, length after length, the shortest first."""

    lm: LM
    method: BaseMethod[Any]
    load: Load
    known: dict[int, Row] = field(default_factory=dict)
    """Rows by length, as far as measured: what the next length will take follows from them."""

    def expected(self, tokens: int) -> float:
        """Seconds that a pass over so many tokens should take: the last trend goes on; 0 where nothing is known."""
        shorter = [(n, row) for n, row in sorted(self.known.items()) if n < tokens and row.status == "ok"]
        passes = [(length, row.figures["adapt_seconds"].value) for length, row in shorter][-2:]
        if not passes:
            return 0.0
        last, seconds = passes[-1]
        power = 1.0
        if len(passes) > 1:
            rise = max(seconds, 1e-9) / max(passes[0][1], 1e-9)
            power = min(2.0, max(0.0, math.log(rise) / math.log(last / passes[0][0])))
        return float(seconds * (tokens / last) ** power)

    def row(self, tokens: int) -> Row:
        """The row of one length; too little memory and refusals of model or method are rows, too."""
        row = measured(self.method.name, tokens, lambda: self._measured(tokens))
        if row.status == "ok":
            self.known[tokens] = row
        return row

    def _measured(self, tokens: int) -> Row:
        load, started = self.load, time.perf_counter()
        read = pieces(self.lm, tokens, load.piece_tokens)
        ask = question(self.lm, load.prompt_tokens, load.generate)
        single = self.expected(tokens) > load.row_seconds / TRIED
        counter = Counter(tensors=not single)
        meters: list[Meter] = []
        with nullcontext() if single else counter:
            state = self.adapt(read[:WARMING] if single else read, Meter(self.lm.device))
        self.ask(state, ask, WARMING)
        most = 1 if single else load.repeat
        while not meters or (len(meters) < most and time.perf_counter() - started < load.row_seconds):
            del state  # that of the last pass must not stand beside that of the next
            meters.append(Meter(self.lm.device))
            with counter if single else nullcontext():
                state = self.adapt(read, meters[-1])
        figures = {
            "adapt_seconds": figure([meter.seconds["adapt"] for meter in meters]),
            **peak("adapt_peak_bytes", [meter.peak_bytes["adapt"] for meter in meters]),
            "adapt_cpu_seconds": figure([meter.cpu_seconds["adapt"] for meter in meters]),
            **self._counted("adapt", counter),
        }
        left = started + load.row_seconds - time.perf_counter()
        figures |= self._asked(state, ask, max(left, load.row_seconds / TRIED))
        notes = () if not single else ("operations were counted while the one pass was timed",)
        _summed(figures, read, state)
        return Row(method=self.method.name, prefill=tokens, figures=figures, notes=notes)

    def adapt(self, read: list[Observe], meter: Meter) -> State:
        """The state after these pieces; reading them is the meter's phase "adapt"."""
        session = Session(self.lm, self.method)
        session.read(read)
        with meter.phase("adapt"):
            session.flush()
        return session.state

    @torch.no_grad()
    def ask(self, state: State, ask: Ask, tokens: int) -> Asked:
        """Answer once; the clock is read after each token has come back from the device."""
        meter, stamps = Meter(self.lm.device), []
        with meter.phase("first"):
            patch = Session(self.lm, self.method, state).patch([ask])
            ids = text_start(self.lm, patch) + prompt_ids(self.lm, ask, follows=follows_text(patch))
            written = greedy_tokens(self.lm, patch, [ids], tokens)
            next(written).tolist()
        with closing(written), meter.phase("decode"):
            stamps.append(time.perf_counter())
            for token_B in written:
                token_B.tolist()
                stamps.append(time.perf_counter())
        gaps = [after - before for before, after in pairwise(stamps)]
        return Asked(
            first_seconds=meter.seconds["first"],
            token_seconds=gaps,
            cpu_seconds=sum(meter.cpu_seconds.values()),
            peak_bytes=largest(meter.peak_bytes.values()),
            patch_bytes=patch.nbytes,
        )

    def _asked(self, state: State, ask: Ask, most_seconds: float) -> dict[str, Figure]:
        """Figures of the answer: repeated for so many seconds, then counted."""
        runs: list[Asked] = []
        started = time.perf_counter()
        while not runs or (len(runs) < self.load.repeat and time.perf_counter() - started < most_seconds):
            runs.append(self.ask(state, ask, self.load.generate))
        figures = {
            "first_seconds": figure([run.first_seconds for run in runs]),
            "first_ms": figure([1000 * run.first_seconds for run in runs]),
            "decode_seconds": figure([sum(run.token_seconds) for run in runs]),
            "ask_cpu_seconds": figure([run.cpu_seconds for run in runs]),
            **peak("ask_peak_bytes", [run.peak_bytes for run in runs]),
            "patch_bytes": exactly(runs[0].patch_bytes),
        }
        gaps = [median(run.token_seconds) for run in runs if run.token_seconds]
        if gaps:
            figures["token_ms"] = figure([1000 * gap for gap in gaps])
            rates = [len(run.token_seconds) / sum(run.token_seconds) for run in runs]
            figures["tokens_per_second"] = figure(rates)
            figures |= self._counted_decoding(state, ask)
        return figures

    def _counted_decoding(self, state: State, ask: Ask) -> dict[str, Figure]:
        """Operations of the first token, and of one more, which stands for all others."""
        with Counter() as alone:
            self.ask(state, ask, 1)
        with Counter() as both:
            self.ask(state, ask, 2)
        both.flops -= alone.flops
        return {"first_flops": exactly(alone.flops), **self._counted("decode", both)}

    def _counted(self, phase: str, counter: Counter) -> dict[str, Figure]:
        """Operations, and bytes of tensors where they were followed."""
        figures = {f"{phase}_flops": exactly(counter.flops)}
        if counter.follows and self.lm.device.type == "cpu":
            figures[f"{phase}_tensor_bytes"] = exactly(counter.peak_tensor_bytes)
        return figures


def _summed(figures: dict[str, Figure], read: list[Observe], state: State) -> None:
    """Add what follows from the state and from several phases."""
    figures["state_bytes"] = exactly(state.nbytes)
    figures["pieces"] = exactly(len(read))
    counts = tokens_read(state) if "tokens_read" in state.meta else []
    if counts:
        figures["tokens_read"] = exactly(counts[0])
    phases = [figures[name] for name in ("adapt_seconds", "first_seconds", "decode_seconds")]
    figures["total_seconds"] = added(phases)
    peaks = [figures[name].value for name in ("adapt_peak_bytes", "ask_peak_bytes") if name in figures]
    if peaks:
        figures["peak_memory_bytes"] = exactly(max(peaks))
    held = [figures.pop(name).value for name in ("adapt_tensor_bytes", "decode_tensor_bytes") if name in figures]
    if len(held) == 2:
        figures["peak_tensor_bytes"] = exactly(max(held[0], held[1] + state.nbytes))


def pieces(lm: LM, tokens: int, piece_tokens: int, reader: int = 0) -> list[Observe]:
    """Pieces of `piece_tokens` tokens each, together `tokens`, BOS not counted: what a model costs does not depend on
    what a text says, but methods may leave out what they have read before, so no sentence is there twice.

    A joiner counts with the piece behind it, so the first has none. Tokenizers whose texts are not cut at tokens may
    give one more or less a piece.
    """
    texts: list[str] = []
    left, joiner = tokens, len(lm.encode(Observe(text="").joiner))
    while left > 0:
        room = left if left <= piece_tokens + joiner else piece_tokens  # no piece of a joiner alone
        start = reader * ROOM * ROOM + len(texts) * ROOM
        texts.append(lm.decode(lm.encode(_sentences(room, start), max(1, room - joiner if texts else room))))
        left -= room
    return [Observe(text=text, key=f"piece{number}") for number, text in enumerate(texts)]


def question(lm: LM, prompt_tokens: int, new_tokens: int, number: int = 0) -> Ask:
    """A query with a prompt of so many tokens, and an answer for training."""
    prompt = lm.decode(lm.encode(_sentences(prompt_tokens, number), prompt_tokens))
    return Ask(prompt=prompt, key=f"q{number}", want=Generate(answers=("nothing happened",), max_new_tokens=new_tokens))


def _sentences(tokens: int, start: int = 0) -> str:
    """More than `tokens` tokens of text in any tokenizer: each sentence has at least eight."""
    numbers = (number for number, _ in zip(count(start), range(tokens // 8 + 2), strict=False))
    return " ".join(f"Entry {number} of the log says that nothing happened on day {number}." for number in numbers)
