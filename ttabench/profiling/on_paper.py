"""`ttabench profile --analytic`: the table of `analytic` as people see it. Nothing is loaded or measured.

show(Paper(methods="icl,snapkv", model="llama-2-7b", prefill="4k,64k"), form="table")
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

from ttabench.core import amounts
from ttabench.core.errors import UnknownName
from ttabench.core.sizes import lengths, short
from ttabench.core.typed import assignments
from ttabench.core.types import Json
from ttabench.cost import Formula
from ttabench.methods import registry
from ttabench.profiling.analytic import AnalyticLoad, table
from ttabench.profiling.break_even import break_even_words
from ttabench.profiling.method_names import STREAM, method_names
from ttabench.terminal import render


@dataclass(frozen=True, kw_only=True)
class Paper:
    """The options as typed."""

    methods: str = ""
    """Names, separated by commas; empty for every method with a formula."""
    model: str = "nano"
    prefill: str = "1k,4k"
    preset: str = ""
    settings: tuple[str, ...] = ()
    """key=value for every method that has the key, or method.key=value."""

    def known(self) -> dict[str, Formula]:
        """The methods, by name.

        Raises:
            UserError: one that is not known, whose cost is not, or whose name is missing beside a comma.
        """
        return {name: registry.formula(name) for name in method_names(self.methods, registry.formulas())}

    def presets(self) -> dict[str, str]:
        """Presets by method: what was typed, where a method has it; else that of streams.

        Raises:
            UnknownName: a preset that none of the methods has.
        """
        has = {name: formula.presets for name, formula in self.known().items()}
        wanted = self.preset or STREAM
        presets_of = {name: wanted for name, presets in has.items() if wanted in presets}
        if self.preset and not presets_of:
            raise UnknownName("preset", self.preset, sorted({preset for presets in has.values() for preset in presets}))
        return presets_of

    def changes(self) -> dict[str, dict[str, Json]]:
        """Settings by method.

        Raises:
            UnknownName: a setting that none of the methods has.
        """
        keys = {name: {field.name for field in fields(known.Settings)} for name, known in self.known().items()}
        changes_by_method: dict[str, dict[str, Json]] = {name: {} for name in keys}
        for key, value in assignments(self.settings).items():
            method, dot, inner = key.partition(".")
            if dot and method not in keys:
                raise UnknownName("method in --set", method, list(keys))
            takers = [method] if dot else [name for name, own in keys.items() if key in own]
            if not takers:
                raise UnknownName("setting of these methods", key, sorted(set().union(*keys.values())))
            for name in takers:
                changes_by_method[name][inner if dot else key] = value
        return changes_by_method


def show(paper: Paper, load: AnalyticLoad, form: str) -> None:
    """Print the table.

    Raises:
        UnknownName: a method, model, preset, setting or format that is not known.
    """
    known = render.known_format(form)
    rows = table(paper.model, list(paper.known()), lengths(paper.prefill), load, paper.changes(), paper.presets())
    render.show([as_table(paper.model, rows)], known)


HEADS = (
    "method", "#prefill", "#added", "#floats", "#state", "#KV adapting", "#KV asking", "#adapt FLOPs", "#query FLOPs",
    "#total FLOPs", "cheaper than icl", "fits",
)  # fmt: skip

SPARE = ("#floats", "#added", "#KV adapting", "#KV asking", "fits", "#query FLOPs", "#adapt FLOPs")
"""Columns that a narrow screen leaves out, in this order."""


def as_table(model: str, rows: Sequence[Mapping[str, Json]]) -> render.Table:
    """A line a method and length."""
    lines = tuple(
        (
            f"{row['method']}{'' if row['implemented'] else ' *'}",
            short(row["context_tokens"]),
            *(amounts.count(row[name]) for name in ("added_parameters", "state_floats")),
            *(amounts.size(row[name]) for name in ("state_bytes", "adapt_peak_kv_bytes", "ask_peak_kv_bytes")),
            *(amounts.count(row[name]) for name in ("adapt_flops", "ask_flops", "total_flops")),
            _cheaper(row),
            {True: "yes", False: "no", None: "-"}[row["fits"]],
        )
        for row in rows
    )
    first = rows[0]
    captions = [
        f"Counted from published shapes, {first['dtype']}, {first['prompt_tokens']} tokens asked and "
        f"{first['new_tokens']} written a query. added: parameters trained beforehand. floats: numbers in the state. "
        "KV: most bytes of keys and values alive. total: reading and the queries asked for "
        f"({first['queries']:,}). 'from n': costs fewer operations than full context from n queries on, reading "
        "included. fits: whether the base has the positions."
    ]
    if not all(row["implemented"] for row in rows):
        captions.append("* a formula only: ttabench does not run it.")
    title = f"cost on paper of {model} ({amounts.count(first['base_parameters'])} parameters)"
    return render.Table(
        title=title, columns=HEADS, rows=lines, data=tuple(rows), caption=" ".join(captions), fold=True,
        names=("method", "cheaper than icl", "fits"), spare=SPARE,
    )  # fmt: skip


def _cheaper(row: Mapping[str, Json]) -> str:
    if row["method"] == "icl":
        return "-"
    return break_even_words(row["break_even_queries"], row["cheaper"])
