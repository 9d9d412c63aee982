"""What every method promises, checked on models of two layers (`ttabench check`); and a method to begin from."""

from __future__ import annotations

METHOD_TEMPLATE = '''"""{Name}: keeps the last tokens of what was read in the window.

Run it:    ttabench eval --method ./{name}.py --task streamingqa
Check it:  ttabench check ./{name}.py
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain

from ttabench.core.types import Chunk, Query
from ttabench.lm.forward.tokens import new_chunk_ids
from ttabench.lm.patch import Patch, State
from ttabench.methods.base import BaseMethod
from ttabench.methods.parts.kept import append_ids, window_patch
from ttabench.methods.spec import MethodSpec


@dataclass(frozen=True, kw_only=True)
class {Name}Settings:
    """Settings of `{name}`: `--set tokens=32`."""

    tokens: int = 128
    """Last tokens that stay in the window."""


class {Name}(BaseMethod[{Name}Settings]):
    """State: the ids of the last tokens."""

    spec = MethodSpec(
        name="{name}",
        summary="keep the last tokens",
        Settings={Name}Settings,
        growth="constant",  # how the bytes of the state grow with what is read: none, constant or linear
        test_settings={Name}Settings(tokens=16),  # settings that `ttabench check` reads a few short texts with
    )

    def adapt(self, state: State, chunks: Sequence[Sequence[Chunk]]) -> State:
        """Read on: each of `chunks` holds one piece for every row of the state. A state is a value: make a new one."""
        rows = [list(chain(*row)) for row in new_chunk_ids(self.lm, state, chunks)]
        read = [before + len(new) for before, new in zip(state.meta["tokens_read"], rows, strict=True)]
        kept = append_ids(self.lm, state.tensors, rows, self.settings.tokens)
        return replace(state, tensors=kept, meta={{"tokens_read": read}})

    def patch(self, state: State, queries: Sequence[Query]) -> Patch:
        """What the state does to the frozen model: tokens in the window, a key/value prefix, or weight deltas."""
        return window_patch(state.tensors)
'''


def render_method_template(name: str) -> str:
    """The file of a method of this name."""
    return METHOD_TEMPLATE.format(
        name=name, Name="".join(part.capitalize() for part in name.split("_"))
    )
