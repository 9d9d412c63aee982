"""How the lines of a block are called: their method, with the settings in which lines of that method differ.

    icl, mac, mac (theirs: lab-b), snapkv budget=0.1, snapkv budget=0.5, templora, "templora, another text's state"

Labels name what differs within the block alone. A configuration that stands in several blocks has one label in all of
them: with every setting that tells it from another line in one of them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TypeAlias

from ttabench.core.types import Json
from ttabench.report.blocks import NOT_COMPARED, READ_ALIKE, STATE_OF, Group, told
from ttabench.report.configuration import with_defaults

STATES = {"own": "", "other": ", another text's state", "none": ", empty state"}
"""Words that follow the method, by whose state answered."""
OF_BLOCKS = ("split", "chat_template", "limit")
"""Fields that a configuration has from its block, and not from its method."""
Natural: TypeAlias = list[tuple[bool, float, str]]
OF_METHODS = ("method", "checkpoint", "base_checkpoint")
"""Inputs that are the method's own."""
CHECKPOINT, SEED = "checkpoint file", "seed"
"""What a checkpoint is known by; and the seed that it was trained with, which its name stands for."""
CODE = " (code "
"""What stands between a package's version and the digest of its code, see `plugins.Offer.origin`."""


def labels_of(blocks: Sequence[Sequence[Group]]) -> list[list[str]]:
    """The labels of every block's groups; unique in each."""
    keys: dict[tuple[str, str], dict[str, None]] = {}
    for block in blocks:
        for group in block:
            keys.setdefault(_told_by(group), {}).update(dict.fromkeys(_apart(group, block)))
    return [_unique([_label(group, block, list(keys[_told_by(group)])) for group in block], block)
            for block in blocks]  # fmt: skip


def natural(label: str) -> Natural:
    """For sorting: numbers by their size, so that budget=0.5 stands before budget=16."""
    parts = re.split(r"(\d+(?:\.\d+)?)", label)
    return [(not part[:1].isdigit(), float(part) if part[:1].isdigit() else 0.0, part) for part in parts if part]


def _apart(group: Group, block: Sequence[Group]) -> list[str]:
    """The settings in which it differs from others of its method in the block."""
    alike = [other.varying for other in block if other.method == group.method]
    return [key for key, value in group.varying.items() if any(other.get(key) != value for other in alike)]


def configured(group: Group) -> str:
    """Options that tell configurations of methods apart, whatever the block and whose state answered."""
    config = with_defaults(group.record.config)
    kept = {key: value for key, value in config.items() if key not in (*NOT_COMPARED, *OF_BLOCKS)}
    options = {key: value for key, value in config["task_options"].items() if key in READ_ALIKE}
    inputs = {key: value for key, value in config["inputs"].items() if key in OF_METHODS}
    options_in_order = sorted({**kept, "inputs": inputs, "task_options": options}.items(), key=str)
    return repr((group.theirs, group.method, options_in_order))


def _told_by(group: Group) -> tuple[str, str]:
    return configured(group), str(group.varying[STATE_OF])


def _label(group: Group, block: Sequence[Group], keys: Sequence[str]) -> str:
    told_keys = [key for key in sorted(keys) if key != STATE_OF and group.varying.get(key) is not None]
    if CHECKPOINT in told_keys and _tells(group, block):
        told_keys = [key for key in told_keys if key != SEED]
    words = [group.method, *(_setting(key, group.varying[key], group, block) for key in told_keys)]
    state = STATES[str(group.varying[STATE_OF])] if STATE_OF in keys else ""
    return " ".join(words) + state + (f" (theirs: {group.theirs})" if group.theirs else "")


def _setting(key: str, value: Json, group: Group, block: Sequence[Group]) -> str:
    """One setting as it is told: a checkpoint by its folder where that tells it from the others."""
    if key == CHECKPOINT and _tells(group, block):
        return f"checkpoint={_checkpoint(group)}"
    if key == "method file" and "==" in str(value):
        package, code, _ = str(value).partition(CODE)
        rest = {str(other.varying.get(key)) for other in block} - {str(value)}
        return f"method={value if any(name.startswith(package + code) for name in rest) else package}"
    return f"{key}={told(value)[: 6 if key.endswith(' file') else None]}"


def _tells(group: Group, block: Sequence[Group]) -> bool:
    """Whether the name of its checkpoint tells it from all other checkpoints of the block."""
    others = {_checkpoint(other) for other in block if other.varying.get(CHECKPOINT) != group.varying.get(CHECKPOINT)}
    return bool(_checkpoint(group)) and _checkpoint(group) not in others


def _checkpoint(group: Group) -> str:
    """The last part of its name, or of its path."""
    name = str(group.record.config.get("checkpoint") or "")
    return name.rstrip("/").rpartition("/")[2].removeprefix("shipped:")


def _unique(labels: Sequence[str], block: Sequence[Group]) -> list[str]:
    return [
        f"{label} #{group.record.id[:6]}" if labels.count(label) > 1 else label
        for label, group in zip(labels, block, strict=True)
    ]
