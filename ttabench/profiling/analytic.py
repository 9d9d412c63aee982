"""What every method costs on paper, over context lengths: `ttabench profile --analytic`. No weights.

    table("llama-2-7b", ["icl", "mac"], [1024, 65536], AnalyticLoad())     one row a method and length, plain columns

A row counts for one reader, in the number format given. `break_even_queries` is where the method and full context
(`icl` with its defaults) have cost as many operations, reading included; `cheaper` says on which side the method is:
"always", "from" so many queries on, "until" so many, or "never". `fits`: whether the base model has the positions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from ttabench import cost
from ttabench.core.architectures import names
from ttabench.core.errors import UnknownName, UserError
from ttabench.core.types import Json
from ttabench.cost import Cost, Formula, Shape, Workload
from ttabench.methods import registry
from ttabench.methods.settings import preset_for, settings_of, typed_values
from ttabench.methods.spec import MethodSpec
from ttabench.profiling.break_even import break_even

Row: TypeAlias = dict[str, Json]


@dataclass(frozen=True, kw_only=True)
class AnalyticLoad:
    """The tokens that are read and asked.

    Raises:
        UserError: a size below 1.
        UnknownName: a number format that is none.
    """

    prompt_tokens: int = 32
    new_tokens: int = 16
    """Tokens of an answer, EOS included."""
    piece_tokens: int = 256
    """Tokens of a piece of context, its joiner included; the last piece has what is left."""
    dtype: str = "auto"
    """Of the base model: float32, bfloat16, float16; auto is float32."""
    queries: int = 1
    """Queries in `total_flops`."""

    def __post_init__(self) -> None:
        for name in ("prompt_tokens", "new_tokens", "piece_tokens", "queries"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} is {getattr(self, name)}.", "Give 1 or more.")
        if self.dtype not in cost.BYTES:
            raise UnknownName("dtype", self.dtype, list(cost.BYTES))

    def workload(self, context_tokens: int) -> Workload:
        """Pieces of a context of that length, BOS not counted."""
        whole, rest = divmod(context_tokens, self.piece_tokens)
        return Workload(
            pieces=(self.piece_tokens,) * whole + ((rest,) if rest else ()),
            prompt_tokens=self.prompt_tokens,
            new_tokens=self.new_tokens,
            value_bytes=cost.BYTES[self.dtype],
        )


def table(
    model: str,
    methods: Sequence[str],
    lengths: Sequence[int],
    load: AnalyticLoad,
    settings: Mapping[str, Mapping[str, Json]] | None = None,
    presets: Mapping[str, str] | None = None,
) -> list[Row]:
    """The analytic cost of methods over context lengths, one row each, lengths of a method in a row.

    Args:
        model: a name of `architectures`, "nano", or a folder with a transformers config.json.
        methods: names of `registry.formulas`; `implemented` says whether ttabench can run them.
        lengths: tokens of context, BOS not counted.
        load: everything else about what is read and asked.
        settings: by method, what differs from its preset, values or texts.
        presets: by method, instead of the one of the model's name.

    Raises:
        UnknownName: a model, method, preset or setting that is not known; the message names the closest one.
        UserError: a length below 1, or a setting that is no such value or names something unknown.
    """
    shape = cost.shape_of(model)
    if shape is None:
        raise UnknownName("architecture", model, names())
    changes, chosen = settings or {}, presets or {}
    known = {name: registry.formula(name) for name in (*methods, *changes)}
    for length in lengths:
        if length < 1:
            raise UserError(f"A context of {length} tokens is none.", "Give 1 or more.")
    rows = []
    for name in dict.fromkeys(methods):
        typed = typed_values(known[name], changes.get(name, {}))
        preset = preset_for(known[name], chosen.get(name, ""), model)
        given = settings_of(known[name], typed, preset)
        for length in lengths:
            work = load.workload(length)
            ahead = {"model": model, "method": name, "implemented": isinstance(known[name], MethodSpec)}
            spent = _cost(known[name], given, shape, work)
            rows.append({**ahead, "context_tokens": length, **_row(spent, shape, work, load)})
    return rows


def _cost(formula: Formula, settings: Any, shape: Shape, work: Workload) -> Cost:
    assert formula.cost is not None, "registry.formulas holds those with a cost"
    cost = formula.cost(settings, shape, work)
    if cost is None:
        names = [key for key in ("amortiser", "input_encoder") if hasattr(settings, key)]
        assignments = ", ".join(f"{key}={getattr(settings, key)}" for key in names)
        raise UserError(
            f"The cost of {formula.name} with {assignments} is not known.",
            "Use t5-base, or scratch:WIDTH,LAYERS,HEADS,FF.",
        )
    return cost


def _row(spent: Cost, shape: Shape, work: Workload, load: AnalyticLoad) -> Row:
    full = registry.cost_of("icl", {}, shape, work)
    assert full is not None, "full context has a cost"
    queries, cheaper = break_even(spent.adapt_flops, spent.ask_flops, full.adapt_flops, full.ask_flops)
    return {
        "pieces": len(work.pieces),
        "prompt_tokens": load.prompt_tokens,
        "new_tokens": load.new_tokens,
        "dtype": "float32" if load.dtype == "auto" else load.dtype,
        "base_parameters": spent.parameters,
        "added_parameters": spent.added_parameters,
        "state_floats": spent.state_floats,
        "state_bytes": spent.state_bytes,
        "adapt_peak_kv_bytes": shape.cache_bytes(spent.adapt_slots, work.value_bytes),
        "ask_peak_kv_bytes": shape.cache_bytes(spent.ask_slots, work.value_bytes),
        "adapt_flops": spent.adapt_flops,
        "ask_flops": spent.ask_flops,
        "queries": load.queries,
        "total_flops": spent.adapt_flops + load.queries * spent.ask_flops,
        "break_even_queries": queries,
        "cheaper": cheaper,
        "positions": spent.positions,
        "fits": None if shape.positions is None else spent.positions <= shape.positions,
    }
