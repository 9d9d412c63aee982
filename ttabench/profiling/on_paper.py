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
from ttabench.core.amounts import short
from ttabench.core.architectures import names
from ttabench.core.errors import UnknownName, UserError
from ttabench.core.types import Json
from ttabench.cost import Cost, Shape, Workload
from ttabench.methods import registry
from ttabench.methods.settings import preset_for, settings_of, typed_values
from ttabench.methods.spec import MethodSpec
from ttabench.profiling.job import Load, method_names, shared_out
from ttabench.run.resolve import resolve_method
from ttabench.terminal.table import Table
from ttabench.training.stages import TrainPlan

Row: TypeAlias = dict[str, Json]
RATE = 400e12
"""Operations a second that an H100 reaches in bfloat16 (40 per cent of 989 T)."""
OPTIMISED = 16
"""Bytes of a weight that is trained: in float32 itself, its gradient and Adam's two moments."""
TAUGHT = Workload(pieces=(256,), prompt_tokens=32, new_tokens=16)
"""What is read, asked and answered in training."""
COLUMNS = {
    "#added": ("added_parameters", amounts.count), "#floats": ("state_floats", amounts.count),
    "#state": ("state_bytes", amounts.size), "#KV adapting": ("adapt_peak_kv_bytes", amounts.size),
    "#KV asking": ("ask_peak_kv_bytes", amounts.size), "#adapt FLOPs": ("adapt_flops", amounts.count),
    "#query FLOPs": ("ask_flops", amounts.count), "#total FLOPs": ("total_flops", amounts.count),
}  # fmt: skip
COUNTED = {"from": "from {break_even_queries:,}", "until": "until {break_even_queries:,}"}
"""How a number of queries stands in the table; `always` and `never` have none."""
SPARE = ("#floats", "#added", "#KV adapting", "#KV asking", "positions", "#query FLOPs", "#adapt FLOPs")
"""Columns that a narrow screen leaves out, in this order."""


def typed_table(load: Load, lengths: Sequence[int], *, methods: str, preset: str, settings: Sequence[str], model: str,
                dtype: str) -> Table:  # fmt: skip
    """The table of methods (all that have a formula where none is named), as they are typed."""
    every = registry.formulas()
    chosen = {name: registry.formula(name) for name in method_names(methods, every, every)}
    presets, shared = shared_out(chosen, preset, settings)
    return as_table(model, table(model, list(chosen), lengths, load, shared, presets, dtype=dtype))


def table(
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
        raise UnknownName("architecture", model, names())
    if dtype not in cost.BYTES:
        raise UnknownName("dtype", dtype, list(cost.BYTES))
    rows = []
    for name in dict.fromkeys(methods):
        formula = registry.formula(name)
        preset = preset_for(formula, (presets or {}).get(name, ""), model)
        given = settings_of(formula, typed_values(formula, (settings or {}).get(name, {})), preset)
        for length in lengths:
            whole, rest = divmod(length, load.piece_tokens)
            work = Workload(
                pieces=(load.piece_tokens,) * whole + ((rest,) if rest else ()), prompt_tokens=load.prompt_tokens,
                new_tokens=load.generate, value_bytes=cost.BYTES[dtype],
            )  # fmt: skip
            assert formula.cost is not None, "registry.formulas holds those with a cost"
            if (spent := formula.cost(given, shape, work)) is None:
                raise UserError(f"The cost of {name} with these settings is not known.", "Use those of its presets.")
            rows.append({
                "model": model, "method": name, "implemented": isinstance(formula, MethodSpec),
                "context_tokens": length, **_row(spent, shape, work),
                "dtype": "float32" if dtype == "auto" else dtype,
            })  # fmt: skip
    return rows


def _row(spent: Cost, shape: Shape, work: Workload) -> Row:
    """The cost of reading, and of a query."""
    full = registry.cost_of("icl", {}, shape, work)
    assert full is not None, "full context has a cost"
    queries, cheaper = break_even(spent.adapt_flops, spent.ask_flops, full.adapt_flops, full.ask_flops)
    return {
        "pieces": len(work.pieces),
        "prompt_tokens": work.prompt_tokens,
        "new_tokens": work.new_tokens,
        "base_parameters": spent.parameters,
        "added_parameters": spent.added_parameters,
        "state_floats": spent.state_floats,
        "state_bytes": spent.state_bytes,
        "adapt_peak_kv_bytes": shape.cache_bytes(spent.adapt_slots, work.value_bytes),
        "ask_peak_kv_bytes": shape.cache_bytes(spent.ask_slots, work.value_bytes),
        "adapt_flops": spent.adapt_flops,
        "ask_flops": spent.ask_flops,
        "total_flops": spent.adapt_flops + spent.ask_flops,
        "break_even_queries": queries,
        "cheaper": cheaper,
        "positions": spent.positions,
        "fits": None if shape.positions is None else spent.positions <= shape.positions,
    }


def training_table(plan: TrainPlan, dtype: str) -> Table:
    """The tokens, operations, hours and memory of a training, a line a stage."""
    width, again = cost.BYTES[dtype], plan.options.recompute
    data: list[Row] = []
    for stage in plan.stages:
        recipe, resolved, shape = stage.recipe, resolve_method(stage.request), cost.shape_of(stage.request.model)
        counted, steps, lessons = resolved.spec.cost, recipe.steps, len(recipe.documents)
        trained = tokens = flops = longest = 0
        for documents in recipe.documents:
            work = replace(TAUGHT, pieces=TAUGHT.pieces * documents, value_bytes=width)
            if not (counted and shape and (spent := counted(resolved.settings_object, shape, work))):
                fault = f"The cost of {resolved.spec.name} on {stage.request.model} with these settings is not known."
                raise UserError(fault, "Use a method of `ttabench profile --analytic --methods all`.")
            asks, episodes = documents * recipe.questions, recipe.episodes(documents)
            step = episodes * (work.tokens + asks * work.asked)
            behind = shape.forward(work.tokens) if getattr(resolved.settings_object, "full_context", False) else 0
            whole = (3 if again else 2) * episodes * (spent.adapt_flops + asks * spent.ask_flops + behind)
            tokens, flops = tokens + step * steps // lessons, flops + whole * steps // lessons
            trained, longest = spent.added_parameters, max(longest, step)
        assert shape is not None, "a cost is of a shape"
        layer = 2 * sum(linear.ends for linear in shape.linears)  # numbers of a token that the way back needs
        kept = shape.layers * shape.hidden + layer if again else shape.layers * layer
        data.append({
            "method": resolved.spec.name, "trained_weights": trained, "steps": steps, "tokens": tokens,
            "flops": flops, "h100_hours": flops / RATE / 3600,
            "memory_bytes": width * (shape.parameters + longest * kept) + OPTIMISED * trained,
        })  # fmt: skip
    shown: list[Callable[[Any], str]] = [str, *4 * [amounts.count], "{:.2g}".format, amounts.size]
    caption = (
        f"Whatever the task, pieces of {TAUGHT.tokens} tokens, {TAUGHT.prompt_tokens} asked and {TAUGHT.new_tokens} "
        f"answered; forward {'twice' if again else 'once'}, back once; hours at {RATE / 1e12:.0f} T operations/s. "
        "memory: weights, in float32 those that are trained, their gradient and Adam's moments, and what the base's "
        "linear maps keep of all tokens of the longest step; norms, scores, logits and a method's networks come on top."
    )
    return Table(
        title="training on paper", caption=caption, data=tuple(data),
        columns=("method", "#trained", "#steps", "#tokens", "#FLOPs", "#H100 hours", "#memory"),
        rows=tuple(tuple(show(value) for show, value in zip(shown, row.values(), strict=True)) for row in data),
    )  # fmt: skip


def break_even(adapt: float, ask: float, full_adapt: float, full_ask: float) -> tuple[int | None, str]:
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


def as_table(model: str, rows: Sequence[Mapping[str, Json]]) -> Table:
    """A line a method and length."""
    lines = tuple(
        (
            f"{row['method']}{'' if row['implemented'] else ' *'}",
            short(row["context_tokens"]),
            *(shown(row[name]) for name, shown in COLUMNS.values()),
            "-" if row["method"] == "icl" else str(COUNTED.get(row["cheaper"], row["cheaper"])).format(**row),
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
        title=f"cost on paper of {model} ({amounts.count(first['base_parameters'])} parameters)",
        columns=("method", "#prefill", *COLUMNS, "cheaper than icl", "positions"), rows=lines, data=tuple(rows),
        caption=caption, names=("method", "cheaper than icl", "positions"), spare=SPARE,
    )  # fmt: skip
