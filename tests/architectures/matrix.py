"""Outcomes of every architecture, made tiny; the truth of the package's check is held to an untouched copy, too."""

from __future__ import annotations

import torch

from tests.architectures.tiny import KINDS, tiny
from tests.tiny import byte_tokenizer
from ttabench.contract.models import outcomes
from ttabench.core.errors import UserError
from ttabench.lm.forward.probe import whole
from ttabench.lm.model import LM


def base(kind: str) -> LM:
    """A base model of the architecture."""
    return LM(tiny(kind), byte_tokenizer(), kind, random_weights=True)


def row(kind: str) -> dict[str, str]:
    """By method "right", "refused: ..", "wrong: .." or "raised: .."; one entry "made" where there is no such model."""
    ids_1T = torch.arange(60, 90)[None]
    try:
        lm = base(kind)
        with torch.no_grad():
            plain = tiny(kind)(input_ids=ids_1T, use_cache=False).logits[0].log_softmax(-1)
    except UserError as error:
        return {"made": f"refused: {error}"}
    except Exception as error:  # whatever sizes by rule lead to
        return {"made": f"no: {' '.join(f'{type(error).__name__}: {error}'.split())[:100]}"}
    found = outcomes(lm)
    with torch.no_grad():
        torch.testing.assert_close(whole(lm, ids_1T), plain, atol=1e-4, rtol=1e-4, equal_nan=True)
    return found


def share(number: int, of: int) -> tuple[str, ...]:
    """Every so manieth architecture, from the one of that number."""
    return KINDS[number::of]
