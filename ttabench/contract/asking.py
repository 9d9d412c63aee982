"""Promises about questions: asking changes nothing, and nothing of a question or an answer leaks."""

from __future__ import annotations

import torch

from ttabench.contract.case import PROMPTS, TEXTS, Case, answers, asks, logits, observes, read, tensors_of
from ttabench.contract.keeping import Broken, equal, near
from ttabench.cost.formula import NoSettings
from ttabench.lm.forward.patching import select_rows
from ttabench.lm.patch import State
from ttabench.methods.none.method import NoContext
from ttabench.methods.session import Session


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
    equal("patches of the same state", tensors_of(method.patch(state, questions)), tensors_of(patch))


def alone_or_together(case: Case) -> None:
    """A question is answered alike with others and by itself."""
    method, questions = case.method(), asks(*PROMPTS)
    state = read(method, *TEXTS)
    for ask, together in zip(questions, logits(method, state, questions), strict=True):
        near("logits of a question in a batch and alone", [together], logits(method, state, [ask]))


def nothing_read(case: Case) -> None:
    """As it begins, for any number of rows."""
    method, questions = case.untrained(), asks(*PROMPTS)
    base = logits(NoContext(case.base(), NoSettings()), State(1), questions)
    for rows in (1,) if method.one_reader else (1, len(questions)):
        near(f"logits of {rows} rows that read nothing and the base model's",
              logits(method, method.begin(rows), questions), base)  # fmt: skip


def patch_rows(case: Case) -> None:
    """A shared patch is encoded once, and its rows can be selected."""
    method, questions = case.method(), asks(*PROMPTS)
    state = read(method, *TEXTS)
    patch = method.patch(state, questions)
    if not method.looks_at_question:
        if odd := [tuple(tensor.shape) for tensor in tensors_of(patch) if tensor.shape[0] != 1]:
            raise Broken(f"looks_at_question is false, and the patch has tensors of shape {odd[0]}")
        return
    chosen, wanted = select_rows(patch, [2, 0]), method.patch(state, [questions[2], questions[0]])
    near("selected rows of a patch and the patch of these questions", tensors_of(chosen), tensors_of(wanted))


def pieces_looked_at(case: Case) -> None:
    """And each question has its own, whatever else is asked."""
    method, questions = case.method(), asks(*PROMPTS)
    shares, declared = method.piece_shares(read(method, *TEXTS), questions), case.spec.piece_shares(case.settings)
    if (shares is not None) != declared:
        raise Broken(f"the spec says piece_shares={declared}, and the method {'none' if declared else 'has them'}")
    if shares is None:
        return
    shape = (len(questions), len(shares.names))
    if tuple(shares.shares_QK.shape) != shape or not shares.names or not shares.meaning:
        raise Broken(f"shares of shape {tuple(shares.shares_QK.shape)}, where {shape} of a meaning are to be told")
    if not bool((shares.shares_QK >= 0).all()):
        raise Broken("a share is below 0, or no number")
    near("sums of the shares of each question and 1", [shares.shares_QK.sum(1)], [torch.ones(len(questions))])
    alone = method.piece_shares(read(method, *TEXTS), questions[1:2])
    assert alone is not None, "the same state"
    near("shares of a question in a batch and alone", [shares.shares_QK[1:2]], [alone.shares_QK])


def later_questions(case: Case) -> None:
    """The same reader, once asked one thing, once more before and after; and another reader in between."""
    method, questions = case.method(), asks(*PROMPTS)
    alone = Session(method.lm, method)
    alone.read(observes(*TEXTS[:2]))
    wanted = [answer.prediction for answer in alone.answer(questions[:1])]
    session = Session(method.lm, method)
    session.read(observes(*TEXTS[:2]))
    predictions = [answer.prediction for answer in session.answer(questions)][:1]
    if predictions != wanted:
        raise Broken("a question is answered otherwise when more are asked with it")
    if method.reads != "once":
        session.read(observes(*TEXTS[2:]))
        session.answer(questions[::-1])
    again = Session(method.lm, method)
    again.read(observes(*TEXTS[:2]))
    if [answer.prediction for answer in again.answer(questions[:1])] != wanted:
        raise Broken("a new reader of the same texts answers otherwise than the first one: the method remembers")


def answers_stay_out(case: Case) -> None:
    """Gold answers are there to be compared with."""
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
