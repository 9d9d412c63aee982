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

from ttabench.core.declared import model_of, validated
from ttabench.core.errors import UnknownName, UserError
from ttabench.core.plugins import FILE, FIX, NAME, Offer, calling, code_of, module_at, offered, one_of
from ttabench.core.types import Answer, Ask, Choose, Generate, Json, Mode, wanted
from ttabench.stats.figures import CORPORA, MEAN, RATIOS, Figure

GROUP = "ttabench.metrics"
"""Entry points of other packages: functions of a prediction and a query, or metrics."""
DECLARED = ("scale", "digits", "higher_is_better", "least", "most")
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
    """A metric; call one of queries with a prediction and its `Ask`, and the log-probabilities of a choice."""

    name: str
    summary: str
    function: Callable[[str, Ask], float] | None = None
    """Of the predicted text."""
    of_choice: Callable[[Answer, Ask], float] | None = None
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
        return {name: getattr(self, name) for name in ("summary", *DECLARED)}

    @property
    def judge(self) -> Callable[[Any, Ask], float] | None:
        """Its function of one query; None of one that has no value for it."""
        return self.function or self.of_choice

    @property
    def figure(self) -> Figure:
        """What it sums over queries, with the range of its figures."""
        least, most = -math.inf if self.least is None else self.least, math.inf if self.most is None else self.most
        return self.ratio or self.corpus or replace(MEAN, least=least, most=most)

    def __call__(self, prediction: str, ask: Ask, scored: Answer | None = None) -> float:
        """The value for one query, from `least` to `most`."""
        if self.function is not None:
            return self.function(prediction, ask)
        assert self.of_choice is not None, f"metric {self.name} has no value for one query"
        assert scored is not None, f"metric {self.name} needs log-probabilities"
        return self.of_choice(scored, ask)


FIELDS = get_type_hints(Metric, include_extras=True)
"""Annotations of a metric by field: of those that others declare, and of records that tell of them."""


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


def characters_f1(prediction: str, gold: str) -> float:
    """Harmonic mean of the precision and recall of letters and digits; 0 when either side has none."""
    predicted, wanted = ([sign for sign in text.lower() if sign.isalnum()] for text in (prediction, gold))
    shared = sum((Counter(predicted) & Counter(wanted)).values())
    return 2 * shared / (len(predicted) + len(wanted)) if shared else 0.0


def same_number(prediction: str, gold: str) -> float:
    """1.0 when the first number without a sign in the prediction is the gold one (InfiniteBench, arXiv 2402.13718)."""
    number, wanted = _NUMBER.search(prediction), gold.strip()
    if number is None or not _NUMBER.fullmatch(wanted):
        return 0.0
    whole = wanted.isdecimal()
    return float((int(float(number[0])) == int(wanted)) if whole else (float(number[0]) == float(wanted)))


class AnyScript:
    """The tokenizer of ROUGE for text that `rouge_score` would drop: words of letters, marks and digits of any script,
    single characters where a script has no blanks between words."""

    def tokenize(self, text: str) -> list[str]:
        """The tokens of a text, in order."""
        kept = "".join(sign if category(sign)[0] in "LMN" else " " for sign in normalize("NFKC", text).lower())
        return _UNSPACED.sub(r" \1 ", kept).split()


_ANY_SCRIPT = AnyScript()


def rouge(name: str, part: str = "fmeasure") -> Callable[[str, Ask], float]:
    """ROUGE ("rouge1", "rougeL") of a prediction and the target (Lin 2004), by Google's `rouge_score`; the part is
    "fmeasure", "recall" or "precision". Its tokenizer keeps only a-z and 0-9. Where it would drop most of the target,
    target and prediction are read by `AnyScript`."""

    @cache
    def scorer(tokenizer: AnyScript | None) -> Any:
        from rouge_score.rouge_scorer import RougeScorer

        return RougeScorer([name], tokenizer=tokenizer)

    def judged(prediction: str, gold: str) -> float:
        signs = [sign.isascii() for sign in gold.lower() if sign.isalnum()]
        tokenizer = _ANY_SCRIPT if 2 * sum(signs) < len(signs) else None
        return float(getattr(scorer(tokenizer).score(gold, prediction)[name], part))

    return of_target(judged)


def string_match(prediction: str, ask: Ask) -> float:
    """RULER's score (arXiv 2404.06654): the share of the gold answers that stand in the prediction, in whatever case;
    where any one of them is right, whether one does."""
    held = [gold.lower() in prediction.lower() for gold in ask.answers]
    assert held, f"{ask.key} has no gold answer"
    every = isinstance(ask.want, Generate) and ask.want.all_of
    return sum(held) / len(held) if every else float(any(held))


def of_target(judged: Callable[[str, str], float]) -> Callable[[str, Ask], float]:
    """A function of a prediction and a text as one of the target answer."""

    def value(prediction: str, ask: Ask) -> float:
        assert ask.answers, f"{ask.key} has no gold answer"
        return judged(prediction, ask.answers[0])

    return value


def choice(worth: Callable[[Answer, Ask], Sequence[float]]) -> Callable[[Answer, Ask], float]:
    """1.0 when the option of the largest worth is the right one; of equal ones the first is chosen."""

    def right(scored: Answer, ask: Ask) -> float:
        (want,) = wanted([ask], Choose)
        assert want.gold is not None, f"{ask.key} has no right option"
        assert len(scored.logprobs) == len(want.options), f"{ask.key} was not answered by choosing"
        values = worth(scored, ask)
        return float(max(range(len(values)), key=values.__getitem__) == want.gold)

    return right


def _nats(scored: Answer, ask: Ask) -> float:
    """Negative log of the right option's share of the likelihood of all options."""
    from scipy.special import logsumexp

    (want,) = wanted([ask], Choose)
    assert want.gold is not None, f"{ask.key} has no right option"
    return float(logsumexp(scored.logprobs)) - scored.logprobs[want.gold]


def _per_character(scored: Answer, ask: Ask) -> list[float]:
    (want,) = wanted([ask], Choose)
    lengths = [len(option.removeprefix(want.delimiter)) for option in want.options]
    return [value / max(1, length) for value, length in zip(scored.logprobs, lengths, strict=True)]


LIKELIHOODS = ("answer_nll", "answer_nll_sum")
_NATS: dict[str, Any] = {"scale": 1.0, "digits": 3, "higher_is_better": False}
"""How nats, and errors of numbers, are read."""
_PPL = {**_NATS, "digits": 2}
METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric(name="em", function=of_target(exact),
               summary="exact match with the target answer after SQuAD normalisation (strict)"),
        Metric(name="em_prefix", function=of_target(prefix_exact),
               summary="prediction cut to the length of the target answer: the 'EM' of CaMeLS and MAC; can exceed F1"),
        Metric(name="f1", function=of_target(token_f1), summary="token F1 against the target (shortest) answer"),
        Metric(name="f1_max", function=lambda one, ask: max(token_f1(one, gold) for gold in ask.answers),
               summary="token F1 against the best of all gold answers, additional ones included"),
        Metric(name="f1_characters", function=lambda one, ask: max(characters_f1(one, gold) for gold in ask.answers),
               summary="F1 of characters, without punctuation and blanks, against the best of all gold answers (for "
                       "Chinese)"),
        Metric(name="contains_em",
               function=lambda one, ask: float(any(normalise(gold) in normalise(one) for gold in ask.answers)),
               summary="a gold answer stands in the prediction, both in SQuAD's normalisation"),
        Metric(name="first_number", function=of_target(same_number),
               summary="the first number of the prediction is the target answer; of a whole one its whole part"),
        Metric(name="string_match", function=string_match,
               summary="share of the gold answers that the prediction holds; of alternatives, whether it holds one "
                       "(RULER)"),
        Metric(name="macro_f1", corpus=CORPORA["macro_f1"],
               summary="mean F1 of the labels that are right or chosen somewhere, each counting alike"),
        Metric(name="mae", corpus=CORPORA["mae"], **_NATS,
               summary="mean absolute error of the number that is answered"),
        Metric(name="rmse", corpus=CORPORA["rmse"], **_NATS, summary="root of the mean squared error of it"),
        Metric(name="rouge1", function=rouge("rouge1"),
               summary="ROUGE-1 F-measure (single words, of any script), without stemming"),
        Metric(name="rougeL", function=rouge("rougeL"),
               summary="ROUGE-L F-measure (longest common subsequence), without stemming"),
        Metric(name="rougeLsum", function=rouge("rougeLsum"), summary="the same of a summary, line by line"),
        Metric(name="rougeL_recall", function=rouge("rougeL", "recall"),
               summary="ROUGE-L recall: the share of the target's words, in their order, that the answer has"),
        Metric(name="acc", of_choice=choice(lambda scored, _: scored.logprobs),
               summary="the right option has the largest summed log-probability"),
        Metric(name="acc_norm", of_choice=choice(_per_character),
               summary="the same with sums divided by the characters of the option (lm-eval's acc_norm)"),
        Metric(name="acc_mean", of_choice=choice(lambda scored, _: [
            value / count for value, count in zip(scored.logprobs, scored.tokens, strict=True)]),
               summary="the same with sums divided by the tokens of the option"),
        Metric(name="option_nll", of_choice=_nats, most=None, **_NATS, summary="negative log-likelihood of the right "
               "option among the options, in nats: its exp is a perplexity"),
        Metric(name="ppl", ratio=RATIOS["ppl"], **_PPL,
               summary="perplexity: exp of the mean negative log-likelihood of all tokens"),
        Metric(name="ppl_unit_mean", ratio=RATIOS["ppl_unit_mean"], **_PPL, summary="mean of the perplexities of the "
               "strides, by their tokens (Temp-LoRA's figure); never under ppl"),
        Metric(name="ppl_book_mean", ratio=RATIOS["ppl_book_mean"], **_PPL,
               summary="mean of the perplexities of the texts, each counting alike"),
        Metric(name="ppl_dialogue_mean", ratio=RATIOS["ppl_dialogue_mean"], **_PPL,
               summary="the same of dialogues: short turns weigh as much as long ones"),
        Metric(name="ppl_word", ratio=RATIOS["ppl_word"], **_PPL,
               summary="exp of the negative log-likelihood a word: comparable between tokenizers"),
        Metric(name="answer_nll", ratio=RATIOS["answer_nll"], **_NATS,
               summary="negative log-likelihood a token of the target answer and its end, in nats"),
        Metric(name="answer_nll_sum", ratio=RATIOS["answer_nll_sum"], **_NATS, summary="the same an answer"),
    )
}  # fmt: skip


_OTHERS: dict[str, tuple[Metric, str]] = {}
"""Metrics of others that this process has met, by name: what they declare, and where that was said first."""


def metric(name: str, *, files: bool = False) -> Metric:
    """The metric of that name: of ttabench, of a package that is installed, or (`files`) of `./mine.py:closeness`.

    Raises:
        UnknownName: there is none; the message names the closest one.
        UserError: a package or file that offers it fails, or offers something else.
    """
    if name in METRICS:
        return METRICS[name]
    if in_file := FILE.fullmatch(name):
        if not files:
            hint = "Name it with --metric, or offer it in a package."
            raise UserError(f"The metric {name} is a file of Python, and a task card runs none.", hint)
        other = of_file(Path(in_file["path"]).expanduser(), in_file["name"] or "")
    elif name in offered(GROUP):
        other = of_package(offered(GROUP)[name])
    else:
        raise UnknownName("metric", name, [*METRICS, *offered(GROUP)])
    declare(other.name, other.declared, name)
    return other


def declare(name: str, declared: Mapping[str, Json], where: str) -> None:
    """Take down how figures of a metric that is not ttabench's own are read, as a run or a file (`where`) says it;
    another one of this name that was declared otherwise is refused."""
    made = Metric(name=name, summary="", **{key: declared[key] for key in DECLARED if key in declared})
    before, first = _OTHERS.setdefault(name, (made, where))
    if before != made:
        keys = ", ".join(key for key in DECLARED if getattr(before, key) != getattr(made, key))
        fault = f"The metric {name} of {where} and that of {first} declare different values of {keys}."
        raise UserError(fault, "Show these runs one by one, or rename one metric and run it again.")


def known(name: str) -> Metric:
    """How figures of a metric are read, whosever it is; as they are where nobody says."""
    plain = Metric(name=name, summary="", scale=1.0, least=None, most=None)
    return METRICS.get(name) or _OTHERS.get(name, (plain, ""))[0]


def judges(chosen: Metric, mode: Mode) -> bool:
    """Whether a metric is one of queries that are answered so."""
    if mode == "score":
        return chosen.ratio is not None
    if mode == "choose":
        return chosen.ratio is None
    return chosen.function is not None or chosen.corpus is not None or chosen.name in LIKELIHOODS


def check_judges(task: str, metrics: Iterable[Metric], mode: Mode) -> None:
    """Refuse a metric that does not judge what a task asks, and say which do."""
    for chosen in metrics:
        if not judges(chosen, mode):
            asks = {"score": "scores given texts", "choose": "chooses among options", "generate": "writes answers"}
            known = ", ".join(name for name, other in METRICS.items() if judges(other, mode))
            raise UserError(f"{task} {asks[mode]}, which {chosen.name} does not judge.", f"Metrics of that: {known}.")


# --- metrics of other packages and of files --------------------------------------------------------------------------


def of_package(offer: Offer) -> Metric:
    """The metric that an installed package offers, under the name that it is offered by."""
    made = replace(_metric(offer.load(), offer.name), name=offer.name, origin=offer.origin)
    validated(model_of(FIELDS), vars(made), f"{offer.package}: metric {offer.name}")
    return _guarded(made, offer.entry.module, offer.package)


def of_file(path: Path, wanted: str) -> Metric:
    """The metric of a file, by name where it holds several ("": the only one); what cannot be used is refused."""
    module = module_at(path)
    objects = [value for value in vars(module).values() if isinstance(value, Metric)]
    for value in objects:
        validated(model_of(FIELDS), vars(value), f"{path}: metric {value.name}")
    metrics: dict[str, Any] = {value.name: value for value in objects}
    functions = {name: value for name, value in vars(module).items() if isinstance(value, FunctionType)
                 and value.__module__ == module.__name__ and not name.startswith("_")}  # fmt: skip
    known = {**functions, **metrics} if wanted or not metrics else metrics
    needed = "Write a function there: def closeness(prediction, ask)."
    name = one_of("metric", path, wanted, {name: name for name in known}, needed)
    return _guarded(replace(_metric(known[name], name), origin=code_of(module)), module.__name__, path)


def _metric(value: Any, name: str) -> Metric:
    """A metric as it is, a function as one from 0 to 1."""
    if isinstance(value, Metric):
        return value
    return Metric(name=name, summary=next(iter((getdoc(value) or "").splitlines()), ""), function=value)


def _guarded(made: Metric, module: str, place: Path | str) -> Metric:
    """The same, of which whatever is no number within its range is said in one line; what is no metric of answers is
    refused."""
    judge, range_of = made.judge, made.figure
    low, high = max(range_of.least, -MAX_VALUE), min(range_of.most, MAX_VALUE)
    if made.name in METRICS:
        raise UserError(f"{place}: {made.name} has a name of ttabench's own.", FIX)
    if not NAME.fullmatch(made.name):
        raise UserError(f"{place}: the name {made.name!r} may hold lower-case letters, digits and _ only.", FIX)
    if made.ratio or made.corpus or not callable(judge) or iscoroutinefunction(judge):
        raise UserError(f"{place}: {made.name} is no function of one answer.", FIX)

    def value(answer: Any, ask: Ask) -> float:
        with calling(module, f"metric {made.name}, query {ask.key[:40]}"):
            number = judge(answer, ask)
            if not isinstance(number, Real) or not math.isfinite(number) or not low <= number <= high:
                fault = f"{place}: {made.name} gives {number!r:.40} for the query {ask.key[:40]}, and declares"
                raise UserError(f"{fault} {low:g} to {high:g}.", FIX)
            return float(number)

    return replace(made, of_choice=value) if made.function is None else replace(made, function=value)
