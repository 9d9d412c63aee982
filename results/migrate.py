"""Brings the committed runs and profiles up to the ids of today's ttabench; a second time changes nothing.

    python results/migrate.py                 all of results/
    python results/migrate.py FOLDER ...      these folders and all below them

Folders of runs are renamed and their records rewritten, figures as they were; `index.json` names the new ids. Tables
are computed anew with `python results/make.py --tables` (and `--english --tables`).
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from ttabench.core.files import write_atomically
from ttabench.core.types import Json
from ttabench.profiling import former as former_profiles
from ttabench.profiling.record import PROFILES
from ttabench.records.migrate import Kind, migrate, outdated
from ttabench.records.store import RUNS
from ttabench.run import former

HERE = Path(__file__).resolve().parent
KINDS = ((RUNS, former.naming()), (PROFILES, former_profiles.naming()))


def files(folder: Path, name: str) -> list[Path]:
    """Files of a name at or below a folder, while another process may rename what lies there."""
    return sorted(Path(place) / name for place, _, names in os.walk(folder) if name in names)


def stores(folder: Path, kind: Kind) -> list[Path]:
    """Folders at or below one that hold results of a kind, those in results/scratch left out."""
    found = {file.parent.parent for file in files(folder, kind.record_file)}
    return sorted(store for store in found if HERE / "scratch" not in [store, *store.parents])


def renamed(store: Path) -> dict[str, str]:
    """The ids of today by those of before, as records tell them: also where an earlier call was stopped."""
    records = (json.loads(file.read_text(encoding="utf-8")) for file in store.glob(f"*/{RUNS.record_file}"))
    return {each["formerly"]: each["id"] for each in records if each.get("formerly")}


def with_names(index: Json, names: dict[str, str]) -> Json:
    """An index with other ids; everything else in it stays."""
    if isinstance(index, dict):
        return {key: with_names(value, names) for key, value in index.items()}
    if isinstance(index, list):
        return [with_names(value, names) for value in index]
    return names.get(index, index)


def brought(folder: Path) -> Iterator[str]:
    """Bring everything below a folder up to date; says in a line a store what was done."""
    for kind, naming in KINDS:
        for store in stores(folder, kind):
            before = len(outdated(store, kind))
            migrate(store, kind, naming)
            left = [each.name for each in outdated(store, kind)]
            if before:
                yield f"{store}: {before - len(left)} renamed{f', left as they are: {left}' if left else ''}"
    for index in files(folder, "index.json"):
        content = json.loads(index.read_text(encoding="utf-8"))
        found = with_names(content, renamed(index.parent))
        if found != content:
            write_atomically(index, json.dumps(found, indent=1) + "\n")
            yield f"{index}: rewritten"


def main() -> None:
    """Command line."""
    for folder in [Path(each).resolve() for each in sys.argv[1:]] or [HERE]:
        for line in brought(folder):
            print(line)


if __name__ == "__main__":
    main()
