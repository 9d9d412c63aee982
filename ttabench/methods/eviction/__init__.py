"""Evicting methods: each keeps some slots of the context's KV cache.

A method is a folder: settings, spec and cost in `__init__.py`, without torch; its class in
`method.py`. Shared: `spec` (budgets, cost), `cache` (states), `evicting` (reading a text in parts),
`scoring` (methods that are a function `score`).
"""

from __future__ import annotations

from ttabench.methods.eviction.expected_attention import EXPECTED_ATTENTION
from ttabench.methods.eviction.h2o import H2O
from ttabench.methods.eviction.keydiff import KEYDIFF
from ttabench.methods.eviction.kvzap import KVZAP
from ttabench.methods.eviction.kvzip import ATTENTION_MATCHING, KVZIP
from ttabench.methods.eviction.random_slots import RANDOM_SLOTS
from ttabench.methods.eviction.snapkv import SNAPKV
from ttabench.methods.eviction.window import WINDOW

METHODS = (
    WINDOW,
    SNAPKV,
    H2O,
    KEYDIFF,
    EXPECTED_ATTENTION,
    RANDOM_SLOTS,
    KVZIP,
    KVZAP,
    ATTENTION_MATCHING,
)
