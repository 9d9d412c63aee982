"""In-Place TTT: each chunk of a text that is read changes the last map of some feed-forwards, without a gradient."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from ttabench.core.errors import at_least
from ttabench.cost import INTEGER, SINGLE, Cost, Shape, Workload, closed_book, in_window
from ttabench.methods.spec import MethodSpec, Recipe


@dataclass(frozen=True, kw_only=True)
class InPlaceSettings:
    """Settings of `in_place_ttt`."""

    chunk: int = 4096
    """Tokens that are read before weights change once; the last chunk before a question may be shorter."""
    rate: float = 3.0
    """What the change of a chunk is multiplied by; chosen on validation data."""
    every: int = 6
    """Layers 0, `every`, twice `every` and so on change."""
    kernel: int = 5
    """Tokens that the target of a token is made of: the token, and as many before it as behind it."""
    made_of: Literal["hidden", "embedding"] = "hidden"
    """Whether targets are made of what enters the feed-forward, or of what enters the first layer."""
    clip: float | None = None
    """Largest Frobenius norm of the change of a chunk; None: any."""
    cache: bool = True
    """Whether keys and values of all that is read stay, too; without them the change is all that stays."""

    def __post_init__(self) -> None:
        at_least(1, chunk=self.chunk, every=self.every, kernel=self.kernel)
        if not self.kernel % 2:
            raise ValueError(f"kernel must be odd, got {self.kernel}")
        if self.clip is not None and self.clip <= 0:
            raise ValueError(f"clip must be positive, got {self.clip}")


def cost(settings: InPlaceSettings, shape: Shape, work: Workload) -> Cost:
    """Full context, or chunks by themselves; the change of each chunk, and what it adds to every token read behind it.
    The pieces arrive together."""
    s, down, layers = settings, shape.feed_linears[-1], -(-shape.layers // settings.every)
    added = layers * down.outputs * (s.kernel + down.outputs)
    if not work.pieces:
        return replace(closed_book(shape, work), added_parameters=added)
    slots, last = shape.starts + work.tokens, work.tokens - max(0, work.tokens - 1) // s.chunk * s.chunk
    chunks = [s.chunk] * ((work.tokens - last) // s.chunk) + [last]
    changing = 2 * (added + layers * down.size) * work.tokens
    changed = 2 * layers * (down.size + down.outputs**2)  # of a token that is read or asked behind a change
    size = SINGLE * layers * down.size
    if not s.cache:
        read = sum(shape.forward(shape.starts + chunk) for chunk in chunks)
        read += changed * (work.tokens - chunks[0] + shape.starts * (len(chunks) - 1))
        base, most = closed_book(shape, work), shape.starts + max(chunks)
        return replace(
            base, added_parameters=added, state_floats=layers * down.size, state_bytes=size, adapt_slots=most,
            adapt_flops=read + changing, ask_flops=base.ask_flops + changed * (shape.starts + work.asked),
            positions=max(most, base.positions),
        )  # fmt: skip
    whole = in_window(
        shape, work, slots, added_parameters=added, state_floats=layers * down.size + shape.slot_floats * slots,
        state_bytes=size + shape.cache_bytes(slots, work.value_bytes) + INTEGER,
    )  # fmt: skip
    read = whole.adapt_flops + changed * (work.tokens - chunks[0]) + changing
    return replace(whole, adapt_flops=read, ask_flops=whole.ask_flops + changed * work.asked)


IN_PLACE_TTT = MethodSpec(
    name="in_place_ttt",
    summary="down projections that each chunk changes by what its tokens predict",
    where="ttabench.methods.in_place_ttt.method:InPlaceTraining",
    Settings=InPlaceSettings,
    presets={
        "nano": InPlaceSettings(chunk=32, rate=1e-3, every=1, cache=False),
        "smollm2-135m": InPlaceSettings(chunk=128, rate=1e-4),
    },
    recipes={
        "": Recipe(documents=(2, 4, 8), batch_documents=32, steps=400, lr=3e-3, warmup=20, schedule="cosine", clip=1.0)
    },
    growth="linear",
    trainable=True,
    cost=cost,
    checked=InPlaceSettings(chunk=16, rate=0.1, every=1),
    paper="2604.06169",
)

METHODS = (IN_PLACE_TTT,)
