"""Contract of methods: checks by description. A check raises `PromiseBroken` on failure.

PROMISES[sentence](Case(find_method("icl"), InContextSettings(), tiny_llama))
check_promise(sentence, cases)      "" if kept, else "on llama: answers depend on ..."
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from dataclasses import asdict, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from ttabench.contract.case import (
    BASE_MODELS,
    PROMPTS,
    QUERIES,
    TEXTS,
    Case,
    PromiseBroken,
    generate_answers,
    make_chunks,
    make_episode,
    make_queries,
    patch_tensors,
    query_logits,
    read_texts,
    require_close,
    require_equal,
)
from ttabench.core.environment import isolated_rng
from ttabench.core.errors import UserError
from ttabench.core.types import Score
from ttabench.cost import NoSettings
from ttabench.lm.forward.patching import gradient_checkpointing
from ttabench.lm.patch import State
from ttabench.methods.none.method import NoContext
from ttabench.methods.session import Session
from ttabench.methods.settings import restore_settings
from ttabench.methods.spec import MethodSpec
from ttabench.methods.states import load_state, save_state
from ttabench.methods.trainable import Trainable

PROMISES: dict[str, Callable[[Case], None]] = {}
"""Checks by description, in order."""
MIN_LOGIT_CHANGE = 1e-3
"""Reading must change logits by more than this."""
SHORT_TEXTS = tuple(f"Gull {number} sails." for number in range(10, 26))
"""Short chunks of equal length that together fit the full-context baseline."""
MAX_GROWTH_RATIO = 1.25
"""Largest ratio of bytes added by equal numbers of chunks: a linear state may pool in groups."""


def _promise(sentence: str) -> Callable[[Callable[[Case], None]], None]:
    return partial(PROMISES.__setitem__, sentence)


@_promise("settings survive JSON, and there are parameters exactly if the spec says trainable")
def _check_settings(case: Case) -> None:
    if restore_settings(case.spec, json.loads(json.dumps(asdict(case.settings)))) != case.settings:
        raise PromiseBroken("settings change when stored as JSON")
    parameters = len(list(case.make_untrained().modules().parameters()))
    if bool(parameters) != case.spec.trainable:
        raise PromiseBroken(
            f"trainable={case.spec.trainable}, but modules() has {parameters} parameters"
        )


@_promise("answers do not depend on repetition, order or batching of queries")
def _check_repeated_queries(case: Case) -> None:
    method = case.make_method()
    state = read_texts(method, *TEXTS)
    together, patch = query_logits(method, state, QUERIES), method.patch(state, QUERIES)
    require_equal(
        "patches of the same state",
        patch_tensors(method.patch(state, QUERIES)),
        patch_tensors(patch),
    )
    if generate_answers(method, state, QUERIES[::-1])[::-1] != generate_answers(
        method, state, QUERIES
    ):
        raise PromiseBroken("answers depend on the order of the queries")
    for query, logits_TV in zip(QUERIES, together, strict=True):
        require_close(
            "logits of a query in a batch and alone",
            [logits_TV],
            query_logits(method, state, [query]),
        )


@_promise("an empty state gives the base model")
def _check_empty_state(case: Case) -> None:
    method = case.make_untrained()
    base = query_logits(NoContext(case.make_base(), NoSettings()), State(1), QUERIES)
    for rows in (1,) if not method.supports_batching else (1, len(QUERIES)):
        ours = query_logits(method, method.begin(rows), QUERIES)
        require_close(f"logits of {rows} empty states and of the base model", ours, base)


@_promise("reading has an effect, unless the spec has growth='none'")
def _check_reading_has_effect(case: Case) -> None:
    method = case.make_method()
    before, after = (
        query_logits(method, state, QUERIES)
        for state in (method.begin(1), read_texts(method, *TEXTS))
    )
    moved = max(float((one - other).abs().max()) for one, other in zip(before, after, strict=True))
    if (moved > MIN_LOGIT_CHANGE) != (method.growth != "none"):
        raise PromiseBroken(f"growth is {method.growth!r}, but logits change by up to {moved:.2g}")


@_promise("batched and unbatched results are identical, or supports_batching is False")
def _check_batching(case: Case) -> None:
    method = case.make_method()
    if not method.supports_batching:
        with suppress(UserError):
            method.begin(2)
            raise PromiseBroken("supports_batching is False, but begin(2) works")
        return
    first = [TEXTS[0], TEXTS[1] + " And green ones, too, of all sizes.", TEXTS[2]]
    second = ["It is a harbour.", TEXTS[3], "There are terns, gulls and one old lighthouse."]
    state, chunks = method.begin(len(first)), [make_chunks(*first), make_chunks(*second)]
    for part in [chunks] if method.granularity == "full" else [[chunk] for chunk in chunks]:
        state = method.adapt(state, part)
    together = query_logits(method, state, QUERIES)
    for row, row_texts in enumerate(zip(first, second, strict=True)):
        alone = query_logits(method, read_texts(method, *row_texts), [QUERIES[row]])
        require_close(f"logits of row {row} in a batch and alone", [together[row]], alone)


@_promise("context may be split anywhere if granularity is 'chunk'")
def _check_granularity(case: Case) -> None:
    """Compare states; other granularities get the text between queries in one call (`Session`)."""
    method = case.make_method()
    if method.granularity != "chunk":
        return
    at_once, one_by_one = (
        method.adapt(method.begin(1), [[chunk] for chunk in make_chunks(*TEXTS)]),
        read_texts(method, *TEXTS),
    )
    if at_once.meta != one_by_one.meta:
        raise PromiseBroken("meta of states read at once and by chunk differ")
    if at_once.nbytes != one_by_one.nbytes:
        raise PromiseBroken(
            f"a state has {at_once.nbytes:,} bytes read at once, {one_by_one.nbytes:,} by chunk"
        )
    ours, theirs = (query_logits(method, state, QUERIES) for state in (at_once, one_by_one))
    require_close("logits of states read at once and by chunk", ours, theirs)


@_promise("states are immutable: neither reading nor answering changes one")
def _check_immutable_states(case: Case) -> None:
    method = case.make_method()
    state = read_texts(method, TEXTS[0])
    expected, meta = (
        {name: tensor.clone() for name, tensor in state.tensors.items()},
        json.dumps(state.meta),
    )
    if method.granularity != "full":
        generate_answers(method, method.adapt(state, [make_chunks(TEXTS[1])]), QUERIES)
    generate_answers(method, state, QUERIES)
    if json.dumps(state.meta) != meta:
        raise PromiseBroken("meta of a state changed")
    require_equal(
        "tensors of a state before and after", list(state.tensors.values()), list(expected.values())
    )


@_promise("a stored state gives an equal patch, and reading can continue from it")
def _check_stored_state(case: Case) -> None:
    method = case.make_method()
    states = [read_texts(method, *TEXTS)]
    belongs = {
        "method": method.name,
        "fingerprint": method.lm.fingerprint,
        "checkpoint": "",
        "settings": {},
    }
    with TemporaryDirectory() as folder:
        states.append(load_state(save_state(Path(folder), states[0], belongs), belongs))
    ours, loaded = (patch_tensors(method.patch(state, QUERIES)) for state in states)
    require_equal("patches of a state and of its stored copy", loaded, ours)
    if method.granularity != "full":
        more = [make_chunks("One more text.")]
        ours, loaded = (
            patch_tensors(method.patch(method.adapt(state, more), QUERIES)) for state in states
        )
        require_equal("patches of both after one more chunk", loaded, ours)


@_promise("state bytes grow as the spec says: none, constant or linear")
def _check_growth(case: Case) -> None:
    method = case.make_method()
    texts, counts = (
        (SHORT_TEXTS, (4, 8, 12, 16)) if method.growth == "linear" else (TEXTS, (1, 2, 3, 4))
    )
    sizes = [read_texts(method, *texts[:count]).nbytes for count in counts]
    steps = [after - before for before, after in pairwise(sizes)]
    expected = {
        "none": not any(sizes),
        "constant": sizes[0] > 0 and not any(steps),
        "linear": 0 < max(steps) <= MAX_GROWTH_RATIO * min(steps),
    }
    if not expected[method.growth]:
        chunk_counts = ", ".join(map(str, counts))
        raise PromiseBroken(
            f"growth is {method.growth!r}, but {chunk_counts} equal chunks give {sizes} bytes"
        )


@_promise("two runs with one seed, and two sequences of one method, are bit-identical")
def _check_repeatable(case: Case) -> None:
    method, other = case.make_method(), case.make_method()
    first, second, third = (
        query_logits(one, read_texts(one, *TEXTS), QUERIES) for one in (method, other, method)
    )
    require_equal("logits of two runs", first, second)
    require_equal("logits of the first sequence and of a later one", first, third)


@_promise("gold answers affect neither the state nor generated answers")
def _check_no_answer_leak(case: Case) -> None:
    states = []
    for gold in ("Port Ansel", "a wholly different and longer answer"):
        method = case.make_method()
        session = Session(method.lm, method)
        session.read(make_chunks(*TEXTS))
        predictions = [
            answer.prediction for answer in session.answer(make_queries(*PROMPTS, answer=gold))
        ]
        if method.granularity != "full":
            session.read(make_chunks("One more text."))
        states.append((predictions, session.state))
    (one, first), (other, second) = states
    if one != other:
        raise PromiseBroken("generated answers depend on the gold answers")
    require_equal(
        "states under two sets of gold answers",
        list(first.tensors.values()),
        list(second.tensors.values()),
    )


@_promise("score first: a scored text changes neither the patch that scores it nor the state")
def _check_score_first(case: Case) -> None:
    patches = []
    for text in (" Port Ansel.", " A wholly different, longer text."):
        method = case.make_method()
        state = read_texts(method, *TEXTS)
        before = [tensor.clone() for tensor in state.tensors.values()]
        queries = [replace(query, want=Score(continuation=text)) for query in QUERIES]
        Session(method.lm, method, state).gold_likelihoods(queries)
        patches.append(patch_tensors(method.patch(state, queries)))
        require_equal("states before and after scoring", before, list(state.tensors.values()))
    require_equal("patches of two scored texts", *patches)


@_promise("an exception leaves no hook, no changed weight and no gradient")
def _check_cleanup(case: Case) -> None:
    method = case.make_method()
    model, state = method.lm.model, read_texts(method, *TEXTS)
    weights = {name: p.detach().clone() for name, p in model.named_parameters()}

    def hooks() -> int:
        return sum(
            len(part._forward_hooks) + len(part._forward_pre_hooks) for part in model.modules()
        )

    def fail(*_: object) -> None:
        raise ZeroDivisionError

    before = hooks()
    handle = model.get_submodule(method.lm.linear_names()[-1]).register_forward_pre_hook(fail)
    with suppress(ZeroDivisionError):
        query_logits(method, state, QUERIES)
        raise PromiseBroken("the base model's last linear map was never called")
    handle.remove()
    if hooks() != before:
        raise PromiseBroken(f"{hooks() - before} hooks are left on the base model")
    after = dict(model.named_parameters())
    if after.keys() != weights.keys() or any(
        not torch.equal(after[name], weight) for name, weight in weights.items()
    ):
        raise PromiseBroken("weights of the base model changed")
    if any(p.requires_grad for p in after.values()):
        raise PromiseBroken("weights of the base model require gradients")


@_promise("training reaches every parameter and no weight of the base")
def _check_training(case: Case) -> None:
    method = case.make_method()
    if not case.spec.trainable:
        return
    if not isinstance(method, Trainable):
        raise PromiseBroken("trainable=True, but the class does not derive from Trainable")
    parameters, gradients = dict(method.modules().named_parameters()), []
    initial = {name: p.detach().clone() for name, p in parameters.items()}
    for layers in (gradient_checkpointing(method.lm), nullcontext()):
        method.modules().zero_grad(set_to_none=True)
        with layers, isolated_rng(method.lm.device):
            torch.manual_seed(0)
            losses = method.accumulate_gradients([make_episode("a", 3), make_episode("b", 2)])
        gradients.append({name: p.grad for name, p in parameters.items()})
    if not math.isfinite(float(losses["loss"])):
        raise PromiseBroken(f"the loss is {float(losses['loss'])}")
    missing = [
        name
        for name, p in parameters.items()
        if (torch.equal(p, initial[name]) if p.grad is None else not p.grad.isfinite().all())
    ]
    if missing:
        raise PromiseBroken(
            f"{missing[0]} and {len(missing) - 1} more parameters get no finite gradient"
        )
    if any(p.grad is not None for p in method.lm.model.parameters()):
        raise PromiseBroken("weights of the base model get gradients")
    for name, again in gradients[0].items():
        plain = gradients[1][name]
        if again is None and plain is None:
            continue  # fitted in closed form
        if again is None or plain is None or not torch.allclose(again, plain, rtol=1e-3, atol=1e-6):
            raise PromiseBroken(
                f"the gradient of {name} changes when layers are recomputed, or uses unseeded draws"
            )


def make_cases(spec: MethodSpec, settings: Any) -> tuple[dict[str, Case], list[str]]:
    """Create a case for every supported base model, and list the reasons against the others."""
    by_base, refused = dict[str, Case](), dict[str, UserError]()
    for name, base in BASE_MODELS.items():
        case = Case(spec, settings, base)
        try:
            case.make_untrained()
        except UserError as error:
            refused[name] = error
        else:
            by_base[name] = case
    if not by_base:
        raise next(iter(refused.values()))
    return by_base, [f"not on {name}: {error}" for name, error in refused.items()]


def check_promise(sentence: str, checked: Mapping[str, Case]) -> str:
    """Check a promise on all base models. Returns the first failure; empty if it is kept."""
    for name, case in checked.items():
        try:
            PROMISES[sentence](case)
        except (Exception, SystemExit) as error:  # a plugin method may raise anything
            kind = "" if isinstance(error, PromiseBroken) else f"{type(error).__name__}: "
            return f"on {name}: {kind}{error}".splitlines()[0]
    return ""
