"""Computed cost of methods by context length (`profile --analytic`), and of training (`--dry-run`).

No model is loaded. A row is for one sequence in the given number format. `break_even_queries` is
the number of queries at which the method and full context (`icl` with its defaults) have used the
same number of operations, including reading. `cheaper` names the side on which the method is
cheaper.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from ttabench import cost
from ttabench.core import amounts
from ttabench.core.amounts import format_tokens
from ttabench.core.architectures import model_names
from ttabench.core.errors import UnknownName, UserError, require_known
from ttabench.core.types import Json
from ttabench.cost import Cost, Shape, Workload
from ttabench.methods import registry
from ttabench.methods.settings import build_settings, parse_settings, resolve_preset
from ttabench.methods.spec import MethodSpec
from ttabench.profiling.gpus import GPUS, UTILISATION
from ttabench.profiling.job import Load, assign_settings, parse_method_names
from ttabench.terminal.table import Table
from ttabench.training.stages import TrainPlan

Row: TypeAlias = dict[str, Json]
H100_FLOPS_PER_SECOND = UTILISATION * GPUS["h100"].flops_per_second
BYTES_PER_TRAINED_WEIGHT = 16
"""Bytes per trained weight: float32 weight, gradient and two Adam moments."""
TRAINING_WORKLOAD = Workload(chunk_tokens=(256,), prompt_tokens=32, new_tokens=16)
"""Chunk, prompt and answer sizes assumed for training."""
COLUMNS = {
    "#added": ("added_parameters", amounts.format_count),
    "#floats": ("state_floats", amounts.format_count),
    "#state": ("state_bytes", amounts.format_bytes),
    "#KV adapting": ("adapt_peak_kv_bytes", amounts.format_bytes),
    "#KV asking": ("ask_peak_kv_bytes", amounts.format_bytes),
    "#adapt FLOPs": ("adapt_flops", amounts.format_count),
    "#query FLOPs": ("ask_flops", amounts.format_count),
    "#total FLOPs": ("total_flops", amounts.format_count),
}
BREAK_EVEN_TEXT = {"from": "from {break_even_queries:,}", "until": "until {break_even_queries:,}"}
"""Table texts of a number of queries; "always" and "never" have none."""
OPTIONAL_COLUMNS = (
    "#floats",
    "#added",
    "#KV adapting",
    "#KV asking",
    "positions",
    "#query FLOPs",
    "#adapt FLOPs",
)
"""Columns that a narrow terminal leaves out, in this order."""


def analytic_table(
    load: Load,
    lengths: Sequence[int],
    *,
    methods: str,
    preset: str,
    settings: Sequence[str],
    model: str,
    dtype: str,
    bits: int | None,
) -> Table:
    """Build the table for the typed method names; by default all methods with a formula."""
    with_cost = [name for name, spec in registry.methods().items() if spec.cost]
    names = parse_method_names(methods, with_cost, with_cost)
    selected = {name: registry.find_method(name) for name in names}
    presets, shared = assign_settings(selected, preset, settings)
    rows = analytic_rows(
        model, list(selected), lengths, load, shared, presets, dtype=dtype, bits=bits
    )
    return format_rows(model, rows)


def analytic_rows(
    model: str,
    methods: Sequence[str],
    lengths: Sequence[int],
    load: Load,
    settings: Mapping[str, Mapping[str, Json]] = {},
    presets: Mapping[str, str] = {},
    *,
    dtype: str = "auto",
    bits: int | None = None,
) -> list[Row]:
    """Compute the analytic cost of methods by context length, one row each, grouped by method.

    Args:
        model: a name of `architectures`, "nano", or a folder with a transformers config.json.
        methods: names of methods.
        lengths: tokens of context without BOS; a chunk includes its joiner, an answer its EOS.
        settings, presets: by method; by default the preset of the model's name.
        bits: bits per key and value of a state.

    Raises:
        UserError: the architecture or dtype is unknown, the settings have no cost formula, or
            there are bits and a state has no keys and values.
    """
    shape = known_shape(model)
    require_known("dtype", dtype, cost.DTYPE_BYTES)
    rows = []
    for name in dict.fromkeys(methods):
        spec = registry.find_method(name)
        preset = resolve_preset(spec, presets.get(name, ""), model)
        method_settings = build_settings(spec, parse_settings(spec, settings.get(name, {})), preset)
        for length in lengths:
            whole, rest = divmod(length, load.piece_tokens)
            work = Workload(
                chunk_tokens=(load.piece_tokens,) * whole + ((rest,) if rest else ()),
                prompt_tokens=load.prompt_tokens,
                new_tokens=load.generate,
                value_bytes=cost.DTYPE_BYTES[dtype],
                bits=bits,
            )
            method_cost = spec.cost(method_settings, shape, work) if spec.cost else None
            if method_cost is None:
                raise UserError(
                    f"The cost of {name} with these settings is unknown.",
                    "Use the settings of a preset, or another method.",
                )
            if bits and method_cost.state_bytes and not _has_kv(spec, method_settings, shape, work):
                raise UserError(
                    f"--bits quantises keys and values, and the state of {name} has none.",
                    "Remove --bits, or use --methods icl,snapkv.",
                )
            rows.append(
                {
                    "model": model,
                    "method": name,
                    "context_tokens": length,
                    **_row(method_cost, shape, work),
                    "dtype": "float32" if dtype == "auto" else dtype,
                    "bits": bits,
                }
            )
    return rows


def _has_kv(spec: MethodSpec, settings: Any, shape: Shape, work: Workload) -> bool:
    """Return True if the bytes of the state depend on the bits of keys and values."""
    sizes = {
        found.state_bytes
        for bits in (2, 8)
        if spec.cost and (found := spec.cost(settings, shape, replace(work, bits=bits)))
    }
    return len(sizes) > 1


def known_shape(model: str) -> Shape:
    """Return the shape of a model. Raises a UserError if the formulas do not cover it."""
    if (shape := cost.shape_of(model)) is not None:
        return shape
    covered = ", ".join(cost.COVERED_MODEL_TYPES)
    raise UnknownName(
        "architecture",
        model,
        model_names(),
        fault=f"No analytic cost is known for {model!r}.",
        hint=f"Use a name of `ttabench list models`, or a folder with one of: {covered}.",
    )


def _row(method_cost: Cost, shape: Shape, work: Workload) -> Row:
    """Cost of reading and of one query."""
    full = registry.compute_cost("icl", {}, shape, work)
    assert full is not None, "full context has a cost"
    queries, cheaper = break_even(
        method_cost.adapt_flops, method_cost.ask_flops, full.adapt_flops, full.ask_flops
    )
    return {
        "pieces": len(work.chunk_tokens),
        "prompt_tokens": work.prompt_tokens,
        "new_tokens": work.new_tokens,
        "base_parameters": method_cost.parameters,
        "added_parameters": method_cost.added_parameters,
        "state_floats": method_cost.state_floats,
        "state_bytes": method_cost.state_bytes,
        "adapt_peak_kv_bytes": shape.cache_bytes(method_cost.adapt_slots, work.value_bytes),
        "ask_peak_kv_bytes": shape.cache_bytes(method_cost.ask_slots, work.value_bytes),
        "adapt_flops": method_cost.adapt_flops,
        "ask_flops": method_cost.ask_flops,
        "total_flops": method_cost.adapt_flops + method_cost.ask_flops,
        "break_even_queries": queries,
        "cheaper": cheaper,
        "positions": method_cost.positions,
        "fits": None if shape.positions is None else method_cost.positions <= shape.positions,
    }


def training_table(plan: TrainPlan, dtype: str) -> Table:
    """Build the table of tokens, operations, hours and memory of a training, one row per stage.

    Raises:
        UserError: a method has no cost formula for its settings.
    """
    width, recomputes = cost.DTYPE_BYTES[dtype], plan.stages[0].config.recompute
    data: list[Row] = []
    for stage in plan.stages:
        recipe, resolved = stage.config, stage.plans[0].resolved
        model = stage.plans[0].config.model
        shape = known_shape(model)
        cost_formula, steps, lessons = resolved.spec.cost, recipe.steps, len(recipe.documents)
        trained = tokens = flops = longest = 0
        for documents in recipe.documents:
            work = replace(
                TRAINING_WORKLOAD,
                chunk_tokens=TRAINING_WORKLOAD.chunk_tokens * documents,
                value_bytes=width,
            )
            if not (
                cost_formula
                and (method_cost := cost_formula(resolved.settings_object, shape, work))
            ):
                fault = f"The cost of {resolved.spec.name} on {model} is unknown."
                raise UserError(
                    fault, "Use a method of `ttabench profile --analytic --methods all`."
                )
            queries, episodes = documents * recipe.questions, recipe.episodes(documents)
            step = episodes * (work.tokens + queries * work.query_positions)
            full_context_flops = (
                shape.forward_flops(work.tokens)
                if getattr(resolved.settings_object, "full_context", False)
                else 0
            )
            whole = (
                (3 if recomputes else 2)
                * episodes
                * (method_cost.adapt_flops + queries * method_cost.ask_flops + full_context_flops)
            )
            tokens, flops = tokens + step * steps // lessons, flops + whole * steps // lessons
            trained, longest = method_cost.added_parameters, max(longest, step)
        assert shape is not None, "a known cost has a shape"
        # numbers per token that the backward pass needs
        activations_per_layer = 2 * sum(linear.parameters_per_rank for linear in shape.linears)
        activations_per_token = (
            shape.layers * shape.hidden + activations_per_layer
            if recomputes
            else shape.layers * activations_per_layer
        )
        data.append(
            {
                "method": resolved.spec.name,
                "trained_weights": trained,
                "steps": steps,
                "tokens": tokens,
                "flops": flops,
                "h100_hours": flops / H100_FLOPS_PER_SECOND / 3600,
                "memory_bytes": width * (shape.parameters + longest * activations_per_token)
                + BYTES_PER_TRAINED_WEIGHT * trained,
            }
        )
    formatters: list[Callable[[Any], str]] = [
        str,
        *4 * [amounts.format_count],
        "{:.2g}".format,
        amounts.format_bytes,
    ]
    caption = (
        f"For any task: chunks of {TRAINING_WORKLOAD.tokens} tokens, "
        f"prompts of {TRAINING_WORKLOAD.prompt_tokens}, answers of {TRAINING_WORKLOAD.new_tokens}. "
        f"{'Two forward passes' if recomputes else 'One forward pass'} and one backward pass; "
        f"hours at {H100_FLOPS_PER_SECOND / 1e12:.0f} T operations/s. memory: weights; float32 "
        "trained weights, gradients and Adam moments; activations of the base model's linear maps "
        "for all tokens of the longest step. Norms, scores, logits and a method's networks are not "
        "included."
    )
    return Table(
        title="training on paper",
        caption=caption,
        data=tuple(data),
        columns=("method", "#trained", "#steps", "#tokens", "#FLOPs", "#H100 hours", "#memory"),
        rows=tuple(
            tuple(show(value) for show, value in zip(formatters, row.values(), strict=True))
            for row in data
        ),
    )


def break_even(
    adapt: float, ask: float, full_adapt: float, full_ask: float
) -> tuple[int | None, str]:
    """Find the number of queries from or until which a method costs no more than full context.

    Full context reads once and keeps its cache. Costs are operations or seconds. 0 queries come
    with "always", `None` with "never", other numbers with "from" or "until".
    """
    more, saved = adapt - full_adapt, full_ask - ask
    if more <= 0 and saved >= 0:
        return 0, "always"
    if saved > 0:
        return -int(-more // saved), "from"
    until = int(-more // -saved) if saved else 0
    return (until, "until") if until > 0 else (None, "never")


def format_rows(model: str, rows: Sequence[Mapping[str, Json]]) -> Table:
    """Build the table of rows, one per method and length."""
    lines = tuple(
        (
            row["method"],
            format_tokens(row["context_tokens"]),
            *(formatter(row[name]) for name, formatter in COLUMNS.values()),
            "-"
            if row["method"] == "icl"
            else str(BREAK_EVEN_TEXT.get(row["cheaper"], row["cheaper"])).format(**row),
            {True: "yes", False: "no", None: "-"}[row["fits"]],
        )
        for row in rows
    )
    first = rows[0]
    bits = f" with states of {first['bits']} bits" if first["bits"] else ""
    caption = (
        f"Computed from published shapes in {first['dtype']}{bits}, with {first['prompt_tokens']} prompt "
        f"tokens and {first['new_tokens']} answer tokens per query. added: parameters trained "
        "beforehand. floats: numbers in the state. "
        "KV: peak bytes of keys and values. total: reading and one query. "
        "'from n': fewer operations than full context from n queries on, reading included. "
        "positions: yes if the base model has enough; device memory is not checked."
    )
    return Table(
        title=f"cost on paper of {model} "
        f"({amounts.format_count(first['base_parameters'])} parameters)",
        columns=("method", "#prefill", *COLUMNS, "cheaper than icl", "positions"),
        rows=lines,
        data=tuple(rows),
        caption=caption,
        names=("method", "cheaper than icl", "positions"),
        spare=OPTIONAL_COLUMNS,
    )
