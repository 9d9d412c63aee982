"""Base models of two layers, and both ways in which torch runs them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests.tiny import MODEL_FACTORIES, MODEL_IDS
from ttabench.lm.model import LM


@pytest.fixture(params=MODEL_FACTORIES, ids=MODEL_IDS)
def lm(request: pytest.FixtureRequest) -> LM:
    made: LM = request.param()
    return made


@pytest.fixture(params=[True, False], ids=["grad", "no grad"])
def _grad(request: pytest.FixtureRequest) -> Iterator[None]:
    with torch.set_grad_enabled(request.param):
        yield
