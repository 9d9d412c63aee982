"""Under a chat template every method reads its demonstrations, as turns and as one turn, and the rest is said."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("lm_eval")

from lm_eval.evaluator import simple_evaluate

from tests.harness.test_harness import ANIMALS, WRITING, adapted, answers, hf, manager, task
from tests.harness.test_lm_eval_scores import merging
from tests.lm.test_texts import TEMPLATE
from tests.tiny import tiny_llama
from tests.tiny_methods import tiny_method
from ttabench.core.errors import UserError
from ttabench.core.types import Ask, Choose, Observe
from ttabench.harness import AdaptedLM
from ttabench.harness.prompts import Prompts
from ttabench.lm.model import LM
from ttabench.methods.session import Session

pytestmark = pytest.mark.filterwarnings("ignore")  # lm-eval, datasets and transformers warn about each other

WITH_SYSTEM = (
    "{% if messages[0]['role'] != 'system' %}<|bos|>system\nBe brief.<|eos|>\n\n{% endif %}"
    "{% for m in messages %}<|bos|>{{ m['role'] }}\n\n{{ m['content'] | trim }}<|eos|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|bos|>assistant\n\n{% endif %}"
)
"""A message of the template's own, line breaks as demonstrations have between them, and blanks taken off."""
WORDS_ONLY = (
    "{% for m in messages %}{% if m['role'] == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    "{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
)
"""No special tokens, and no place for the system."""
LOUD = TEMPLATE.replace("m['content']", "m['content'] | upper")
BASES: dict[str, tuple[Callable[[], LM], str]] = {
    "bytes": (tiny_llama, TEMPLATE),
    "merging": (merging, TEMPLATE),
    "system": (merging, WITH_SYSTEM),
    "words": (merging, WORDS_ONLY),
}
SETTINGS: dict[str, dict[str, Any]] = {
    "turns": {},
    "one turn": {"fewshot_as_multiturn": False},
    "system": {"system_instruction": "Answer.\n\nOr do not."},
}
"""As turns is what lm-eval does where nothing is said."""


def base(name: str) -> LM:
    make, template = BASES[name]
    lm = make()
    lm.tokenizer.chat_template = template
    return lm


def run(model: Any, asked: dict[str, Any], **more: Any) -> Any:
    return simple_evaluate(
        model=model, tasks=[asked], task_manager=manager(), bootstrap_iters=0, apply_chat_template=True, **more
    )


def knowing(name: str, lm: LM, asked: dict[str, Any], **more: Any) -> AdaptedLM:
    """A model that knows the task, as `evaluate` tells it."""
    loaded = manager().load([asked])["tasks"]
    loaded["toy"].set_config("num_fewshot", asked["num_fewshot"])
    return adapted(name, lm, prompts=Prompts(tasks=loaded, **more))


def values(results: Any) -> list[float]:
    return [value for value, _ in answers(results)]


@pytest.fixture(params=BASES)
def lm(request: pytest.FixtureRequest) -> LM:
    return base(request.param)


@pytest.fixture(params=["bytes", "system"])
def some(request: pytest.FixtureRequest) -> LM:
    return base(request.param)


@pytest.mark.parametrize("how", SETTINGS)
def test_full_context_gives_the_numbers_of_lm_evals_own_model(lm: LM, how: str) -> None:
    model = adapted("icl", lm)
    ours, theirs = run(model, task(), **SETTINGS[how]), run(hf(lm), task(), **SETTINGS[how])
    assert [sample["arguments"] for sample in ours["samples"]["toy"]] == [
        sample["arguments"] for sample in theirs["samples"]["toy"]
    ]
    assert values(ours) == pytest.approx(values(theirs), abs=1e-4)
    assert model.reader.read == 1
    assert model.get_model_info()["reading"] == {"toy": {"requests": 12, "contexts": 1, "answered_without_context": 0}}


@pytest.mark.parametrize("how", SETTINGS)
def test_generation_gives_the_texts_of_lm_evals_own_model(some: LM, how: str) -> None:
    asked = task(**WRITING)
    model = knowing("icl", some, asked)
    ours, theirs = run(model, asked, **SETTINGS[how]), run(hf(some), asked, **SETTINGS[how])
    assert answers(ours) == answers(theirs)
    assert any(answers(ours))
    assert model.reader.read == 1


@pytest.mark.parametrize("name", ["none", "icl", "templora", "mac", "h2o"])
def test_answers_are_those_of_eval_in_turns(name: str) -> None:
    lm = base("merging")
    found = values(run(adapted(name, lm), task()))
    lm.use_chat_template()
    session = Session(lm, tiny_method(name, lm))
    options = (" no", " yes, it is")
    asked = [f"Is a {word} a bird?" for word in ANIMALS]
    shown = [(text, options[i % 2].strip()) for i, text in enumerate(asked[:3])]
    session.read([Observe(text=" ".join(turns), turns=turns, key=f"piece {i}") for i, turns in enumerate(shown)])
    asks = [Ask(prompt=text, key=text, want=Choose(options=options), after_turns=True) for text in asked[4:]]
    assert found == pytest.approx([each for ask in asks for each in session.answer([ask])[0].logprobs], abs=1e-4)


@pytest.mark.parametrize("name", ["none", "icl"])
@pytest.mark.parametrize("knows", [True, False])
def test_without_demonstrations_nothing_is_read(name: str, knows: bool, caplog: pytest.LogCaptureFixture) -> None:
    lm, asked = base("system"), task(num_fewshot=0)
    model = knowing(name, lm, asked) if knows else adapted(name, lm)
    with caplog.at_level(logging.WARNING, logger="ttabench"):
        found = run(model, asked)
    assert values(found) == pytest.approx(values(run(hf(lm), asked)), abs=1e-4)
    assert found["config"]["reading"]["toy"] == {"requests": 12, "contexts": 0, "answered_without_context": 12}
    assert ("in 12 of 12 prompts no context" in caplog.text) != knows, "whether demonstrations were asked for is known"


@pytest.mark.parametrize("how", ["turns", "one turn"])
def test_a_template_that_changes_words_is_refused(how: str) -> None:
    lm = base("merging")
    lm.tokenizer.chat_template = LOUD
    with pytest.raises(UserError, match="split=none"):
        run(adapted("icl", lm), task(), **SETTINGS[how])
    bare = task(num_fewshot=0)
    found = run(knowing("icl", lm, bare), bare, **SETTINGS[how])
    assert values(found) == pytest.approx(values(run(hf(lm), bare, **SETTINGS[how])), abs=1e-4)


def test_behind_a_state_a_dialogue_goes_on() -> None:
    lm = base("system")
    session = Session(lm, tiny_method("icl", lm))
    session.read([Observe(text="A wren is a small bird.")])
    auto, whole = (adapted("icl", lm, start=session.state, prompts=Prompts(split=split)) for split in ("auto", "none"))
    found = values(run(auto, task()))
    assert auto.reader.read == 1
    assert found == pytest.approx(values(run(whole, task())), abs=1e-4)
    assert found != pytest.approx(values(run(adapted("icl", lm), task())), abs=1e-3)
