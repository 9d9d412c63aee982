"""TempLoRA: a LoRA trained on the context itself while it is read, and thrown away at its end.

    Ask(score, unit i)      the adapter of the units before, the last `prefix` tokens in the window
    Observe(unit i)         `epochs` steps on [prefix | unit i], loss on the unit's tokens; factors and moments go on

Wang, Ma, Cai, arXiv 2401.11504 (released code: TemporaryLoRA/Temp-LoRA): by="unit". StreamAdapter (arXiv 2411.09289,
appendix B.1) trains one on demonstrations instead: by="epoch", `epochs` passes over all pieces that arrive together,
each a sample of its own, which leave the window. One reader at a time: rows take turns.

Shape letters: B rows · R rank · I/O features in and out · P tokens kept in the window.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from ttabench.layers import lora
from ttabench.layers.newest import appended, ids_of, window_of
from ttabench.lm import LM
from ttabench.methods.base import BaseMethod
from ttabench.patching import check_fits
from ttabench.scoring import Item, nll
from ttabench.stream import new_ids, pad
from ttabench.types import Ask, Growth, Json, LowRank, Observe, Patch, State


@dataclass(frozen=True, kw_only=True)
class TempLoraSettings(lora.LoraShape):
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
    decay: float = 0.0
    """Weight decay."""
    clip: float = 1.0
    """Largest norm of the gradient."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.epochs < 0 or self.prefix < 0:
            raise ValueError(f"epochs and prefix must be at least 0, got {self.epochs} and {self.prefix}")
        if not 0.0 <= self.dropout < 1.0:
            raise ValueError(f"dropout must lie in [0, 1), got {self.dropout}")
        if self.lr < 0 or self.clip <= 0:
            raise ValueError(f"lr and clip must be positive, got {self.lr} and {self.clip}")


SHORTER = "Read shorter pieces (`adapt --pieces paragraphs`), or keep fewer tokens before each (--set prefix=N)."
Factors = dict[str, tuple[Tensor, Tensor]]


class TempLora(BaseMethod[TempLoraSettings]):
    """TempLoRA. State: a row's factors and their moments as vectors [B, N], steps and pieces so far, last tokens."""

    name = "templora"
    summary = "a LoRA trained on the context while it is read"
    paper = "2401.11504"
    Settings = TempLoraSettings
    presets: ClassVar[Mapping[str, TempLoraSettings]] = {
        # Learning rates of nano: the best of those tried on the validation split. Ten demonstrations of superglue, 1e-5
        # to 1e-2: accuracy 39, 45, 77, 92 (3e-3), 49. Books of 8k tokens, 5e-5 to 3e-3: ppl 4.26, 4.14, 3.91, 3.62.
        "nano": TempLoraSettings(lr=3e-3),
        "nano-demonstrations": TempLoraSettings(by="epoch", epochs=5, prefix=0, lr=3e-3, schedule="onecycle"),
        "temp-lora": TempLoraSettings(prefix=3072),
        "streamadapter-book": TempLoraSettings(),
        "streamadapter": TempLoraSettings(by="epoch", epochs=5, prefix=0, lr=1e-5, schedule="onecycle"),
    }
    growth: Growth = "constant"
    own_tensors = ("tokens", "lengths")

    def __init__(self, lm: LM, settings: TempLoraSettings) -> None:
        super().__init__(lm, settings)
        self.start = lora.started(lm, settings)
        self._apart = False

    def labels(self) -> dict[str, Json]:
        """Whether a text came in parts, so that `by=epoch` went over each of them by itself."""
        return {"passes_over_parts": True} if self._apart else {}

    def adapt(self, state: State, chunk: Sequence[Observe]) -> State:
        """Train on one more piece per row."""
        return self.adapt_many(state, [chunk])

    def adapt_many(self, state: State, chunks: Sequence[Sequence[Observe]]) -> State:
        """Train on pieces in order.

        Raises:
            UserError: a piece with its prefix is longer than the model's positions.
        """
        tensors = dict(state.tensors) or self._fresh(state.rows)
        self._apart |= self.settings.by == "epoch" and any(state.meta["tokens_read"])
        new = new_ids(self.lm, state, chunks)
        rows = [
            self._trained({name: each[row] for name, each in tensors.items()}, pieces) for row, pieces in enumerate(new)
        ]
        read = [before + sum(map(len, pieces)) for before, pieces in zip(state.meta["tokens_read"], new, strict=True)]
        joined = {name: torch.stack([each[name] for each in rows]) for name in tensors}
        return State(state.rows, joined, {"tokens_read": read})

    def patch(self, state: State, asks: Sequence[Ask]) -> Patch:  # noqa: ARG002  # the contract's arguments
        """The factors as deltas, and the newest tokens in the window."""
        tensors = state.tensors
        kept = self.settings.prefix - 1
        newest = appended(self.lm, {}, ids_of(tensors, state.rows), kept) if kept > 0 else {}
        if "factors" not in tensors:
            return window_of(newest)
        rows = [lora.deltas(self._factors(vector), self.settings) for vector in tensors["factors"]]
        deltas = {
            name: LowRank(
                torch.cat([each[name].a_BRI for each in rows]), torch.cat([each[name].b_BOR for each in rows])
            )
            for name in rows[0]
        }
        return replace(window_of(newest), deltas=deltas)

    # one row

    def _fresh(self, rows: int) -> dict[str, Tensor]:
        flat = torch.cat([each.flatten() for pair in self.start.values() for each in pair])
        device = self.lm.device
        made = {
            "factors": flat,
            "first_moment": torch.zeros_like(flat),
            "second_moment": torch.zeros_like(flat),
            "steps": torch.zeros((), dtype=torch.int64, device=device),
            "pieces": torch.zeros((), dtype=torch.int64, device=device),
            "tokens": torch.full((self.settings.prefix,), self.lm.pad_id, device=device),
            "lengths": torch.zeros((), dtype=torch.int64, device=device),
        }
        return {name: each.expand(rows, *each.shape) for name, each in made.items()}

    def _factors(self, vector_N: Tensor) -> Factors:
        """Views of the vector, by linear map."""
        sizes = [each.shape for pair in self.start.values() for each in pair]
        parts = iter(torch.split(vector_N, [size.numel() for size in sizes]))
        shaped = iter([next(parts).view(size) for size in sizes])
        return {name: (next(shaped), next(shaped)) for name in self.start}

    def _trained(self, row: dict[str, Tensor], pieces: list[list[int]]) -> dict[str, Tensor]:
        """A row's state after training on these pieces."""
        s = self.settings
        vector_N = row["factors"].clone().requires_grad_(True)
        optimiser = torch.optim.AdamW([vector_N], lr=s.lr, betas=(0.9, s.beta2), eps=s.eps, weight_decay=s.decay)
        optimiser.state[vector_N] = {
            "step": row["steps"].to("cpu", torch.float32),
            "exp_avg": row["first_moment"].clone(),
            "exp_avg_sq": row["second_moment"].clone(),
        }
        held = row["tokens"][: int(row["lengths"])].tolist()
        steps, before = int(row["steps"]), int(row["pieces"])
        for rate, item in self._lessons(held, pieces, before):
            check_fits(self.lm, None, [len(self.lm.start_ids) + len(item[0]) + len(item[1]) - 1], SHORTER)
            optimiser.param_groups[0]["lr"] = rate
            self._step(vector_N, optimiser, item, steps)
            steps += 1
        moments = optimiser.state[vector_N]
        text = [*held, *(token for piece in pieces for token in piece)]
        kept = text[max(0, len(text) - s.prefix) :] if s.prefix else []
        tokens, mask = pad([kept, [0] * s.prefix], self.lm.pad_id, "right")
        whole = torch.int64
        return {
            "factors": vector_N.detach(),
            "first_moment": moments["exp_avg"],
            "second_moment": moments["exp_avg_sq"],
            "steps": torch.tensor(steps, dtype=whole, device=self.lm.device),
            "pieces": torch.tensor(before + len(pieces), dtype=whole, device=self.lm.device),
            "tokens": tokens[0].to(self.lm.device),
            "lengths": mask[0].sum().to(self.lm.device),
        }

    def _lessons(self, held: list[int], pieces: list[list[int]], before: int) -> Iterator[tuple[float, Item]]:
        """(learning rate, (prefix ids, target ids)) of every step."""
        s = self.settings
        text, items = list(held), []
        for piece in pieces:
            items.append((text[max(0, len(text) - s.prefix) :] if s.prefix else [], piece))
            text += piece
        if s.by == "unit":
            order = [number for number in range(len(items)) for _ in range(s.epochs)]
        else:
            order = [number for _ in range(s.epochs) for number in range(len(items))]
        rates = self._rates(order, before)
        yield from ((rate, items[number]) for rate, number in zip(rates, order, strict=True) if items[number][1])

    def _rates(self, order: Sequence[int], before: int) -> list[float]:
        s = self.settings
        if s.schedule == "units2":
            return [s.lr * min(1.0, (before + number) / 2) for number in order]
        if s.schedule == "constant" or not order:
            return [s.lr] * len(order)
        probe = torch.optim.SGD([torch.zeros(1)], lr=s.lr)
        cycle = torch.optim.lr_scheduler.OneCycleLR(probe, max_lr=s.lr, total_steps=max(2, len(order)))
        rates = []
        for _ in order:
            rates.append(float(probe.param_groups[0]["lr"]))
            probe.step()
            if len(rates) < max(2, len(order)):
                cycle.step()
        return rates

    def _step(self, vector_N: Tensor, optimiser: torch.optim.AdamW, item: Item, number: int) -> None:
        """One step; dropout depends on the seed and the step alone."""
        devices = [self.lm.device] if self.lm.device.type == "cuda" else []
        with torch.enable_grad(), torch.random.fork_rng(devices=devices):
            torch.manual_seed(self.settings.seed * 1_000_003 + number)
            deltas = lora.deltas(self._factors(vector_N), self.settings, self.settings.dropout)
            summed, count = nll(self.lm, Patch(deltas=deltas), [item])
            if not count:
                return
            optimiser.zero_grad(set_to_none=True)
            (summed / count).backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_([vector_N], self.settings.clip)
        optimiser.step()
