"""What stood on the card of a task when a committed run was made, and which files its digests were of.

A record names the commit of its code. One that was made outside a checkout names none: then every committed card counts
that agrees with what the record says of its task, and all of them must say the same.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import yaml
from pydantic import ValidationError

from ttabench.core.architectures import ARCHITECTURES, NANO
from ttabench.core.digests import LARGE, digest
from ttabench.core.types import Json
from ttabench.lm.loading.hub import find_source
from ttabench.readers.cards import Card, load_card
from ttabench.readers.content import RESOLVED, content, content_digest, without
from ttabench.stats.varying import unit_of

ROOT = Path(__file__).resolve().parents[1]
SAID = ("metrics", "main_metric", "chance", "unit")
"""What a record says of its card."""


class Unknown(Exception):
    """Why the id of today is not to be known, in a few words."""


def card_digest(record: Mapping[str, Json]) -> str:
    """The digest of today's card, where the run was made with a card that says the same.

    Raises:
        Unknown: it was made with another, or nobody knows with which.
    """
    task, commit = record["config"]["task"], record["code"].get("commit", "")
    cards = [_card(commit, task)] if commit else [card for card in _history(task) if _agrees(card, record["task"])]
    if not cards:
        raise Unknown(f"no committed card of {task} says what its record says of it")
    today = content(load_card(task))
    for card in cards:
        if fields := sorted(_differing(_counting(card, task), today)):
            raise Unknown(f"the card of {task} was another at {commit[:7] or 'some commit'}: {', '.join(fields)}")
    return content_digest(load_card(task))


@cache
def _card(commit: str, task: str) -> Mapping[str, Json]:
    text = _git("show", f"{commit}:tasks/{task}.yaml")
    if not text:
        raise Unknown(f"the card of {task} at {commit[:7]} is not in the history here")
    found: Mapping[str, Json] = yaml.safe_load(text)
    return found


@cache
def _history(task: str) -> list[Mapping[str, Json]]:
    """The card as every commit that changed it left it."""
    commits = _git("log", "--format=%H", "--diff-filter=AM", "--", f"tasks/{task}.yaml").split()
    return [_card(commit, task) for commit in commits]


def _agrees(card: Mapping[str, Json], said: Mapping[str, Json]) -> bool:
    return all(card.get(key) == said.get(key) for key in SAID)


def _counting(card: Mapping[str, Json], task: str) -> dict[str, Json]:
    """What counts of a card of then; where it is older than `unit`, that is what records of its time are read with."""
    kept = without({**card, "unit": unit_of(dict(card))}, RESOLVED)
    try:
        return content(Card.model_validate_json(json.dumps(kept, default=str), strict=True))
    except ValidationError:
        raise Unknown(f"the card of {task} at its commit is none of today") from None


def _differing(one: Json, other: Json, place: str = "") -> list[str]:
    """Names of fields that are not the same."""
    if not (isinstance(one, dict) and isinstance(other, dict)):
        return [] if one == other else [place]
    keys = sorted({*one, *other})
    return [name for key in keys for name in _differing(one.get(key), other.get(key), f"{place}.{key}".lstrip("."))]


def model_digest(config: Mapping[str, Json]) -> str:
    """The digest of today of a run's model. Before, that of a file above 64 MiB was of its length and its two ends.

    Raises:
        Unknown: the model is not here as it was, so that nobody knows whether it had such a file.
    """
    before: str = config["inputs"]["model"]
    if config["model"] == NANO or before in _models():
        return _models().get(before, before)
    raise Unknown(f"the model {config['model']} with the digest {before} is not here")


@cache
def _models() -> dict[str, str]:
    files = [Path(find_source(name)) for name, known in ARCHITECTURES.items() if known.package]
    return {_of_ends(file): digest(file) for file in files if file.is_file() and file.stat().st_size > LARGE}


def _of_ends(file: Path) -> str:
    size = file.stat().st_size
    whole = hashlib.sha256(f".\0{size}\0".encode())
    with file.open("rb") as handle:
        whole.update(handle.read(LARGE // 2))
        handle.seek(size - LARGE // 2)
        whole.update(handle.read(LARGE // 2))
    return whole.hexdigest()[:16]


def _git(*words: str) -> str:
    done = subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else ""
