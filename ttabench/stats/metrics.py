"""Metrics: what they are and how their figures are read; those of ttabench (em, em_prefix, f1 against the target
answer, f1_max against the best gold answer, acc of choices, perplexities), of other packages, and of files.

SQuAD's normalisation and token F1 (arXiv 1606.05250); `em_prefix` is what CaMeLS (arXiv 2305.15076) and MAC
(arXiv 2403.04317) print as "EM". The target is `ask.answers[0]`, the shortest published answer, as in the papers.

    def closeness(prediction, ask):                   # ./mine.py: what was answered, and the query with its answers
        return float(prediction in ask.answers)       # one number from 0 to 1, more is better

A `Metric` in place of the function says a name, a range, a direction. Records keep `declared` of a metric that is not
ttabench's own: its figures are shown wherever the records are.
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
from pathlib import Path
from types import FunctionType
from typing import Annotated, Any, get_type_hints
from unicodedata import category, normalize

from pydantic import Field, FiniteFloat

from ttabench.core.declared import create_fields_model, validate_model
from ttabench.core.errors import UnknownName, UserError
from ttabench.core.plugins import (
    FIX_PLUGIN_HINT,
    PLUGIN_NAME_PATTERN,
    PYTHON_FILE_PATTERN,
    PluginEntryPoint,
    import_file,
    module_code_digest,
    plugin_entry_points,
    plugin_errors_as_user_errors,
    select_object,
)
from ttabench.core.types import Answer, Choose, Generate, Json, Mode, Query, wants_of_kind
from ttabench.stats.figures import CORPUS_FIGURES, MEAN, RATIO_FIGURES, Figure

ENTRY_POINT_GROUP = "ttabench.metrics"
"""Entry points of other packages: functions of a prediction and a query, or metrics."""
DISPLAY_FIELDS = ("scale", "digits", "higher_is_better", "least", "most")
"""Fields of a metric that its figures are read by."""
MAX_VALUE = 1e100
"""Of one query; squares of larger values overflow in sums."""
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_NUMBER = re.compile(r"\d+\.\d+|\d+")
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_UNSPACED = re.compile(
    "([\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff])"
)
"""Characters of scripts without blanks: Thai, Lao, Burmese, Khmer, kana, Chinese characters."""


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A metric; call one of queries with a prediction and its `Query`, and the log-probabilities of a choice."""

    name: str
    summary: str
    function: Callable[[str, Query], float] | None = None
    """Of the predicted text."""
    of_choice: Callable[[Answer, Query], float] | None = None
    """Of the log-probabilities of the options."""
    ratio: Figure | None = None
    """Of all scored stretches together; such a metric has no value for one query."""
    corpus: Figure | None = None
    """Of all answers together; such a metric has no value for one query, either."""
    scale: Annotated[float, Field(gt=0, le=1e9, allow_inf_nan=False)] = 100.0
    """Multiply by this to print (percent); stored values stay as they are."""
    digits: Annotated[int, Field(ge=0, le=9)] = 1
    """Printed after the point."""
    higher_is_better: bool = True
    least: FiniteFloat | None = 0.0
    """No value of a query is below; None where there is no such number."""
    most: FiniteFloat | None = 1.0
    origin: str = ""
    """The package, or a digest of the file, that it is from; "" for ttabench's own."""

    @property
    def declared(self) -> dict[str, Json]:
        """What it is and how its figures are read, for a record."""
        return {name: getattr(self, name) for name in ("summary", *DISPLAY_FIELDS)}

    @property
    def query_function(self) -> Callable[[Any, Query], float] | None:
        """Its function of one query; None of one that has no value for it."""
        return self.function or self.of_choice

    @property
    def figure(self) -> Figure:
        """What it sums over queries, with the range of its figures."""
        least, most = (
            -math.inf if self.least is None else self.least,
            math.inf if self.most is None else self.most,
        )
        return self.ratio or self.corpus or replace(MEAN, least=least, most=most)

    def __call__(self, prediction: str, query: Query, scored: Answer | None = None) -> float:
        """The value for one query, from `least` to `most`."""
        if self.function is not None:
            return self.function(prediction, query)
        assert self.of_choice is not None, f"metric {self.name} has no value for one query"
        assert scored is not None, f"metric {self.name} needs log-probabilities"
        return self.of_choice(scored, query)


METRIC_FIELDS = get_type_hints(Metric, include_extras=True)
"""Annotations of a metric by field: of those that others declare, and of records that tell of them."""


def normalise(text: str) -> str:
    """SQuAD's normalisation (arXiv 1606.05250): lower case, no punctuation, no a/an/the, single blanks."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact_match(prediction: str, gold: str) -> float:
    """1.0 when both are equal after normalisation."""
    return float(normalise(prediction) == normalise(gold))


def prefix_match(prediction: str, gold: str) -> float:
    """1.0 when the normalised prediction begins with the normalised gold; an empty gold is therefore always right."""
    return float(normalise(prediction).startswith(normalise(gold)))


def token_f1(prediction: str, gold: str) -> float:
    """Harmonic mean of token precision and recall; when either side is empty, 1.0 if both are (SQuAD v2's rule)."""
    predicted, expected = normalise(prediction).split(), normalise(gold).split()
    if not predicted or not expected:
        return float(predicted == expected)
    shared = sum((Counter(predicted) & Counter(expected)).values())
    return 2 * shared / (len(predicted) + len(expected))


def character_f1(prediction: str, gold: str) -> float:
    """Harmonic mean of the precision and recall of letters and digits; 0 when either side has none."""
    predicted, expected = (
        [character for character in text.lower() if character.isalnum()]
        for text in (prediction, gold)
    )
    shared = sum((Counter(predicted) & Counter(expected)).values())
    return 2 * shared / (len(predicted) + len(expected)) if shared else 0.0


def first_number_match(prediction: str, gold: str) -> float:
    """1.0 when the first number without a sign in the prediction is the gold one (InfiniteBench, arXiv 2402.13718)."""
    number, expected = _NUMBER.search(prediction), gold.strip()
    if number is None or not _NUMBER.fullmatch(expected):
        return 0.0
    whole = expected.isdecimal()
    return float(
        (int(float(number[0])) == int(expected)) if whole else (float(number[0]) == float(expected))
    )


class AnyScriptTokenizer:
    """The tokenizer of ROUGE for text that `rouge_score` would drop: words of letters, marks and digits of any script,
    single characters where a script has no blanks between words."""

    def tokenize(self, text: str) -> list[str]:
        """The tokens of a text, in order."""
        kept = "".join(
            character if category(character)[0] in "LMN" else " "
            for character in normalize("NFKC", text).lower()
        )
        return _UNSPACED.sub(r" \1 ", kept).split()


_ANY_SCRIPT = AnyScriptTokenizer()


def rouge(name: str, part: str = "fmeasure") -> Callable[[str, Query], float]:
    """ROUGE ("rouge1", "rougeL") of a prediction and the target (Lin 2004), by Google's `rouge_score`; the part is
    "fmeasure", "recall" or "precision". Its tokenizer keeps only a-z and 0-9. Where it would drop most of the target,
    target and prediction are read by `AnyScriptTokenizer`."""

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
    """RULER's score (arXiv 2404.06654): the share of the gold answers that stand in the prediction, in whatever case;
    where any one of them is right, whether one does."""
    found = [gold.lower() in prediction.lower() for gold in query.answers]
    assert found, f"{query.key} has no gold answer"
    needs_all = isinstance(query.want, Generate) and query.want.all_of
    return sum(found) / len(found) if needs_all else float(any(found))


def against_target(compare_texts: Callable[[str, str], float]) -> Callable[[str, Query], float]:
    """A function of a prediction and a text as one of the target answer."""

    def value(prediction: str, query: Query) -> float:
        assert query.answers, f"{query.key} has no gold answer"
        return compare_texts(prediction, query.answers[0])

    return value


def highest_scored_option(
    score_options: Callable[[Answer, Query], Sequence[float]],
) -> Callable[[Answer, Query], float]:
    """1.0 when the option of the largest worth is the right one; of equal ones the first is chosen."""

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


LIKELIHOOD_METRICS = ("answer_nll", "answer_nll_sum")
_NLL_DISPLAY: dict[str, Any] = {"scale": 1.0, "digits": 3, "higher_is_better": False}
"""How nats, and errors of numbers, are read."""
_PERPLEXITY_DISPLAY = {**_NLL_DISPLAY, "digits": 2}
METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric(
            name="em",
            function=against_target(exact_match),
            summary="exact match with the target answer after SQuAD normalisation (strict)",
        ),
        Metric(
            name="em_prefix",
            function=against_target(prefix_match),
            summary="prediction cut to the length of the target answer: the 'EM' of CaMeLS and MAC; can exceed F1",
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
            summary="F1 of characters, without punctuation and blanks, against the best of all gold answers (for "
            "Chinese)",
        ),
        Metric(
            name="contains_em",
            function=lambda one, query: float(
                any(normalise(gold) in normalise(one) for gold in query.answers)
            ),
            summary="a gold answer stands in the prediction, both in SQuAD's normalisation",
        ),
        Metric(
            name="first_number",
            function=against_target(first_number_match),
            summary="the first number of the prediction is the target answer; of a whole one its whole part",
        ),
        Metric(
            name="string_match",
            function=string_match,
            summary="share of the gold answers that the prediction holds; of alternatives, whether it holds one "
            "(RULER)",
        ),
        Metric(
            name="macro_f1",
            corpus=CORPUS_FIGURES["macro_f1"],
            summary="mean F1 of the labels that are right or chosen somewhere, each counting alike",
        ),
        Metric(
            name="mae",
            corpus=CORPUS_FIGURES["mae"],
            **_NLL_DISPLAY,
            summary="mean absolute error of the number that is answered",
        ),
        Metric(
            name="rmse",
            corpus=CORPUS_FIGURES["rmse"],
            **_NLL_DISPLAY,
            summary="root of the mean squared error of it",
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
            summary="the same of a summary, line by line",
        ),
        Metric(
            name="rougeL_recall",
            function=rouge("rougeL", "recall"),
            summary="ROUGE-L recall: the share of the target's words, in their order, that the answer has",
        ),
        Metric(
            name="acc",
            of_choice=highest_scored_option(lambda scored, _: scored.logprobs),
            summary="the right option has the largest summed log-probability",
        ),
        Metric(
            name="acc_norm",
            of_choice=highest_scored_option(_per_character),
            summary="the same with sums divided by the characters of the option (lm-eval's acc_norm)",
        ),
        Metric(
            name="acc_mean",
            of_choice=highest_scored_option(
                lambda scored, _: [
                    value / count
                    for value, count in zip(scored.logprobs, scored.tokens, strict=True)
                ]
            ),
            summary="the same with sums divided by the tokens of the option",
        ),
        Metric(
            name="option_nll",
            of_choice=_option_nll,
            most=None,
            **_NLL_DISPLAY,
            summary="negative log-likelihood of the right "
            "option among the options, in nats: its exp is a perplexity",
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
            summary="mean of the perplexities of the "
            "strides, by their tokens (Temp-LoRA's figure); never under ppl",
        ),
        Metric(
            name="ppl_book_mean",
            ratio=RATIO_FIGURES["ppl_book_mean"],
            **_PERPLEXITY_DISPLAY,
            summary="mean of the perplexities of the texts, each counting alike",
        ),
        Metric(
            name="ppl_dialogue_mean",
            ratio=RATIO_FIGURES["ppl_dialogue_mean"],
            **_PERPLEXITY_DISPLAY,
            summary="the same of dialogues: short turns weigh as much as long ones",
        ),
        Metric(
            name="ppl_word",
            ratio=RATIO_FIGURES["ppl_word"],
            **_PERPLEXITY_DISPLAY,
            summary="exp of the negative log-likelihood a word: comparable between tokenizers",
        ),
        Metric(
            name="answer_nll",
            ratio=RATIO_FIGURES["answer_nll"],
            **_NLL_DISPLAY,
            summary="negative log-likelihood a token of the target answer and its end, in nats",
        ),
        Metric(
            name="answer_nll_sum",
            ratio=RATIO_FIGURES["answer_nll_sum"],
            **_NLL_DISPLAY,
            summary="the same an answer",
        ),
    )
}


_EXTERNAL_METRICS: dict[str, tuple[Metric, str]] = {}
"""Metrics of others that this process has met, by name: what they declare, and where that was said first."""


def metric(name: str, *, files: bool = False) -> Metric:
    """The metric of that name: of ttabench, of a package that is installed, or (`files`) of `./mine.py:closeness`.

    Raises:
        UnknownName: there is none; the message names the closest one.
        UserError: a package or file that offers it fails, or offers something else.
    """
    if name in METRICS:
        return METRICS[name]
    if in_file := PYTHON_FILE_PATTERN.fullmatch(name):
        if not files:
            hint = "Name it with --metric, or offer it in a package."
            raise UserError(
                f"The metric {name} is a file of Python, and a task card runs none.", hint
            )
        other = file_metric(Path(in_file["path"]).expanduser(), in_file["name"] or "")
    elif name in plugin_entry_points(ENTRY_POINT_GROUP):
        other = package_metric(plugin_entry_points(ENTRY_POINT_GROUP)[name])
    else:
        raise UnknownName("metric", name, [*METRICS, *plugin_entry_points(ENTRY_POINT_GROUP)])
    register_metric(other.name, other.declared, name)
    return other


def register_metric(name: str, declared: Mapping[str, Json], where: str) -> None:
    """Take down how figures of a metric that is not ttabench's own are read, as a run or a file (`where`) says it;
    another one of this name that was declared otherwise is refused."""
    made = Metric(
        name=name, summary="", **{key: declared[key] for key in DISPLAY_FIELDS if key in declared}
    )
    before, first = _EXTERNAL_METRICS.setdefault(name, (made, where))
    if before != made:
        keys = ", ".join(
            key for key in DISPLAY_FIELDS if getattr(before, key) != getattr(made, key)
        )
        fault = (
            f"The metric {name} of {where} and that of {first} declare different values of {keys}."
        )
        raise UserError(fault, "Show these runs one by one, or rename one metric and run it again.")


def metric_or_default(name: str) -> Metric:
    """How figures of a metric are read, whosever it is; as they are where nobody says."""
    plain = Metric(name=name, summary="", scale=1.0, least=None, most=None)
    return METRICS.get(name) or _EXTERNAL_METRICS.get(name, (plain, ""))[0]


def supports_mode(chosen: Metric, mode: Mode) -> bool:
    """Whether a metric is one of queries that are answered so."""
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
    """Refuse a metric that does not judge what a task asks, and say which do."""
    for chosen in metrics:
        if not supports_mode(chosen, mode):
            asks = {
                "score": "scores given texts",
                "choose": "chooses among options",
                "generate": "writes answers",
            }
            known = ", ".join(name for name, other in METRICS.items() if supports_mode(other, mode))
            raise UserError(
                f"{task} {asks[mode]}, which {chosen.name} does not judge.",
                f"Metrics of that: {known}.",
            )


# --- metrics of other packages and of files --------------------------------------------------------------------------


def package_metric(offer: PluginEntryPoint) -> Metric:
    """The metric that an installed package offers, under the name that it is offered by."""
    made = replace(_as_metric(offer.load(), offer.name), name=offer.name, origin=offer.origin)
    validate_model(
        create_fields_model(METRIC_FIELDS), vars(made), f"{offer.package}: metric {offer.name}"
    )
    return _with_range_check(made, offer.entry.module, offer.package)


def file_metric(path: Path, requested: str) -> Metric:
    """The metric of a file, by name where it holds several ("": the only one); what cannot be used is refused."""
    module = import_file(path)
    objects = [value for value in vars(module).values() if isinstance(value, Metric)]
    for value in objects:
        validate_model(
            create_fields_model(METRIC_FIELDS), vars(value), f"{path}: metric {value.name}"
        )
    metrics: dict[str, Any] = {value.name: value for value in objects}
    functions = {
        name: value
        for name, value in vars(module).items()
        if isinstance(value, FunctionType)
        and value.__module__ == module.__name__
        and not name.startswith("_")
    }
    known = {**functions, **metrics} if requested or not metrics else metrics
    needed = "Write a function there: def closeness(prediction, ask)."
    name = select_object("metric", path, requested, {name: name for name in known}, needed)
    return _with_range_check(
        replace(_as_metric(known[name], name), origin=module_code_digest(module)),
        module.__name__,
        path,
    )


def _as_metric(value: Any, name: str) -> Metric:
    """A metric as it is, a function as one from 0 to 1."""
    if isinstance(value, Metric):
        return value
    return Metric(
        name=name, summary=next(iter((getdoc(value) or "").splitlines()), ""), function=value
    )


def _with_range_check(made: Metric, module: str, place: Path | str) -> Metric:
    """The same, of which whatever is no number within its range is said in one line; what is no metric of answers is
    refused."""
    query_function, range_of = made.query_function, made.figure
    low, high = max(range_of.least, -MAX_VALUE), min(range_of.most, MAX_VALUE)
    if made.name in METRICS:
        raise UserError(f"{place}: {made.name} has a name of ttabench's own.", FIX_PLUGIN_HINT)
    if not PLUGIN_NAME_PATTERN.fullmatch(made.name):
        raise UserError(
            f"{place}: the name {made.name!r} may hold lower-case letters, digits and _ only.",
            FIX_PLUGIN_HINT,
        )
    if (
        made.ratio
        or made.corpus
        or not callable(query_function)
        or iscoroutinefunction(query_function)
    ):
        raise UserError(f"{place}: {made.name} is no function of one answer.", FIX_PLUGIN_HINT)

    def value(answer: Any, query: Query) -> float:
        with plugin_errors_as_user_errors(module, f"metric {made.name}, query {query.key[:40]}"):
            number = query_function(answer, query)
            if (
                not isinstance(number, Real)
                or not math.isfinite(number)
                or not low <= number <= high
            ):
                fault = f"{place}: {made.name} gives {number!r:.40} for the query {query.key[:40]}, and declares"
                raise UserError(f"{fault} {low:g} to {high:g}.", FIX_PLUGIN_HINT)
            return float(number)

    return (
        replace(made, of_choice=value) if made.function is None else replace(made, function=value)
    )
