"""KeyDiff: spec."""

from __future__ import annotations

from ttabench.methods.eviction.spec import BudgetSettings, eviction_spec

KEYDIFF = eviction_spec(
    "keydiff",
    "slots with keys unlike the mean key",
    import_path="ttabench.methods.eviction.keydiff.method:KeyDiff",
    presets={"stream": BudgetSettings(budget=512, chunk=512, positions="auto")},
    paper="2504.15364",
)
