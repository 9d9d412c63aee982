"""A method to begin from: a file that works as it is, and its test."""

from __future__ import annotations

METHOD = '''"""{Name}: keeps the last tokens of what was read in the window.

Run it:    ttabench eval --method ./{name}.py --task streamingqa
Check it:  ttabench check ./{name}.py
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain

from ttabench.core.bounds import at_least
from ttabench.core.types import Ask, Observe
from ttabench.lm.patch import Patch, State
from ttabench.lm.forward.tokens import new_ids
from ttabench.methods.base import BaseMethod
from ttabench.methods.parts.newest import appended, window_of
from ttabench.methods.spec import MethodSpec


@dataclass(frozen=True, kw_only=True)
class {Name}Settings:
    """Settings of `{name}`: `--set tokens=32`."""

    tokens: int = 128
    """Last tokens that stay in the window."""

    def __post_init__(self) -> None:
        at_least(1, tokens=self.tokens)


class {Name}(BaseMethod[{Name}Settings]):
    """State: the ids of the last tokens."""

    spec = MethodSpec(
        name="{name}",
        summary="keep the last tokens",
        Settings={Name}Settings,
        growth="constant",  # how the bytes of the state grow with what is read: none, constant or linear
        checked={Name}Settings(tokens=16),  # settings that `ttabench check` reads a few short texts with
    )

    def adapt(self, state: State, pieces: Sequence[Sequence[Observe]]) -> State:
        """Read on: each of `pieces` holds one piece for every row of the state. A state is a value: make a new one."""
        rows = [list(chain(*row)) for row in new_ids(self.lm, state, pieces)]
        read = [before + len(new) for before, new in zip(state.meta["tokens_read"], rows, strict=True)]
        kept = appended(self.lm, state.tensors, rows, self.settings.tokens)
        return replace(state, tensors=kept, meta={{"tokens_read": read}})

    def patch(self, state: State, asks: Sequence[Ask]) -> Patch:
        """What the state does to the frozen model: tokens in the window, a key/value prefix, or weight deltas."""
        return window_of(state.tensors)
'''
TEST = '''"""`{name}` keeps every promise of the contract."""

from __future__ import annotations

from pathlib import Path

import pytest
from ttabench.contract.check import cases
from ttabench.contract.promises import PROMISES
from ttabench.methods.registry import find

SPEC = find(str(Path(__file__).parent / "{name}.py"))
CASES, _ = cases(SPEC, SPEC.checked)


@pytest.mark.parametrize("base", CASES)
@pytest.mark.parametrize("promise", PROMISES)
def test_a_promise_is_kept(promise: str, base: str) -> None:
    PROMISES[promise](CASES[base])
'''


def files(name: str) -> dict[str, str]:
    """The files of a method of this name, by file name, the method first."""
    words = {"name": name, "Name": "".join(part.capitalize() for part in name.split("_"))}
    return {f"{name}.py": METHOD.format(**words), f"test_{name}.py": TEST.format(**words)}
