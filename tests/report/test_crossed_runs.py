"""Runs that ask the same under several draws: one error in records, `eval`, `compare` and tables, over both."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.report.test_compare import compare, stored
from tests.stats.test_aggregation import aggregate
from ttabench.core.types import StreamPosition
from ttabench.records.schema import SAMPLES_FILE, load_record, save_record
from ttabench.report.comparison_tables import comparison_tables
from ttabench.report.method_rows import format_value
from ttabench.report.tables import run_table
from ttabench.stats.estimate import MCNEMAR, STUDENT

Values = dict[str, float]


def drawn(
    folder: Path,
    method: str,
    seed: int,
    values: Values,
    source: str = "file:a.json",
    unit: str = "draw",
) -> Path:
    """A run of one draw; keys may end in the step: `q3@16`."""

    def ask(key: str) -> dict[str, object]:
        question, _, step = key.partition("@")
        return {
            "prompt": f"Who is {question}?",
            "source_key": question.partition(".")[0],
            "at": StreamPosition(int(step or 1)),
        }

    path = stored(
        folder,
        f"{method}{seed}",
        values,
        seed,
        about={"task": {"unit": unit}, "source": source},
        ask=ask,
        method=method,
    )
    found = load_record(path)
    rows = tuple(row.model_copy(update={"source": source}) for row in found.rows)
    save_record(found.model_copy(update={"rows": rows}), path)
    return path


def right(share: float, n: int) -> Values:
    return {f"q{i}": float(i < share * n) for i in range(n)}


def test_three_draws_with_equal_answers_show_the_error_of_their_questions(tmp_path: Path) -> None:
    folders = [drawn(tmp_path, "none", seed, right(0.54, 100)) for seed in range(3)]
    once = aggregate(list(right(0.54, 100).values()))
    (method_row,) = compare(folders).method_rows
    assert (method_row.n, method_row.stderr) == (300, pytest.approx(once.stderr))
    *_, whole = run_table([(load_record(each), each) for each in folders]).rows
    assert whole[2] == format_value(method_row.metric, 0.54, once.stderr) == "54.0 ± 5.0", (
        "`eval` and `compare` say the same"
    )
    for folder in folders:
        (folder / SAMPLES_FILE).unlink()
    assert compare(folders).method_rows[0].stderr == pytest.approx(once.stderr), (
        "records alone: no error of 0 either"
    )


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
            folders.append(
                drawn(
                    tmp_path, method, seed, {f"q{i}": float(mark) for i, mark in enumerate(marks)}
                )
            )
    found = compare(folders)
    (apart,) = found.differences
    table = comparison_tables(found)[1]
    assert (
        dict(zip(table.columns, table.rows[0], strict=True)).items()
        >= {"#n": "300", "#draws": "3", "#questions": "100"}.items()
    )
    gains = np.array(values[:3]) - np.array(values[3:])
    assert (apart.left, apart.right, apart.test, apart.n, apart.units) == (
        "icl",
        "none",
        STUDENT,
        300,
        3,
    )
    assert apart.value == pytest.approx(-gains.mean())
    by_question = aggregate(list(gains.mean(0))).stderr or 0.0
    by_draw = aggregate(list(gains.mean(1))).stderr or 0.0
    half = (apart.ci_high - apart.ci_low) / 2
    assert by_draw < 0.6 * by_question, "what draws alone would say"
    assert 1.9 * by_question < half < 3 * by_question
    assert compare([folders[0], folders[3]]).differences[0].test == MCNEMAR, (
        "of one draw, questions are independent"
    )
