"""Comparing runs: seeds pooled, differences paired, intervals that behave."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import NormalDist
from typing import Any

import pytest

from tests.conftest import Command
from tests.places import ROOT
from tests.records.test_records import record, sample, store_samples
from tests.stats.test_aggregation import aggregate
from ttabench.core.types import Answer, Score, StreamPosition
from ttabench.records.samples import Sample
from ttabench.records.schema import Row, load_record, save_record
from ttabench.report.compare import Comparison, compare_runs
from ttabench.report.comparison_tables import comparison_data, comparison_tables, untested_pairs
from ttabench.report.group_selection import has_single_unit
from ttabench.report.method_rows import format_value
from ttabench.report.selection import load_runs
from ttabench.report.tables import run_table
from ttabench.terminal.render import as_latex
from ttabench.terminal.table import Bold, Table


def compare(folders: Sequence[Path], **more: Any) -> Comparison:
    """The comparison of runs in folders."""
    found = load_runs(folders)
    return compare_runs(found.runs, damaged=found.damaged, **more)


def unchanged(key: str) -> dict[str, object]:
    return {}


def stored(
    folder: Path,
    run: str,
    values: dict[str, float],
    seed: int = 0,
    *,
    about: Mapping[str, Any] | None = None,
    ask: Callable[[str], dict[str, Any]] = unchanged,
    **config: object,
) -> Path:
    """A finished run with these values of f1.

    `about` changes groups of its record, and `ask` the query of a key.
    """
    settings: dict[str, object] = {
        "method": "icl",
        "task": "t",
        "model": "nano",
        "seed": seed,
        "settings": {},
        "inputs": {"rows": f"of seed {seed}"},
    } | config
    found = aggregate(list(values.values()))
    row = Row(
        run=run,
        method=str(settings["method"]),
        task=str(settings["task"]),
        source="mini",
        model="nano",
        seed=seed,
        metric="f1",
        value=found.mean,
        n=found.n,
        stderr=found.stderr,
    )
    path = folder / run
    path.mkdir()
    cost = {
        "adapt_seconds": 1.0 + seed,
        "ask_ms": 2.0,
        "state_bytes": 1024,
        "peak_memory_bytes": 2**20,
    }
    made = record(run, rows=(row,), config=settings, cost=cost)
    changes = {
        name: {**getattr(made, name), **change} if isinstance(change, dict) else change
        for name, change in (about or {}).items()
    }
    save_record(made.model_copy(update=changes), path)
    samples = [asked(sample(key, value=value), **ask(key)) for key, value in values.items()]
    store_samples(path, [each.to_row() for each in samples])
    return path


def asked(answered: Sample, **changes: Any) -> Sample:
    """The same answer to another query."""
    return replace(answered, ask=replace(answered.ask, **changes))


def stepped(folder: Path, run: str, by_step: dict[int, float], **more: Any) -> Path:
    """A run of two queries by step, 0.1 below and above these values."""
    values = {
        f"{step} {sign}": value + sign * 0.1 for step, value in by_step.items() for sign in (-1, 1)
    }
    path = stored(
        folder,
        run,
        values,
        ask=lambda key: {"at": StreamPosition(count=int(key.split()[0]))},
        **more,
    )
    found = load_record(path)
    rows = [
        found.rows[0].model_copy(update={"step": step, "value": value, "stderr": 0.1, "n": 2})
        for step, value in by_step.items()
    ]
    save_record(found.model_copy(update={"rows": (*found.rows, *rows)}), path)
    return path


def test_seeds_are_pooled_and_settings_reported_apart(tmp_path: Path) -> None:
    good, bad = {"a": 1.0, "b": 1.0, "c": 0.0}, {"a": 0.0, "b": 0.0, "c": 0.0}
    found = compare(
        [
            stored(tmp_path, "r1", good, settings={"k": 1, "other": "x"}),
            stored(tmp_path, "r2", good, seed=1, settings={"k": 1, "other": "x"}),
            stored(tmp_path, "r3", bad, settings={"k": 2, "other": "x"}),
            stored(tmp_path, "r4", bad, method="none"),
        ]
    )
    labels = [row.label for row in found.method_rows]
    assert labels == ["none", "icl k=1", "icl k=2"], "the no-context baseline first"
    first = found.method_rows[1]
    assert (first.seeds, first.n, first.ids) == ((0, 1), 6, ("r1", "r2"))
    assert first.value == pytest.approx(2 / 3)
    assert first.costs["adapt_seconds"] == 1.5
    assert first.stderr == pytest.approx(aggregate([1.0, 1.0, 0.0, 1.0, 1.0, 0.0]).stderr)
    apart = found.differences[-1]
    assert (apart.left, apart.right, apart.n) == ("icl k=1", "icl k=2", 3), "only seed 0 is shared"
    assert apart.value == pytest.approx(2 / 3)


def test_values_by_step_are_pooled_over_seeds_and_shown(tmp_path: Path) -> None:
    by_seed = [{4: 0.2, 16: 0.6}, {4: 0.4, 16: 0.8}]
    found = compare(
        [stepped(tmp_path, f"r{seed}", own, seed=seed) for seed, own in enumerate(by_seed)]
    )
    ((row,),) = [group.method_rows for group in found.groups]
    assert {step: (round(value, 3), n) for step, (value, _, n) in row.steps.items()} == {
        4: (0.3, 4),
        16: (0.7, 4),
    }
    _, shown = comparison_tables(found)
    assert shown.columns == ("method", "#4", "#16")
    assert [cell.split()[0] for cell in shown.rows[0][1:]] == ["30.0", "70.0"]
    _, data = comparison_data(found)
    assert [row["step"] for row in data.data] == [4, 16]


def test_only_shared_queries_are_paired(tmp_path: Path) -> None:
    folders = [
        stored(tmp_path, "r1", {"a": 1.0, "b": 1.0}),
        stored(tmp_path, "r2", {"b": 0.5, "z": 0.0}, method="none"),
        stored(tmp_path, "r3", {"b": 0.5}, method="none", task="elsewhere"),
    ]
    (apart,) = compare(folders).differences
    assert (apart.n, apart.value) == (1, 0.5)


@pytest.mark.parametrize(
    ("reader", "units"), [("qa_stream", 2), ("demonstrations", 4), ("other", 8)]
)
def test_errors_are_over_what_varies(tmp_path: Path, reader: str, units: int) -> None:
    """Two seeds of four queries, which are of two sub-tasks and about one document a seed."""
    folders = [
        stored(
            tmp_path,
            f"{method}{seed}",
            {f"q{index}": gain + 0.1 * index + 0.2 * seed * (gain > 0) for index in range(4)},
            seed=seed,
            method=method,
            about={"task": {"reader": reader}},
            ask=lambda key: {
                "source_key": "d",
                "subtask": f"t{int(key[1]) % 2}" if units == 4 else "",
            },
        )
        for method, gain in (("icl", 0.4), ("none", 0.0))
        for seed in (0, 1)
    ]
    (apart,) = compare(folders).differences
    assert apart.value == pytest.approx(0.5)
    assert (apart.n, apart.units) == (8, units)
    assert apart.ci_low is not None
    alone = compare(folders[:2]).method_rows[0]
    by_seed = [0.55, 0.75] if reader != "other" else [0.4, 0.5, 0.6, 0.7, 0.6, 0.7, 0.8, 0.9]
    expected = 0.1 / 2**0.5 if reader == "demonstrations" else aggregate(by_seed).stderr
    assert alone.stderr == pytest.approx(expected)
    once = compare([folders[0], folders[2]])
    assert has_single_unit(once.groups[0]) == (reader != "other")
    *_, whole = run_table([(load_record(each), each) for each in folders[:2]]).rows
    assert whole[2] == format_value(alone.metric, alone.value, alone.stderr), "as in `eval`"


@pytest.mark.parametrize(("documents", "heads"), [(1, []), (2, ["#documents"])])
def test_a_column_counts_what_it_is_called(
    tmp_path: Path, documents: int, heads: list[str]
) -> None:
    """Six questions about one document, or two: of one, errors are over its questions, which are n."""
    found = compare(
        [
            stored(
                tmp_path,
                method,
                {f"q{index}": gain * index for index in range(6)},
                method=method,
                about={"task": {"unit": "document"}},
                ask=lambda key: {"prompt": key, "source_key": f"d{int(key[1]) % documents}"},
            )
            for method, gain in (("icl", 0.1), ("none", 0.0))
        ]
    )
    (apart,) = found.differences
    assert (apart.n, apart.units) == (6, documents if documents > 1 else 6)
    table = comparison_tables(found)[-1]
    assert list(table.columns[6:]) == heads
    assert all(row[6:] == (str(documents),) * len(heads) for row in table.rows)


Stretches = dict[tuple[str, int], tuple[int, int, float]]
"""(tokens, words, mean NLL) by (text, first token)."""


def scored(
    folder: Path, run: str, stretches: Stretches, metric: str = "ppl", **model: object
) -> Path:
    """A finished run that scored these stretches of text."""
    base = {"name": "nano", "fingerprint": "f", "tokenizer": "nano"} | model
    row = record(run).rows[0]
    row = row.model_copy(
        update={"metric": metric, "value": 9.0, "n": len(stretches), "weight": 100.0}
    )
    samples = []
    for (text, start), (tokens, words, mean) in stretches.items():
        want = Score(continuation="", words=words, position=start)
        answer = Answer(prediction="", logprobs=(-tokens * mean,), tokens=(tokens,))
        one = asked(sample(f"{text}@{start}", text), want=want)
        samples.append(replace(one, answer=answer, metrics={}))
    path = folder / run
    path.mkdir(parents=True)
    config = {"method": run, "task": "t", "model": base["name"], "seed": 0}
    save_record(
        record(
            run,
            rows=(row,),
            config=config,
            model=base,
            task={"main_metric": metric, "unit": "book"},
        ),
        path,
    )
    store_samples(path, [each.to_row() for each in samples])
    return path


LONG: Stretches = {
    ("a", 1024): (512, 300, 2.0),
    ("a", 1536): (512, 310, 2.5),
    ("b", 1024): (512, 305, 3.0),
}
TAIL: Stretches = {("a", 2048): (40, 30, 1.0), ("b", 1536): (50, 33, 2.0)}


def test_perplexities_are_paired_over_the_same_stretches_only(tmp_path: Path) -> None:
    worse = {
        place: (tokens, words, mean + 1) for place, (tokens, words, mean) in (LONG | TAIL).items()
    }
    short = dict.fromkeys(LONG, (256, 150, 2.2))
    folders = [scored(tmp_path, "long", LONG | TAIL), scored(tmp_path, "worse", worse)]
    (apart,) = compare(folders).differences
    assert (apart.n, apart.value < 0, apart.better, apart.worse) == (5, True, 5, 0)
    (apart,) = compare([folders[0], scored(tmp_path, "short", short | TAIL)]).differences
    assert (apart.n, apart.value) == (2, 0), "only the ends of the texts are the same stretches"
    found = compare([*folders, scored(tmp_path, "other", short)])
    assert [(each.left, each.right) for each in found.differences] == [("long", "worse")]
    assert untested_pairs(found.groups[0]).count(" − other") == 2


@pytest.mark.parametrize(
    "change", [{"fingerprint": "g"}, {"tokenizer": "gpt2"}, {"name": "gpt2", "fingerprint": "g"}]
)
def test_perplexities_of_other_bases_have_no_difference(
    tmp_path: Path, change: dict[str, object]
) -> None:
    one = scored(tmp_path, "one", LONG)
    assert compare(
        [one, scored(tmp_path, "renamed", LONG, name="the same by another name")]
    ).differences
    found = compare([one, scored(tmp_path, "other", LONG, **change)])
    assert found.differences == ()
    assert len(found.groups) == 2


def test_every_format_reports_the_same(tmp_path: Path, ttabench: Command) -> None:
    stored(tmp_path, "r1", {"a": 1.0, "b": 0.0})
    stored(tmp_path, "r2", {"a": 0.0, "b": 0.0}, method="none")
    text = ttabench(f"compare --out {tmp_path} --format markdown").out
    assert "| icl | 50.0 ± 50.0 | 1.0 KiB |" in text
    data = ttabench(f"compare --out {tmp_path} --json").json()
    assert data["verdict"].startswith(text.splitlines()[0])
    assert [row["value"] for row in data["runs"]] == [0.0, 0.5]
    assert data["differences"][0]["value"] == 0.5
    lines = ttabench(f"compare --out {tmp_path} --format csv").out.splitlines()
    assert [line.split(",")[0] for line in lines] == ["table", "runs", "runs", "differences"]
    latex = ttabench(f"compare --out {tmp_path} --format latex").out.splitlines()
    code = [line for line in latex if line and not line.startswith("% ")]
    assert r"icl & 50.0 $\pm$ 50.0 & 1.0 KiB & 2.0 & 1.00 & yes \\" in code
    assert code.count(r"\bottomrule") == 2


def test_latex_escapes_every_special_character() -> None:
    marks = "a_b & 5 % #1 $x {y} ~ ^ \\ <z>"
    text = as_latex(Table(title=marks, columns=("m", "#n"), rows=((Bold(marks), "1"),)))
    (row,) = [line for line in text.splitlines() if line.startswith(r"\textbf")]
    bare = re.sub(r"\\text\w+\{|\\[&%$#_{}]|\$[<>]\$|\{\}", "", row.removesuffix(r" & 1 \\"))
    assert not set("_&%#$~^\\<>") & set(bare)


def test_differences_are_plotted(tmp_path: Path, ttabench: Command) -> None:
    for seed in range(3):
        stored(tmp_path, f"i{seed}", {"a": 1.0, "b": 0.2 * seed}, seed=seed)
        stored(tmp_path, f"n{seed}", {"a": 0.3, "b": 0.1 * seed}, seed=seed, method="none")
    ran = ttabench(f"compare --out {tmp_path} --plot {tmp_path / 'plot.svg'}")
    assert ran.code == 0
    assert "icl − none" in (tmp_path / "plot.svg").read_text()
    (tmp_path / "mine.svg").write_text("mine")
    refused = ttabench(f"compare --out {tmp_path} --plot {tmp_path / 'mine.svg'}")
    assert (refused.code, (tmp_path / "mine.svg").read_text()) == (2, "mine")


def test_standings_rank_within_groups_and_average_shares(tmp_path: Path) -> None:
    values = {
        "t": {"none": 0.0, "icl": 0.8, "mac": 0.4, "rag": 0.2, "lora": 0.4},
        "u": {"none": 0.2, "icl": 0.4, "mac": 0.25, "rag": 0.35},
    }
    folders = [
        stored(
            tmp_path,
            f"{task}-{method}",
            {f"q{number}": value + 0.001 * number for number in range(6)},
            task=task,
            method=method,
        )
        for task, by_method in values.items()
        for method, value in by_method.items()
    ]
    found = comparison_data(compare(folders))
    (table,) = [table for table in found if table.title == "standings"]
    shown = {row["label"]: (row["mean_rank"], row["blocks"]) for row in table.data}
    assert shown == {"mac": (1.5, 2), "rag": (2.0, 2), "lora": (1.0, 1)}
    shares = {row["label"]: row["share_of_gap"] for row in table.data}
    assert shares == {
        "mac": pytest.approx((0.4 / 0.8 + 0.05 / 0.2) / 2),
        "rag": pytest.approx((0.2 / 0.8 + 0.15 / 0.2) / 2),
        "lora": pytest.approx(0.5),
    }
    assert not [
        table for table in comparison_data(compare(folders[:5])) if table.title == "standings"
    ]


def test_units_needed_give_eighty_per_cent_power(tmp_path: Path) -> None:
    values = {f"q{number}": float(number % 3) / 2 for number in range(12)}
    stored(tmp_path, "icl", values)
    stored(
        tmp_path,
        "none",
        {key: values[key] - (0.15 if key[-1] in "14" else -0.1) for key in values},
        method="none",
    )
    (found,) = compare([tmp_path / "icl", tmp_path / "none"]).differences
    assert found.stderr
    assert found.units_needed
    z = abs(found.value) / (found.stderr * (found.units / found.units_needed) ** 0.5)
    assert NormalDist().cdf(z - NormalDist().inv_cdf(0.975)) == pytest.approx(0.8, abs=0.01)
    # Holm's first step of 21 tests has the level 5 % / 21
    of_many = replace(found, tests=21).units_needed
    assert of_many
    z = abs(found.value) / (found.stderr * (found.units / of_many) ** 0.5)
    assert NormalDist().cdf(z - NormalDist().inv_cdf(1 - 0.025 / 21)) == pytest.approx(
        0.8, abs=0.01
    )
    assert replace(found, value=1e-170).units_needed is None


def test_whose_state_answered_is_reported_and_earlier_records_had_their_own(tmp_path: Path) -> None:
    answers = {"a": 0.5, "b": 1.0}
    folders = [
        stored(tmp_path, "earlier", answers),
        stored(tmp_path, "own", answers, seed=1, state_of="own"),
        *(
            stored(
                tmp_path,
                f"{number}",
                {"a": 0.0, "b": 0.5},
                seed=number,
                state_of="other",
                inputs={"rows": f"{number}", "others": f"of seed {number}"},
            )
            for number in range(2)
        ),
    ]
    found = compare(folders)
    assert [(method_row.label, method_row.seeds) for method_row in found.method_rows] == [
        ("icl", (0, 1)),
        ("icl (swapped state)", (0, 1)),
    ]
    (apart,) = found.differences
    assert (apart.value, apart.n) == (pytest.approx(0.5), 4)


def test_comparing_loads_neither_torch_nor_pandas(tmp_path: Path) -> None:
    stored(tmp_path, "r1", {"a": 1.0, "b": 0.0})
    stored(tmp_path, "r2", {"a": 0.0, "b": 0.0}, method="none")
    code = (
        "import sys\nfrom ttabench.cli.app import run\n"
        f"assert run(['compare', {str(tmp_path)!r}, '--json']) == 0\n"
        "heavy = {'torch', 'pandas', 'transformers', 'datasets', 'scipy.stats', 'pyarrow.dataset'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=60
    )
    assert done.returncode == 0, done.stderr
