"""Runs that ask the same under several draws: one error in records, `eval`, `compare` and tables, over both."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import Command
from tests.records.test_records import sample, store_samples
from tests.report.test_compare import stored
from ttabench.core.types import At
from ttabench.records.sample_files import read_samples
from ttabench.records.schema import SAMPLES_FILE, load_record, save_record
from ttabench.report.compare import compare
from ttabench.report.comparison_tables import comparison_tables
from ttabench.report.figures import shown
from ttabench.report.tables import run_table
from ttabench.stats.aggregation import aggregate
from ttabench.stats.estimate import MCNEMAR, STUDENT

Values = dict[str, float]


def drawn(
    folder: Path, method: str, seed: int, values: Values, source: str = "file:a.json", unit: str = "draw"
) -> Path:
    """A run of one draw; keys may end in the step: `q3@16`."""
    path = stored(folder, f"{method}{seed}", values, seed=seed, method=method)
    found = load_record(path)
    rows = tuple(row.model_copy(update={"source": source}) for row in found.rows)
    task = {**found.task, "unit": unit}
    save_record(found.model_copy(update={"task": task, "source": source, "rows": rows}), path)
    samples = []
    for key, value in values.items():
        row, _, step = key.partition("@")
        own = sample(key, value=value)
        ask = replace(own.ask, prompt=f"Who is {row}?", source_key=row.partition(".")[0], at=At(int(step or 1)))
        samples.append(replace(own, ask=ask))
    store_samples(path, [each.flat() for each in samples])
    return path


def right(share: float, n: int) -> Values:
    return {f"q{i}": float(i < share * n) for i in range(n)}


def test_three_draws_with_equal_answers_show_the_error_of_their_questions(tmp_path: Path) -> None:
    folders = [drawn(tmp_path, "none", seed, right(0.54, 100)) for seed in range(3)]
    once = aggregate(list(right(0.54, 100).values()))
    (entry,) = compare(folders).entries
    assert (entry.n, entry.stderr) == (300, pytest.approx(once.stderr))
    (whole,) = (row for row in run_table([(load_record(each), each) for each in folders]).rows if row[0] == "all")
    assert whole[2] == shown(entry.metric, 0.54, once.stderr) == "54.0 ± 5.0", "`eval` and `compare` say the same"
    for folder in folders:
        (folder / SAMPLES_FILE).unlink()
    assert compare(folders).entries[0].stderr == pytest.approx(once.stderr), "records alone: no error of 0 either"


def grouped(folder: Path, seed: int, groups: list[dict[str, Values]]) -> Path:
    """A run that reads documents in groups: {document: {question: value}} each."""
    values = {key: value for group in groups for own in group.values() for key, value in own.items()}
    path = drawn(folder, "icl", seed, values, unit="group")
    samples = []
    for number, group in enumerate(groups):
        for document, own in group.items():
            for key, value in own.items():
                one = sample(key, value=value)
                ask = replace(one.ask, prompt=f"Who is {key}?", source_key=document)
                samples.append(replace(one, episode=f"t/test/seed{seed}/group{number}", ask=ask))
    store_samples(path, [each.flat() for each in samples])
    return path


def test_the_error_of_disjoint_groups_is_over_groups(tmp_path: Path) -> None:
    """Two documents a group, two questions a document: neither the twelve questions nor the six documents."""
    generator = np.random.default_rng(1)
    marks = {f"d{i}": {f"d{i}q{j}": float(generator.normal(0.3 * (i // 2))) for j in range(2)} for i in range(6)}
    groups = [{name: marks[name] for name in (f"d{i}", f"d{i + 1}")} for i in (0, 2, 4)]
    means = [float(np.mean([value for own in group.values() for value in own.values()])) for group in groups]
    (entry,) = compare([grouped(tmp_path, 0, groups)]).entries
    assert (entry.n, entry.stderr) == (12, pytest.approx(aggregate(means).stderr))


def test_the_same_documents_in_other_groups_vary_too(tmp_path: Path) -> None:
    """Every document answers alike in both draws: another draw tells nothing new, and the error does not fall."""
    marks = {f"d{i}": {f"d{i}q{j}": i / 6 for j in range(2)} for i in range(6)}
    pairs = [[("d0", "d1"), ("d2", "d3"), ("d4", "d5")], [("d0", "d3"), ("d2", "d5"), ("d4", "d1")]]
    runs = [
        grouped(tmp_path, seed, [{name: marks[name] for name in pair} for pair in own])
        for seed, own in enumerate(pairs)
    ]
    (entry,) = compare(runs).entries
    assert entry.stderr == pytest.approx(aggregate([i / 6 for i in range(6)]).stderr, rel=0.35)
    nested = aggregate([(int(a[1]) + int(b[1])) / 12 for own in pairs for a, b in own]).stderr
    assert nested is not None
    assert entry.stderr > 1.2 * nested, "six groups are not six of their own"


def test_the_same_keys_of_worlds_of_their_own_are_no_questions_in_common(tmp_path: Path) -> None:
    """Every seed of the miniature world asks others, and a draw is what varies."""
    folders = [drawn(tmp_path, "icl", seed, right((0.5, 0.6, 0.7)[seed], 20), source="mini") for seed in range(3)]
    assert compare(folders).entries[0].stderr == pytest.approx(0.1 / 3**0.5)


def test_paired_differences_vary_by_question_and_by_draw(tmp_path: Path) -> None:
    """Eleven points on 100 questions under three draws: by draws alone a t of nothing but luck."""
    generator = np.random.default_rng(0)
    hard = generator.normal(size=100)
    folders, values = [], []
    for method, gain in (("none", 0.0), ("icl", 0.35)):
        for seed in range(3):
            draw = gain + 0.02 * seed * (gain > 0)
            marks = hard + draw + generator.normal(0, 0.5, 100) * (gain > 0) > 0
            values.append(marks.astype(float))
            folders.append(drawn(tmp_path, method, seed, {f"q{i}": float(mark) for i, mark in enumerate(marks)}))
    found = compare(folders)
    (apart,) = found.differences
    assert "300 common queries of 3 draws and 100 questions" in comparison_tables(found)[1].title
    gains = np.array(values[:3]) - np.array(values[3:])
    assert (apart.left, apart.right, apart.test, apart.n, apart.units) == ("icl", "none", STUDENT, 300, 3)
    assert apart.value == pytest.approx(-gains.mean())
    by_question = aggregate(list(gains.mean(0))).stderr or 0.0
    by_draw = aggregate(list(gains.mean(1))).stderr or 0.0
    half = (apart.ci_high - apart.ci_low) / 2
    assert by_draw < 0.6 * by_question, "what draws alone would say"
    assert 1.9 * by_question < half < 3 * by_question
    assert compare([folders[0], folders[3]]).differences[0].test == MCNEMAR, "of one draw, questions are independent"


def test_metaicl_counts_a_row_once_in_its_record(ttabench: Command, tmp_path: Path) -> None:
    """A row of each of eight sub-tasks after 1, 2, 4, 8 and 16 demonstrations: 40 queries, eight questions."""
    words = ("--task", "metaicl", "--limit", 40, "--method", "none", "--out", tmp_path)
    assert ttabench("eval", *words).code == 0
    (folder,) = (path.parent for path in tmp_path.glob("*/run.json"))
    columns = read_samples(folder, ["subtask", "key", "acc"])
    by_row: dict[str, list[float]] = {}
    for subtask, key, value in zip(columns["subtask"], columns["key"], columns["acc"], strict=True):
        by_row.setdefault(f"{subtask} {key.partition('@')[0]}", []).append(value)
    assert (len(columns["key"]), len(by_row)) == (40, 8)
    (row,) = (row for row in load_record(folder).rows if (row.metric, row.step, row.subtask) == ("acc", None, None))
    assert row.stderr == pytest.approx(aggregate([float(np.mean(own)) for own in by_row.values()]).stderr)
    assert row.stderr > 0.1
