"""What a process of a profile measures: of a method at a length, a row.

latency     seconds, peaks and bytes of reading the context, the first token, and the tokens after
throughput  samples a second at growing batches, and the largest batch that fits (CCM, arXiv 2312.03414, Table 1)
training    milliseconds a sample and peaks of training, and of adapting one document (CCM, Tables 18 and 22; MAC,
            arXiv 2403.04317, Figure 2)
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from functools import partial
from itertools import count, islice, pairwise
from statistics import median
from typing import Any, NamedTuple, TypeVar

import torch

from ttabench.core.child import Tell
from ttabench.core.environment import (
    out_of_memory,
    quiet_libraries,
    release,
    seed_everything,
    use_threads,
)
from ttabench.core.errors import UserError
from ttabench.core.meter import Meter, largest
from ttabench.core.types import Ask, Episode, Generate, Observe
from ttabench.lm import model as base
from ttabench.lm.forward.patching import follows_text, text_start
from ttabench.lm.forward.tokens import prompt_ids
from ttabench.lm.forward.ways import ways_of
from ttabench.lm.loading import devices
from ttabench.lm.model import LM
from ttabench.lm.patch import State
from ttabench.lm.verbs.answering import greedy_tokens
from ttabench.methods.base import BaseMethod
from ttabench.methods.session import Session
from ttabench.profiling.counting import Counter
from ttabench.profiling.job import Job, Load
from ttabench.profiling.record import Figure, Row, added, exactly, figure, measured, peak
from ttabench.training.config import TrainConfig
from ttabench.training.loop import train

SPARE = 512
"""Positions beside context, prompt and answer: sinks, BOS, what a method keeps for itself."""
WARMING = 4
"""Tokens written to warm up."""
ROOM = 100_000
"""Sentence numbers between two readers of a batch."""
MOST = 4096
"""Rows beyond which no larger batch is tried."""
NEAR = 8
"""The largest batch is known to an eighth of itself."""
STEP = 8
"""Samples in a training step, in one episode."""
Method = BaseMethod[Any]
T = TypeVar("T")


def answer(request: Mapping[str, Any], tell: Tell) -> None:
    """Tell of the model, the method, and a row a length, as (kind, value); a fault of the user's is a finding, too."""
    use_threads(request.get("threads"))
    try:
        quiet_libraries()
        seed_everything(0)
        _rows(request, request["job"], tell)
    except UserError as error:
        tell(("fault", {"what": error.what, "hint": error.hint}))


def _rows(request: Mapping[str, Any], job: Job, tell: Tell) -> None:
    lm = base.load(job.model, random_weights=job.random_weights, device=job.device, dtype=job.dtype)
    name, lengths = request["method"], list(request["lengths"])
    tell(("model", lm.describe()))
    lifted = lift_positions(lm, max(lengths) + job.load.prompt_tokens + job.load.generate + SPARE)

    def built() -> Method:
        if job.memory_limit is not None:
            devices.limit_memory(job.memory_limit, lm.device)
        return job.adapters()[name].build(lm)

    method = measured(name, 0, built)
    if isinstance(method, Row):
        for length in lengths:
            tell(("row", method.model_copy(update={"prefill": length}).model_dump()))
        return
    trained = sum(parameter.numel() for parameter in method.modules().parameters())
    notes = [lifted] if lifted else []
    tell(("method", {"name": method.name, "growth": method.growth, "parameters": trained, "notes": notes}))
    for length in lengths:
        tell(("at", length))
        row = measured(name, length, partial(MODES[job.mode], lm, method, length, job.load))
        tell(("row", row.model_dump()))
        if row.status == "oom":
            return  # what is left of it would be counted with the next length; a fresh process goes on


def lift_positions(lm: LM, needed: int) -> str:
    """Let a rotary model read further than it was trained to: rotation has no table that ends, and costs do not depend
    on values. Returns a note for the record; empty where nothing was lifted."""
    if lm.max_positions >= needed or ways_of(lm).rotary is None:
        return ""
    before, lm.max_positions = lm.max_positions, needed
    return f"positions of {lm.name} were lifted from {before:,} for measuring cost; its answers there mean nothing"


def repeated(load: Load, work: Callable[[], T]) -> list[T]:
    """What each repetition gives; none begins once they took `row_seconds`."""
    results, started = list[T](), time.perf_counter()
    while not results or (len(results) < load.repeat and time.perf_counter() - started < load.row_seconds):
        results.append(work())
    return results


class Asked(NamedTuple):
    """One answer."""

    first_seconds: float
    token_seconds: list[float]
    peak_bytes: int | None


def adapt(lm: LM, method: Method, read: list[Observe], meter: Meter) -> State:
    """The state after these pieces; reading them is the meter's phase "adapt"."""
    session = Session(lm, method)
    session.read(read)
    with meter.phase("adapt"):
        session.flush()
    return session.state


@torch.no_grad()
def ask(lm: LM, method: Method, state: State, query: Ask, tokens: int) -> Asked:
    """Answer once; the clock is read after each token has come back from the device."""
    meter = Meter(lm.device)
    with meter.phase("first"):
        patch = Session(lm, method, state).patch([query])
        ids = text_start(lm, patch) + prompt_ids(lm, query, follows=follows_text(patch))
        written = greedy_tokens(lm, patch, [ids], tokens)
        next(written).tolist()
    with closing(written), meter.phase("decode"):
        stamps = [time.perf_counter()]
        for token_B in written:
            token_B.tolist()
            stamps.append(time.perf_counter())
    gaps = [after - before for before, after in pairwise(stamps)]
    return Asked(meter.seconds["first"], gaps, largest(meter.peak_bytes.values()))


def latency(lm: LM, method: Method, tokens: int, load: Load) -> Row:
    """Read and answer: the first pass warms up and is counted, the others are timed."""
    read, query = pieces(lm, tokens, load.piece_tokens), question(lm, load.prompt_tokens, load.generate)
    with Counter() as reading:
        held = [adapt(lm, method, read, Meter(lm.device))]
    ask(lm, method, held[0], query, WARMING)

    def timed() -> Meter:
        meter = Meter(lm.device)
        held.clear()  # the state of the last pass must not stand beside that of the next
        held.append(adapt(lm, method, read, meter))
        return meter

    meters, (state,) = repeated(load, timed), held
    runs = repeated(load, lambda: ask(lm, method, state, query, load.generate))
    figures = {
        "adapt_seconds": figure([meter.seconds["adapt"] for meter in meters]),
        **peak("adapt_peak_bytes", [meter.peak_bytes["adapt"] for meter in meters]),
        "first_seconds": figure([run.first_seconds for run in runs]),
        "first_ms": figure([1000 * run.first_seconds for run in runs]),
        "decode_seconds": figure([sum(run.token_seconds) for run in runs]),
        **peak("ask_peak_bytes", [run.peak_bytes for run in runs]),
        "state_bytes": exactly(state.nbytes),
        **({"tokens_read": exactly(state.meta["tokens_read"][0])} if "tokens_read" in state.meta else {}),
    }
    figures["total_seconds"] = added([figures[name] for name in ("adapt_seconds", "first_seconds", "decode_seconds")])
    if peaks := [figures[name].value for name in ("adapt_peak_bytes", "ask_peak_bytes") if name in figures]:
        figures["peak_memory_bytes"] = exactly(max(peaks))
    if load.generate > 1:
        figures["token_ms"] = figure([1000 * median(run.token_seconds) for run in runs])
        figures["tokens_per_second"] = figure([len(run.token_seconds) / sum(run.token_seconds) for run in runs])
        if lm.device.type == "cpu":
            with Counter() as asking:
                ask(lm, method, state, query, 2)
            most = max(reading.peak_tensor_bytes, asking.peak_tensor_bytes + state.nbytes)
            figures["peak_tensor_bytes"] = exactly(most)
    return Row(method=method.name, prefill=tokens, figures=figures)


class Rate(NamedTuple):
    """One batch that fitted: samples answered a second, and read and answered, by pass; bytes."""

    rows: int
    asked: list[float]
    whole: list[float]
    state_bytes: int
    peak_bytes: int | None


def throughput(lm: LM, method: Method, tokens: int, load: Load) -> Row:
    """Rates are those of the batch that answers fastest; memory is that of the largest. A sample is a context that is
    read and a query that is answered; rates are of answering, with the state at hand as in the paper, and of both."""
    fitted: list[Rate] = []
    fits = failed = 0
    reason: Exception | None = None
    while (rows := next_batch(fits, failed)) and rows <= MOST:
        try:
            fitted.append(_rate(lm, method, rows, tokens, load))
            fits = rows
        except (RuntimeError, MemoryError) as error:
            if not out_of_memory(error):
                raise
            failed, reason = rows, error.with_traceback(None)
        gc.collect()  # out of the handler, so that what the traceback holds is free again
        release()
    if reason is not None and not fitted:
        raise reason
    best, most = max(fitted, key=lambda rate: median(rate.asked)), max(fitted, key=lambda rate: rate.rows)
    figures = {
        "largest_batch": exactly(most.rows),
        "fastest_batch": exactly(best.rows),
        "samples_per_second": figure(best.asked),
        "whole_samples_per_second": figure(best.whole),
        "tokens_per_second": figure([rate * load.generate for rate in best.asked]),
        "sample_state_bytes": exactly(most.state_bytes / most.rows),
        **peak("peak_memory_bytes", [most.peak_bytes]),
    }
    notes = () if failed else (f"batches beyond {fits} were not tried",)
    return Row(method=method.name, prefill=tokens, figures=figures, notes=notes)


def next_batch(fits: int, failed: int) -> int:
    """The batch to try next, 0 when the largest one is known well enough.

    Args:
        fits: rows that fitted, 0 before any.
        failed: the fewest rows that did not fit, 0 before any.
    """
    if not failed:
        return max(1, 2 * fits)
    return (fits + failed) // 2 if failed - fits > max(1, fits // NEAR) else 0


def _rate(lm: LM, method: Method, rows: int, tokens: int, load: Load) -> Rate:
    """Contexts, each different, and a query about each: warm up, then time pass after pass."""
    read = list(zip(*(pieces(lm, tokens, load.piece_tokens, reader) for reader in range(rows)), strict=True))
    asks = [question(lm, load.prompt_tokens, load.generate, number) for number in range(rows)]

    def timed() -> tuple[Meter, int]:
        meter, session = Meter(lm.device), Session(lm, method, rows=rows)
        session.read_rows(read)
        with meter.phase("adapt"):
            session.flush()
        with torch.no_grad(), meter.phase("ask"):
            patch = session.patch(asks)
            start = text_start(lm, patch)
            prompts = [start + prompt_ids(lm, ask, follows=follows_text(patch)) for ask in asks]
            for token_B in greedy_tokens(lm, patch, prompts, load.generate):
                token_B.tolist()
        return meter, session.state.nbytes

    timed()
    meters, states = zip(*repeated(load, timed), strict=True)
    seconds = [(meter.seconds["adapt"], meter.seconds["ask"]) for meter in meters]
    most = largest(peak for meter in meters for peak in meter.peak_bytes.values())
    return Rate(rows, [rows / ask for _, ask in seconds], [rows / sum(both) for both in seconds], states[-1], most)


def training(lm: LM, method: Method, tokens: int, load: Load) -> Row:
    """Adapting to one document, and training steps where the method is trained; the first of each warms up."""
    (document,) = pieces(lm, tokens, tokens)

    def timed() -> tuple[Meter, int]:
        meter = Meter(lm.device)
        return meter, adapt(lm, method, [document], meter).nbytes

    timed()
    meters, states = zip(*repeated(load, timed), strict=True)
    figures = {
        "document_ms": figure([1000 * meter.seconds["adapt"] for meter in meters]),
        **peak("document_peak_bytes", [meter.peak_bytes["adapt"] for meter in meters]),
        "state_bytes": exactly(states[-1]),
    }
    if method.spec.trainable:
        figures |= _steps(lm, method, tokens, load)
    return Row(method=method.name, prefill=tokens, figures=figures)


def _steps(lm: LM, method: Method, tokens: int, load: Load) -> dict[str, Figure]:
    ends, meter = list[float](), Meter(lm.device)

    def on_step(_step: int, _figures: Mapping[str, float]) -> None:
        ends.append(time.perf_counter())  # the loss was read back, so a GPU is done, too

    # from the weights as they are: what a step costs does not depend on them
    config = TrainConfig(steps=load.repeat + 1, fresh=False, lr=1e-6)
    with meter.phase("train"):
        train(method, _episodes(lm, tokens, load), config, on_step)
    return {
        "train_ms_per_sample": figure([1000 * (after - before) / STEP for before, after in pairwise(ends)]),
        **peak("train_peak_bytes", [meter.peak_bytes["train"]]),
        "trained_parameters": exactly(sum(parameter.numel() for parameter in method.modules().parameters())),
        "samples_per_step": exactly(STEP),
    }


def _episodes(lm: LM, tokens: int, load: Load) -> Iterator[list[Episode]]:
    """Steps without end, each one episode of documents never seen before and a query about each."""
    for step in count():
        read: list[Observe] = []
        asked: list[Ask] = []
        for number in range(step * STEP, (step + 1) * STEP):
            (piece,) = pieces(lm, tokens, tokens, reader=number)
            query = question(lm, load.prompt_tokens, load.generate, number)
            read.append(Observe(text=piece.text, key=f"document{number}"))
            asked.append(replace(query, source_key=f"document{number}"))
        yield [Episode(key=f"episode{step}", steps=(*read, *asked))]


MODES: Mapping[str, Callable[[LM, Method, int, Load], Row]] = {
    "latency": latency, "throughput": throughput, "training": training
}  # fmt: skip


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
    numbers = islice(count(start), tokens // 8 + 2)
    return " ".join(f"Entry {number} of the log says that nothing happened on day {number}." for number in numbers)
