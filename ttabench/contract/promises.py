"""The promises by their sentences: each function returns where its promise is kept, and raises `Broken` where not.

PROMISES[sentence](Case(find("icl"), InContextSettings(), tiny_llama))
verdict(sentence, cases(spec, settings)[0])      "" where it is kept, else "on llama: answers depend on ..."
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from dataclasses import asdict
from functools import partial
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from ttabench.contract.case import (
    BASES,
    PROMPTS,
    QUESTIONS,
    TEXTS,
    Broken,
    Case,
    answers,
    asks,
    episode,
    equal,
    logits,
    near,
    observes,
    read,
    tensors_of,
)
from ttabench.core.environment import forked_draws
from ttabench.core.errors import UserError
from ttabench.cost import NoSettings
from ttabench.lm.forward.patching import layers_recomputed
from ttabench.lm.patch import State
from ttabench.methods.none.method import NoContext
from ttabench.methods.session import Session
from ttabench.methods.settings import restored
from ttabench.methods.spec import MethodSpec
from ttabench.methods.states import load_state, save_state
from ttabench.methods.trainable import Trainable

PROMISES: dict[str, Callable[[Case], None]] = {}
"""By what is promised, in the order in which they are checked."""
ARRIVES = 1e-3
"""Logits move by more where something was read."""
GULLS = tuple(f"Gull {number} sails." for number in range(10, 26))
"""Short pieces of one length: all of them fit where full context stops."""
ALIKE = 1.25
"""How much more some pieces may add than others to a state that grows with what is read: it may be pooled in groups."""


def _promise(sentence: str) -> Callable[[Callable[[Case], None]], None]:
    return partial(PROMISES.__setitem__, sentence)


@_promise("its settings can be stored, and it has parameters exactly where its spec says trainable")
def _described(case: Case) -> None:
    if restored(case.spec, json.loads(json.dumps(asdict(case.settings)))) != case.settings:
        raise Broken("settings are others once they were JSON")
    parameters = len(list(case.untrained().modules().parameters()))
    if bool(parameters) != case.spec.trainable:
        raise Broken(f"trainable={case.spec.trainable}, and modules() has {parameters} parameters")


@_promise("asking twice, in another order or one by one gives the same answers")
def _asked_again(case: Case) -> None:
    method = case.method()
    state = read(method, *TEXTS)
    together, patch = logits(method, state, QUESTIONS), method.patch(state, QUESTIONS)
    equal("patches of the same state", tensors_of(method.patch(state, QUESTIONS)), tensors_of(patch))
    if answers(method, state, QUESTIONS[::-1])[::-1] != answers(method, state, QUESTIONS):
        raise Broken("answers depend on the order of the questions")
    for ask, logits_TV in zip(QUESTIONS, together, strict=True):
        near("logits of a question in a batch and alone", [logits_TV], logits(method, state, [ask]))


@_promise("adapting nothing gives the base model")
def _nothing_read(case: Case) -> None:
    method = case.untrained()
    base = logits(NoContext(case.base(), NoSettings()), State(1), QUESTIONS)
    for rows in (1,) if method.one_reader else (1, len(QUESTIONS)):
        ours = logits(method, method.begin(rows), QUESTIONS)
        near(f"logits of {rows} rows that read nothing and the base model's", ours, base)


@_promise("what is read arrives, unless the spec says that the state stays empty")
def _reading_arrives(case: Case) -> None:
    method = case.method()
    before, after = (logits(method, state, QUESTIONS) for state in (method.begin(1), read(method, *TEXTS)))
    moved = max(float((one - other).abs().max()) for one, other in zip(before, after, strict=True))
    if (moved > ARRIVES) != (method.growth != "none"):
        raise Broken(f"growth is {method.growth!r}, and logits move by up to {moved:.2g}")


@_promise("a row alone equals the row in a batch, or no batch begins where the method says one_reader")
def _rows_apart(case: Case) -> None:
    method = case.method()
    if method.one_reader:
        with suppress(UserError):
            method.begin(2)
            raise Broken("one_reader is true, and a state of two rows begins")
        return
    first = [TEXTS[0], TEXTS[1] + " And green ones, too, of all sizes.", TEXTS[2]]
    second = ["It is a harbour.", TEXTS[3], "There are terns, gulls and one old lighthouse."]
    state, chunks = method.begin(len(first)), [observes(*first), observes(*second)]
    for part in [chunks] if method.reads == "once" else [[chunk] for chunk in chunks]:
        state = method.adapt(state, part)
    together = logits(method, state, QUESTIONS)
    for row, pieces in enumerate(zip(first, second, strict=True)):
        alone = logits(method, read(method, *pieces), [QUESTIONS[row]])
        near(f"logits of row {row} in a batch and alone", [together[row]], alone)


@_promise("what is read together may be cut anywhere, where the method says so")
def _cut_anywhere(case: Case) -> None:
    """With `reads="pieces"`; else what stands between two questions comes in one call, see `Session`."""
    method = case.method()
    if method.reads != "pieces":
        return
    at_once, apart = method.adapt(method.begin(1), [[piece] for piece in observes(*TEXTS)]), read(method, *TEXTS)
    if at_once.meta != apart.meta:
        raise Broken("meta of a state read at once and piece by piece differ")
    if at_once.nbytes != apart.nbytes:
        raise Broken(f"a state has {at_once.nbytes:,} bytes read at once, {apart.nbytes:,} piece by piece")
    ours, theirs = (logits(method, state, QUESTIONS) for state in (at_once, apart))
    near("logits of states read at once and piece by piece", ours, theirs)


@_promise("states are values: neither reading on nor asking changes one")
def _values(case: Case) -> None:
    method = case.method()
    state = read(method, TEXTS[0])
    kept, meta = {name: tensor.clone() for name, tensor in state.tensors.items()}, json.dumps(state.meta)
    if method.reads != "once":
        answers(method, method.adapt(state, [observes(TEXTS[1])]), QUESTIONS)
    answers(method, state, QUESTIONS)
    if json.dumps(state.meta) != meta:
        raise Broken("meta of a state changed")
    equal("tensors of a state before and after", list(state.tensors.values()), list(kept.values()))


@_promise("a stored state gives an equal patch, and can be read on")
def _stored(case: Case) -> None:
    method = case.method()
    states = [read(method, *TEXTS)]
    belongs = {"method": method.name, "fingerprint": method.lm.fingerprint, "checkpoint": "", "settings": {}}
    with TemporaryDirectory() as folder:
        states.append(load_state(save_state(Path(folder), states[0], belongs), belongs))
    ours, loaded = (tensors_of(method.patch(state, QUESTIONS)) for state in states)
    equal("patches of a state and of the stored one", loaded, ours)
    if method.reads != "once":
        more = [observes("One more text.")]
        ours, loaded = (tensors_of(method.patch(method.adapt(state, more), QUESTIONS)) for state in states)
        equal("patches of both after one more piece", loaded, ours)


@_promise("the bytes of the state grow as the method says: none, constant or linear")
def _bytes_follow_growth(case: Case) -> None:
    method = case.method()
    texts, counts = (GULLS, (4, 8, 12, 16)) if method.growth == "linear" else (TEXTS, (1, 2, 3, 4))
    sizes = [read(method, *texts[:count]).nbytes for count in counts]
    steps = [after - before for before, after in pairwise(sizes)]
    kept = {
        "none": not any(sizes),
        "constant": sizes[0] > 0 and not any(steps),
        "linear": 0 < max(steps) <= ALIKE * min(steps),
    }
    if not kept[method.growth]:
        read_in = ", ".join(map(str, counts))
        raise Broken(f"growth is {method.growth!r}, and {read_in} equal pieces leave {sizes} bytes")


@_promise("two runs with one seed, and two readers of one method, are bit for bit the same")
def _repeatable(case: Case) -> None:
    method, other = case.method(), case.method()
    first, second, third = (logits(one, read(one, *TEXTS), QUESTIONS) for one in (method, other, method))
    equal("logits of two runs", first, second)
    equal("logits of the first reader and of a later one", first, third)


@_promise("nothing of a right answer reaches the state or what is generated")
def _answers_stay_out(case: Case) -> None:
    states = []
    for gold in ("Port Ansel", "a wholly different and longer answer"):
        method = case.method()
        session = Session(method.lm, method)
        session.read(observes(*TEXTS))
        predictions = [answer.prediction for answer in session.answer(asks(*PROMPTS, answer=gold))]
        if method.reads != "once":
            session.read(observes("One more text."))
        states.append((predictions, session.state))
    (one, first), (other, second) = states
    if one != other:
        raise Broken("generated answers depend on the right ones")
    equal("states under two sets of right answers", list(first.tensors.values()), list(second.tensors.values()))


@_promise("nothing is left behind after an exception: no hook, no changed weight, no gradient")
def _cleaned_up(case: Case) -> None:
    method = case.method()
    model, state = method.lm.model, read(method, *TEXTS)
    weights = {name: p.detach().clone() for name, p in model.named_parameters()}

    def hooks() -> int:
        return sum(len(part._forward_hooks) + len(part._forward_pre_hooks) for part in model.modules())

    def fail(*_: object) -> None:
        raise ZeroDivisionError

    before = hooks()
    handle = model.get_submodule(method.lm.linear_names()[-1]).register_forward_pre_hook(fail)
    with suppress(ZeroDivisionError):
        logits(method, state, QUESTIONS)
        raise Broken("the base model's last linear map was never called")
    handle.remove()
    if hooks() != before:
        raise Broken(f"{hooks() - before} hooks are left on the base model")
    after = dict(model.named_parameters())
    if after.keys() != weights.keys() or any(not torch.equal(after[name], weight) for name, weight in weights.items()):
        raise Broken("weights of the base model are others")
    if any(p.requires_grad for p in after.values()):
        raise Broken("weights of the base model ask for gradients")


@_promise("training reaches every parameter and no weight of the base")
def _trained(case: Case) -> None:
    method = case.method()
    if not case.spec.trainable:
        return
    if not isinstance(method, Trainable):
        raise Broken("trainable=True, and the class does not stand on Trainable")
    parameters, gradients = dict(method.modules().named_parameters()), []
    for layers in (layers_recomputed(method.lm), nullcontext()):
        method.modules().zero_grad(set_to_none=True)
        with layers, forked_draws(method.lm.device):
            torch.manual_seed(0)
            losses = method.accumulate_gradients([episode("a", 3), episode("b", 2)])
        gradients.append({name: p.grad for name, p in parameters.items()})
    if not math.isfinite(float(losses["loss"])):
        raise Broken(f"the loss is {float(losses['loss'])}")
    missing = [name for name, p in parameters.items() if p.grad is None or not p.grad.isfinite().all()]
    if missing:
        raise Broken(f"{missing[0]} and {len(missing) - 1} more parameters get no finite gradient")
    if any(p.grad is not None for p in method.lm.model.parameters()):
        raise Broken("weights of the base model get gradients")
    for name, again in gradients[0].items():
        plain = gradients[1][name]
        if again is None or plain is None or not torch.allclose(again, plain, rtol=1e-3, atol=1e-6):
            raise Broken(f"{name} gets another gradient where layers are computed again, or draws of its own")


def cases(spec: MethodSpec, settings: Any) -> tuple[dict[str, Case], list[str]]:
    """The method on every base that it takes, by name, and why it does not take the others."""
    by_base, refused = dict[str, Case](), dict[str, UserError]()
    for name, base in BASES.items():
        case = Case(spec, settings, base)
        try:
            case.untrained()
        except UserError as error:
            refused[name] = error
        else:
            by_base[name] = case
    if not by_base:
        raise next(iter(refused.values()))
    return by_base, [f"not on {name}: {error}" for name, error in refused.items()]


def verdict(sentence: str, checked: Mapping[str, Case]) -> str:
    """What breaks a promise, on the first base on which it is broken; empty where it is kept on all."""
    for name, case in checked.items():
        try:
            PROMISES[sentence](case)
        except (Exception, SystemExit) as error:  # a method of somebody else may do anything
            kind = "" if isinstance(error, Broken) else f"{type(error).__name__}: "
            return f"on {name}: {kind}{error}".splitlines()[0]
    return ""
