"""Estimated hours and memory of a suite on a GPU, without weights and data.

Operations, keys and values are those of the methods' cost formulas, with the `sizes` that the suite
states for its tasks. Hours have two bounds: reading in one pass over a text, and chunk by chunk.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ttabench.core import amounts
from ttabench.core.errors import UserError, require_known
from ttabench.cost import FLOAT32_BYTES, HALF_BYTES, Cost, Shape, Workload
from ttabench.profiling.analytic import known_shape
from ttabench.profiling.gpus import CHUNK_UTILISATION, GPUS, SECONDS_PER_LAYER, UTILISATION, Gpu
from ttabench.run.request import RunRequest
from ttabench.run.resolve import resolve_method
from ttabench.sweep.suite import Cell, TaskSizes, method_label, task_label
from ttabench.terminal.table import DataRow, Table


def estimate_table(cells: Sequence[Cell], sizes: Mapping[str, TaskSizes], gpu: str) -> Table:
    """Build the table of estimated hours and peak memory, one row per run, and their total.

    Args:
        sizes: sizes of the tasks by name.
        gpu: a name of `GPUS`.

    Raises:
        UserError: the GPU, the shape of a model or the sizes of a task are unknown.
    """
    require_known("GPU", gpu, GPUS)
    runs: list[DataRow] = [
        {**_labels(cell), **_estimate(cell.request, sizes, GPUS[gpu])} for cell in cells
    ]
    known = [run for run in runs if run["hours"] is not None]
    total = {
        **dict.fromkeys(("task", "model")),
        "method": "total",
        "seed": None,
        **{key: sum(run[key] for run in known) for key in ("hours", "chunked_hours")},
        "peak_bytes": max((run["peak_bytes"] for run in known), default=None),
    }
    memory = amounts.format_bytes(GPUS[gpu].memory_bytes)
    return Table.of(
        f"estimate for one {gpu.upper()}, not measured",
        [*runs, total],
        {
            "method": lambda row: row["method"],
            "task": lambda row: row["task"] or "",
            "#seed": lambda row: "" if row["seed"] is None else str(row["seed"]),
            "model": lambda row: row["model"] or "",
            "#hours": lambda row: _format_hours(row["hours"]),
            "#hours, by chunk": lambda row: _format_hours(row["chunked_hours"]),
            "#peak memory": lambda row: amounts.format_bytes(row["peak_bytes"]),
        },
        caption=f"hours: computed operations at {UTILISATION:.0%} of the GPU's peak, as in one pass "
        f"over a long text. by chunk: at {CHUNK_UTILISATION:.0%}, as in passes over short chunks. "
        f"Decoding takes at least {1000 * SECONDS_PER_LAYER:g} ms per token and layer for a batch "
        f"of queries. peak memory (of {memory}): weights, trained modules, state, keys and values. "
        "Loading, T5 models, training and activations are not included. Assumed sizes: "
        f"{_describe_sizes(sizes)}. -: without a formula, and not in the total.",
        names=("method",),
        spare=("model", "#seed"),
    )


def _labels(cell: Cell) -> dict[str, str | int]:
    request = cell.request
    return {
        "method": method_label(request, request.method),
        "task": f"{task_label(request, request.task)} {request.source}".rstrip(),
        "seed": cell.seed,
        "model": request.base_name,
    }


def _estimate(
    request: RunRequest, sizes: Mapping[str, TaskSizes], gpu: Gpu
) -> dict[str, float | int | None]:
    """Return hours at both utilisations and bytes of a run, None without a cost formula."""
    if request.task not in sizes:
        raise UserError(
            f"The suite states no sizes of the task {request.task}.",
            f"Add them, such as sizes: {{{request.task}: {{contexts: 100, chunks: 8, "
            "chunk_tokens: 512, queries: 1, prompt_tokens: 32, new_tokens: 16}}.",
        )
    task, shape = sizes[request.task], known_shape(request.model)
    queries = min(task.queries, request.limit or task.queries)
    contexts = min(task.contexts, -(-(request.limit or task.contexts * queries) // queries))
    work = Workload(
        chunk_tokens=() if request.state_of == "none" else (task.chunk_tokens,) * task.chunks,
        prompt_tokens=task.prompt_tokens,
        new_tokens=task.new_tokens,
        value_bytes=FLOAT32_BYTES if request.dtype == "float32" else HALF_BYTES,
        bits=request.bits,
    )
    # a checkpoint that is trained later has the settings of the recipe
    resolved = resolve_method(replace(request, checkpoint=""), hash_checkpoint=False)
    spec = resolved.spec
    cost = spec.cost and spec.cost(resolved.settings_object, shape, work)
    if not cost:
        return dict.fromkeys(("hours", "chunked_hours", "peak_bytes"))
    flops = contexts * (cost.adapt_flops + queries * cost.ask_flops)
    batch = min(request.batch_size or queries, queries)
    read_bytes = work.value_bytes * cost.parameters + cost.state_bytes
    token_seconds = max(shape.layers * SECONDS_PER_LAYER, read_bytes / gpu.bytes_per_second)
    decoding = contexts * -(-queries // batch) * work.new_tokens * token_seconds
    hours, chunked_hours = (
        (flops / (share * gpu.flops_per_second) + decoding) / 3600
        for share in (UTILISATION, CHUNK_UTILISATION)
    )
    return {
        "hours": hours,
        "chunked_hours": chunked_hours,
        "peak_bytes": _peak_bytes(cost, shape, work, batch),
    }


def _peak_bytes(cost: Cost, shape: Shape, work: Workload, batch: int) -> int:
    """Return the bytes of weights, trained modules (float32), state, and keys and values."""
    asked_slots = cost.ask_slots + (batch - 1) * work.query_positions
    return (
        work.value_bytes * cost.parameters
        + FLOAT32_BYTES * cost.added_parameters
        + cost.state_bytes
        + shape.cache_bytes(max(cost.adapt_slots, asked_slots), work.value_bytes)
    )


def _format_hours(hours: float | None) -> str:
    return "-" if hours is None else f"{hours:.2g}" if hours < 100 else f"{hours:,.0f}"


def _describe_sizes(sizes: Mapping[str, TaskSizes]) -> str:
    return "; ".join(
        f"{name} {', '.join(f'{key} {value:,}' for key, value in task)}"
        for name, task in sizes.items()
    )
