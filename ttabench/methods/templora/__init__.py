"""TempLoRA: a LoRA trained while the context is read."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from ttabench.core.errors import at_least
from ttabench.cost import INTEGER, SINGLE, Cost, Factors, Shape, Workload, answer, closed_book, targeted
from ttabench.methods.parts.settings import LoraShape
from ttabench.methods.spec import MethodSpec


@dataclass(frozen=True, kw_only=True)
class TempLoraSettings(LoraShape):
    """Settings of `templora`; the defaults are the released code's, with the prefix of StreamAdapter's books."""

    by: Literal["unit", "epoch"] = "unit"
    """unit: all steps on a piece before the next is read; epoch: passes over all pieces that arrive together."""
    epochs: int = 2
    """Steps on a piece."""
    prefix: int = 512
    """Tokens before a piece that stand in the window in training; when asked one fewer, since the query brings the
    token that its answer is predicted from. 0 for none."""
    lr: float = 5e-5
    """Learning rate; with `schedule=onecycle` the largest."""
    schedule: Literal["constant", "units2", "onecycle"] = "units2"
    """units2: two pieces of warm-up, the first of them at rate 0, as released; onecycle: over all steps of a call."""
    dropout: float = 0.05
    """Of what enters the factors, while training."""
    beta2: float = 0.999
    """Adam's decay of squared gradients."""
    eps: float = 1e-7
    """Adam's."""
    clip: float = 1.0
    """Largest norm of the gradient."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(0, epochs=self.epochs, prefix=self.prefix)
        if not 0.0 <= self.dropout < 1.0:
            raise ValueError(f"dropout must lie in [0, 1), got {self.dropout}")
        if self.lr < 0 or self.clip <= 0:
            raise ValueError(f"lr and clip must be positive, got {self.lr} and {self.clip}")


def cost(settings: TempLoraSettings, shape: Shape, work: Workload) -> Cost:
    """Temp-LoRA (arXiv 2401.11504, section 3): gradient steps of a LoRA on every piece, behind `prefix` tokens. The
    state holds factors, two moments of Adam, the prefix, and three counts. Steps are counted as those that keep what
    they compute: one that computes its layers again adds a forward, about a fourth."""
    factors = Factors(shape, settings.rank, targeted(settings.targets, shape))
    bare = closed_book(shape, work)
    if not work.pieces:
        return bare
    before = flops = peak = 0
    for piece in work.pieces:
        text = shape.starts + min(settings.prefix, before)
        tokens = text + piece - 1  # the last one predicts nothing
        flops += settings.epochs * factors.step(tokens, piece if text else piece - 1)
        peak, before = max(peak, tokens if settings.epochs else 0), before + piece
    kept = min(max(0, settings.prefix - 1), before)  # the query brings one
    slots = shape.starts + kept if kept else 0
    floats, asked = 3 * factors.size, work.asked + (0 if kept else shape.starts)
    return replace(
        bare,
        state_floats=floats,
        state_bytes=SINGLE * floats + INTEGER * (settings.prefix + 3),
        adapt_slots=max(peak, slots),
        ask_slots=slots + asked,
        adapt_flops=flops + shape.forward(slots) + factors.forward(slots),
        ask_flops=answer(shape, work, slots, begun=bool(kept)) + factors.forward(asked),
        positions=max(peak, slots + asked),
    )


TEMPLORA = MethodSpec(
    name="templora",
    summary="a LoRA trained while the context is read",
    where="ttabench.methods.templora.method:TempLora",
    Settings=TempLoraSettings,
    presets={
        # Learning rates of nano: the best of those tried on the validation split. Ten demonstrations of superglue, 1e-5
        # to 1e-2: accuracy 39, 45, 77, 92 (3e-3), 49. Books of 8k tokens, 5e-5 to 3e-3: ppl 4.26, 4.14, 3.91, 3.62.
        "nano": TempLoraSettings(lr=3e-3),
        "nano-demonstrations": TempLoraSettings(by="epoch", epochs=5, prefix=0, lr=3e-3, schedule="onecycle"),
        "temp-lora": TempLoraSettings(prefix=3072),
        "streamadapter-book": TempLoraSettings(),
        "streamadapter": TempLoraSettings(by="epoch", epochs=5, prefix=0, lr=1e-5, schedule="onecycle"),
    },
    growth="constant",
    cost=cost,
    # a larger eps: Adam would blow float noise in gradients near zero up to the rate
    checked=TempLoraSettings(rank=2, prefix=8, lr=1e-2, schedule="constant", eps=1e-3),
    paper="2401.11504",
    retired={"recompute": "auto", "decay": 0.0},
)
METHODS = (TEMPLORA,)
