"""Where the files of a split lie in what people unpack; names are on the card.

OpenBookQA-V1-Sep2018/Data/Main/train.jsonl    top folder (`source.folders`), folder of the sub-task, file
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from ttabench.core.errors import UnknownName, UserError
from ttabench.readers.cards import Card, Split, SubTask
from ttabench.readers.formats import READABLE, readable, stem

_SHARD = re.compile(r"^(?P<name>.+)-(?P<index>\d{5})-of-(?P<count>\d{5})(-[0-9a-f]+)?$")


class Files(NamedTuple):
    """The files of one split."""

    paths: list[Path]
    """One, or every numbered shard."""
    whole: bool
    """They hold a published split, of which the wanted split may be a range of rows."""


def tops(base: Path, names: Sequence[str]) -> list[Path]:
    """The folder, and the top folders of the published archive that stand in it."""
    return [base, *(base / name for name in names if (base / name).is_dir())]


def places(card: Card, folder: Path) -> list[Path]:
    """Where files may stand: the folder, an archive's top folder in it, and the hub's folders `data` and config."""
    hub = card.source.hub
    inner = ("data", hub.config if hub and hub.config else "default")
    return [place for top in tops(folder, card.source.folders) for place in (top, *(top / name for name in inner))]


def find(split: Split, folders: Iterable[Path]) -> Files | None:
    """The files of a split in the first of the folders that has them; names of whole published splits come last."""
    held = [
        sorted(path for path in folder.iterdir() if path.is_file() and readable(path))
        for folder in folders
        if folder.is_dir()
    ]
    for names, whole in ((split.files, False), (split.whole, True)):
        for files in held:
            for name in names:
                if paths := _named(files, name):
                    return Files(paths, whole)
    return None


def _named(files: Sequence[Path], name: str) -> list[Path]:
    single = sorted((path for path in files if stem(path) == name), key=_format)
    shards = [path for path in files if (match := _SHARD.match(stem(path))) and match["name"] == name]
    if shards and not single and len(shards) != (count := int(stem(shards[0]).split("-of-")[1][:5])):
        place = shards[0].parent
        raise UserError(f"{place} holds {len(shards)} of {count} shards of {name!r}.", "Download the others.")
    return single[:1] or shards


def _format(path: Path) -> tuple[int, bool]:
    """The order in which formats of one name are preferred: `READABLE`'s, unpacked before packed."""
    plain = path.name.removesuffix(".gz")
    return next(i for i, suffix in enumerate(READABLE) if plain.endswith(suffix)), plain != path.name


def published_name(path: Path) -> str:
    """Name of a file on cards: without format and shard number."""
    match = _SHARD.match(stem(path))
    return match["name"] if match else stem(path)


def serving(card: Card, wanted: str, name: str, where: Path) -> tuple[str, ...]:
    """What a record must say where a source called `name` (of a file, a folder of books, or the split that a saved data
    set names) serves as the split `wanted` that is called otherwise; a card that names no files takes any.
    """
    known = dict.fromkeys((*card.splits[wanted].files, *card.splits[wanted].whole))
    if name.casefold() in map(str.casefold, known) or not any(one.files or one.whole for one in card.splits.values()):
        return ()
    names = ", ".join(known)
    return (f"{where} serves as split {wanted!r} of {card.name}: by its name it could be any (known: {names})",)


def folder_of(card: Card, name: str, base: Path, *, alone: bool) -> Path | None:
    """The folder of a sub-task, whichever level of the published layout `base` is; an archive unpacked into a folder of
    the sub-task's own name (sst2/SST-2) is found, too. `alone`: no other is wanted, so files may stand in `base`
    itself.
    """
    part = card.parts[name]
    above = tops(base, card.source.folders)
    folders = [top / folder for top in above for folder in part.folders if (top / folder).is_dir()]
    folders += [place / folder for place in folders for folder in part.folders if (place / folder).is_dir()]
    here = base.absolute().name
    names = {other: [Path(folder).name for folder in one.folders] for other, one in card.parts.items()}
    if here in names[name] or (alone and not any(here in known for known in names.values())):
        folders += above
    narrowed = narrow(card, part, "test")
    full = (place for place in folders if find(part.test, places(narrowed, place)))
    return next(full, folders[0] if folders else None)


def narrow(card: Card, part: SubTask, wanted: str) -> Card:
    """The card with the source of one sub-task, and its files as the splits `train`, `test` and `wanted`."""
    source = card.source.model_copy(update={"hub": part.hub, "folders": ()})
    splits = {wanted: part.train, "train": part.train, "test": part.test}
    return card.model_copy(update={"source": source, "splits": splits})


def sized(card: Card, name: str, source: str, size: str) -> tuple[SubTask, tuple[str, ...]]:
    """(a sub-task with its training rows of one size, "" for the first on the card that is there, a sentence where it
    is not the size that papers use).
    """
    part = card.parts[name]
    if size and not part.sizes:
        raise UserError(f"size={size}: the training rows of {name} have one size.", "Leave size out.")
    if size and size not in part.sizes:
        raise UnknownName(f"size of {name}", size, list(part.sizes))
    if source != "hub" and Path(source).is_file():
        if size:
            raise UserError(f"size={size} chooses among the files of a folder, {source} is one.", "Give the folder.")
        every = (*(file for known in part.sizes.values() for file in known.files), *part.train.files)
        return _with_training(part, every), ()
    at = places(narrow(card, part, "test"), Path(source))
    there = (known for known, one in part.sizes.items() if source == "hub" or find(Split(files=one.files), at))
    taken = size or next(there, "")
    if not taken:
        return part, ()
    chosen, first = part.sizes[taken], next(iter(part.sizes))
    hub = part.hub.model_copy(update={"config": chosen.config})
    note = f"{name}: training rows of size {taken} ({chosen.files[0]}), for {part.sizes[first].files[0]} is not there"
    return _with_training(part.model_copy(update={"hub": hub}), chosen.files), () if size or taken == first else (note,)


def _with_training(part: SubTask, files: tuple[str, ...]) -> SubTask:
    return part.model_copy(update={"train": part.train.model_copy(update={"files": files})})
