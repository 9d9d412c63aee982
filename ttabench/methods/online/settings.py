"""Settings of the methods that finetune online, and those of the papers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from ttabench.core.bounds import at_least
from ttabench.methods.parts.lora_shape import DescentSettings
from ttabench.methods.recipe import Recipe


@dataclass(frozen=True, kw_only=True)
class OnlineSettings(DescentSettings):
    """Settings of every method that finetunes online; the defaults are those of CaMeLS' released code."""

    normaliser: Literal["padded", "tokens", "weights"] = "padded"
    """What the weighted sum of a document's losses is divided by. padded: `pad_len` - 1, as where every text is padded
    to that length; tokens: how many tokens have a loss; weights: the sum of their weights."""
    pad_len: int = 1024
    """Tokens that documents are thought to be padded to."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(2, pad_len=self.pad_len)


@dataclass(frozen=True, kw_only=True)
class UniformSettings(OnlineSettings):
    """Settings of `uniform`."""


@dataclass(frozen=True, kw_only=True)
class SalientSettings(OnlineSettings):
    """Settings of `salient_spans`."""

    spans: Literal["spacy", "rule"] = "spacy"
    """What finds named entities. spacy: its model, without times, percentages, amounts, quantities and numbers; rule:
    runs of capitalised words (a single one that begins a sentence does not count) and years."""
    spacy_model: str = "en_core_web_sm"
    """Of spaCy, with `spans=spacy`."""


@dataclass(frozen=True, kw_only=True)
class CamelsSettings(OnlineSettings):
    """Settings of `camels`; the defaults are those of the released code."""

    proxy: str = ""
    """The small LM whose decoder weighs tokens, of the same tokenizer; empty for the base itself. With a proxy named, a
    checkpoint serves any base of its tokenizer."""
    inner_lr: float = 5e-4
    """Of the steps of gradient descent that are unrolled in training."""
    kl_weight: float = 0.1
    """Of how far the base moves on a text of no document, in training."""
    kl_tokens: int = 64
    """Tokens of those texts, which the base model itself writes."""
    reset_every: int = 24
    """Documents after which training begins at the base's own weights again."""
    first_order: bool = False
    """Leave out, in training, how one step changes the gradient of the next: less memory, another gradient."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(2, kl_tokens=self.kl_tokens)
        at_least(1, reset_every=self.reset_every)
        at_least(0, inner_lr=self.inner_lr, kl_weight=self.kl_weight)


@dataclass(frozen=True, kw_only=True)
class CptSettings(DescentSettings):
    """Settings of `cpt`; the defaults are those of the Generative Adapter's paper for Mistral-7B."""

    lr: float = 1e-5
    """Learning rate: chosen on validation data."""
    epochs: int = 8
    """Passes over all documents that are read between two questions."""
    batch: int = 16
    """Documents of one gradient step."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(1, epochs=self.epochs, batch=self.batch)


UNIFORM_PRESETS: Mapping[str, UniformSettings] = {
    # The best of 1e-2, 3e-3, 1e-3, 3e-4 and 1e-4 by nats of the answer, validation split of the twin of streamingqa.
    "nano": UniformSettings(lr=3e-4),
    # The rate of MAC's baselines (arXiv 2403.04317, appendix), which cut documents at 512 tokens.
    "mac": UniformSettings(lr=6.5e-6, max_tokens=512),
}
SALIENT_PRESETS: Mapping[str, SalientSettings] = {
    # Names and places of the miniature world are capitalised, and spaCy knows none of them. Its best rate, too.
    "nano": SalientSettings(spans="rule"),
    "mac": SalientSettings(lr=6.5e-6, max_tokens=512),
}
CAMELS_PRESETS: Mapping[str, CamelsSettings] = {
    # Steps of plain descent that are large enough to write a fact; in use the best of Adam's 3e-4, 1e-3 and 3e-3.
    "nano": CamelsSettings(normaliser="tokens", inner_lr=0.1, lr=1e-3),
    "mac": CamelsSettings(lr=2.5e-5, max_tokens=512),
}
CPT_PRESETS: Mapping[str, CptSettings] = {
    "nano": CptSettings(lr=1e-3),
    "mistral-7b-instruct": CptSettings(),
    "llama-2-7b-chat": CptSettings(lr=3e-5),
}
RECIPES: Mapping[str, Recipe] = {
    # Validation was lowest after 80 steps; with as many more it was back where it began.
    "nano": Recipe(documents=(6,), batch_documents=24, steps=80, lr=1e-3),
    "mac": Recipe(documents=(6,), batch_documents=24, steps=1000, lr=1e-5),
}
