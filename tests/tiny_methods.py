"""Every registered method with settings small enough for the tiny models, and a stream of texts to read."""

from __future__ import annotations

from typing import Any

import torch

from ttabench.core.registry import METHODS, resolve
from ttabench.core.types import Ask, Episode, Observe
from ttabench.lm.model import LM
from ttabench.methods.base import BaseMethod
from ttabench.methods.eviction.h2o import H2OSettings
from ttabench.methods.eviction.snapkv import SnapKVSettings
from ttabench.methods.eviction.window import WindowSettings
from ttabench.methods.lora.method import LoraSettings
from ttabench.methods.mac.method import Mac
from ttabench.methods.mac.settings import MacSettings
from ttabench.methods.streamadapter.settings import StreamAdapterSettings
from ttabench.methods.templora.method import TempLoraSettings

TINY_MAC = MacSettings(
    amortiser="scratch:16,1,2,32",
    input_encoder="scratch:16,1,2,32",
    num_virtual_tokens=4,
    blocks=2,
    heads=2,
    head_dim=8,
    expansion_hidden=16,
    bank_dtype="float32",
)
TINY: dict[str, Any] = {
    "mac": TINY_MAC,
    "window": WindowSettings(n_sink=2, recent=10),
    "snapkv": SnapKVSettings(budget=16, window=4),
    "h2o": H2OSettings(heavy=8, recent=8),
    "lora": LoraSettings(rank=2),
    # a larger eps: Adam would blow float noise in gradients near zero up to the rate
    "templora": TempLoraSettings(rank=2, prefix=8, lr=1e-2, schedule="constant", eps=1e-3),
    "streamadapter": StreamAdapterSettings(queries=4, down=4, chunk=4, window=16, stride=8),
}
"""Settings by method; the others run with their defaults."""

TEXTS = (
    "Ada Voss lives in Port Ansel.",
    "Bo Lind collects blue stamps.",
    "Cy Marr sails to Tern Island.",
    "Di Okoro repairs old radios..",
)
PROMPTS = ("Where does Ada live?", "What does Bo collect?", "Who sails?")


def tiny_method(name: str, lm: LM) -> BaseMethod[Any]:
    cls = resolve(name)
    method = cls(lm, TINY[name] if name in TINY else cls.Settings())
    assert isinstance(method, BaseMethod)
    if name == "streamadapter":
        teach(method)
    return method


def teach(method: BaseMethod[Any]) -> None:
    """Give StreamAdapter deltas and gates that are not zero, as before training they are."""
    with torch.no_grad(), torch.random.fork_rng():
        torch.manual_seed(1)
        for name, parameter in method.modules().named_parameters():
            if "outputs" in name or "gate" in name:
                parameter.normal_(std=0.03)


def tiny_mac(lm: LM, **settings: Any) -> Mac:
    from dataclasses import replace

    return Mac(lm, replace(TINY_MAC, **settings))


def trainable() -> list[str]:
    return [name for name in METHODS if resolve(name).trainable]


def observes(*texts: str) -> list[Observe]:
    return [Observe(text=text, key=f"d{index}") for index, text in enumerate(texts)]


def asks(*prompts: str) -> list[Ask]:
    return [Ask(prompt=prompt, key=prompt, answers=("Port Ansel",), max_new_tokens=4) for prompt in prompts]


def episode(key: str = "e", documents: int = 3) -> Episode:
    """Documents that say where somebody lives, then a question about each."""
    people = [f"{key}{index}" for index in range(documents)]
    read = [Observe(text=f"{who} lives in {who}ville.", key=who) for who in people]
    asked = [Ask(prompt=f"Where does {who} live?", key=who, answers=(f"{who}ville",), about=who) for who in people]
    return Episode(key=key, steps=(*read, *asked))
