"""`ttabench profile --analytic`: the table of `ttabench.cost.table` as people see it. Nothing is loaded or measured.

show(Paper(methods="icl,snapkv", model="llama-2-7b", prefill="4k,64k"), form="table")
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from ttabench.core import registry, render
from ttabench.core.errors import UnknownName
from ttabench.core.sizes import lengths, short
from ttabench.core.types import Json
from ttabench.cost import FORMULAS
from ttabench.cost.table import AnalyticLoad, table
from ttabench.profiling.typed import STREAM, method_names


@dataclass(frozen=True, kw_only=True)
class Paper:
    """What was typed."""

    methods: str = ""
    """Names, separated by commas; empty for every method with a formula."""
    model: str = "nano"
    prefill: str = "1k,4k"
    preset: str = ""
    settings: tuple[str, ...] = ()
    """key=value for every method whose cost depends on the key, or method.key=value."""

    def names(self) -> list[str]:
        """The methods.

        Raises:
            UnknownName: one without a formula.
            UserError: one is missing beside a comma.
        """
        names = method_names(self.methods, FORMULAS)
        for name in names:
            if name not in FORMULAS:
                raise UnknownName("method with a formula of cost", name, list(FORMULAS))
        return names

    def changes(self) -> dict[str, dict[str, Json]]:
        """Settings by method.

        Raises:
            UnknownName: a preset that none of the methods has, or a setting that no cost depends on.
        """
        names = self.names()
        if self.preset and not any(self.preset in _presets(name) for name in names):
            known = {each for name in names for each in _presets(name)}
            raise UnknownName("preset", self.preset, sorted(known))
        found = {name: self._of_preset(name) for name in names}
        for key, value in registry.assignments(self.settings).items():
            method, dot, inner = key.partition(".")
            if dot and method not in names:
                raise UnknownName("method in --set", method, names)
            takers = [method] if dot else [name for name in names if key in FORMULAS[name].settings]
            if not takers:
                raise UnknownName("setting these costs depend on", key, _known(names))
            for name in takers:
                found[name][inner if dot else key] = value
        return found

    def _of_preset(self, name: str) -> dict[str, Json]:
        """All settings of the preset, so that none of the model's is left; nothing where the method has no such preset.
        That of streams is known without its method, which would import torch."""
        formula = FORMULAS[name]
        if not self.preset:
            return {**formula.settings, **formula.presets[STREAM]} if STREAM in formula.presets else {}
        chosen = _presets(name).get(self.preset)
        told = {} if chosen is None else asdict(chosen)
        return {key: value for key, value in told.items() if key in formula.settings}


def _known(names: Sequence[str]) -> list[str]:
    return sorted({key for name in names for key in FORMULAS[name].settings})


def _presets(name: str) -> Mapping[str, Json]:
    found: Mapping[str, Json] = registry.resolve(name).presets if name in registry.METHODS else {}
    return found


def show(paper: Paper, load: AnalyticLoad, form: str) -> None:
    """Print the table.

    Raises:
        UnknownName: a method, model, preset, setting or format that is not known.
    """
    known = render.known_format(form)
    rows = table(paper.model, paper.names(), lengths(paper.prefill), load, paper.changes())
    render.show([as_table(paper.model, rows)], known)


HEADS = (
    "method", "#prefill", "#added", "#floats", "#state", "#KV adapting", "#KV asking", "#adapt FLOPs", "#query FLOPs",
    "#total FLOPs", "cheaper than icl", "fits",
)  # fmt: skip


def as_table(model: str, rows: Sequence[Mapping[str, Json]]) -> render.Table:
    """A line a method and length."""
    lines = tuple(
        (
            f"{row['method']}{'' if row['implemented'] else ' *'}",
            short(row["context_tokens"]),
            *(render.count(row[name]) for name in ("added_parameters", "state_floats")),
            *(render.size(row[name]) for name in ("state_bytes", "adapt_peak_kv_bytes", "ask_peak_kv_bytes")),
            *(render.count(row[name]) for name in ("adapt_flops", "ask_flops", "total_flops")),
            _cheaper(row),
            {True: "yes", False: "no", None: "-"}[row["fits"]],
        )
        for row in rows
    )
    first = rows[0]
    told = [
        f"Counted from published shapes, {first['dtype']}, {first['prompt_tokens']} tokens asked and "
        f"{first['new_tokens']} written a query. added: parameters trained beforehand. floats: numbers in the state. "
        "KV: most bytes of keys and values alive. total: reading and the queries asked for "
        f"({first['queries']:,}). 'from n': costs fewer operations than full context from n queries on, reading "
        "included. fits: whether the base has the positions."
    ]
    if not all(row["implemented"] for row in rows):
        told.append("* a formula only: ttabench does not run it.")
    title = f"cost on paper of {model} ({render.count(first['base_parameters'])} parameters)"
    return render.Table(title=title, columns=HEADS, rows=lines, data=tuple(rows), caption=" ".join(told))


def _cheaper(row: Mapping[str, Json]) -> str:
    if row["method"] == "icl":
        return "-"
    return f"{row['cheaper']} {row['break_even_queries']:,}" if row["cheaper"] in ("from", "until") else row["cheaper"]
