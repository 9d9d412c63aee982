"""Measurements in a profile process: one row per method and length.

latency     seconds, peak bytes and state bytes of reading; time of the first and of later tokens
throughput  samples per second by batch size, and the largest batch that fits (CCM, arXiv
            2312.03414, Table 1)
training    milliseconds per sample, and peak bytes; also of adapting to one document (CCM,
            Tables 18 and 22; MAC, arXiv 2403.04317, Figure 2)
"""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from itertools import count, islice, pairwise
from statistics import median
from typing import Any, TypeVar

import torch
from torch import Tensor, UntypedStorage
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ttabench.core.child import SendMessage
from ttabench.core.environment import (
    accelerator_kind,
    call_device_function,
    is_out_of_memory,
    seed_everything,
    use_threads,
)
from ttabench.core.errors import UserError
from ttabench.core.meter import Meter
from ttabench.core.types import Chunk, Episode, Generate, Query
from ttabench.lm.forward.capabilities import get_capabilities
from ttabench.lm.forward.patching import continues_text, text_start
from ttabench.lm.forward.tokens import prompt_ids
from ttabench.lm.inference.answering import greedy_tokens
from ttabench.lm.loading import devices
from ttabench.lm.model import LM
from ttabench.lm.patch import State
from ttabench.methods.base import Method
from ttabench.methods.session import Session
from ttabench.profiling.job import Job, Load
from ttabench.profiling.record import (
    Figure,
    Row,
    figure,
    measure_or_refuse,
    peak_figure,
    sum_figures,
)
from ttabench.run.evaluation import ModelCache
from ttabench.training.config import TrainConfig
from ttabench.training.loop import train

SPARE_POSITIONS = 512
"""Positions in addition to context, prompt and answer, for BOS and tokens that a method adds."""
WARMUP_TOKENS = 4
"""Tokens generated to warm up."""
SENTENCE_NUMBER_STRIDE = 100_000
"""Difference of the first sentence numbers of two chunks; two sequences differ by its square."""
MAX_BATCH_SIZE = 4096
"""Largest batch size tried."""
BATCH_SEARCH_PRECISION = 8
"""The batch-size search stops when the largest batch is known to within 1/8 of its size."""
SAMPLES_PER_STEP = 8
"""Samples per training step, in one episode."""
T = TypeVar("T")


def measure_method(request: Mapping[str, Any], send: SendMessage) -> None:
    """Measure a method, and send the model, the method and a row per length as (kind, value).

    User errors are reported as results, not raised.
    """
    use_threads(request.get("threads"))
    try:
        seed_everything(0)
        _measure_lengths(request, request["job"], send)
    except UserError as error:
        send(("fault", (error.what, error.hint)))


def _measure_lengths(request: Mapping[str, Any], job: Job, send: SendMessage) -> None:
    name, lengths = request["method"], list(request["lengths"])
    lm = ModelCache().get(job.request(**job.method_requests[name]))
    send(("model", lm.describe()))
    lift_note = lift_positions(
        lm, max(lengths) + job.load.prompt_tokens + job.load.generate + SPARE_POSITIONS
    )

    def build_method() -> Method[Any]:
        if job.memory_limit is not None:
            devices.limit_memory(job.memory_limit, lm.device)
        return job.resolve_methods()[name].build(lm)

    method = measure_or_refuse(name, 0, build_method)
    if isinstance(method, Row):
        for length in lengths:
            send(("row", method.model_copy(update={"prefill": length}).model_dump()))
        return
    n_parameters = sum(parameter.numel() for parameter in method.modules().parameters())
    notes = [lift_note] if lift_note else []
    send(
        (
            "method",
            {
                "name": method.name,
                "growth": method.growth,
                "parameters": n_parameters,
                "notes": notes,
            },
        )
    )
    for length in lengths:
        send(("at", length))
        row = measure_or_refuse(
            name, length, partial(MODES[job.mode], lm, method, length, job.load)
        )
        send(("row", row.model_dump()))
        if row.status == "oom":
            return  # memory left over would count for the next length, so a new process continues


def lift_positions(lm: LM, needed: int) -> str:
    """Raise the position limit of a rotary model to measure its cost beyond its trained length.

    Rotary embeddings can be computed for any position, and the cost of a model does not depend on
    its outputs. Returns a note for the record, or "" if nothing was changed.
    """
    if lm.max_positions >= needed or get_capabilities(lm).rotary is None:
        return ""
    before, lm.max_positions = lm.max_positions, needed
    return (
        f"the position limit of {lm.name} was raised from {before:,} to measure cost; "
        "answers are meaningless"
    )


class TensorMemoryCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch lacks types
    """Counter of the peak bytes of tensors that are created in its context (`peak_tensor_bytes`).

    Existing tensors, such as the model's, and buffers inside kernels are not included.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.peak_tensor_bytes = 0
        self._live_bytes: dict[int, int] = {}

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run the operation and count its new tensors."""
        out = func(*args, **(kwargs or {}))
        argument_storages = {storage._cdata for storage in _storages((args, kwargs))}
        # an output that shares the storage of an argument is a view or was changed in place
        for storage in _storages(out):
            key, size = storage._cdata, storage.nbytes()
            if size and key not in argument_storages and key not in self._live_bytes:
                self._live_bytes[key] = size
                live_bytes = sum(self._live_bytes.values())
                self.peak_tensor_bytes = max(self.peak_tensor_bytes, live_bytes)
                weakref.finalize(storage, self._live_bytes.pop, key).atexit = False
        return out


def _storages(values: Any) -> list[UntypedStorage]:
    return [leaf.untyped_storage() for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]


def run_repeatedly(load: Load, work: Callable[[], T]) -> list[T]:
    """Run `work` repeatedly and collect its results.

    Stops after `load.repeat` results or `load.row_seconds` seconds, but not before the first.
    """
    results, started = list[T](), time.perf_counter()
    while not results or (
        len(results) < load.repeat and time.perf_counter() - started < load.row_seconds
    ):
        results.append(work())
    return results


def adapt(lm: LM, method: Method[Any], read: Sequence[Sequence[Chunk]], meter: Meter) -> State:
    """Read chunks in the meter's phase "adapt", and return the state.

    `read`: the chunks to read one after the other, each with one chunk per sequence.
    """
    session = Session(lm, method, rows=len(read[0]))
    session.read_rows(read)
    with meter.phase("adapt"):
        session.flush()
    return session.state


@torch.no_grad()
def ask(
    lm: LM, method: Method[Any], state: State, queries: Sequence[Query], tokens: int, meter: Meter
) -> list[float]:
    """Answer one query per sequence, in the meter's phases "first" and "decode".

    Returns the seconds of each token in phase "decode", including its transfer from the device.
    """
    with meter.phase("first"):
        patch = Session(lm, method, state).patch(queries)
        start, is_continuation = text_start(lm, patch), continues_text(patch)
        new_tokens = greedy_tokens(
            lm,
            patch,
            [start + prompt_ids(lm, query, is_continuation=is_continuation) for query in queries],
            tokens,
        )
        next(new_tokens).tolist()
    with closing(new_tokens), meter.phase("decode"):
        times = [time.perf_counter()]
        for token_B in new_tokens:
            token_B.tolist()
            times.append(time.perf_counter())
    return [after - before for before, after in pairwise(times)]


def measure_reading(
    lm: LM, method: Method[Any], texts: Sequence[Chunk], load: Load
) -> tuple[dict[str, Figure], State, int]:
    """Measure reading, and return figures, the state, and the peak bytes of tensors.

    The first pass warms up and counts tensor bytes; the others are timed.
    """
    chunks, meters, states = [[text] for text in texts], list[Meter](), list[State]()

    def run_pass() -> None:
        meters.append(Meter(lm.device))
        states.clear()  # frees the state of the last pass, so that two do not coexist
        states.append(adapt(lm, method, chunks, meters[-1]))

    with TensorMemoryCounter() as counter:
        run_pass()
    run_repeatedly(load, run_pass)
    figures = {
        "adapt_seconds": figure([meter.seconds["adapt"] for meter in meters[1:]]),
        **peak_figure("adapt_peak_bytes", [meter.peak_bytes["adapt"] for meter in meters[1:]]),
        "state_bytes": figure([states[0].nbytes]),
    }
    return figures, states[0], counter.peak_tensor_bytes


def measure_latency(lm: LM, method: Method[Any], tokens: int, load: Load) -> Row:
    """Measure the latency and memory of reading a context and answering a query."""
    figures, state, reading_peak_bytes = measure_reading(
        lm, method, make_chunks(lm, tokens, load.piece_tokens), load
    )
    query, meters = make_query(lm, load.prompt_tokens, load.generate), list[Meter]()

    def run_pass(count: int) -> list[float]:
        meters.append(Meter(lm.device))
        return ask(lm, method, state, [query], count, meters[-1])

    run_pass(WARMUP_TOKENS)
    token_seconds = run_repeatedly(load, lambda: run_pass(load.generate))
    timed_meters = meters[1:]
    figures |= {
        "first_seconds": figure([meter.seconds["first"] for meter in timed_meters]),
        "first_ms": figure([1000 * meter.seconds["first"] for meter in timed_meters]),
        "decode_seconds": figure([sum(seconds) for seconds in token_seconds]),
        **peak_figure(
            "ask_peak_bytes",
            [peak_bytes for meter in timed_meters for peak_bytes in meter.peak_bytes.values()],
        ),
        **(
            {"tokens_read": figure([state.meta["tokens_read"][0]])}
            if "tokens_read" in state.meta
            else {}
        ),
    }
    figures["total_seconds"] = sum_figures(
        [figures[name] for name in ("adapt_seconds", "first_seconds", "decode_seconds")]
    )
    if phase_peaks := [
        figures[name].value for name in ("adapt_peak_bytes", "ask_peak_bytes") if name in figures
    ]:
        figures["peak_memory_bytes"] = figure([max(phase_peaks)])
    if load.generate > 1:
        figures["token_ms"] = figure([1000 * median(seconds) for seconds in token_seconds])
        figures["tokens_per_second"] = figure(
            [len(seconds) / sum(seconds) for seconds in token_seconds]
        )
        if lm.device.type == "cpu":
            with TensorMemoryCounter() as counter:
                run_pass(2)
            figures["peak_tensor_bytes"] = figure(
                [max(reading_peak_bytes, counter.peak_tensor_bytes + state.nbytes)]
            )
    return Row(method=method.name, prefill=tokens, figures=figures)


def measure_throughput(lm: LM, method: Method[Any], tokens: int, load: Load) -> Row:
    """Measure rates at the fastest batch size, and memory at the largest.

    A sample is one context and one query. `samples_per_second` is the rate of answering alone, as
    in the paper. `whole_samples_per_second` also includes reading.
    """
    figures_by_batch: dict[int, dict[str, Figure]] = {}
    largest_fitting = smallest_failing = 0
    reason: Exception | None = None
    while (rows := next_batch(largest_fitting, smallest_failing)) and rows <= MAX_BATCH_SIZE:
        try:
            figures_by_batch[rows] = _measure_batch(lm, method, rows, tokens, load)
            largest_fitting = rows
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            smallest_failing, reason = rows, error.with_traceback(None)
        gc.collect()  # outside the handler, so that tensors of the traceback are freed
        call_device_function(accelerator_kind(), "empty_cache")
    if reason is not None and not figures_by_batch:
        raise reason
    fastest = max(
        figures_by_batch, key=lambda rows: figures_by_batch[rows]["samples_per_second"].value
    )
    memory = {
        name: value
        for name, value in figures_by_batch[largest_fitting].items()
        if name.endswith("_bytes")
    }
    figures = {
        "largest_batch": figure([largest_fitting]),
        "fastest_batch": figure([fastest]),
        **figures_by_batch[fastest],
        **memory,
    }
    notes = () if smallest_failing else (f"batch sizes above {largest_fitting} were not tried",)
    return Row(method=method.name, prefill=tokens, figures=figures, notes=notes)


def next_batch(largest_fitting: int, smallest_failing: int) -> int:
    """Return the next batch size to try, or 0 if the largest one is known precisely enough.

    Arguments: largest size known to fit, and smallest known not to fit; 0 if there is none yet.
    """
    if not smallest_failing:
        return max(1, 2 * largest_fitting)
    return (
        (largest_fitting + smallest_failing) // 2
        if smallest_failing - largest_fitting > max(1, largest_fitting // BATCH_SEARCH_PRECISION)
        else 0
    )


def _measure_batch(
    lm: LM, method: Method[Any], rows: int, tokens: int, load: Load
) -> dict[str, Figure]:
    """Measure one batch size: `rows` different contexts with one query each, after a warm-up."""
    chunks = list(
        zip(
            *(make_chunks(lm, tokens, load.piece_tokens, sequence) for sequence in range(rows)),
            strict=True,
        )
    )
    queries = [make_query(lm, load.prompt_tokens, load.generate, number) for number in range(rows)]

    def run_timed() -> tuple[Meter, int]:
        meter = Meter(lm.device)
        state = adapt(lm, method, chunks, meter)
        ask(lm, method, state, queries, load.generate, meter)
        return meter, state.nbytes

    run_timed()
    meters, state_bytes = zip(*run_repeatedly(load, run_timed), strict=True)
    seconds = [
        (meter.seconds["adapt"], meter.seconds["first"] + meter.seconds["decode"])
        for meter in meters
    ]
    return {
        "samples_per_second": figure([rows / answering for _, answering in seconds]),
        "whole_samples_per_second": figure(
            [rows / sum(reading_and_answering) for reading_and_answering in seconds]
        ),
        "tokens_per_second": figure([rows * load.generate / answering for _, answering in seconds]),
        "sample_state_bytes": figure([state_bytes[-1] / rows]),
        **peak_figure(
            "peak_memory_bytes",
            [peak_bytes for meter in meters for peak_bytes in meter.peak_bytes.values()],
        ),
    }


def measure_training(lm: LM, method: Method[Any], tokens: int, load: Load) -> Row:
    """Measure adapting to one document, and the training steps of a trainable method.

    The first pass and the first step warm up, and are not timed.
    """
    figures = measure_reading(lm, method, make_chunks(lm, tokens, tokens), load)[0]
    if method.spec.trainable:
        figures |= _measure_training_steps(lm, method, tokens, load)
    return Row(method=method.name, prefill=tokens, figures=figures)


def _measure_training_steps(
    lm: LM, method: Method[Any], tokens: int, load: Load
) -> dict[str, Figure]:
    step_ends, meter = list[float](), Meter(lm.device)

    def on_step(_step: int, _figures: Mapping[str, float]) -> None:
        step_ends.append(time.perf_counter())  # the loss was read back, so a GPU has finished

    # fresh=False skips the initialisation: the cost of a step does not depend on the weights
    config = TrainConfig(steps=load.repeat + 1, fresh=False, lr=1e-6)
    with meter.phase("train"):
        train(method, _episodes(lm, tokens, load), config, on_step)
    return {
        "train_ms_per_sample": figure(
            [1000 * (after - before) / SAMPLES_PER_STEP for before, after in pairwise(step_ends)]
        ),
        **peak_figure("train_peak_bytes", [meter.peak_bytes["train"]]),
        "trained_parameters": figure(
            [sum(parameter.numel() for parameter in method.modules().parameters())]
        ),
        "samples_per_step": figure([SAMPLES_PER_STEP]),
    }


def _episodes(lm: LM, tokens: int, load: Load) -> Iterator[list[Episode]]:
    """Yield endless batches of one episode each, with new documents and one query per document."""
    for step in count():
        numbers = range(step * SAMPLES_PER_STEP, (step + 1) * SAMPLES_PER_STEP)
        chunks = [
            replace(make_chunks(lm, tokens, tokens, number)[0], key=f"document{number}")
            for number in numbers
        ]
        queries = [
            replace(make_query(lm, load.prompt_tokens, load.generate, number), source_key=chunk.key)
            for number, chunk in zip(numbers, chunks, strict=True)
        ]
        yield [Episode(key=f"episode{step}", steps=(*chunks, *queries))]


MODES: Mapping[str, Callable[[LM, Method[Any], int, Load], Row]] = {
    "latency": measure_latency,
    "throughput": measure_throughput,
    "training": measure_training,
}


def make_chunks(lm: LM, tokens: int, piece_tokens: int, sequence: int = 0) -> list[Chunk]:
    """Make chunks of `piece_tokens` tokens each, `tokens` in total without BOS.

    Every sentence is unique, because methods may skip repeated text. Otherwise cost does not depend
    on the content. The tokens of a joiner count as part of the chunk after it. The first chunk has
    no joiner. If a tokenizer does not reproduce cut text exactly, a chunk may have one token more
    or less.
    """
    texts: list[str] = []
    remaining, joiner = tokens, len(lm.encode(Chunk(text="").joiner))
    while remaining > 0:
        # no chunk consists of a joiner alone
        chunk_tokens = remaining if remaining <= piece_tokens + joiner else piece_tokens
        first_number = (sequence * SENTENCE_NUMBER_STRIDE + len(texts)) * SENTENCE_NUMBER_STRIDE
        texts.append(
            lm.decode(
                lm.encode(
                    _sentences(chunk_tokens, first_number),
                    max(1, chunk_tokens - joiner if texts else chunk_tokens),
                )
            )
        )
        remaining -= chunk_tokens
    return [Chunk(text=text, key=f"chunk{number}") for number, text in enumerate(texts)]


def make_query(lm: LM, prompt_tokens: int, new_tokens: int, number: int = 0) -> Query:
    """Make a query with a prompt of this many tokens, and an answer for training."""
    prompt = lm.decode(lm.encode(_sentences(prompt_tokens, number), prompt_tokens))
    return Query(
        prompt=prompt,
        key=f"q{number}",
        want=Generate(answers=("nothing happened",), max_new_tokens=new_tokens),
    )


def _sentences(tokens: int, start: int = 0) -> str:
    """Return a text of more than `tokens` tokens; a sentence has at least 8 in any tokenizer."""
    numbers = islice(count(start), tokens // 8 + 2)
    return " ".join(
        f"Entry {number} of the log says that nothing happened on day {number}."
        for number in numbers
    )
