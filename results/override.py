"""Suite `override`: answers to queries about contexts that agree with, extend, or contradict the
model's knowledge.

    python results/override.py          override/rows.jsonl: 16 contexts of twelve facts, a query about each;
                                        override/priors.csv: nats of every believed answer, by model
    python results/make.py override     the runs and their table

A query is the beginning of a sentence, so that a base model can complete it. Its subject has one
believed answer. Each context has four facts of each kind, in random order:

    agree        The capital of France is Paris.
    contradict   The capital of France is Lima.         the answer of another subject of the relation
    extend       The capital of Zelvania is Oslo.       an invented subject
"""

from __future__ import annotations

import json
import random
from itertools import groupby
from pathlib import Path

import grids
import pandas as pd

from ttabench.core.amounts import format_with_stderr
from ttabench.lm.inference.scoring import token_logprobs
from ttabench.lm.model import load
from ttabench.lm.patch import Patch
from ttabench.records.samples import read_samples
from ttabench.records.schema import RunRecord
from ttabench.stats.clusters import Observation
from ttabench.stats.estimate import difference, estimate

HERE = Path(__file__).parent / "override"
MODELS = ("smollm2-135m", "gemma3-270m")
KINDS = ("agree", "extend", "contradict")
CONTEXTS, EACH = 16, 4
LOST = "minus icl [95 %]"
"""Header of the difference from full context."""
STRONG = 1.5
"""Maximum nats of a strongly believed answer, about one correct guess in five."""

RELATIONS: dict[str, str] = {
    "The capital of {} is": "France Paris, Italy Rome, Japan Tokyo, Spain Madrid, Germany Berlin, Russia Moscow, "
    "Egypt Cairo, Greece Athens, Austria Vienna, Ireland Dublin, Portugal Lisbon, Norway Oslo, Peru Lima, Cuba Havana",
    "The opposite of {} is": "hot cold, up down, left right, day night, black white, good bad, big small, old young",
    "The color of {} is": "grass green, snow white, blood red, coal black, chocolate brown, lemons yellow",
    "The currency of {} is called the": "Japan yen, India rupee, Mexico peso, Russia ruble, Brazil real, China yuan",
    "The main language of {} is": "Brazil Portuguese, Mexico Spanish, Germany German, Japan Japanese, France French, "
    "Russia Russian, Egypt Arabic, Italy Italian",
    "The chemical symbol {} stands for": "Fe iron, Au gold, Ag silver, He helium, Pb lead, Hg mercury, O oxygen",
    "A young {} is called a": "dog puppy, cat kitten, cow calf, horse foal, sheep lamb, bear cub",
    "The continent where {} lies is": "France Europe, China Asia, Kenya Africa, Peru America, Japan Asia, Egypt Africa",
}
INVENTED = "Zelvania Quorin Tavosk Brindle Morvath Yelkan Drosp Fenwick Ulvar Caldoth Nimroth Pexley".split()


def facts() -> list[tuple[str, str, str]]:
    """List (relation, subject, believed answer) of every fact."""
    return [
        (relation, *pair.split(maxsplit=1))  # type: ignore[misc]
        for relation, pairs in RELATIONS.items()
        for pair in pairs.split(", ")
    ]


def rows() -> list[dict[str, object]]:
    """Generate one context per row, in the format of the reader `shared_context`."""
    draws = random.Random("override")
    return [_context(draws, number) for number in range(CONTEXTS)]


def _context(draws: random.Random, number: int) -> dict[str, object]:
    """Draw four facts of each kind, each about another subject and relation."""
    chosen, subjects = draws.sample(facts(), 3 * EACH), draws.sample(INVENTED, EACH)
    turns = []
    for place, (relation, subject, believed) in enumerate(chosen):
        kind = KINDS[place // EACH]
        answers = sorted({answer for other, _, answer in facts() if other == relation} - {believed})
        answer = believed if kind == "agree" else draws.choice(answers)
        about = subjects[place % EACH] if kind == "extend" else subject
        turns.append(
            {"input": relation.format(about), "answer": answer, "task": kind, "believed": believed}
        )
    draws.shuffle(turns)
    context = "\n".join(f"{turn['input']} {turn['answer']}." for turn in turns)
    return {"id": number, "context": context, "multi_turns": draws.sample(turns, len(turns))}


def priors() -> pd.DataFrame:
    """Score every believed answer given its query alone: nats over all tokens, by model."""
    prompts = sorted({(relation.format(subject), answer) for relation, subject, answer in facts()})
    tables = []
    for model in MODELS:
        lm = load(model)
        ids = [(lm.encode(question), lm.encode(f" {answer}")) for question, answer in prompts]
        nats = [-float(values.sum()) for values in token_logprobs(lm, Patch(), ids)]
        tables.append(
            pd.DataFrame(prompts, columns=["prompt", "believed"]).assign(model=model, nats=nats)
        )
    return pd.concat(tables).round(3)


def table(folder: Path) -> str:
    """Return one table per model: answers of the context by kind (%), and answers of the belief."""
    beliefs = pd.read_csv(HERE / "priors.csv")
    tables = []
    for model, runs in groupby(
        sorted(grids.runs_of(folder), key=_place), key=lambda run: run[1].model["name"]
    ):
        own = beliefs[beliefs["model"] == model]
        by_name = {_name(record): _read_answers(place, own) for place, record in runs}
        lines = {name: _line(answers, by_name["icl"]) for name, answers in by_name.items()}
        tables.append(f"**{model}**\n\n{grids.markdown(pd.DataFrame(lines).T)}")
    return "\n".join(tables)


def summary(folder: Path) -> str:
    """Return the table of docs/results/real-text.md: answers to contradicted questions, by model."""
    beliefs, cells = pd.read_csv(HERE / "priors.csv"), dict[str, list[str]]()
    for model, runs in groupby(
        sorted(grids.runs_of(folder), key=_place), key=lambda run: run[1].model["name"]
    ):
        own = beliefs[beliefs["model"] == model]
        by_name = {_name(record): _read_answers(place, own) for place, record in runs}
        for name, answers in by_name.items():
            line = _line(answers, by_name["icl"])
            cells.setdefault(name, []).extend((line["contradict"], line[LOST]))
    rows = [
        (f"`{name}`", *row) for name, row in cells.items() if "," not in name
    ]  # Names with a comma have bfloat16 or a boost.
    heads = [
        f"{model}: {column}"
        for model in MODELS
        for column in ("answers of the context (%)", "vs. icl [95 %]")
    ]
    return grids.table(("method", *heads), rows, 1)


def _place(run: tuple[Path, RunRecord]) -> tuple[int, int, float, str]:
    """Return the sort key of a run: model, usual order of methods, descending budget."""
    config, names = run[1].config, [*grids.METHODS, "kvzip"]
    method = names.index(config["method"]) if config["method"] in names else len(names)
    return (
        MODELS.index(str(run[1].model["name"])),
        method,
        -float(config["keep"] or 1),
        config["dtype"],
    )


def _name(record: RunRecord) -> str:
    keep, dtype, boost = (record.config.get(name) for name in ("keep", "dtype", "boost"))
    shown = f"{record.config['method']}{f' {100 * keep:.0f} %' if keep else ''}"
    return (
        shown
        + (f", {dtype}" if dtype != "auto" else "")
        + (f", boost {boost:g}" if boost not in (None, 1) else "")
    )


def _read_answers(folder: Path, beliefs: pd.DataFrame) -> pd.DataFrame:
    """Join the answers of a run with the model's beliefs."""
    samples = read_samples(
        folder, ["episode", "key", "prompt", "prediction", "subtask", "contains_em"]
    )
    return pd.DataFrame(samples).merge(beliefs, on="prompt", how="left")


def _line(answers: pd.DataFrame, whole: pd.DataFrame) -> dict[str, str]:
    """Return the cells of a run. `whole`: the answers with full context."""
    against = answers[answers["subtask"] == "contradict"]
    believed = [
        old.lower() in text.lower()
        for old, text in zip(against["believed"], against["prediction"], strict=True)
    ]
    by_kind = {kind: answers[answers["subtask"] == kind] for kind in KINDS}
    full = whole[whole["subtask"] == "contradict"]
    assert against["key"].tolist() == full["key"].tolist(), "answers are paired by query"
    paired = difference(*(_observed(one, one["contains_em"]) for one in (against, full)))
    assert paired is not None, "a share is a number"
    interval = ""
    if paired.ci_low is not None:
        interval = f" [{100 * paired.ci_low:.1f}, {100 * paired.ci_high:.1f}]"
    strong, weak = against[against["nats"] < STRONG], against[against["nats"] >= STRONG]
    return {
        **{kind: _cell(some, some["contains_em"]) for kind, some in by_kind.items()},
        LOST: f"{100 * paired.value:.1f}{interval}",
        "contradict, strong beliefs": _cell(strong, strong["contains_em"]),
        "contradict, weak beliefs": _cell(weak, weak["contains_em"]),
        "contradict, belief answered": _cell(against, pd.Series(believed)),
    }


def _cell(answers: pd.DataFrame, values: pd.Series) -> str:
    """Format a share with its standard error over contexts, per cent."""
    share = estimate(_observed(answers, values))
    assert share is not None, "a share is a number"
    return format_with_stderr(share.mean, share.stderr, 100)


def _observed(answers: pd.DataFrame, values: pd.Series) -> list[Observation]:
    return [
        Observation(str(one), (float(value), 1.0))
        for one, value in zip(answers["episode"], values, strict=True)
    ]


def main() -> None:
    """Write the rows and the beliefs of the models."""
    HERE.mkdir(exist_ok=True)
    (HERE / "rows.jsonl").write_text(
        "".join(f"{json.dumps(row)}\n" for row in rows()), encoding="utf-8"
    )
    priors().to_csv(HERE / "priors.csv", index=False)


if __name__ == "__main__":
    main()
