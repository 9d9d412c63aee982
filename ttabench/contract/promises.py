"""The promises, one function each: it returns where they are kept, and raises `Broken` with what was seen where not.

for sentence, promise in PROMISES.items():
    promise(Case(find("icl"), InContextSettings(), tiny_llama))
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from ttabench.contract.case import PROMPTS, TEXTS, Case, answers, asks, logits, observes, read, tensors_of
from ttabench.core.types import Ask, Episode, Observe
from ttabench.lm.patch import Patch, State
from ttabench.lm.patching import select_rows
from ttabench.methods import checkpoints
from ttabench.methods.base import BaseMethod
from ttabench.methods.registry import restored
from ttabench.methods.session import Session
from ttabench.methods.states import load_state, save_state
from ttabench.methods.trainable import Trainable

ABSOLUTE, RELATIVE = 2e-5, 1e-4
"""How far numbers of one computation in two orders may lie apart: a share of the largest (or of 1), and of each."""
ARRIVES = 1e-3
"""Logits move by more where something was read."""
Promise: TypeAlias = Callable[[Case], None]
PROMISES: dict[str, Promise] = {}
"""By what is promised, in the order in which they are checked."""


class Broken(Exception):
    """A promise is not kept; says what was seen."""


def promise(sentence: str) -> Callable[[Promise], Promise]:
    """Put a function among `PROMISES`."""

    def put(function: Promise) -> Promise:
        PROMISES[sentence] = function
        return function

    return put


def _near(what: str, ours: Sequence[Tensor], theirs: Sequence[Tensor]) -> None:
    if len(ours) != len(theirs):
        raise Broken(f"{what}: {len(ours)} tensors, and {len(theirs)}")
    for one, other in zip(ours, theirs, strict=True):
        if one.shape != other.shape:
            raise Broken(f"{what}: shapes {tuple(one.shape)} and {tuple(other.shape)}")
        apart, most = (one.float() - other.float()).abs(), other.float().abs().max().clamp(min=1.0)
        if not bool((apart <= ABSOLUTE * most + RELATIVE * other.float().abs()).all()):
            raise Broken(f"{what} differ by up to {float(apart.max()):.2g}")


def _equal(what: str, ours: Sequence[Tensor], theirs: Sequence[Tensor]) -> None:
    if len(ours) != len(theirs) or not all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True)):
        raise Broken(f"{what} are not bit for bit the same")


def _furthest(ours: Sequence[Tensor], theirs: Sequence[Tensor]) -> float:
    return max(float((one - other).abs().max()) for one, other in zip(ours, theirs, strict=True))


@promise("its settings can be stored, and it has parameters exactly where its spec says trainable")
def described(case: Case) -> None:
    """Records hold settings as JSON; `ttabench train` believes the spec."""
    told = json.loads(json.dumps(asdict(case.settings)))
    if restored(case.spec, told) != case.settings:
        raise Broken("settings are others once they were JSON")
    if not case.spec.summary:
        raise Broken("the spec has no summary")
    parameters = len(list(case.untrained().modules().parameters()))
    if bool(parameters) != case.spec.trainable:
        raise Broken(f"trainable={case.spec.trainable}, and modules() has {parameters} parameters")


@promise("asking twice, and in another order, gives the same answers")
def asked_again(case: Case) -> None:
    """Asking never changes the state."""
    method, questions = case.method(), asks(*PROMPTS)
    state = read(method, *TEXTS)
    first = answers(method, state, questions)
    if answers(method, state, questions) != first:
        raise Broken("the second time answers are others")
    if answers(method, state, questions[::-1])[::-1] != first:
        raise Broken("answers depend on the order of the questions")
    patch = method.patch(state, questions)
    _equal("patches of the same state", tensors_of(method.patch(state, questions)), tensors_of(patch))


@promise("questions of one batch do not meet")
def alone_or_together(case: Case) -> None:
    """A question is answered alike with others and by itself."""
    method, questions = case.method(), asks(*PROMPTS)
    state = read(method, *TEXTS)
    for ask, together in zip(questions, logits(method, state, questions), strict=True):
        _near("logits of a question in a batch and alone", [together], logits(method, state, [ask]))


@promise("adapting nothing gives the base model")
def nothing_read(case: Case) -> None:
    """As it begins, for any number of rows."""
    method, questions = case.untrained(), asks(*PROMPTS)
    base = logits(_Bare(case.base(), None), State(1), questions)
    for rows in (1, len(questions)):
        _near(f"logits of {rows} rows that read nothing and the base model's",
              logits(method, method.begin(rows), questions), base)  # fmt: skip


class _Bare(BaseMethod[None]):
    """The base model."""

    def __init__(self, lm: Any, settings: None) -> None:
        self.lm, self.settings = lm, settings

    def patch(self, state: State, asks: Sequence[Ask]) -> Patch:  # noqa: ARG002  # the contract's arguments
        return Patch()


@promise("what is read arrives, unless the spec says that the state stays empty")
def reading_arrives(case: Case) -> None:
    """A guard of the other promises."""
    method, questions = case.method(), asks(*PROMPTS)
    moved = _furthest(logits(method, method.begin(1), questions), logits(method, read(method, *TEXTS), questions))
    if (moved > ARRIVES) != (method.growth != "none"):
        raise Broken(f"growth is {method.growth!r}, and logits move by up to {moved:.2g}")


@promise("a row alone equals the row in a batch")
def rows_apart(case: Case) -> None:
    """Readers of one batch do not meet, whatever the lengths of what they read."""
    method, questions = case.method(), asks(*PROMPTS)
    first = [TEXTS[0], TEXTS[1] + " And green ones, too, of all sizes.", TEXTS[2]]
    second = ["It is a harbour.", TEXTS[3], "There are terns, gulls and one old lighthouse."]
    state, chunks = method.begin(len(first)), [observes(*first), observes(*second)]
    for part in [chunks] if method.reads == "once" else [[chunk] for chunk in chunks]:
        state = method.adapt(state, part)
    together = logits(method, state, questions)
    for row, pieces in enumerate(zip(first, second, strict=True)):
        alone = logits(method, read(method, *pieces), [questions[row]])
        _near(f"logits of row {row} in a batch and alone", [together[row]], alone)


@promise("a patch has a row a question where it looks at questions, and else one that serves all")
def patch_rows(case: Case) -> None:
    """What is shared is encoded once, and rows can be selected."""
    method, questions = case.method(), asks(*PROMPTS)
    state = read(method, *TEXTS)
    patch = method.patch(state, questions)
    if not method.looks_at_question:
        if odd := [tuple(each.shape) for each in tensors_of(patch) if each.shape[0] != 1]:
            raise Broken(f"looks_at_question is false, and the patch has tensors of shape {odd[0]}")
        return
    chosen, wanted = select_rows(patch, [2, 0]), method.patch(state, [questions[2], questions[0]])
    _near("selected rows of a patch and the patch of these questions", tensors_of(chosen), tensors_of(wanted))


@promise("what is read together may be cut anywhere, where the method says so")
def cut_anywhere(case: Case) -> None:
    """With `reads="pieces"`; else what stands between two questions comes in one call, see `Session`."""
    method, questions = case.method(), asks(*PROMPTS)
    if method.reads != "pieces":
        return
    at_once = method.adapt(method.begin(1), [[piece] for piece in observes(*TEXTS)])
    one_by_one = read(method, *TEXTS)
    if at_once.meta != one_by_one.meta:
        raise Broken("meta of a state read at once and piece by piece differ")
    if at_once.nbytes != one_by_one.nbytes:
        raise Broken(f"a state has {at_once.nbytes:,} bytes read at once, {one_by_one.nbytes:,} piece by piece")
    _near("logits of states read at once and piece by piece", logits(method, at_once, questions),
          logits(method, one_by_one, questions))  # fmt: skip


@promise("states are values: neither reading on nor asking changes one")
def values(case: Case) -> None:
    """A state that was kept can be gone back to."""
    method = case.method()
    state = read(method, TEXTS[0])
    kept, meta = {name: tensor.clone() for name, tensor in state.tensors.items()}, json.dumps(state.meta)
    if method.reads != "once":
        answers(method, method.adapt(state, [observes(TEXTS[1])]), asks(*PROMPTS))
    answers(method, state, asks(*PROMPTS))
    if json.dumps(state.meta) != meta:
        raise Broken("meta of a state changed")
    _equal("tensors of a state before and after", list(state.tensors.values()), list(kept.values()))


@promise("a stored state gives an equal patch, and can be read on")
def stored(case: Case) -> None:
    """What `ttabench adapt` writes is all there is."""
    method, questions = case.method(), asks(*PROMPTS)
    state = read(method, *TEXTS)
    belongs = {"method": method.name, "fingerprint": method.lm.fingerprint, "checkpoint": "", "settings": {}}
    with TemporaryDirectory() as folder:
        save_state(Path(folder), state, belongs)
        loaded = load_state(Path(folder), belongs)
    _equal("patches of a state and of the stored one", tensors_of(method.patch(loaded, questions)),
           tensors_of(method.patch(state, questions)))  # fmt: skip
    if method.reads == "once":
        return
    more = observes("One more text.")
    _equal("patches of both after one more piece", tensors_of(method.patch(method.adapt(loaded, [more]), questions)),
           tensors_of(method.patch(method.adapt(state, [more]), questions)))  # fmt: skip


@promise("the bytes of the state grow as the method says: none, constant or linear")
def bytes_follow_growth(case: Case) -> None:
    """Pieces of one length: the state stays empty, stays as it is, or grows by the same amount."""
    method = case.method()
    sizes = [read(method, *TEXTS[:count]).nbytes for count in range(1, len(TEXTS) + 1)]
    steps = {after - before for before, after in pairwise(sizes)}
    step = min(steps)
    kept = {"none": sizes[0] == step == 0, "constant": step == 0 < sizes[0], "linear": step > 0}
    if len(steps) > 1 or not kept[method.growth]:
        raise Broken(f"growth is {method.growth!r}, and 1 to {len(TEXTS)} equal pieces leave {sizes} bytes")


@promise("two runs with one seed are bit for bit the same")
def repeatable(case: Case) -> None:
    """On one machine, with the same threads."""
    first, second = (logits(method, read(method, *TEXTS), asks(*PROMPTS)) for method in (case.method(), case.method()))
    _equal("logits of two runs", first, second)


@promise("what is asked later never changes what was answered before")
def later_questions(case: Case) -> None:
    """The same reader, once asked one thing, once more before and after; and another reader in between."""
    method, questions = case.method(), asks(*PROMPTS)
    alone = Session(method.lm, method)
    alone.read(observes(*TEXTS[:2]))
    wanted = [answer.prediction for answer in alone.answer(questions[:1])]
    session = Session(method.lm, method)
    session.read(observes(*TEXTS[:2]))
    found = [answer.prediction for answer in session.answer(questions)][:1]
    if found != wanted:
        raise Broken("a question is answered otherwise when more are asked with it")
    if method.reads != "once":
        session.read(observes(*TEXTS[2:]))
        session.answer(questions[::-1])
    again = Session(method.lm, method)
    again.read(observes(*TEXTS[:2]))
    if [answer.prediction for answer in again.answer(questions[:1])] != wanted:
        raise Broken("a new reader of the same texts answers otherwise than the first one: the method remembers")


@promise("nothing of a right answer reaches the state or what is generated")
def answers_stay_out(case: Case) -> None:
    """Gold answers are there to be compared with."""
    found = []
    for gold in ("Port Ansel", "a wholly different and longer answer"):
        method = case.method()
        session = Session(method.lm, method)
        session.read(observes(*TEXTS))
        told = [answer.prediction for answer in session.answer(asks(*PROMPTS, answer=gold))]
        if method.reads != "once":
            session.read(observes("One more text."))
        found.append((told, session.state))
    (one, first), (other, second) = found
    if one != other:
        raise Broken("generated answers depend on the right ones")
    _equal("states under two sets of right answers", list(first.tensors.values()), list(second.tensors.values()))


@promise("nothing is left behind after an exception: no hook, no changed weight, no gradient")
def cleaned_up(case: Case) -> None:
    """The base model is lent."""
    method, questions = case.method(), asks(*PROMPTS)
    model = method.lm.model
    state = read(method, *TEXTS)
    before, weights = _hooks(model), {name: p.detach().clone() for name, p in model.named_parameters()}

    class Middle(Exception):
        pass

    def fail(*_: object) -> None:
        raise Middle

    handle = model.get_submodule(method.lm.linear_names()[-1]).register_forward_pre_hook(fail)
    with suppress(Middle):
        logits(method, state, questions)
        raise Broken("the base model's last linear map was never called")
    handle.remove()
    if _hooks(model) != before:
        raise Broken(f"{_hooks(model) - before} hooks are left on the base model")
    after = dict(model.named_parameters())
    if after.keys() != weights.keys() or any(not torch.equal(after[name], weight) for name, weight in weights.items()):
        raise Broken("weights of the base model are others")
    if any(p.requires_grad for p in after.values()):
        raise Broken("weights of the base model ask for gradients")


def _hooks(model: nn.Module) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


@promise("training reaches every parameter and no weight of the base")
def trained(case: Case) -> None:
    """One backward pass of two episodes of different lengths."""
    method = case.method()
    if not case.spec.trainable:
        return
    if not isinstance(method, Trainable):
        raise Broken("trainable=True, and the class does not stand on Trainable")
    told = method.learn([_episode("a", 3), _episode("b", 2)])
    if not math.isfinite(float(told["loss"])):
        raise Broken(f"the loss is {float(told['loss'])}")
    missing = [name for name, p in method.modules().named_parameters() if p.grad is None or not p.grad.isfinite().all()]
    if missing:
        raise Broken(f"{missing[0]} and {len(missing) - 1} more parameters get no finite gradient")
    if any(p.grad is not None for p in method.lm.model.parameters()):
        raise Broken("weights of the base model get gradients")


def _episode(key: str, documents: int) -> Episode:
    """Documents that say where somebody lives, then a question about each."""
    people = [f"{key}{index}" for index in range(documents)]
    texts = [Observe(text=f"{who} lives in {who}ville.", key=who) for who in people]
    asked = [Ask(prompt=f"Where does {who} live?", key=who, answers=(f"{who}ville",), about=who) for who in people]
    return Episode(key=key, steps=(*texts, *asked))


@promise("a stored checkpoint gives an equal patch")
def checkpoint(case: Case) -> None:
    """What `ttabench train` writes is all there is."""
    method, questions = case.method(), asks(*PROMPTS)
    if not case.spec.trainable:
        return
    with TemporaryDirectory() as folder:
        checkpoints.save(method, Path(folder))
        loaded = checkpoints.load(type(method), method.lm, Path(folder))
    _equal("patches of a method and of the stored one", tensors_of(loaded.patch(read(loaded, *TEXTS), questions)),
           tensors_of(method.patch(read(method, *TEXTS), questions)))  # fmt: skip
