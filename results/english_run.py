"""Runner of the suites of real English data (english.py) that are not stored yet: `results/make.py
--english --data DIR`.

Records of earlier versions have no scores per query, so their differences cannot be tested.
`--scores` repeats those runs, and accepts a run only if its figures equal the stored ones.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from english import HERE, SQUAD, SUITES
from packing import pack

from ttabench.records.samples import has_samples
from ttabench.records.schema import RunRecord, load_record

QUESTIONS = 558
"""Questions in squad/dev-v1.1.json. Another file would have other articles."""
NOISE = 1e-4
"""Relative tolerance: likelihoods differ in the last digits between machines. Answers must be
equal.
"""


def check(data: Path) -> None:
    """Check that article numbers mean the same as in the committed tables.

    Raises:
        SystemExit: the SQuAD file is another one.
    """
    path = data / SQUAD
    articles = json.loads(path.read_text(encoding="utf-8"))["data"] if path.is_file() else []
    questions = sum(len(text["qas"]) for article in articles for text in article["paragraphs"])
    if questions not in (0, QUESTIONS):
        raise SystemExit(
            f"{path} has {questions} questions instead of {QUESTIONS}. Use the file of the committed tables."
        )


def run(names: Sequence[str], data: Path, quick: bool) -> None:
    """Make every run of these suites that is not stored yet, and write the index of their cells."""
    for name in names:
        suite, out = SUITES[name], HERE / ("quick" if quick else "") / name
        out.mkdir(parents=True, exist_ok=True)
        index = kept_index(out / "index.json", {(cell.line, cell.column) for cell in suite.cells})
        for cell in suite.cells:
            if quick and (
                cell.column not in ("8 documents", "10 shots") or "--swap-state" in cell.words
            ):
                continue
            few = ["--limit", "40"] if quick else []
            seeds = "0" if quick else suite.seeds
            words = [
                *cell.words,
                "--source",
                str(data / suite.source),
                "--seeds",
                seeds,
                *few,
                "--out",
                str(out),
            ]
            ids = [
                run_id
                for run_id in stored(words)
                if load_record(out / run_id).state_of == cell.state
            ]
            index.setdefault(cell.line, {})[cell.column] = ids
            (out / "index.json").write_text(json.dumps(index, indent=1) + "\n", encoding="utf-8")
        pack(out, scores=True)


def add_scores(names: Sequence[str], data: Path, folder: Path = HERE) -> None:
    """Repeat the runs that were stored without scores per query. A repeated command continues with
    the next cell.

    Raises:
        SystemExit: a run has another id or other figures today. It is removed again, and the stored one is kept.
    """
    for name in (name for name in names if (folder / name / "index.json").is_file()):
        suite, out = SUITES[name], folder / name
        index = kept_index(out / "index.json", {(cell.line, cell.column) for cell in suite.cells})
        before = {
            run_id: load_record(out / run_id)
            for cells in index.values()
            for ids in cells.values()
            for run_id in ids
        }
        for cell in suite.cells:
            ids = index.get(cell.line, {}).get(cell.column, [])
            if not all(has_samples(out / run_id) for run_id in ids):
                words = (
                    "--source",
                    str(data / suite.source),
                    "--seeds",
                    suite.seeds,
                    "--out",
                    str(out),
                    "--force",
                )
                if fault := again(stored([*cell.words, *words]), ids, before, out):
                    raise SystemExit(
                        f"{name}, {cell.line}, {cell.column}: {fault}. Run the suite again."
                    )
        pack(out, scores=True)


def again(
    made: Sequence[str], ids: Sequence[str], before: Mapping[str, RunRecord], out: Path
) -> str:
    """Compare repeated runs (of all states, if they are swapped) with the stored ones. Returns the
    fault or "".

    Args:
        made: ids of the repeated runs.
        ids: ids of the runs of the cell.
        before: stored records of the suite by id.
        out: folder of the suite; faulty runs are removed from it.
    """
    lost = [run_id for run_id in ids if run_id not in made]
    others = [
        run_id
        for run_id in made
        if run_id in before and not alike(before[run_id], load_record(out / run_id))
    ]
    for run_id in made if lost else others:
        shutil.rmtree(out / run_id, ignore_errors=True)
    if lost:
        return f"stored runs were not repeated ({', '.join(lost)})"
    return f"figures differ from the stored ones ({', '.join(others)})" if others else ""


def alike(one: RunRecord, other: RunRecord) -> bool:
    """Return True if two records have the same figures, within float noise."""
    pairs = zip(one.rows, other.rows, strict=False)
    same = all(
        (a.metric, a.subtask, a.step, a.n) == (b.metric, b.subtask, b.step, b.n)
        and math.isclose(a.value, b.value, rel_tol=NOISE, abs_tol=1e-9)
        for a, b in pairs
    )
    return same and len(one.rows) == len(other.rows)


def kept_index(path: Path, cells: Collection[tuple[str, str]]) -> dict[str, dict[str, list[str]]]:
    """Return the index entries of these cells, so that an interrupted suite keeps them."""
    before = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    kept = {
        line: {at: ids for at, ids in columns.items() if (line, at) in cells}
        for line, columns in before.items()
    }
    return {line: columns for line, columns in kept.items() if columns}


def make(names: Sequence[str], data: Path, *, quick: bool, scores: bool = False) -> None:
    """Run these suites, or all (`quick`: a small selection), from the folder of the repository.

    Args:
        names: names of suites.
        data: data folder relative to the repository, so that records contain no personal paths.
        quick: use one draw and few queries.
        scores: repeat only what is stored without scores per query.
    """
    wanted = list(names) or [name for name, suite in SUITES.items() if suite.quick or not quick]
    check(data)
    if scores:
        add_scores(wanted, data)
    else:
        run(wanted, data, quick)


def stored(words: Sequence[str]) -> list[str]:
    """Return the run ids of a command. Runs that are not stored are made."""
    import contextlib
    import io

    from ttabench.cli import app as cli

    print("ttabench eval", *words, flush=True)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        code = cli.run(["eval", *words, "--quiet"])
    if code:
        raise SystemExit(f"ttabench eval {' '.join(words)} failed with exit code {code}")
    return [Path(line).name for line in printed.getvalue().splitlines() if line.strip()]
