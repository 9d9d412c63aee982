"""Whether a tokenizer was made for a text."""

from __future__ import annotations

import pytest

from ttabench.lm.model import LM, load
from ttabench.readers import load as load_task
from ttabench.readers.cards import names
from ttabench.run.caveats import fertility_caveats

ENGLISH = "The library opens at nine. It was founded by Maria Keller in 1921, who also wrote its rules."
OTHERS = ("Die Bibliothek öffnet um neun Uhr und schließt um sechs.", "Библиотека открывается в девять часов утра.",
          "La bibliothèque ouvre à neuf heures et ferme à midi.")  # fmt: skip


@pytest.fixture(scope="module")
def nano() -> LM:
    return load("nano", device="cpu")


@pytest.mark.parametrize("task", names())
def test_nano_was_made_for_its_world(nano: LM, task: str) -> None:
    episode = next(iter(load_task(task).episodes()))
    texts = [piece.text for piece in episode.observes()] + [ask.question_text for ask in episode.asks()]
    assert fertility_caveats(nano, texts) == []


@pytest.mark.parametrize("text", [ENGLISH, *OTHERS])
def test_and_for_no_other_language(nano: LM, text: str) -> None:
    (note,) = fertility_caveats(nano, [text])
    assert note.startswith("nano hardly knows this kind of text (")
    assert note.endswith("; use --model smollm2-135m-qa for English")


@pytest.mark.english
def test_smollm2_was_made_for_english_alone(smollm2: LM) -> None:
    assert fertility_caveats(smollm2, [ENGLISH]) == []
    assert all(fertility_caveats(smollm2, [text]) for text in OTHERS)
