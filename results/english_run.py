"""Runs the suites of real English data (english.py) that are not stored yet: `results/make.py --english --data DIR`.

Records of earlier versions came without the scores of their queries, so nobody can test their differences: `--scores`
runs those again, and takes nothing whose figures are others than the stored ones.
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
"""Of squad/dev-v1.1.json: of another file the articles would be others."""
NOISE = 1e-4
"""Relative: likelihoods of one run differ in their last digits between machines; answers must not."""


def check(data: Path) -> None:
    """Whether articles mean what they meant in the committed tables.

    Raises:
        SystemExit: another file of SQuAD lies there.
    """
    path = data / SQUAD
    articles = json.loads(path.read_text(encoding="utf-8"))["data"] if path.is_file() else []
    asked = sum(len(text["qas"]) for article in articles for text in article["paragraphs"])
    if asked not in (0, QUESTIONS):
        raise SystemExit(
            f"{path} has {asked} questions, not {QUESTIONS}: its articles are others than tables name."
        )


def run(names: Sequence[str], data: Path, quick: bool) -> None:
    """Every run of these suites that is not stored yet, and an index of what belongs where."""
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
    """Run again what was stored without the scores of its queries; what is stopped goes on with the next cell.

    Raises:
        SystemExit: a run that is another one today, or has other figures; it is removed again, the stored one stays.
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
                        f"{name}, {cell.line}, {cell.column}: {fault}. Run the suite anew."
                    )
        pack(out, scores=True)


def again(
    made: Sequence[str], ids: Sequence[str], before: Mapping[str, RunRecord], out: Path
) -> str:
    """What is wrong with runs that were made anew (of all states, where they are swapped); empty where nothing is.

    Args:
        made: their ids.
        ids: those of the cell.
        before: the records of the suite as they were stored, by id.
        out: the suite; what is wrong is removed from it.
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
        return f"runs of other ids than are stored ({', '.join(lost)})"
    return f"other figures than are stored ({', '.join(others)})" if others else ""


def alike(one: RunRecord, other: RunRecord) -> bool:
    """Whether two records have the same figures, but for noise of floats."""
    pairs = zip(one.rows, other.rows, strict=False)
    same = all(
        (a.metric, a.subtask, a.step, a.n) == (b.metric, b.subtask, b.step, b.n)
        and math.isclose(a.value, b.value, rel_tol=NOISE, abs_tol=1e-9)
        for a, b in pairs
    )
    return same and len(one.rows) == len(other.rows)


def kept_index(path: Path, cells: Collection[tuple[str, str]]) -> dict[str, dict[str, list[str]]]:
    """What an index says of these cells, so that a suite that is stopped again loses none."""
    before = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    kept = {
        line: {at: ids for at, ids in columns.items() if (line, at) in cells}
        for line, columns in before.items()
    }
    return {line: columns for line, columns in kept.items() if columns}


def make(names: Sequence[str], data: Path, *, quick: bool, scores: bool = False) -> None:
    """Run these suites, or all (`quick`: the few that a first look takes), from the repository's folder.

    Args:
        names: of suites.
        data: where the data lie, relative to the repository, so that records do not hold anybody's paths.
        quick: one draw and few queries.
        scores: only what is stored without the scores of its queries, again.
    """
    wanted = list(names) or [name for name, suite in SUITES.items() if suite.quick or not quick]
    check(data)
    if scores:
        add_scores(wanted, data)
    else:
        run(wanted, data, quick)


def stored(words: Sequence[str]) -> list[str]:
    """Ids of the runs of a command, which are run where they are not stored."""
    import contextlib
    import io

    from ttabench.cli import app as cli

    print("ttabench eval", *words, flush=True)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        code = cli.run(["eval", *words, "--quiet"])
    if code:
        raise SystemExit(f"ttabench eval {' '.join(words)} left with {code}")
    return [Path(line).name for line in printed.getvalue().splitlines() if line.strip()]
