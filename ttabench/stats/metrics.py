"""Metrics: their definition and the display of their figures.

There are metrics of ttabench (em, em_prefix, f1 against the target answer, f1_max against the best
gold answer, acc of choices, perplexities), of other packages, and of Python files.

Texts use SQuAD's normalisation and token F1 (arXiv 1606.05250). `em_prefix` is the "EM" that CaMeLS
(arXiv 2305.15076) and MAC (arXiv 2403.04317) report. The target is `query.answers[0]`, the shortest
published answer, as in the papers.

    def closeness(prediction, query):         # ./mine.py: the answer, the query with gold answers
        return float(prediction in query.answers)      # a number from 0 to 1, higher is better

A `Metric` instead of a function sets a name, a range and a direction. Records keep `declared` for
metrics of others, so that their figures can be displayed without the metric's code.
"""

from __future__ import annotations

import math
import re
import string
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from inspect import getdoc, iscoroutinefunction
from numbers import Real
from types import FunctionType, ModuleType
from typing import Annotated, Any, get_type_hints
from unicodedata import category, normalize

from pydantic import Field, FiniteFloat

from ttabench.core.declared import create_fields_model, validate_model
from ttabench.core.errors import UserError
from ttabench.core.plugins import FIX_PLUGIN_HINT, plugin_errors_as_user_errors
from ttabench.core.registry import PluginSource, Registry
from ttabench.core.types import Answer, Choose, Generate, Json, Mode, Query, wants_of_kind
from ttabench.stats.figures import CORPUS_FIGURES, MEAN, RATIO_FIGURES, Figure

DISPLAY_FIELDS = ("scale", "digits", "higher_is_better", "least", "most")
"""Fields of a metric that determine how its figures are displayed."""
MAX_VALUE = 1e100
"""Limit for the value of one query; the squares of larger values overflow in sums."""
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_NUMBER = re.compile(r"\d+\.\d+|\d+")
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_UNSPACED = re.compile(
    "([\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
    "\U00020000-\U0003ffff])"
)
"""Characters of scripts without blanks: Thai, Lao, Burmese, Khmer, kana, Chinese characters."""


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A metric of queries; call it with a prediction, its `Query`, and the log-probabilities of a
    choice."""

    name: str
    summary: str
    function: Callable[[str, Query], float] | None = None
    """Value of the predicted text."""
    of_choice: Callable[[Answer, Query], float] | None = None
    """Value of the log-probabilities of the options."""
    ratio: Figure | None = None
    """Figure of all scored text segments together; such a metric has no value for one query."""
    corpus: Figure | None = None
    """Figure of all answers together; such a metric has no value for one query, either."""
    scale: Annotated[float, Field(gt=0, le=1e9, allow_inf_nan=False)] = 100.0
    """Factor for display (100 for percent); stored values are not scaled."""
    digits: Annotated[int, Field(ge=0, le=9)] = 1
    """Displayed decimal places."""
    higher_is_better: bool = True
    least: FiniteFloat | None = 0.0
    """Smallest value of a query; `None` if there is no minimum."""
    most: FiniteFloat | None = 1.0
    origin: str = ""
    """The package or the digest of the file that defines it; "" for metrics of ttabench."""

    @property
    def declared(self) -> dict[str, Json]:
        """Description and display of the metric, for records."""
        return {name: getattr(self, name) for name in ("summary", *DISPLAY_FIELDS)}

    @property
    def query_function(self) -> Callable[[Any, Query], float] | None:
        """The function of one query; `None` if the metric has no value for one query."""
        return self.function or self.of_choice

    @property
    def figure(self) -> Figure:
        """The figure that the metric sums over queries, with its range."""
        least, most = (
            -math.inf if self.least is None else self.least,
            math.inf if self.most is None else self.most,
        )
        return self.ratio or self.corpus or replace(MEAN, least=least, most=most)

    def __call__(self, prediction: str, query: Query, scored: Answer | None = None) -> float:
        """Compute the value for one query, from `least` to `most`."""
        if self.function is not None:
            return self.function(prediction, query)
        assert self.of_choice is not None, f"{self.name} has no value for one query"
        assert scored is not None, f"metric {self.name} needs log-probabilities"
        return self.of_choice(scored, query)


METRIC_FIELDS = get_type_hints(Metric, include_extras=True)
"""Annotations of the fields of a metric, used to validate metrics of others and records."""


def normalise(text: str) -> str:
    """Apply SQuAD's normalisation (arXiv 1606.05250).

    Lower case, no punctuation, no a/an/the, single blanks.
    """
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact_match(prediction: str, gold: str) -> float:
    """Return 1.0 if both are equal after normalisation."""
    return float(normalise(prediction) == normalise(gold))


def prefix_match(prediction: str, gold: str) -> float:
    """Return 1.0 if the normalised prediction begins with the normalised gold answer.

    An empty gold answer is therefore always right.
    """
    return float(normalise(prediction).startswith(normalise(gold)))


def token_f1(prediction: str, gold: str) -> float:
    """Compute the harmonic mean of token precision and recall.

    If one side is empty, the value is 1.0 if both are, else 0.0 (SQuAD v2).
    """
    predicted, expected = normalise(prediction).split(), normalise(gold).split()
    if not predicted or not expected:
        return float(predicted == expected)
    shared = sum((Counter(predicted) & Counter(expected)).values())
    return 2 * shared / (len(predicted) + len(expected))


def character_f1(prediction: str, gold: str) -> float:
    """Compute the harmonic mean of the precision and recall of letters and digits.

    The value is 0 if one side has none.
    """
    predicted, expected = (
        [character for character in text.lower() if character.isalnum()]
        for text in (prediction, gold)
    )
    shared = sum((Counter(predicted) & Counter(expected)).values())
    return 2 * shared / (len(predicted) + len(expected)) if shared else 0.0


def first_number_match(prediction: str, gold: str) -> float:
    """Return 1.0 if the first unsigned number of the prediction is the gold one.

    Source: InfiniteBench, arXiv 2402.13718. For an integer gold answer, the fraction is cut off.
    """
    number, expected = _NUMBER.search(prediction), gold.strip()
    if number is None or not _NUMBER.fullmatch(expected):
        return 0.0
    whole = expected.isdecimal()
    return float(
        (int(float(number[0])) == int(expected)) if whole else (float(number[0]) == float(expected))
    )


class AnyScriptTokenizer:
    """ROUGE tokenizer for text that `rouge_score` would drop.

    Tokens are words of letters, marks and digits of any script, or single characters for scripts
    without blanks between words.
    """

    def tokenize(self, text: str) -> list[str]:
        """Split a text into tokens, in order."""
        kept = "".join(
            character if category(character)[0] in "LMN" else " "
            for character in normalize("NFKC", text).lower()
        )
        return _UNSPACED.sub(r" \1 ", kept).split()


_ANY_SCRIPT = AnyScriptTokenizer()


def rouge(name: str, part: str = "fmeasure") -> Callable[[str, Query], float]:
    """Build ROUGE ("rouge1", "rougeL") against the target (Lin 2004), using Google's `rouge_score`.

    `part` is "fmeasure", "recall" or "precision". The tokenizer of `rouge_score` keeps only a-z and
    0-9. If it would drop most of the target, `AnyScriptTokenizer` is used for target and
    prediction.
    """

    @cache
    def scorer(tokenizer: AnyScriptTokenizer | None) -> Any:
        from rouge_score.rouge_scorer import RougeScorer

        return RougeScorer([name], tokenizer=tokenizer)

    def compare_texts(prediction: str, gold: str) -> float:
        are_ascii = [character.isascii() for character in gold.lower() if character.isalnum()]
        tokenizer = _ANY_SCRIPT if 2 * sum(are_ascii) < len(are_ascii) else None
        return float(getattr(scorer(tokenizer).score(gold, prediction)[name], part))

    return against_target(compare_texts)


def string_match(prediction: str, query: Query) -> float:
    """Compute RULER's score (arXiv 2404.06654): the share of gold answers found in the prediction.

    Case is ignored. If any one gold answer is sufficient, the value is 1 if one is found, else 0.
    """
    found = [gold.lower() in prediction.lower() for gold in query.answers]
    assert found, f"{query.key} has no gold answer"
    needs_all = isinstance(query.want, Generate) and query.want.all_of
    return sum(found) / len(found) if needs_all else float(any(found))


def against_target(compare_texts: Callable[[str, str], float]) -> Callable[[str, Query], float]:
    """Convert a function of two texts to one of a prediction and the target answer."""

    def value(prediction: str, query: Query) -> float:
        assert query.answers, f"{query.key} has no gold answer"
        return compare_texts(prediction, query.answers[0])

    return value


def highest_scored_option(
    score_options: Callable[[Answer, Query], Sequence[float]],
) -> Callable[[Answer, Query], float]:
    """Return 1.0 if the option with the highest score is the right one; the first of equal ones is
    chosen."""

    def right(scored: Answer, query: Query) -> float:
        (want,) = wants_of_kind([query], Choose)
        assert want.gold is not None, f"{query.key} has no right option"
        assert len(scored.logprobs) == len(want.options), (
            f"{query.key} was not answered by choosing"
        )
        values = score_options(scored, query)
        return float(max(range(len(values)), key=values.__getitem__) == want.gold)

    return right


def _option_nll(scored: Answer, query: Query) -> float:
    """Negative log of the right option's share of the likelihood of all options."""
    from scipy.special import logsumexp

    (want,) = wants_of_kind([query], Choose)
    assert want.gold is not None, f"{query.key} has no right option"
    return float(logsumexp(scored.logprobs)) - scored.logprobs[want.gold]


def _per_character(scored: Answer, query: Query) -> list[float]:
    (want,) = wants_of_kind([query], Choose)
    lengths = [len(option.removeprefix(want.delimiter)) for option in want.options]
    return [value / max(1, length) for value, length in zip(scored.logprobs, lengths, strict=True)]


def _metrics_in_module(module: ModuleType, requested: str) -> dict[str, Any]:
    """Return the metrics of a file by name. Functions count if one is named or the only kind."""
    metrics: dict[str, Any] = {}
    for value in vars(module).values():
        if isinstance(value, Metric):
            _check_fields(value, f"{module.__file__}: metric {value.name}")
            metrics[value.name] = value
    functions = {
        name: value
        for name, value in vars(module).items()
        if isinstance(value, FunctionType)
        and value.__module__ == module.__name__
        and not name.startswith("_")
    }
    return {**functions, **metrics} if requested or not metrics else metrics


def _check_fields(value: Metric, label: str) -> None:
    validate_model(create_fields_model(METRIC_FIELDS), vars(value), label)


def _accept_plugin(value: Any, source: PluginSource) -> Metric:
    """Convert a metric, or a function as a metric with values from 0 to 1, of others.

    It raises a `UserError` for values that are not numbers within its range. A metric that is not a
    function of one answer is refused.
    """
    if not isinstance(value, Metric):
        summary = next(iter((getdoc(value) or "").splitlines()), "")
        value = Metric(name=source.name, summary=summary, function=value)
    made = replace(value, name=source.name, origin=source.origin)
    _check_fields(made, source.label)
    query_function, range_of = made.query_function, made.figure
    low, high = max(range_of.least, -MAX_VALUE), min(range_of.most, MAX_VALUE)
    if (
        made.ratio
        or made.corpus
        or not callable(query_function)
        or iscoroutinefunction(query_function)
    ):
        raise UserError(f"{source.label} is not a function of one answer.", FIX_PLUGIN_HINT)

    def compute(answer: Any, query: Query) -> float:
        place = f"metric {made.name}, query {query.key[:40]}"
        with plugin_errors_as_user_errors(source.module, place):
            number = query_function(answer, query)
            if (
                not isinstance(number, Real)
                or not math.isfinite(number)
                or not low <= number <= high
            ):
                fault = f"{source.label} returned {number!r:.40} for the query {query.key[:40]}"
                raise UserError(f"{fault}, outside {low:g} to {high:g}.", FIX_PLUGIN_HINT)
            return float(number)

    return replace(made, **{"of_choice" if made.function is None else "function": compute})


LIKELIHOOD_METRICS = ("answer_nll", "answer_nll_sum")
_NLL_DISPLAY: dict[str, Any] = {"scale": 1.0, "digits": 3, "higher_is_better": False}
"""Display of values in nats, and of errors of numbers."""
_PERPLEXITY_DISPLAY = {**_NLL_DISPLAY, "digits": 2}
_BUILTIN = (
    Metric(
        name="em",
        function=against_target(exact_match),
        summary="exact match with the target answer after SQuAD normalisation (strict)",
    ),
    Metric(
        name="em_prefix",
        function=against_target(prefix_match),
        summary="prediction cut to the target's length: the 'EM' of CaMeLS and MAC; can exceed F1",
    ),
    Metric(
        name="f1",
        function=against_target(token_f1),
        summary="token F1 against the target (shortest) answer",
    ),
    Metric(
        name="f1_max",
        function=lambda one, query: max(token_f1(one, gold) for gold in query.answers),
        summary="token F1 against the best of all gold answers, additional ones included",
    ),
    Metric(
        name="f1_characters",
        function=lambda one, query: max(character_f1(one, gold) for gold in query.answers),
        summary="F1 of letters and digits against the best of all gold answers (for Chinese)",
    ),
    Metric(
        name="contains_em",
        function=lambda one, query: float(
            any(normalise(gold) in normalise(one) for gold in query.answers)
        ),
        summary="the prediction contains a gold answer, both after SQuAD normalisation",
    ),
    Metric(
        name="first_number",
        function=against_target(first_number_match),
        summary="the first number of the prediction equals the target; its fraction is ignored "
        "for a whole target",
    ),
    Metric(
        name="string_match",
        function=string_match,
        summary="share of the gold answers in the prediction; one of several alternatives is "
        "enough (RULER)",
    ),
    Metric(
        name="macro_f1",
        corpus=CORPUS_FIGURES["macro_f1"],
        summary="mean F1 of the labels that are right or chosen at least once",
    ),
    Metric(
        name="mae",
        corpus=CORPUS_FIGURES["mae"],
        **_NLL_DISPLAY,
        summary="mean absolute error of the answered number",
    ),
    Metric(
        name="rmse",
        corpus=CORPUS_FIGURES["rmse"],
        **_NLL_DISPLAY,
        summary="root of the mean squared error of the answered number",
    ),
    Metric(
        name="rouge1",
        function=rouge("rouge1"),
        summary="ROUGE-1 F-measure (single words, of any script), without stemming",
    ),
    Metric(
        name="rougeL",
        function=rouge("rougeL"),
        summary="ROUGE-L F-measure (longest common subsequence), without stemming",
    ),
    Metric(
        name="rougeLsum",
        function=rouge("rougeLsum"),
        summary="ROUGE-L F-measure of a summary, computed by line, without stemming",
    ),
    Metric(
        name="rougeL_recall",
        function=rouge("rougeL", "recall"),
        summary="ROUGE-L recall: share of the target's words in the answer, in order",
    ),
    Metric(
        name="acc",
        of_choice=highest_scored_option(lambda scored, _: scored.logprobs),
        summary="the right option has the largest summed log-probability",
    ),
    Metric(
        name="acc_norm",
        of_choice=highest_scored_option(_per_character),
        summary="acc with sums divided by the characters of the option (lm-eval's acc_norm)",
    ),
    Metric(
        name="acc_mean",
        of_choice=highest_scored_option(
            lambda scored, _: [
                value / count for value, count in zip(scored.logprobs, scored.tokens, strict=True)
            ]
        ),
        summary="acc with sums divided by the tokens of the option",
    ),
    Metric(
        name="option_nll",
        of_choice=_option_nll,
        most=None,
        **_NLL_DISPLAY,
        summary="negative log-likelihood of the right option among the options, in nats; "
        "its exp is a perplexity",
    ),
    Metric(
        name="ppl",
        ratio=RATIO_FIGURES["ppl"],
        **_PERPLEXITY_DISPLAY,
        summary="perplexity: exp of the mean negative log-likelihood of all tokens",
    ),
    Metric(
        name="ppl_unit_mean",
        ratio=RATIO_FIGURES["ppl_unit_mean"],
        **_PERPLEXITY_DISPLAY,
        summary="mean of the perplexities of the strides, weighted by tokens (Temp-LoRA); "
        "never below ppl",
    ),
    Metric(
        name="ppl_book_mean",
        ratio=RATIO_FIGURES["ppl_book_mean"],
        **_PERPLEXITY_DISPLAY,
        summary="mean of the perplexities of the texts, with equal weights",
    ),
    Metric(
        name="ppl_dialogue_mean",
        ratio=RATIO_FIGURES["ppl_dialogue_mean"],
        **_PERPLEXITY_DISPLAY,
        summary="mean of the perplexities of the dialogues, with equal weights",
    ),
    Metric(
        name="ppl_word",
        ratio=RATIO_FIGURES["ppl_word"],
        **_PERPLEXITY_DISPLAY,
        summary="exp of the negative log-likelihood per word: comparable between tokenizers",
    ),
    Metric(
        name="answer_nll",
        ratio=RATIO_FIGURES["answer_nll"],
        **_NLL_DISPLAY,
        summary="negative log-likelihood per token of the target answer and its end, in nats",
    ),
    Metric(
        name="answer_nll_sum",
        ratio=RATIO_FIGURES["answer_nll_sum"],
        **_NLL_DISPLAY,
        summary="negative log-likelihood per answer, including its end, in nats",
    ),
)
METRICS = Registry[Metric](
    "metric",
    {metric.name: metric for metric in _BUILTIN},
    group="ttabench.metrics",
    in_module=_metrics_in_module,
    accept=_accept_plugin,
)


_EXTERNAL_METRICS: dict[str, tuple[Metric, str]] = {}
"""Metrics of others seen by this process, by name: the declaration and its first source."""


def metric(name: str, *, files: bool = False) -> Metric:
    """Find a metric by name: of ttabench, of an installed package, or (`files`) of
    `./mine.py:closeness`. See `Registry.find`.
    """
    found = METRICS.find(name, files=files)
    if found.origin:
        register_metric(found.name, found.declared, name)
    return found


def register_metric(name: str, declared: Mapping[str, Json], where: str) -> None:
    """Register the display of a metric of others, as declared by the run or file `where`.

    Raises:
        UserError: a metric of this name was declared differently before.
    """
    made = Metric(
        name=name, summary="", **{key: declared[key] for key in DISPLAY_FIELDS if key in declared}
    )
    before, first = _EXTERNAL_METRICS.setdefault(name, (made, where))
    if before != made:
        keys = ", ".join(
            key for key in DISPLAY_FIELDS if getattr(before, key) != getattr(made, key)
        )
        fault = f"The metric {name} of {where} and of {first} declares different values of {keys}."
        raise UserError(fault, "Show these runs one by one, or rename one metric and run again.")


def metric_or_default(name: str) -> Metric:
    """Find the display of a metric of any origin; by default values are displayed unscaled."""
    known = METRICS.get(name) or _EXTERNAL_METRICS.get(name, (None, ""))[0]
    return known or Metric(name=name, summary="", scale=1.0, least=None, most=None)


def supports_mode(chosen: Metric, mode: Mode) -> bool:
    """Return True if the metric applies to queries of this mode."""
    if mode == "score":
        return chosen.ratio is not None
    if mode == "choose":
        return chosen.ratio is None
    return (
        chosen.function is not None
        or chosen.corpus is not None
        or chosen.name in LIKELIHOOD_METRICS
    )


def check_metric_modes(task: str, metrics: Iterable[Metric], mode: Mode) -> None:
    """Raise a `UserError` if a metric does not apply to the mode of a task."""
    for chosen in metrics:
        if not supports_mode(chosen, mode):
            task_kind = {
                "score": "scores given texts",
                "choose": "chooses among options",
                "generate": "generates answers",
            }
            known = ", ".join(name for name, other in METRICS.items() if supports_mode(other, mode))
            raise UserError(
                f"{task} {task_kind[mode]}, so the metric {chosen.name} does not apply.",
                f"Use one of: {known}.",
            )
