"""Metrics: em, em_prefix, f1 (against the target answer), f1_max (the best gold answer), acc of choices, perplexities.

SQuAD's normalisation and token F1 (arXiv 1606.05250); `em_prefix` is what CaMeLS (arXiv 2305.15076) and MAC
(arXiv 2403.04317) print as "EM". Values are fractions, 0 to 1, one a query:

    ask = Ask(prompt="Where does Ada Voss live?", key="q1", want=Generate(answers=("Port Ansel",)))
    METRICS["em"]("port ansel, by the sea", ask)         # 0.0
    METRICS["em_prefix"]("port ansel, by the sea", ask)  # 1.0: only the first 10 characters are compared
    METRICS["f1"]("port ansel, by the sea", ask)         # 0.667: 2 shared tokens of 4 and 2 ("the" is dropped)

The target is `ask.answers[0]`; readers put the shortest published answer there, as the papers do. Perplexities have no
value a query: they are ratios of sums over all of them (aggregation.py).
"""

from __future__ import annotations

import math
import re
import string
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

from ttabench.core.errors import UnknownName, UserError
from ttabench.core.types import Ask, Choose, wanted
from ttabench.stats.aggregation import RATIOS, Kind, Ratio
from ttabench.stats.texts import CORPORA, Corpus

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")


def normalise(text: str) -> str:
    """SQuAD's normalisation (arXiv 1606.05250): lower case, no punctuation, no a/an/the, single blanks."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact(prediction: str, gold: str) -> float:
    """1.0 when both are equal after normalisation."""
    return float(normalise(prediction) == normalise(gold))


def prefix_exact(prediction: str, gold: str) -> float:
    """1.0 when the normalised prediction begins with the normalised gold; an empty gold is therefore always right."""
    return float(normalise(prediction).startswith(normalise(gold)))


def token_f1(prediction: str, gold: str) -> float:
    """Harmonic mean of token precision and recall; when either side is empty, 1.0 if both are (SQuAD v2's rule)."""
    predicted, wanted = normalise(prediction).split(), normalise(gold).split()
    if not predicted or not wanted:
        return float(predicted == wanted)
    shared = sum((Counter(predicted) & Counter(wanted)).values())
    return 2 * shared / (len(predicted) + len(wanted))


def rouge(name: str, part: str = "fmeasure") -> Callable[[str, Ask], float]:
    """ROUGE of a prediction and the target (Lin 2004), by Google's `rouge_score`.

    Args:
        name: "rouge1" or "rougeL".
        part: "fmeasure", "recall" or "precision".
    """

    @cache
    def scorer() -> Any:
        from rouge_score.rouge_scorer import RougeScorer

        return RougeScorer([name])

    return lambda prediction, ask: float(getattr(scorer().score(_target(ask), prediction)[name], part))


def _target(ask: Ask) -> str:
    assert ask.answers, f"{ask.key} has no gold answer"
    return ask.answers[0]


class Scored(Protocol):
    """Log-probabilities of the options of a query, see `answering.Answer`."""

    @property
    def logprobs(self) -> tuple[float, ...]:
        """Summed over the tokens of each option."""
        ...

    @property
    def tokens(self) -> tuple[int, ...]:
        """Tokens of each option."""
        ...

    @property
    def unconditional_logprobs(self) -> tuple[float, ...]:
        """The same sums without the question."""
        ...


def choice(worth: Callable[[Scored, Ask], Sequence[float]]) -> Callable[[Scored, Ask], float]:
    """1.0 when the option of the largest worth is the right one; of equal ones the first is chosen."""

    def right(scored: Scored, ask: Ask) -> float:
        (want,) = wanted([ask], Choose)
        assert want.gold is not None, f"{ask.key} has no right option"
        assert len(scored.logprobs) == len(want.options), f"{ask.key} was not answered by choosing"
        values = worth(scored, ask)
        return float(max(range(len(values)), key=values.__getitem__) == want.gold)

    return right


def _nats(scored: Scored, ask: Ask) -> float:
    """Negative log of the right option's share of the likelihood of all options."""
    (want,) = wanted([ask], Choose)
    assert want.gold is not None, f"{ask.key} has no right option"
    most = max(scored.logprobs)
    return (
        most + math.log(math.fsum(math.exp(logprob - most) for logprob in scored.logprobs)) - scored.logprobs[want.gold]
    )


def _per_token(scored: Scored, _: Ask) -> list[float]:
    return [value / count for value, count in zip(scored.logprobs, scored.tokens, strict=True)]


def _without_question(scored: Scored, _: Ask) -> list[float]:
    return [value - bare for value, bare in zip(scored.logprobs, scored.unconditional_logprobs, strict=True)]


def _as_ccm(scored: Scored, ask: Ask) -> list[float]:
    return (_without_question if scored.unconditional_logprobs else _per_token)(scored, ask)


def _per_character(scored: Scored, ask: Ask) -> list[float]:
    (want,) = wanted([ask], Choose)
    lengths = [len(option.removeprefix(want.delimiter)) for option in want.options]
    return [value / max(1, length) for value, length in zip(scored.logprobs, lengths, strict=True)]


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A metric; call one of queries with a prediction and its `Ask`, and the log-probabilities of a choice."""

    name: str
    summary: str
    function: Callable[[str, Ask], float] | None = None
    """Of the predicted text."""
    of_choice: Callable[[Scored, Ask], float] | None = None
    """Of the log-probabilities of the options."""
    ratio: Ratio | None = None
    """Of all scored stretches together; such a metric has no value for one query."""
    corpus: Corpus | None = None
    """Of all answers together; such a metric has no value for one query, either."""
    scale: float = 100.0
    """Multiply by this to print (percent); stored values stay as they are."""
    digits: int = 1
    """Printed after the point."""
    higher_is_better: bool = True

    @property
    def kind(self) -> Kind | None:
        """Its ratio or corpus, where it is no plain mean of values of queries."""
        return self.ratio or self.corpus

    def __call__(self, prediction: str, ask: Ask, scored: Scored | None = None) -> float:
        """The value for one query, a fraction from 0 to 1."""
        if self.function is not None:
            return self.function(prediction, ask)
        assert self.of_choice is not None, f"metric {self.name} has no value for one query"
        assert scored is not None, f"metric {self.name} needs log-probabilities"
        return self.of_choice(scored, ask)


PERPLEXITIES = {
    "ppl": "perplexity: exp of the mean negative log-likelihood of all tokens",
    "ppl_unit_mean": "mean of the perplexities of the strides, by their tokens (Temp-LoRA's figure); never under ppl",
    "ppl_book_mean": "mean of the perplexities of the texts, each counting alike",
    "ppl_dialogue_mean": "the same of dialogues: short turns weigh as much as long ones",
    "ppl_word": "exp of the negative log-likelihood a word: comparable between tokenizers",
}
LIKELIHOODS = {
    "answer_nll": "negative log-likelihood a token of the target answer and its end, in nats",
    "answer_nll_sum": "the same an answer",
}
NUMBERS = {"mae": "mean absolute error of the number that is answered", "rmse": "root of the mean squared error of it"}
ROUGES = {
    "rouge1": "ROUGE-1 F-measure (single words), without stemming",
    "rougeL": "ROUGE-L F-measure (longest common subsequence), without stemming",
}
METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric(
            name="em",
            summary="exact match with the target answer after SQuAD normalisation (strict)",
            function=lambda prediction, ask: exact(prediction, _target(ask)),
        ),
        Metric(
            name="em_lower",
            summary="the same text as the target answer but for case (Generative Adapter on MetaICL)",
            function=lambda prediction, ask: float(prediction.strip().lower() == _target(ask).strip().lower()),
        ),
        Metric(
            name="em_prefix",
            summary="prediction cut to the length of the target answer: the 'EM' of CaMeLS and MAC; can exceed F1",
            function=lambda prediction, ask: prefix_exact(prediction, _target(ask)),
        ),
        Metric(
            name="f1",
            summary="token F1 against the target (shortest) answer",
            function=lambda prediction, ask: token_f1(prediction, _target(ask)),
        ),
        Metric(
            name="f1_max",
            summary="token F1 against the best of all gold answers, additional ones included",
            function=lambda prediction, ask: max(token_f1(prediction, gold) for gold in ask.answers),
        ),
        Metric(
            name="macro_f1",
            summary="mean F1 of the labels that are right or chosen somewhere, each counting alike",
            corpus=CORPORA["macro_f1"],
        ),
        *(
            Metric(name=name, summary=summary, corpus=CORPORA[name], scale=1.0, digits=3, higher_is_better=False)
            for name, summary in NUMBERS.items()
        ),
        *(Metric(name=name, summary=words, function=rouge(name)) for name, words in ROUGES.items()),
        Metric(
            name="rougeL_recall",
            summary="ROUGE-L recall: the share of the target's words, in their order, that the answer has",
            function=rouge("rougeL", "recall"),
        ),
        Metric(
            name="acc",
            summary="the right option has the largest summed log-probability",
            of_choice=choice(lambda scored, _: scored.logprobs),
        ),
        Metric(
            name="acc_norm",
            summary="the same with sums divided by the characters of the option (lm-eval's acc_norm)",
            of_choice=choice(_per_character),
        ),
        Metric(
            name="acc_mean",
            summary="the same with sums divided by the tokens of the option",
            of_choice=choice(_per_token),
        ),
        Metric(
            name="acc_pmi",
            summary="the same with what the option is worth without the question subtracted",
            of_choice=choice(_without_question),
        ),
        Metric(
            name="acc_ccm",
            summary="acc_pmi where options were scored without the question too, acc_mean elsewhere (CCM's own code)",
            of_choice=choice(_as_ccm),
        ),
        Metric(
            name="option_nll",
            summary="negative log-likelihood of the right option among the options, in nats: its exp is a perplexity",
            of_choice=_nats,
            scale=1.0,
            digits=3,
            higher_is_better=False,
        ),
        *(
            Metric(name=name, summary=summary, ratio=RATIOS[name], scale=1.0, digits=2, higher_is_better=False)
            for name, summary in PERPLEXITIES.items()
        ),
        *(
            Metric(name=name, summary=summary, ratio=RATIOS[name], scale=1.0, digits=3, higher_is_better=False)
            for name, summary in LIKELIHOODS.items()
        ),
    )
}


def metric(name: str) -> Metric:
    """The metric of that name; `UnknownName` otherwise."""
    if name not in METRICS:
        raise UnknownName("metric", name, list(METRICS))
    return METRICS[name]


def text_metric(name: str) -> Metric:
    """The metric of that name, which must be one of generated answers: of their text, or of the target's likelihood."""
    chosen = metric(name)
    if chosen.function is None and chosen.corpus is None and name not in LIKELIHOODS:
        known = ", ".join(
            known for known, known_metric in METRICS.items() if known_metric.function or known_metric.corpus
        )
        raise UserError(f"The metric {name} needs log-probabilities of options.", f"Metrics of texts: {known}.")
    return chosen


def empty_golds(asks: Iterable[Ask]) -> int:
    """How many targets are empty once normalised ("The", "-"): `em_prefix` counts those right whatever is predicted."""
    return sum(not normalise(_target(ask)) for ask in asks)
