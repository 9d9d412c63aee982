"""Promises about what outlives a call: settings, states, checkpoints, gradients, and the base model as it was."""

from __future__ import annotations

import json
import math
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import nn

from ttabench.contract.case import PROMPTS, TEXTS, Case, asks, logits, observes, read, tensors_of
from ttabench.contract.keeping import Broken, equal
from ttabench.core.types import Ask, Episode, Generate, Observe
from ttabench.methods import checkpoints
from ttabench.methods.settings import restored
from ttabench.methods.states import load_state, save_state
from ttabench.methods.trainable import Trainable


def described(case: Case) -> None:
    """Records hold settings as JSON; `ttabench train` believes the spec."""
    as_json = json.loads(json.dumps(asdict(case.settings)))
    if restored(case.spec, as_json) != case.settings:
        raise Broken("settings are others once they were JSON")
    if not case.spec.summary:
        raise Broken("the spec has no summary")
    parameters = len(list(case.untrained().modules().parameters()))
    if bool(parameters) != case.spec.trainable:
        raise Broken(f"trainable={case.spec.trainable}, and modules() has {parameters} parameters")


def stored(case: Case) -> None:
    """A state that was written and read again answers alike."""
    method, questions = case.method(), asks(*PROMPTS)
    state = read(method, *TEXTS)
    belongs = {"method": method.name, "fingerprint": method.lm.fingerprint, "checkpoint": "", "settings": {}}
    with TemporaryDirectory() as folder:
        save_state(Path(folder), state, belongs)
        loaded = load_state(Path(folder), belongs)
    equal("patches of a state and of the stored one", tensors_of(method.patch(loaded, questions)),
           tensors_of(method.patch(state, questions)))  # fmt: skip
    if method.reads == "once":
        return
    more = observes("One more text.")
    equal("patches of both after one more piece", tensors_of(method.patch(method.adapt(loaded, [more]), questions)),
           tensors_of(method.patch(method.adapt(state, [more]), questions)))  # fmt: skip


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


def trained(case: Case) -> None:
    """One backward pass of two episodes of different lengths."""
    method = case.method()
    if not case.spec.trainable:
        return
    if not isinstance(method, Trainable):
        raise Broken("trainable=True, and the class does not stand on Trainable")
    losses = method.accumulate_gradients([_episode("a", 3), _episode("b", 2)])
    if not math.isfinite(float(losses["loss"])):
        raise Broken(f"the loss is {float(losses['loss'])}")
    missing = [name for name, p in method.modules().named_parameters() if p.grad is None or not p.grad.isfinite().all()]
    if missing:
        raise Broken(f"{missing[0]} and {len(missing) - 1} more parameters get no finite gradient")
    if any(p.grad is not None for p in method.lm.model.parameters()):
        raise Broken("weights of the base model get gradients")


def _episode(key: str, documents: int) -> Episode:
    """Documents that say where somebody lives, then a question about each."""
    people = [f"{key}{index}" for index in range(documents)]
    texts = [Observe(text=f"{who} lives in {who}ville.", key=who) for who in people]
    asked = [
        Ask(prompt=f"Where does {who} live?", key=who, want=Generate(answers=(f"{who}ville",)), source_key=who)
        for who in people
    ]
    return Episode(key=key, steps=(*texts, *asked))


def checkpoint(case: Case) -> None:
    """A checkpoint that was written and read again answers alike."""
    method, questions = case.method(), asks(*PROMPTS)
    if not case.spec.trainable:
        return
    with TemporaryDirectory() as folder:
        checkpoints.save(method, Path(folder))
        loaded = checkpoints.load(type(method), method.lm, Path(folder))
    equal("patches of a method and of the stored one", tensors_of(loaded.patch(read(loaded, *TEXTS), questions)),
           tensors_of(method.patch(read(method, *TEXTS), questions)))  # fmt: skip
