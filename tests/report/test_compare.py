"""Comparing runs: seeds pooled, differences paired, intervals that behave."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Command
from tests.places import ROOT
from tests.records.test_records import record, sample, store_samples
from tests.stats.test_aggregation import aggregate
from ttabench.core.types import Answer, Score
from ttabench.records.samples import Sample
from ttabench.records.schema import Row, load_record, save_record
from ttabench.report.compare import Comparison, compare_runs
from ttabench.report.comparison_tables import comparison_data, comparison_tables
from ttabench.report.group_selection import has_single_unit
from ttabench.report.method_rows import format_value
from ttabench.report.selection import load_runs
from ttabench.report.tables import run_table
from ttabench.terminal.render import as_markdown


def compare(folders: Sequence[Path], **more: Any) -> Comparison:
    """The comparison of runs in folders."""
    found = load_runs(folders)
    return compare_runs(found.runs, damaged=found.damaged, **more)


def stored(
    folder: Path, run: str, values: dict[str, float], seed: int = 0, **config: object
) -> Path:
    """A finished run with these values of f1."""
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
    save_record(record(run, rows=(row,), config=settings, cost=cost), path)
    store_samples(path, [sample(key, value=value).to_row() for key, value in values.items()])
    return path


def test_seeds_are_pooled_and_settings_reported_apart(tmp_path: Path) -> None:
    good, bad = {"a": 1.0, "b": 1.0, "c": 0.0}, {"a": 0.0, "b": 0.0, "c": 0.0}
    folders = [
        stored(tmp_path, "r1", good, seed=0, settings={"k": 1, "other": "x"}),
        stored(tmp_path, "r2", good, seed=1, settings={"k": 1, "other": "x"}),
        stored(tmp_path, "r3", bad, seed=0, settings={"k": 2, "other": "x"}),
        stored(tmp_path, "r4", bad, seed=0, method="none"),
    ]
    found = compare(folders)
    assert [method_row.label for method_row in found.method_rows] == [
        "none",
        "icl k=1",
        "icl k=2",
    ], "the no-context baseline first"
    first = found.method_rows[1]
    assert first.seeds == (0, 1)
    assert first.n == 6
    assert first.ids == ("r1", "r2")
    assert first.value == pytest.approx(2 / 3)
    assert first.costs["adapt_seconds"] == 1.5
    assert first.stderr == pytest.approx(aggregate([1.0, 1.0, 0.0, 1.0, 1.0, 0.0]).stderr)
    apart = found.differences[-1]
    assert (apart.left, apart.right, apart.n) == ("icl k=1", "icl k=2", 3), "only seed 0 is shared"
    assert apart.value == pytest.approx(2 / 3)


def test_quality_by_step_is_pooled_over_seeds_and_shown(tmp_path: Path) -> None:
    def steps(run: str, seed: int, values: dict[int, float]) -> Path:
        path = stored(tmp_path, run, {"a": 0.5, "b": 0.5}, seed=seed)
        found = load_record(path)
        rows = [
            found.rows[0].model_copy(update={"step": step, "value": value, "n": 2, "stderr": 0.1})
            for step, value in values.items()
        ]
        save_record(found.model_copy(update={"rows": (*found.rows, *rows)}), path)
        return path

    runs = [
        steps("one", 0, {4: 0.2, 16: 0.6}),
        steps("two", 1, {4: 0.4, 16: 1.0}),
        stored(tmp_path, "x", {"a": 1.0}),
    ]
    found = compare(runs[:2])
    ((method_row),) = found.method_rows
    assert {step: (round(value, 3), n) for step, (value, _, n) in method_row.steps.items()} == {
        4: (0.3, 4),
        16: (0.8, 4),
    }
    _, shown = comparison_tables(found)
    assert shown.columns == ("method", "#4", "#16")
    assert shown.rows[0][1:] == ("30.0 ± 14.1", "80.0 ± 22.4")
    _, data = comparison_data(found)
    assert [row["step"] for row in data.data] == [4, 16]
    assert [table.title for table in comparison_data(compare(runs[2:]))] == ["runs"]


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
    folders = []
    for method, gain in (("icl", 0.4), ("none", 0.0)):
        for seed in (0, 1):
            values = {
                f"q{index}": gain + 0.1 * index + 0.2 * seed * (gain > 0) for index in range(4)
            }
            path = stored(tmp_path, f"{method}{seed}", values, seed=seed, method=method)
            found = load_record(path)
            save_record(found.model_copy(update={"task": {**found.task, "reader": reader}}), path)
            own = [
                asked(
                    sample(key, value=value), source_key="d", subtask=f"t{index % 2}" * (units == 4)
                )
                for index, (key, value) in enumerate(values.items())
            ]
            store_samples(path, [each.to_row() for each in own])
            folders.append(path)
    (apart,) = compare(folders).differences
    assert apart.value == pytest.approx(0.5)
    assert (apart.n, apart.units) == (8, units)
    assert apart.ci_low is not None
    alone = compare(folders[:2]).method_rows[0]
    by_seed = [0.55, 0.75] if reader != "other" else [0.4, 0.5, 0.6, 0.7, 0.6, 0.7, 0.8, 0.9]
    if reader == "demonstrations":
        assert alone.stderr == pytest.approx(0.1 / 2**0.5)
    else:
        assert alone.stderr == pytest.approx(aggregate(by_seed).stderr)
    once = compare([folders[0], folders[2]])
    assert has_single_unit(once.groups[0]) == (reader != "other")
    (whole,) = (
        row
        for row in run_table([(load_record(each), each) for each in folders[:2]]).rows
        if row[0] == "all"
    )
    assert whole[2] == format_value(alone.metric, alone.value, alone.stderr), (
        "`eval` and `compare` say the same"
    )


@pytest.mark.parametrize(("documents", "heads"), [(1, []), (2, ["#documents"])])
def test_a_column_counts_what_it_is_called(
    tmp_path: Path, documents: int, heads: list[str]
) -> None:
    """Six questions about one document, or two: of one, errors are over its questions, which are n."""
    folders = []
    for method, gain in (("icl", 0.1), ("none", 0.0)):
        values = {f"q{index}": gain * index for index in range(6)}
        folders.append(path := stored(tmp_path, method, values, method=method))
        run = load_record(path)
        save_record(run.model_copy(update={"task": {**run.task, "unit": "document"}}), path)
        own = [
            asked(sample(key, value=value), prompt=key, source_key=f"d{index % documents}")
            for index, (key, value) in enumerate(values.items())
        ]
        store_samples(path, [each.to_row() for each in own])
    found = compare(folders)
    (apart,) = found.differences
    assert (apart.n, apart.units) == (6, documents if documents > 1 else 6)
    table = comparison_tables(found)[-1]
    assert list(table.columns[6:]) == heads
    assert all(row[6:] == (str(documents),) * len(heads) for row in table.rows)


def asked(answered: Sample, **changes: Any) -> Sample:
    """The same answer to another query."""
    return replace(answered, ask=replace(answered.ask, **changes))


Stretches = dict[tuple[str, int], tuple[int, int, float]]
"""(tokens, words, mean NLL) by (text, first token)."""


def scored(
    folder: Path, run: str, stretches: Stretches, metric: str = "ppl", **model: object
) -> Path:
    """A finished run that scored these stretches of text."""
    base = {"name": "nano", "fingerprint": "f", "tokenizer": "nano"} | model
    row = Row(
        run=run,
        method=run,
        task="t",
        source="mini",
        model=str(base["name"]),
        seed=0,
        metric=metric,
        value=9.0,
        n=len(stretches),
        weight=100.0,
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
    assert apart.n == 5
    assert (apart.value < 0, apart.better, apart.worse) == (True, 5, 0)
    (apart,) = compare([folders[0], scored(tmp_path, "short", short | TAIL)]).differences
    assert apart.n == 2, "only the ends of the texts are the same stretches"
    assert apart.value == 0
    found = compare([*folders, scored(tmp_path, "other", short)])
    assert [(each.left, each.right) for each in found.differences] == [("long", "worse")]
    assert "long − other; worse − other" in as_markdown(comparison_tables(found)[0])
    assert comparison_tables(compare(folders))[0].caption == ""


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
    text = ttabench("compare", "--out", tmp_path, "--format", "markdown").out
    assert "| icl | 50.0 ± 50.0 | 1.0 KiB |" in text
    data = ttabench("compare", "--out", tmp_path, "--json").json()
    assert data["verdict"].startswith(text.splitlines()[0])
    assert [row["value"] for row in data["runs"]] == [0.0, 0.5]
    assert data["differences"][0]["value"] == 0.5
    lines = ttabench("compare", "--out", tmp_path, "--format", "csv").out.splitlines()
    assert [line.split(",")[0] for line in lines] == ["table", "runs", "runs", "differences"]


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
