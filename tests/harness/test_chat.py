"""Under a chat template full context gives lm-eval's own numbers, and every method reads demonstrations apart."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("lm_eval")

from lm_eval.evaluator import simple_evaluate

from tests.harness.test_harness import WRITING, adapted, answers, hf, manager, task
from tests.harness.test_lm_eval_scores import merging
from tests.lm.test_texts import TEMPLATE
from tests.tiny import tiny_llama
from ttabench.harness import AdaptedLM
from ttabench.harness.reading import PromptSplitter
from ttabench.lm.model import LM

pytestmark = pytest.mark.filterwarnings(
    "ignore"
)  # lm-eval, datasets and transformers warn about each other

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
        model=model,
        tasks=[asked],
        task_manager=manager(),
        bootstrap_iters=0,
        apply_chat_template=True,
        **more,
    )


def knowing(name: str, lm: LM, asked: dict[str, Any], **more: Any) -> AdaptedLM:
    """A model that knows the task, as `evaluate` tells it."""
    loaded = manager().load([asked])["tasks"]
    loaded["toy"].set_config("num_fewshot", asked["num_fewshot"])
    return adapted(name, lm, prompts=PromptSplitter(tasks=loaded, **more))


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
    model = knowing("icl", lm, task())
    ours, theirs = run(model, task(), **SETTINGS[how]), run(hf(lm), task(), **SETTINGS[how])
    assert [sample["arguments"] for sample in ours["samples"]["toy"]] == [
        sample["arguments"] for sample in theirs["samples"]["toy"]
    ]
    assert values(ours) == pytest.approx(values(theirs), abs=1e-4)
    assert model.reader.read == 1
    assert model.get_model_info()["reading"] == {
        "toy": {"requests": 12, "contexts": 1, "answered_without_context": 0}
    }


@pytest.mark.parametrize("how", SETTINGS)
def test_generation_gives_the_texts_of_lm_evals_own_model(some: LM, how: str) -> None:
    asked = task(**WRITING)
    model = knowing("icl", some, asked)
    ours, theirs = run(model, asked, **SETTINGS[how]), run(hf(some), asked, **SETTINGS[how])
    assert answers(ours) == answers(theirs)
    assert any(answers(ours))
    assert model.reader.read == 1


def test_without_what_was_read_the_question_is_asked_in_its_turn(some: LM) -> None:
    found = values(run(knowing("none", some, task()), task()))
    assert found == pytest.approx(values(run(hf(some), task(num_fewshot=0))), abs=1e-4)


@pytest.mark.parametrize("name", ["templora", "mac", "h2o"])
def test_demonstrations_are_read_and_change_answers(name: str) -> None:
    lm = base("merging")
    model = knowing(name, lm, task())
    found = values(run(model, task()))
    assert found != pytest.approx(values(run(knowing("none", lm, task()), task())), abs=1e-3)
    assert model.reader.read == 1


def test_under_a_template_that_changes_words_the_whole_prompt_is_asked() -> None:
    lm = base("merging")
    lm.tokenizer.chat_template = LOUD
    model = knowing("icl", lm, task())
    assert values(run(model, task())) == pytest.approx(values(run(hf(lm), task())), abs=1e-4)
    assert model.get_model_info()["reading"]["toy"]["answered_without_context"] == 12
