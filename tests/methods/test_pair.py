"""Methods together: what each part does, by itself and beside the other; checkpoints and states."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.conftest import Command, error_line
from tests.tiny import tiny_llama
from tests.tiny_methods import TEXTS, make_chunks, make_queries, set_nonzero_outputs, tiny_method
from ttabench.core.types import Query
from ttabench.lm.model import LM, load
from ttabench.lm.patch import LowRank
from ttabench.methods.base import Method
from ttabench.methods.pair.method import Pair
from ttabench.methods.registry import find_method
from ttabench.methods.session import Session
from ttabench.run.adapters import ADAPTERS_FOLDER
from ttabench.run.request import RunRequest
from ttabench.run.resolve import resolve_method

QUESTION = make_queries("Where does Ada live?")


@pytest.fixture(scope="module")
def lm() -> LM:
    return tiny_llama()


def paired(name: str, lm: LM, **changes: object) -> Pair:
    spec = find_method(name)
    method = spec.load()(lm, replace(spec.test_settings, **changes))
    assert isinstance(method, Pair)
    return method


def read(method: Method[object], lm: LM) -> Session:
    session = Session(lm, method)
    session.read(make_chunks(*TEXTS))
    return session


def test_rag_and_mac_are_mac_asked_with_the_found_text_in_the_prompt() -> None:
    nano = load("nano", device="cpu")
    texts = [
        "The usual transport of Dadel Hurov is the taxi.",
        "The home of Sinio Dorard is in Redmoor.",
    ]
    asked = replace(QUESTION[0], prompt="How does Dadel Hurov travel?")
    found = replace(asked, prompt=f"{texts[0]}\n\n{asked.prompt}", question=asked.prompt)

    def likelihood(method: str, ask: Query) -> float:
        session = Session(
            nano, resolve_method(RunRequest(method=method, task="streamingqa")).build(nano)
        )
        session.read(make_chunks(*texts))
        return session.gold_likelihoods([ask])[0][0]

    both = likelihood("rag+mac", asked)
    assert both == pytest.approx(likelihood("mac", found), abs=1e-3)
    assert abs(both - likelihood("rag", asked)) > 0.1
    assert abs(both - likelihood("mac", asked)) > 0.1


def test_each_part_puts_what_it_puts_alone_and_changes_of_weights_add_up(lm: LM) -> None:
    for name in ("window+streamadapter", "templora+streamadapter"):
        pair = paired(name, lm)
        set_nonzero_outputs(pair.parts()[1])
        session = read(pair, lm)
        first, second = (
            part.patch(pair.part_state(session.state, label), QUESTION)
            for label, part in zip(pair.spec.labels, pair.parts(), strict=True)
        )
        both = pair.patch(session.state, QUESTION)
        if first.prefix is not None:
            assert both.prefix is not None
            assert all(map(torch.equal, both.prefix.keys_LBHPD, first.prefix.keys_LBHPD))
        for key, delta in second.deltas.items():
            added = _changed(delta) + (_changed(first.deltas[key]) if key in first.deltas else 0)
            torch.testing.assert_close(_changed(both.deltas[key]), added)
        assert set(both.deltas) == {*first.deltas, *second.deltas} != set()


def _changed(delta: object) -> torch.Tensor:
    assert isinstance(delta, LowRank)
    return delta.b_BOR @ delta.a_BRI


def test_a_break_stands_between_the_texts_of_two_parts(lm: LM) -> None:
    found = "Ada Voss lives in Port Ansel."
    for name, changes, told in (
        (
            "icl+rag",
            {"icl_truncate": "left", "icl_max_tokens": 24},
            f"i Okoro repairs old radios..\n\n{found}"[4:],
        ),
        ("window+rag", {}, f"\n\n{found}"),
        ("mac+rag", {}, found),
    ):
        pair = paired(name, lm, rag_top=1, **changes)
        patch = pair.patch(read(pair, lm).state, QUESTION)
        assert patch.tokens_BT is not None
        assert lm.decode(patch.tokens_BT[0].tolist()) == told


def test_bytes_add(lm: LM) -> None:
    sizes = [read(tiny_method(name, lm), lm).state.nbytes for name in ("rag", "mac")]
    assert read(paired("rag+mac", lm), lm).state.nbytes == sum(sizes)


def test_a_checkpoint_goes_to_the_part_that_it_is_of(ttabench: Command, tmp_path: Path) -> None:
    def resolved(*, checkpoint: str = "") -> tuple[str, list[str]]:
        found = resolve_method(
            RunRequest(method="rag+mac", task="streamingqa", checkpoint=checkpoint)
        )
        return found.checkpoint_name(), found.notes()

    assert resolved() == ("shipped:mac-streamingqa", [])
    name, notes = resolved(checkpoint="none")
    assert name == ""
    assert len(notes) == 1
    assert "mac has no checkpoint" in notes[0]
    own = tmp_path / "own"
    shutil.copytree(ADAPTERS_FOLDER / "nano" / "mac-streamingqa", own)
    assert resolved(checkpoint=str(own)) == (str(own), [])
    words = ("eval", "--method", "rag+templora", "--task", "streamingqa", "--checkpoint", own)
    assert "is a checkpoint of mac. Use --method mac" in error_line(ttabench(*words))


def test_a_state_of_both_is_stored_and_asked(ttabench: Command, tmp_path: Path) -> None:
    notes = tmp_path / "notes.txt"
    notes.write_text("The home of Sinio Dorard is in Redmoor.\n", encoding="utf-8")
    words = f"--method rag+templora --set templora.epochs=1 --out {tmp_path / 'state'}".split()
    assert ttabench(f"adapt --context {notes}", *words).code == 0
    ran = ttabench("ask", "Where does Sinio Dorard live?", "--state", tmp_path / "state")
    assert ran.code == 0
    assert "Redmoor" in ran.out
