"""Brings the committed runs and profiles up to the ids of today's ttabench; a second time changes nothing.

    python results/migrate.py                 all of results/
    python results/migrate.py FOLDER ...      these folders and all below them

Runs get other ids and their records say them, figures as they were; `index.json` names the new ids. Tables are computed
anew with `python results/make.py --tables` (and `--english --tables`).

A run whose record does not say what stood on its task's card gets the id of today only where the card of the commit
that it was made with says what today's card says (see `cards_then`); a digest of a large file that was taken of its two
ends is replaced where it is that of a model which is here. What keeps its id for another reason is named.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from cards_then import Unknown, card_digest, model_digest

from ttabench.core.errors import UserError
from ttabench.core.files import moved, write_atomically
from ttabench.core.types import Json
from ttabench.methods.registry import known_settings
from ttabench.profiling import former as former_profiles
from ttabench.profiling.record import PROFILES
from ttabench.readers.cards import load_card
from ttabench.readers.defaults import defaults as task_defaults
from ttabench.records import suite_archive
from ttabench.records.migrate import Kind, migrate, of_today, outdated
from ttabench.records.packing import rename
from ttabench.records.schema import RECORD_FILE, RunRecord, save_record
from ttabench.records.store import RUNS
from ttabench.records.suite_archive import RUNS_FILE
from ttabench.run.config import RunConfig

HERE = Path(__file__).resolve().parent


def files(folder: Path, name: str) -> list[Path]:
    """Files of a name at or below a folder, while another process may rename what lies there."""
    return sorted(Path(place) / name for place, _, names in os.walk(folder) if name in names)


def stores(folder: Path, kind: Kind) -> list[Path]:
    """Folders at or below one that hold results of a kind, those in results/scratch left out."""
    found = {file.parent.parent for file in files(folder, kind.record_file)}
    found |= {file.parent for file in files(folder, RUNS_FILE)} if kind is RUNS else set()
    return sorted(store for store in found if HERE / "scratch" not in [store, *store.parents])


def texts_of(store: Path) -> dict[str, str]:
    """The records of all runs of a folder by id, packed or not."""
    packed_runs = {name: run.record for name, run in suite_archive.runs(store).items()}
    return packed_runs | {
        file.parent.name: file.read_text(encoding="utf-8") for file in sorted(store.glob(f"*/{RECORD_FILE}"))
    }


@cache
def _settings(method: str, origin: str) -> Mapping[str, Json]:
    return known_settings(method, origin)


@cache
def _options(task: str, source: str) -> Mapping[str, Json]:
    return task_defaults(load_card(task), source)


def run_id(config: Mapping[str, Json]) -> str:
    """The id of a configuration as records hold it.

    Raises:
        UserError: its method or task is not known here.
    """
    defaults = {
        "settings": _settings(config["method"], config["inputs"].get("method", "")),
        "task_options": _options(config["task"], "mini" if config["source"] == "mini" else "files"),
    }
    return RunConfig(**{**config, "defaults": defaults}).identity()


def of_now(content: Mapping[str, Json]) -> RunRecord:
    """A record under its id of today, from its JSON.

    Raises:
        Unknown: that cannot be known; says why.
    """
    config = content["config"]
    inputs = dict(config["inputs"])
    if "card" not in inputs:
        inputs["card"] = card_digest(content)
        if "model" in inputs:
            inputs["model"] = model_digest(config)
    now = {**config, "inputs": inputs}
    try:
        record: RunRecord = of_today({**content, "config": now}, run_id(now), RUNS)
    except (UserError, KeyError, TypeError, ValueError) as error:
        raise Unknown(f"its record: {error}") from None
    return record


def brought_runs(store: Path) -> Iterator[str]:
    """Bring the runs of a folder up to date; says in a line what was done, and in one each why others stay."""
    texts, now, left = texts_of(store), dict[str, RunRecord](), Counter[str]()
    for name, text in texts.items():
        try:
            found = of_now(json.loads(text))
        except Unknown as why:
            left[str(why)] += 1
            continue
        if found.id != name and found.id not in texts:
            now[name] = found
    if now:
        if here := {name: record for name, record in now.items() if not (store / name).is_dir()}:
            rename(store, here)
        for name in now.keys() - here.keys():
            save_record(now[name], store / name)
            moved(store / name, store / now[name].id)
        yield f"{store}: {len(now)} renamed"
    yield from (f"{store}: {count} left as they are: {why}" for why, count in sorted(left.items()))


def brought_profiles(store: Path) -> Iterator[str]:
    """The same of profiles, which name no card."""
    before = len(outdated(store, PROFILES))
    migrate(store, PROFILES, former_profiles.naming())
    if before:
        yield f"{store}: {before - len(outdated(store, PROFILES))} of {before} profiles renamed"


def renamed(store: Path) -> dict[str, str]:
    """The ids of today by those of before, as records tell them: also where an earlier call was stopped."""
    records = (json.loads(text) for text in texts_of(store).values())
    return {each["formerly"]: each["id"] for each in records if each.get("formerly")}


def with_names(index: Json, names: dict[str, str]) -> Json:
    """An index with other ids; everything else in it stays."""
    if isinstance(index, dict):
        return {key: with_names(value, names) for key, value in index.items()}
    if isinstance(index, list):
        return [with_names(value, names) for value in index]
    return names.get(index, index)


def brought(folder: Path) -> Iterator[str]:
    """Bring everything below a folder up to date; says in lines what was done and what was left."""
    for store in stores(folder, RUNS):
        yield from brought_runs(store)
    for store in stores(folder, PROFILES):
        yield from brought_profiles(store)
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
