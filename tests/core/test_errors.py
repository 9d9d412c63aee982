"""What a mistyped name is answered with."""

from __future__ import annotations

import pytest

from ttabench.core.errors import UnknownName, closest_name

METHODS = [
    "h2o",
    "icl",
    "kvpress:...",
    "lora",
    "mac",
    "none",
    "snapkv",
    "streamadapter",
    "templora",
    "window",
]
TASKS = ["arc_easy", "metaicl", "pg19", "squad_seq", "streamingqa"]


@pytest.mark.parametrize(
    ("typed", "known", "meant"),
    [
        ("snapvk", METHODS, "snapkv"),
        ("hsnapkv", METHODS, "snapkv"),
        ("snpavk", METHODS, "snapkv"),
        ("icll", METHODS, "icl"),
        ("h2", METHODS, "h2o"),
        ("mca", METHODS, "mac"),
        ("SnapKV", METHODS, "snapkv"),
        ("stream", METHODS, "streamadapter"),
        ("streamingaq", TASKS, "streamingqa"),
        ("arc-easy", TASKS, "arc_easy"),
        ("squad", TASKS, "squad_seq"),
        ("kvpres:LastPress", METHODS, "kvpress:..."),
    ],
)
def test_a_name_that_was_mistyped_is_suggested(typed: str, known: list[str], meant: str) -> None:
    assert closest_name(typed, known) == meant
    assert f"Did you mean {meant!r}?" in str(UnknownName("name", typed, known))
