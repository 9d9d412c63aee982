"""Head budgets, and the slots of one sequence that are kept.

Shape letters: L layers · H key/value heads · P slots.
"""

from __future__ import annotations

import math
from pathlib import Path

import torch
from torch import Tensor

from ttabench.core.errors import UserError
from ttabench.lm.loading import safetensors_io
from ttabench.lm.model import LM
from ttabench.methods.eviction.spec import BUNDLED_SHARES, GLOBAL, UNIFORM
from ttabench.methods.states import TENSORS_FILE

SHARES_FOLDER = Path(__file__).parents[2] / "assets" / "shares"
COUNTS = "counts"
"""Tensor of the file: slots of every layer and head in a state of `kvzip`, int32 [L, 1, H]."""
MIN_SHARE = 1e-6
"""Smallest share of a head, relative to the largest one."""
SEARCH_STEPS = 60
"""Bisections for the slots per unit of share."""
MAKE_HINT = "Use the state folder that `ttabench adapt --method kvzip` writes for this model."


def load_shares(lm: LM, setting: str) -> Tensor | None:
    """Return the share of every head [L, H] for a setting `shares`; None for the best slots of all.

    Raises:
        UserError: the file is missing, damaged, or of another model.
    """
    size = len(lm.kv_layers), lm.kv_heads
    if setting == UNIFORM:
        return torch.ones(size)
    if setting == GLOBAL:
        return None
    path = Path(setting).expanduser()
    if setting == BUNDLED_SHARES:
        path = SHARES_FOLDER / f"{lm.name}.safetensors"
        if not path.is_file():
            known = ", ".join(sorted(file.stem for file in SHARES_FOLDER.glob("*.safetensors")))
            raise UserError(f"Shares are bundled for {known}, not for {lm.name}.", MAKE_HINT)
    if path.is_dir():
        path /= TENSORS_FILE
    counts = safetensors_io.read_tensors(path, hint=MAKE_HINT)[0].get(COUNTS)
    if counts is None or counts.numel() != math.prod(size) or int(counts.max()) < 1:
        fault = f"{path} has no slot counts for the {size[0]} layers and {size[1]} heads"
        raise UserError(f"{fault} of {lm.name}.", MAKE_HINT)
    return counts.view(size).float()


def head_budgets(shares_LH: Tensor | None, scores_LHP: Tensor, budget: int) -> Tensor | None:
    """Return the slots that every head keeps, int64 [L, H]; None for the best slots of all heads.

    Args:
        shares_LH: result of `load_shares`.
        scores_LHP: scores, -inf for slots that cannot be kept.
        budget: slots in all layers and heads together.
    """
    if shares_LH is None:
        return None
    return allocate_slots(shares_LH, (scores_LHP > -math.inf).sum(-1), budget)


def allocate_slots(shares_LH: Tensor, available_LH: Tensor, budget: int) -> Tensor:
    """Divide `budget` slots in proportion to shares, at most the available slots; int64 [L, H].

    What a head cannot use goes to the others in proportion. Fractions are rounded by the largest
    remainder.
    """
    shares = shares_LH.to(available_LH.device).double()
    shares = shares.clamp(min=MIN_SHARE * float(shares.max()))
    budget = min(budget, int(available_LH.sum()))
    low, high = 0.0, float((available_LH / shares).max())
    for _ in range(SEARCH_STEPS):
        middle = (low + high) / 2
        if float(torch.minimum(available_LH, middle * shares).sum()) > budget:
            high = middle
        else:
            low = middle
    wanted = torch.minimum(available_LH, high * shares)
    counts = wanted.floor().long().flatten()
    remainder = (wanted.flatten() - counts).sort(descending=True, stable=True).indices
    counts[remainder[: budget - int(counts.sum())]] += 1
    return counts.view_as(available_LH)


def select_slots(scores_LHP: Tensor, budget: int, counts_LH: Tensor | None) -> Tensor:
    """Return the mask of the slots with the highest scores, bool [L, H, P].

    Slots with a score of -inf are never kept. The earlier slot wins a tie.

    Args:
        budget: slots in all layers and heads together.
        counts_LH: result of `head_budgets`.
    """
    available = scores_LHP > -math.inf
    if counts_LH is None:
        scores = scores_LHP.flatten()
        order = scores.sort(descending=True, stable=True).indices[:budget]
        best = torch.zeros_like(scores, dtype=torch.bool).scatter_(0, order, value=True)
        return best.view_as(available) & available
    order = scores_LHP.sort(dim=-1, descending=True, stable=True).indices
    is_kept = torch.arange(order.shape[-1], device=order.device) < counts_LH[..., None]
    return torch.zeros_like(available).scatter_(-1, order, is_kept)
