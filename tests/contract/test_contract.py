"""The contract: every registered method keeps every promise, and `ttabench check` finds methods that do not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, ClassVar

import pytest
import torch
from torch import nn

from tests import fake_kvpress
from tests.conftest import Command, error_line
from ttabench.contract.case import BASE_MODELS, Case, make_episode, tiny_llama
from ttabench.contract.promises import PROMISES, check_promise
from ttabench.core.types import Chunk, Query
from ttabench.lm.forward.tokens import new_chunk_ids
from ttabench.lm.model import LM
from ttabench.lm.patch import LowRank, Patch, State
from ttabench.methods.base import Method
from ttabench.methods.icl.method import InContext
from ttabench.methods.registry import find_method, methods
from ttabench.methods.spec import MethodSpec
from ttabench.methods.trainable import Trainable

WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    "window stride": ("window", {"mode": "stride", "n_sink": 0, "recent": 12}),
    "snapkv query_aware": ("snapkv", {"query_aware": True}),
    "ccm merge": ("ccm", {"update": "merge", "sink": True}),
    "ccm stream": ("ccm", {"window": 24, "piece": 8, "memory": 4}),
    "templora epoch": ("templora", {"by": "epoch", "prefix": 0}),
    "streamadapter whole": ("streamadapter", {"window": None}),
    "generative_adapter run": ("generative_adapter", {"buffer": True}),
    "generative_adapter exact": ("generative_adapter", {"objective": "both", "gradient": "exact"}),
    "cartridge deltas": ("cartridge", {"target": "deltas", "slots": 128, "rank": 2}),
    "mac tree": ("mac", {"hierarchy": 2}),
    "rag of some tokens": ("rag", {"read": 30}),
    "rag+mac": ("rag+mac", {}),
    "h2o+rag": ("h2o+rag", {}),
}
"""Settings that read in another way than those a method is checked with, and methods together."""


def settings(name: str) -> tuple[MethodSpec, Any]:
    method, changes = WAYS.get(name, (name, {}))
    spec = find_method(method)
    return spec, replace(spec.test_settings or spec.Settings(), **changes)


OF_THE_CLASS = ("_check_settings", "_check_repeated_queries", "_check_no_answer_leak")
"""Checks that settings which read in another way cannot break by themselves."""
LLAMA, GPT2 = (cache(BASE_MODELS[name]) for name in ("llama", "gpt2"))
"""One model each for all promises: one of them is that nothing is left behind on it."""


def keeps(
    spec: MethodSpec, chosen: Any, base: Callable[[], LM], *, aside: tuple[str, ...] = ()
) -> None:
    for check in PROMISES.values():
        if check.__name__ not in aside:
            check(Case(spec, chosen, base))


@pytest.mark.parametrize("base", [LLAMA, GPT2], ids=["llama", "gpt2"])
@pytest.mark.parametrize("name", methods())
def test_a_method_keeps_its_promises(name: str, base: Callable[[], LM]) -> None:
    if name in ("qttt", "doc_to_lora") and base is GPT2:
        pytest.skip("it has not the maps: refused, see its own tests")
    keeps(*settings(name), base)


@pytest.mark.parametrize("name", WAYS)
def test_other_settings_and_methods_together_keep_them(name: str) -> None:
    keeps(*settings(name), LLAMA, aside=OF_THE_CLASS)


@pytest.mark.parametrize("press", ["LastPress", "AdaKVPress(LastPress)"])
def test_a_press_keeps_its_promises(press: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_kvpress.installed(monkeypatch)
    spec = find_method(f"kvpress:{press}")
    keeps(spec, spec.test_settings, LLAMA)


# --- Methods that break one promise each: what the check is worth ----------------------------------------------------


class Honest(InContext):
    """Full context, to be broken; `adapted` and `patched` of its base are called by what breaks it."""

    spec = replace(InContext.spec, name="honest")
    calls = 0
    seen: list[list[int]]


BROKEN: list[tuple[str, type[Method[Any]]]] = []
"""Names of checks, and methods that break them."""


def breaks(promise: str, method: str, **told: Any) -> Callable[[Any], None]:
    """Full context with this function as its `method`, and a spec that says something else."""

    def register(function: Any) -> None:
        own = {"spec": replace(Honest.spec, **told), method: function}
        BROKEN.append((promise, type("Broken", (Honest,), own)))

    return register


breaks("_check_settings", "patch", trainable=True)(InContext.patch)
breaks("_check_growth", "patch", growth="constant")(InContext.patch)


@breaks("_check_repeated_queries", "patch")
def meets(self: Any, state: State, asks: Sequence[Query]) -> Patch:
    return InContext.patch(self, state, asks) if len(asks) > 1 or not state.tensors else Patch()


@breaks("_check_reading_has_effect", "patch")
def deaf(self: Any, state: State, asks: Sequence[Query]) -> Patch:
    return Patch()


@breaks("_check_batching", "adapt")
def mixes(self: Any, state: State, chunks: Sequence[Sequence[Chunk]]) -> State:
    read = InContext.adapt(self, state, chunks)
    flipped = {
        name: each.flip(1) if name in ("keys", "values") else each
        for name, each in read.tensors.items()
    }
    return read if read.rows == 1 else replace(read, tensors=flipped)


@breaks("_check_granularity", "adapt")
def cuts(self: Any, state: State, chunks: Sequence[Sequence[Chunk]]) -> State:
    read = InContext.adapt(self, state, chunks)
    return replace(read, meta={**read.meta, "calls": state.meta.get("calls", 0) + 1})


@breaks("_check_immutable_states", "patch")
def writes(self: Any, state: State, asks: Sequence[Query]) -> Patch:
    if "values" in state.tensors:
        state.tensors["values"].mul_(1.0001)
    return InContext.patch(self, state, asks)


@breaks("_check_repeatable", "patch")
def draws(self: Any, state: State, asks: Sequence[Query]) -> Patch:
    patch = InContext.patch(self, state, asks)
    if patch.prefix is None:
        return patch
    values = tuple(value + torch.randn_like(value) * 0.05 for value in patch.prefix.values_LBHPD)
    return replace(patch, prefix=replace(patch.prefix, values_LBHPD=values))


@breaks("_check_repeatable", "adapt")
def remembers(self: Any, state: State, chunks: Sequence[Sequence[Chunk]]) -> State:
    self.seen = [
        *getattr(self, "seen", []),
        *(ids for row in new_chunk_ids(self.lm, state, chunks) for ids in row),
    ]
    told = [[Chunk(text=f"{len(self.seen)} {piece.text}") for piece in row] for row in chunks]
    return InContext.adapt(self, state, told)


@breaks("_check_no_answer_leak", "patch", query_aware=True)
def peeks(self: Any, state: State, asks: Sequence[Query]) -> Patch:
    ids = [self.lm.encode(ask.answers[0])[:4] for ask in asks]
    return Patch(tokens_BT=torch.tensor(ids)) if state.tensors else Patch()


@breaks("_check_score_first", "patch", query_aware=True)
def trains_first(self: Any, state: State, asks: Sequence[Query]) -> Patch:
    """The patch has read the text that is scored."""
    texts = [getattr(ask.want, "continuation", "") for ask in asks]
    ids = [(self.lm.encode(text) + [0] * 4)[:4] for text in texts]
    return Patch(tokens_BT=torch.tensor(ids)) if state.tensors else Patch()


@breaks("_check_cleanup", "patch")
def leaves(self: Any, state: State, asks: Sequence[Query]) -> Patch:
    self.lm.model.register_forward_hook(lambda *_: None)
    return InContext.patch(self, state, asks)


class Hides(Honest):
    """Keeps what it read on itself, where no state is."""

    kept: ClassVar[dict[int, State]] = {}

    def adapt(self, state: State, chunks: Sequence[Sequence[Chunk]]) -> State:
        whole = super().adapt(self.kept.get(id(state), state), chunks)
        bare = State(whole.rows, {"some": torch.zeros(len(self.kept) + 1)}, whole.meta)
        self.kept[id(bare)] = whole
        return bare

    def patch(self, state: State, asks: Sequence[Query]) -> Patch:
        return super().patch(self.kept.get(id(state), State(state.rows, meta=state.meta)), asks)


@dataclass(frozen=True, kw_only=True)
class _Size:
    """Settings."""

    size: int = 2


class Idle(Trainable[_Size]):
    """A parameter that nothing uses."""

    spec = MethodSpec(name="idle", summary="idle", Settings=_Size, trainable=True)

    def __init__(self, lm: Any, settings: _Size) -> None:
        super().__init__(lm, settings)
        self.used, self.idle = (
            nn.Parameter(torch.zeros(1)),
            nn.Parameter(torch.zeros(settings.size)),
        )

    def modules(self) -> nn.ModuleDict:
        return nn.ModuleDict({"all": nn.ParameterList([self.used, self.idle])})

    def adapt(self, state: State, pieces: Sequence[Sequence[Chunk]]) -> State:  # noqa: ARG002  # the contract's
        return state

    def patch(self, state: State, asks: Sequence[Query]) -> Patch:  # noqa: ARG002  # the contract's arguments
        name = self.lm.linear_names()[0]
        features_in, features_out = self.lm.linear_shape(name)
        a = torch.ones(1, 1, features_in) * self.used
        return Patch(deltas={name: LowRank(a, torch.ones(1, features_out, 1) * self.used)})


BROKEN += [("_check_stored_state", Hides), ("_check_training", Idle)]


@pytest.mark.parametrize(("name", "cls"), BROKEN)
def test_a_broken_promise_is_found(name: str, cls: type[Method[Any]]) -> None:
    spec = replace(cls.spec, import_path=cls)
    (sentence,) = (each for each, check in PROMISES.items() if check.__name__ == name)
    assert check_promise(
        sentence, {"llama": Case(spec, spec.Settings(), BASE_MODELS["llama"])}
    ).startswith("on llama: ")


def test_check_reports_a_verdict_a_line(ttabench: Command, tmp_path: Any) -> None:
    ran = ttabench("check icl")
    lines = [line for line in ran.out.splitlines() if line]
    assert ran.code == 0
    assert lines[:-1] == [f"kept    {promise}" for promise in PROMISES]
    assert (
        lines[-1]
        == f"icl passes {len(PROMISES)} of {len(PROMISES)} checks (2-layer llama and gpt2)."
    )
    file = tmp_path / "deaf.py"
    file.write_text(
        "from ttabench.lm.patch import Patch\nfrom ttabench.methods.icl.method import InContext\n"
        "from ttabench.methods.spec import MethodSpec\n\n\nclass Deaf(InContext):\n"
        "    spec = MethodSpec(name='deaf', Settings=InContext.spec.Settings, summary='deaf', growth='linear')\n\n"
        "    def patch(self, state, asks):\n        return Patch()\n",
        encoding="utf-8",
    )
    ran = ttabench(f"check {file}")
    assert ran.code == 1
    assert "BROKEN" in ran.out
    assert "growth" in ran.out


def test_what_cannot_be_checked_is_refused(ttabench: Command) -> None:
    for words, told in ((("check", "icll"), "Did you mean 'icl'"),):
        assert told in error_line(ttabench(*words))
    ran = ttabench(
        "check window --set positions=cache"
    )  # one base refuses it, the other is checked
    assert ran.code == 0
    assert "Note: not on gpt2: " in ran.err


@pytest.mark.parametrize("name", [name for name, spec in methods().items() if spec.trainable])
def test_it_trains_on_a_base_in_half_precision(name: str) -> None:
    """The loss is about that of float32, and the gradient is float32 as the parameters are.

    A method that is fitted in closed form has no gradients.
    """
    losses = []
    for dtype in (torch.float32, torch.bfloat16):
        lm = tiny_llama()
        lm.model.to(dtype)
        spec, chosen = settings(name)
        with torch.random.fork_rng():
            torch.manual_seed(0)
            method = spec.load()(lm, chosen)
            losses.append(
                float(
                    method.accumulate_gradients([make_episode("a", 3), make_episode("b", 2)])[
                        "loss"
                    ]
                )
            )
        parameters = list(method.modules().parameters())
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        assert len(gradients) in (0, len(parameters))
        assert {each.dtype for each in gradients or parameters} == {torch.float32}
    assert losses[1] == pytest.approx(losses[0], rel=0.05)
