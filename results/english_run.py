"""Runs the suites of real English data (english.py) that are not stored yet: `results/make.py --english --data DIR`."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from pathlib import Path

from english import HERE, SQUAD, SUITES

from ttabench.records.packing import pack
from ttabench.records.schema import load_record

QUESTIONS = 558
"""Of squad/dev-v1.1.json: of another file the articles would be others."""


def check(data: Path) -> None:
    """Whether articles mean what they meant in the committed tables.

    Raises:
        SystemExit: another file of SQuAD lies there.
    """
    path = data / SQUAD
    found = json.loads(path.read_text(encoding="utf-8"))["data"] if path.is_file() else []
    asked = sum(len(text["qas"]) for article in found for text in article["paragraphs"])
    if asked not in (0, QUESTIONS):
        raise SystemExit(f"{path} has {asked} questions, not {QUESTIONS}: its articles are others than tables name.")


def run(names: Sequence[str], data: Path, quick: bool) -> None:
    """Every run of these suites that is not stored yet, and an index of what belongs where."""
    for name in names:
        suite, out = SUITES[name], HERE / ("quick" if quick else "") / name
        out.mkdir(parents=True, exist_ok=True)
        index = kept_index(out / "index.json", {(cell.line, cell.column) for cell in suite.cells})
        for cell in suite.cells:
            if quick and (cell.column not in ("8 documents", "10 shots") or "--swap-state" in cell.words):
                continue
            few = ["--limit", "40"] if quick else []
            seeds = "0" if quick else suite.seeds
            words = [*cell.words, "--source", str(data / suite.source), "--seeds", seeds, *few, "--out", str(out)]
            ids = [each for each in stored(words) if load_record(out / each).state_of == cell.state]
            index.setdefault(cell.line, {})[cell.column] = ids
            (out / "index.json").write_text(json.dumps(index, indent=1) + "\n", encoding="utf-8")
        pack(out, scores=True)


def kept_index(path: Path, cells: Collection[tuple[str, str]]) -> dict[str, dict[str, list[str]]]:
    """What an index says of these cells, so that a suite that is stopped again loses none."""
    before = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    kept = {line: {at: ids for at, ids in columns.items() if (line, at) in cells} for line, columns in before.items()}
    return {line: columns for line, columns in kept.items() if columns}


def make(names: Sequence[str], data: Path, *, quick: bool) -> None:
    """Run these suites, or all (`quick`: the few that a first look takes), from the repository's folder.

    Args:
        names: of suites.
        data: where the data lie, relative to the repository, so that records do not hold anybody's paths.
        quick: one draw and few queries.
    """
    wanted = list(names) or [name for name, suite in SUITES.items() if suite.quick or not quick]
    check(data)
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
