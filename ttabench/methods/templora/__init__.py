"""TempLoRA: a LoRA trained while the context is read."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from ttabench.core.errors import require_at_least
from ttabench.cost import (
    FLOAT32_BYTES,
    INT64_BYTES,
    Cost,
    LowRankFactors,
    Shape,
    Workload,
    answer_flops,
    closed_book_cost,
    select_linears,
)
from ttabench.methods.parts.settings import LoraShape
from ttabench.methods.spec import MethodSpec


@dataclass(frozen=True, kw_only=True)
class TempLoraSettings(LoraShape):
    """Settings of `templora`; defaults: released code, with the prefix of StreamAdapter's books."""

    by: Literal["unit", "epoch"] = "unit"
    """unit: all steps on a chunk before the next is read. epoch: passes over all chunks that arrive
    together."""
    epochs: int = 2
    """Steps on a chunk."""
    prefix: int = 512
    """Tokens before a chunk that stay in the window in training. Answers use one fewer, since the
    query includes the token before the answer. 0: none."""
    lr: float = 5e-5
    """Learning rate; the maximum with `schedule=onecycle`."""
    schedule: Literal["constant", "units2", "onecycle"] = "units2"
    """units2: warm-up over two chunks, the first at rate 0, as released. onecycle: over all steps
    of a call."""
    dropout: float = 0.05
    """Dropout on the inputs of the factors in training."""
    beta2: float = 0.999
    """Adam's decay of squared gradients."""
    eps: float = 1e-7
    """Epsilon of Adam."""
    clip: float = 1.0
    """Maximum gradient norm."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(0, epochs=self.epochs, prefix=self.prefix)
        if not 0.0 <= self.dropout < 1.0:
            raise ValueError(f"dropout must lie in [0, 1), got {self.dropout}")
        if self.lr < 0 or self.clip <= 0:
            raise ValueError(f"lr and clip must be positive, got {self.lr} and {self.clip}")


def cost(settings: TempLoraSettings, shape: Shape, work: Workload) -> Cost:
    """Cost of Temp-LoRA (arXiv 2401.11504, section 3), with gradient steps on every chunk.

    The state holds factors, two Adam moments, the prefix and three counts. Steps are counted
    without activation recomputation, which adds a forward pass, about a quarter.
    """
    factors = LowRankFactors(shape, settings.rank, select_linears(settings.targets, shape))
    base = closed_book_cost(shape, work)
    if not work.chunk_tokens:
        return base
    read_tokens = flops = peak_tokens = 0
    for chunk in work.chunk_tokens:
        prefix_tokens = shape.bos_tokens + min(settings.prefix, read_tokens)
        tokens = prefix_tokens + chunk - 1  # the last one predicts nothing
        flops += settings.epochs * factors.step_flops(tokens, chunk if prefix_tokens else chunk - 1)
        peak_tokens = max(peak_tokens, tokens if settings.epochs else 0)
        read_tokens = read_tokens + chunk
    window_tokens = min(max(0, settings.prefix - 1), read_tokens)  # the query supplies one
    slots = shape.bos_tokens + window_tokens if window_tokens else 0
    floats = 3 * factors.size
    ask_tokens = work.query_positions + (0 if window_tokens else shape.bos_tokens)
    return replace(
        base,
        state_floats=floats,
        state_bytes=FLOAT32_BYTES * floats + INT64_BYTES * (settings.prefix + 3),
        adapt_slots=max(peak_tokens, slots),
        ask_slots=slots + ask_tokens,
        adapt_flops=flops + shape.forward_flops(slots) + factors.forward_flops(slots),
        ask_flops=answer_flops(shape, work, slots, has_bos=bool(window_tokens))
        + factors.forward_flops(ask_tokens),
        positions=max(peak_tokens, slots + ask_tokens),
    )


TEMPLORA = MethodSpec(
    name="templora",
    summary="a LoRA trained while the context is read",
    import_path="ttabench.methods.templora.method:TempLora",
    Settings=TempLoraSettings,
    presets={
        # Learning rates of nano: the best on the validation split. Ten demonstrations of superglue,
        # 1e-5
        # to 1e-2: accuracy 39, 45, 77, 92 (3e-3), 49 %. Books of 8k tokens, 5e-5 to 3e-3:
        # perplexity 4.26, 4.14, 3.91, 3.62.
        "nano": TempLoraSettings(lr=3e-3),
        "nano-demonstrations": TempLoraSettings(
            by="epoch", epochs=5, prefix=0, lr=3e-3, schedule="onecycle"
        ),
        "temp-lora": TempLoraSettings(prefix=3072),
        "streamadapter-book": TempLoraSettings(),
        "streamadapter": TempLoraSettings(
            by="epoch", epochs=5, prefix=0, lr=1e-5, schedule="onecycle"
        ),
    },
    growth="constant",
    cost=cost,
    # a larger eps: with a small one, Adam amplifies float noise in gradients near zero
    test_settings=TempLoraSettings(rank=2, prefix=8, lr=1e-2, schedule="constant", eps=1e-3),
    paper="2401.11504",
    deprecated_settings={"recompute": "auto", "decay": 0.0},
)
METHODS = (TEMPLORA,)
