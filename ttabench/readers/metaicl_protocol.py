"""MetaICL's two published protocols as settings: words, lengths, how an answer is taken, quirks of released code.

    protocol=ccm          "Input: {x} Output: {y}", options by mean log-likelihood, examples of at most 256 tokens, at
                          most 1,024 in all: the last demonstrations are left out beside a query where they do not fit
                          (arXiv 2312.03414, appendix D)
    protocol=genadapter   "Input: {x}\\nOutput: {y}" and blank lines, ten greedy tokens compared in lower case, contexts
                          of more than 4,096 tokens are not asked about (arXiv 2411.05877, Section 4.2)

Figures of the two cannot be compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from ttabench.readers.cards import Card
from ttabench.readers.protocol_options import ProtocolSettings, StepCounts, TokenCount, TokenLimit
from ttabench.readers.sources import Request


@dataclass(frozen=True)
class Layout:
    """Words around input and output, without the answer."""

    shown: str
    asked: str
    joiner: str


_LINES = "Input: {input}\nOutput:"
_INSTRUCTION = (
    "## Instruction: Based on the demonstration above, provide a short and concise answer, without any explanation or "
    "additional words.\n\n"
)
LAYOUTS = {
    "ccm": Layout("Input: {input} Output:", "Input: {input} Output:", " "),
    "genadapter": Layout(_LINES, _LINES, "\n\n"),
    "genadapter_instruction": Layout(_LINES, _INSTRUCTION + _LINES, "\n\n"),  # of Llama 2, Figure 7
}
STOPS = ("\n\n", "Input:")
"""Where the next demonstration would begin, in every layout: a base model goes on to write one."""
GENERATED = ("em_lower", "em", "em_prefix", "rougeL")
"""Metrics of answers that are written, accuracy first."""
PROTOCOLS: Mapping[str, Mapping[str, object]] = {
    "ccm": {},
    "genadapter": {
        "layout": "genadapter", "answer": "generate", "max_new_tokens": 10, "max_example_tokens": 0,
        "max_tokens": 4096, "too_long": "skip",
    },
}  # fmt: skip
"""Settings of the card that a protocol changes; options of the user win."""


class Settings(ProtocolSettings):
    """The protocol part of a card of the reader `metaicl`, and what `--task-set` may change."""

    protocol: Literal["ccm", "genadapter"] = "ccm"
    """Sets the others as one of the papers has them."""
    task: str = "all"
    """Tasks, separated by commas; "all" for every test task of the configuration."""
    steps: StepCounts = (1, 2, 4, 8, 16)
    """Demonstrations after which the rows are asked."""
    layout: Literal["ccm", "genadapter", "genadapter_instruction"] = "ccm"
    """Words around input and output."""
    answer: Literal["choose", "generate"] = "choose"
    pmi: bool = False
    """Also score options after the prompt without its input (doubles the queries' cost)."""
    max_new_tokens: TokenCount = 10
    max_example_tokens: TokenLimit = 256
    """Demonstrations and queries that are longer, with their answer, are left out; 0 for no limit."""
    max_tokens: TokenLimit = 1024
    """Most tokens of the demonstrations with a query and its longest answer; 0 for no limit."""
    too_long: Literal["cut", "skip"] = "cut"
    """Past `max_tokens`: ask after as many demonstrations as fit, or do not ask."""
    omit: str = ""
    """Tasks left out, separated by commas."""
    pmi_tasks: str = ""
    """Tasks whose choice `acc_ccm` takes from `acc_pmi` and not from `acc_mean`."""
    drop_last: bool = False
    """Leave the last row of every task out."""


def names(text: str) -> list[str]:
    """The names in a comma list."""
    return [name.strip() for name in text.split(",") if name.strip()]


def with_protocol(card: Card, request: Request) -> Request:
    """The request with the settings of the protocol it names, or else the card names; what the user set wins."""
    chosen = request.options.get("protocol", card.protocol.get("protocol", "ccm"))
    preset = PROTOCOLS.get(str(chosen), {})
    return replace(request, options={**preset, **request.options})


def with_metrics(card: Card, settings: Settings) -> Card:
    """The card with the metrics that the way of answering has."""
    if settings.answer == "generate":
        return card.model_copy(update={"metrics": GENERATED, "main_metric": "em_lower"})
    if settings.pmi_tasks:
        card = card.model_copy(update={"metrics": ("acc_ccm", *card.metrics), "main_metric": "acc_ccm"})
    if settings.pmi:
        card = card.model_copy(update={"metrics": (*card.metrics, "acc_pmi")})
    return card
