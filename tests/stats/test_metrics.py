"""Answer metrics: published rules on hand-made cases, invariants on any text, and the bundled `evaluate` modules."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings, strategies as st

from ttabench.core.types import Answer, Choose, Generate, Query
from ttabench.stats.metrics import METRICS, metric, normalise

OF_TEXT = sorted(name for name, each in METRICS.items() if each.function)


def ask(*answers: str) -> Query:
    return Query(prompt="?", key="q", want=Generate(answers=answers))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The  Eiffel Tower!", "eiffel tower"),
        ("an apple, a day", "apple day"),
        ("U.S.", "us"),
        ("\n Port\tAnsel \n", "port ansel"),
        ("The", ""),
        ("", ""),
    ],
)
def test_normalisation_is_squads(text: str, expected: str) -> None:
    assert normalise(text) == expected


def test_nats_of_the_right_option_are_of_its_share_among_the_options() -> None:
    query = Query(prompt="?", key="q", want=Choose(options=(" a", " b", " c"), gold=1))

    def nats(*logprobs: float) -> float:
        return metric("option_nll")(
            "", query, Answer(prediction="b", logprobs=logprobs, tokens=(1, 1, 1))
        )

    assert nats(-7.0, -7.0, -7.0) == pytest.approx(math.log(3)), (
        "whatever they share with other words"
    )
    assert nats(math.log(0.1), math.log(0.3), math.log(0.2)) == pytest.approx(math.log(2))
    assert nats(-2000.0, -1000.0, -2000.0) == pytest.approx(0.0), "without an overflow"
    assert nats(-1000.0, -2000.0, -2000.0) == pytest.approx(1000.0)
    assert not metric("option_nll").higher_is_better


@pytest.mark.parametrize(
    ("prediction", "golds", "em", "em_prefix", "f1", "f1_max"),
    [
        ("Port Ansel", ("Port Ansel",), 1, 1, 1, 1),
        ("the port ansel.", ("Port Ansel",), 1, 1, 1, 1),
        ("port ansel, by the sea", ("Port Ansel",), 0, 1, 2 / 3, 2 / 3),
        ("212 passengers", ("212", "212 passengers"), 0, 1, 2 / 3, 1),
        ("in Port Ansel", ("Port Ansel",), 0, 0, 0.8, 0.8),
        ("", ("Port Ansel",), 0, 0, 0, 0),
        ("anything", ("The",), 0, 1, 0, 0),
        ("", ("The",), 1, 1, 1, 1),
    ],
)
def test_hand_made_cases(
    prediction: str, golds: tuple[str, ...], em: float, em_prefix: float, f1: float, f1_max: float
) -> None:
    got = {
        name: METRICS[name](prediction, ask(*golds)) for name in ("em", "em_prefix", "f1", "f1_max")
    }
    assert got == pytest.approx({"em": em, "em_prefix": em_prefix, "f1": f1, "f1_max": f1_max})


@settings(deadline=None)
@given(st.text(), st.lists(st.text(), min_size=1, max_size=4))
def test_relations_between_metrics(prediction: str, golds: list[str]) -> None:
    one = ask(*golds)
    values = {name: METRICS[name](prediction, one) for name in OF_TEXT}
    assert all(0.0 <= value <= 1.0 for value in values.values())
    assert values["em"] <= values["em_prefix"]
    assert values["em"] <= values["f1"] <= values["f1_max"]


@pytest.mark.parametrize(
    ("name", "prediction", "golds", "expected"),
    [
        ("string_match", "It is Port Ansel.", ["Yarm", "port ansel"], 1),
        ("string_match", "It is a Port, Ansel.", ["Port Ansel"], 0),
        ("contains_em", "It is a Port, Ansel.", ["the port Ansel"], 1),
        ("contains_em", "It is Yarm.", ["Port Ansel"], 0),
        ("first_number", "about 12, not 7", ["12"], 1),
        ("first_number", "12.9", ["12"], 1),
        ("first_number", "12.9", ["12.5"], 0),
        ("first_number", "none", ["12"], 0),
        ("first_number", "12", ["twelve"], 0),
        ("f1_characters", "在 港口。", ["港口"], 0.8),
        ("f1_characters", "。", ["港口"], 0),
    ],
)
def test_what_published_suites_score_by(
    name: str, prediction: str, golds: list[str], expected: float
) -> None:
    assert METRICS[name](prediction, ask(*golds)) == pytest.approx(expected)


@pytest.mark.parametrize("name", ["rouge1", "rougeL", "rougeLsum", "rougeL_recall"])
@pytest.mark.parametrize(
    ("gold", "other"),
    [
        ("东京今天很热。", "北国冬雪"),
        ("नमस्ते दुनिया", "किताब घर"),
        ("กรุงเทพ", "ณฉฎ"),
        ("Столица — Москва", "Берег реки"),
        ("한국어 문장", "다른 낱말"),
        ("التقى بها", "هنا كتاب"),
        ("東京タワー Tokyo 2020", "北国"),
    ],
)
def test_rouge_of_any_script_is_one_of_equal_texts_and_nothing_of_others(
    name: str, gold: str, other: str
) -> None:
    assert METRICS[name](gold, ask(gold)) == 1.0
    assert METRICS[name](other, ask(gold)) == 0.0


def test_rouge_counts_words_where_there_are_blanks_and_characters_elsewhere() -> None:
    assert METRICS["rouge1"]("Москва велика", ask("Москва мала")) == pytest.approx(0.5)
    assert METRICS["rouge1"]("東京", ask("東京都")) == pytest.approx(0.8)


@pytest.mark.parametrize("gold", ["Port Ansel", "a café in Zürich, 1999", "the α of 5", "", "—"])
@pytest.mark.parametrize("prediction", ["port of Ansel", "café Zürich α 5", "东京"])
def test_rouge_of_latin_text_is_that_of_rouge_score(gold: str, prediction: str) -> None:
    from rouge_score.rouge_scorer import RougeScorer

    kinds = ["rouge1", "rougeL", "rougeLsum"]
    scores = RougeScorer(kinds).score(gold, prediction)
    assert {kind: METRICS[kind](prediction, ask(gold)) for kind in kinds} == {
        kind: scores[kind].fmeasure for kind in kinds
    }
