"""Settings that mean nothing are refused when they are made, by the name of the setting."""

from __future__ import annotations

from typing import Any

import pytest

from ttabench.methods.registry import find

REFUSED: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "icl": [("max_tokens", {"max_tokens": 0})],
    "rag": [("retriever", {"retriever": ""}), ("question_retriever", {"question_retriever": "dense"}),
            ("top", {"top": 0}), ("b ", {"b": 1.5})],
    "lora": [("rank", {"rank": 0})],
    "templora": [("dropout", {"dropout": 1.0}), ("epochs", {"epochs": -1}), ("lr", {"lr": -1.0})],
    "window": [("n_sink", {"n_sink": -1}), ("positions", {"mode": "stride", "positions": "cache"}),
               ("positions", {"mode": "postprefill", "positions": "cache"}), ("recent", {"recent": 0.5})],
    "snapkv": [("kernel", {"kernel": 4}), ("budget", {"budget": 16, "window": 16})],
    "h2o": [("heavy", {"heavy": 0})],
    "kvzip": [("budget", {"budget": 0.0}), ("positions", {"positions": "cache"})],
    "attention_matching": [("ridge", {"ridge": 0.0}), ("uniform", {"keys": "uniform", "uniform": True})],
    "ccm": [("comp_tokens", {"comp_tokens": 0}), ("update", {"ema": 0.5}), ("ema", {"ema": 0.0, "update": "merge"}),
            ("window", {"compress": False}), ("window", {"n_sink": 2}), ("window", {"window": 72}),
            ("comp_tokens", {"window": 160, "comp_tokens": 3}), ("window", {"window": 160, "recursive": False})],
    "compressive": [("ratio", {"ratio": 0}), ("slots", {"slots": 4})],
    "mac": [("hierarchy", {"hierarchy": 1}), ("hierarchy_aware", {"hierarchy_aware": 1.5}),
            ("backprop_dropout", {"backprop_dropout": 1.0}), ("num_virtual_tokens", {"num_virtual_tokens": 0}),
            ("amortiser_init", {"design": "encoder", "amortiser_init": "folder"})],
    "streamadapter": [("window", {"window": 16, "stride": 16}), ("stride", {"window": 300, "stride": 200}),
                      ("temperature", {"temperature": 0.0}), ("segments", {"form": "segments"})],
    "generative_adapter": [("rank", {"rank": 2000}), ("inner", {"inner": 0}),
                           ("finalize", {"norm": "frobenius", "finalize": True})],
    "distill": [("slots", {"slots": 1}), ("clip", {"clip": 0.0}), ("template", {"template": "Ask."}),
                ("questions", {"temperature": 0.0})],
    "cpt": [("epochs", {"epochs": 0}), ("batch", {"batch": 0})],
}  # fmt: skip


@pytest.mark.parametrize("method", REFUSED)
def test_a_setting_that_means_nothing_is_named(method: str) -> None:
    for name, given in REFUSED[method]:
        with pytest.raises(ValueError, match=name):
            find(method).Settings(**given)
