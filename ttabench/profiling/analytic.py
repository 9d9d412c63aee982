"""What methods cost on paper, over context lengths (`ttabench profile --analytic`), and a training (`train --dry-run`).
Nothing is loaded.

A row counts for one reader, in the number format given. `break_even_queries` is where the method and full context
(`icl` with its defaults) have cost as many operations, reading included; `cheaper` says on which side the method is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from ttabench import cost
from ttabench.core import amounts
from ttabench.core.amounts import format_tokens
from ttabench.core.architectures import model_names
from ttabench.core.errors import UnknownName, UserError
from ttabench.core.types import Json
from ttabench.cost import Cost, Shape, Workload
from ttabench.methods import registry
from ttabench.methods.settings import build_settings, parse_values, resolve_preset
from ttabench.methods.spec import MethodSpec
from ttabench.profiling.job import Load, assign_settings, parse_method_names
from ttabench.run.resolve import resolve_method
from ttabench.terminal.table import Table
from ttabench.training.stages import TrainPlan

Row: TypeAlias = dict[str, Json]
H100_FLOPS_PER_SECOND = 400e12
"""Operations a second that an H100 reaches in bfloat16 (40 per cent of 989 T)."""
BYTES_PER_TRAINED_WEIGHT = 16
"""Bytes of a weight that is trained: in float32 itself, its gradient and Adam's two moments."""
TRAINING_WORKLOAD = Workload(chunk_tokens=(256,), prompt_tokens=32, new_tokens=16)
"""What is read, asked and answered in training."""
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
"""How a number of queries stands in the table; `always` and `never` have none."""
OPTIONAL_COLUMNS = (
    "#floats",
    "#added",
    "#KV adapting",
    "#KV asking",
    "positions",
    "#query FLOPs",
    "#adapt FLOPs",
)
"""Columns that a narrow screen leaves out, in this order."""


def analytic_table(
    load: Load,
    lengths: Sequence[int],
    *,
    methods: str,
    preset: str,
    settings: Sequence[str],
    model: str,
    dtype: str,
) -> Table:
    """The table of methods (all that have a formula where none is named), as they are typed."""
    all_formulas = registry.formulas()
    selected = {
        name: registry.find_formula(name)
        for name in parse_method_names(methods, all_formulas, all_formulas)
    }
    presets, shared = assign_settings(selected, preset, settings)
    return format_rows(
        model, analytic_rows(model, list(selected), lengths, load, shared, presets, dtype=dtype)
    )


def analytic_rows(
    model: str,
    methods: Sequence[str],
    lengths: Sequence[int],
    load: Load,
    settings: Mapping[str, Mapping[str, Json]] | None = None,
    presets: Mapping[str, str] | None = None,
    *,
    dtype: str = "auto",
) -> list[Row]:
    """The analytic cost of methods over context lengths, one row each, lengths of a method in a row.

    Args:
        model: a name of `architectures`, "nano", or a folder with a transformers config.json.
        methods: names of `registry.formulas`; `implemented` says whether ttabench can run them.
        lengths: tokens of context, BOS not counted; a piece counts its joiner, an answer its EOS.
        settings, presets: by method, what differs from its preset, and from the preset of the model's name.
    """
    shape = cost.shape_of(model)
    if shape is None:
        raise UnknownName("architecture", model, model_names())
    if dtype not in cost.DTYPE_BYTES:
        raise UnknownName("dtype", dtype, list(cost.DTYPE_BYTES))
    rows = []
    for name in dict.fromkeys(methods):
        formula = registry.find_formula(name)
        preset = resolve_preset(formula, (presets or {}).get(name, ""), model)
        method_settings = build_settings(
            formula, parse_values(formula, (settings or {}).get(name, {})), preset
        )
        for length in lengths:
            whole, rest = divmod(length, load.piece_tokens)
            work = Workload(
                chunk_tokens=(load.piece_tokens,) * whole + ((rest,) if rest else ()),
                prompt_tokens=load.prompt_tokens,
                new_tokens=load.generate,
                value_bytes=cost.DTYPE_BYTES[dtype],
            )
            assert formula.cost is not None, "registry.formulas holds those with a cost"
            if (method_cost := formula.cost(method_settings, shape, work)) is None:
                raise UserError(
                    f"The cost of {name} with these settings is not known.",
                    "Use those of its presets.",
                )
            rows.append(
                {
                    "model": model,
                    "method": name,
                    "implemented": isinstance(formula, MethodSpec),
                    "context_tokens": length,
                    **_row(method_cost, shape, work),
                    "dtype": "float32" if dtype == "auto" else dtype,
                }
            )
    return rows


def _row(method_cost: Cost, shape: Shape, work: Workload) -> Row:
    """The cost of reading, and of a query."""
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
    """The tokens, operations, hours and memory of a training, a line a stage."""
    width, recomputes = cost.DTYPE_BYTES[dtype], plan.options.recompute
    data: list[Row] = []
    for stage in plan.stages:
        recipe, resolved, shape = (
            stage.recipe,
            resolve_method(stage.request),
            cost.shape_of(stage.request.model),
        )
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
                and shape
                and (method_cost := cost_formula(resolved.settings_object, shape, work))
            ):
                fault = f"The cost of {resolved.spec.name} on {stage.request.model} with these settings is not known."
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
        assert shape is not None, "a cost is of a shape"
        activations_per_layer = 2 * sum(
            linear.parameters_per_rank for linear in shape.linears
        )  # numbers of a token that the way back needs
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
        f"Whatever the task, pieces of {TRAINING_WORKLOAD.tokens} tokens, {TRAINING_WORKLOAD.prompt_tokens} asked and {TRAINING_WORKLOAD.new_tokens} "
        f"answered; forward {'twice' if recomputes else 'once'}, back once; hours at {H100_FLOPS_PER_SECOND / 1e12:.0f} T operations/s. "
        "memory: weights, in float32 those that are trained, their gradient and Adam's moments, and what the base's "
        "linear maps keep of all tokens of the longest step; norms, scores, logits and a method's networks come on top."
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
    """From or until how many queries a method costs no more than full context, whose cache is read once and kept.

    Costs are operations or seconds. 0 queries go with "always", None with "never", else it is "from" or "until".
    """
    more, saved = adapt - full_adapt, full_ask - ask
    if more <= 0 and saved >= 0:
        return 0, "always"
    if saved > 0:
        return -int(-more // saved), "from"
    until = int(-more // -saved) if saved else 0
    return (until, "until") if until > 0 else (None, "never")


def format_rows(model: str, rows: Sequence[Mapping[str, Json]]) -> Table:
    """A line a method and length."""
    lines = tuple(
        (
            f"{row['method']}{'' if row['implemented'] else ' *'}",
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
    caption = (
        f"Counted from published shapes, {first['dtype']}, {first['prompt_tokens']} tokens asked and "
        f"{first['new_tokens']} written a query. added: parameters trained beforehand. floats: numbers in the state. "
        "KV: most bytes of keys and values alive. total: reading and one query. "
        "'from n': costs fewer operations than full context from n queries on, reading "
        "included. positions: whether the base model has enough; whether the memory of a device does is not told. "
        "*: a formula alone."
    )
    return Table(
        title=f"cost on paper of {model} ({amounts.format_count(first['base_parameters'])} parameters)",
        columns=("method", "#prefill", *COLUMNS, "cheaper than icl", "positions"),
        rows=lines,
        data=tuple(rows),
        caption=caption,
        names=("method", "cheaper than icl", "positions"),
        spare=OPTIONAL_COLUMNS,
    )
