"""Where the files of a split lie in what people unpack, and what a name tells of the split; names are on the card.

    OpenBookQA-V1-Sep2018/Data/Main/train.jsonl    top folder (`source.folders`), folder of the sub-task, file
    OpenBookQA-V1-Sep2018/Data/Main/train.tsv      the same rows in another format, which is not read

The rule about splits: a file under a name that the card gives to another split is refused; what has a name that the
card does not know serves as the split asked for, and the record says so.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ttabench.core.errors import UnknownName, UserError
from ttabench.readers.cards import Card, Split, SubTask
from ttabench.readers.formats import READABLE, readable, rows, stem

_SHARD = re.compile(r"^(?P<name>.+)-(?P<index>\d{5})-of-(?P<count>\d{5})(-[0-9a-f]+)?$")


@dataclass(frozen=True, kw_only=True)
class Files:
    """The files of one split."""

    paths: tuple[Path, ...]
    """One, or every numbered shard."""
    unread: tuple[Path, ...] = ()
    """The same name in other formats."""
    whole: bool = False
    """They hold a published split, of which the wanted split may be a range of rows."""

    @property
    def where(self) -> str:
        """Names them in messages."""
        return str(self.paths[0]) if len(self.paths) == 1 else f"{self.paths[0]} and {len(self.paths) - 1} more shards"


def tops(base: Path, names: Sequence[str]) -> list[Path]:
    """The folder, and the top folders of the published archive that stand in it."""
    return [base, *(base / name for name in names if (base / name).is_dir())]


def places(card: Card, folder: Path) -> list[Path]:
    """Where files may stand: the folder, an archive's top folder in it, and the hub's folders `data` and config."""
    hub = card.source.hub
    inner = ("data", hub.config if hub and hub.config else "default")
    return [place for top in tops(folder, card.source.folders) for place in (top, *(top / name for name in inner))]


def find(split: Split, folders: Iterable[Path]) -> Files | None:
    """The files of a split in the first of the folders that has them; names of whole published splits come last.

    Raises:
        UserError: numbered shards are incomplete.
    """
    held = [_readable(folder) for folder in folders]
    for names, whole in ((split.files, False), (split.whole, True)):
        for files in held:
            file = next((file for name in names if (file := _named(files, name, whole)) is not None), None)
            if file is not None:
                return file
    return None


def _readable(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_file() and readable(path)) if folder.is_dir() else []


def _named(files: Sequence[Path], name: str, whole: bool) -> Files | None:
    single = sorted((path for path in files if stem(path) == name), key=_format)
    if single:
        return Files(paths=(single[0],), unread=tuple(single[1:]), whole=whole)
    shards = [(path, match) for path in files if (match := _SHARD.match(stem(path))) and match["name"] == name]
    if not shards:
        return None
    count = int(shards[0][1]["count"])
    if len(shards) != count:
        place = shards[0][0].parent
        raise UserError(f"{place} holds {len(shards)} of {count} shards of {name!r}.", "Download the others.")
    return Files(paths=tuple(path for path, _ in shards), whole=whole)


def _format(path: Path) -> tuple[int, bool]:
    """The order in which formats of one name are preferred: `READABLE`'s, unpacked before packed."""
    plain = path.name.removesuffix(".gz")
    return next(i for i, suffix in enumerate(READABLE) if plain.endswith(suffix)), plain != path.name


def unlike(files: Files, count: int) -> tuple[str, ...]:
    """A sentence for every unread file that has other than the `count` rows that were read."""
    notes = []
    for path in files.unread:
        try:
            others = sum(1 for _ in rows(path))
        except UserError:
            continue  # no table of these rows: nothing that could have been meant
        if others != count:
            notes.append(f"{files.paths[0]} was read ({count} rows), not {path.name} beside it ({others} rows)")
    return tuple(notes)


def published_name(path: Path) -> str:
    """Name of a file on cards: without format and shard number."""
    match = _SHARD.match(stem(path))
    return match["name"] if match else stem(path)


def serving(card: Card, wanted: str, name: str, where: Path) -> tuple[str, ...]:
    """What a record must say where a source called `name` serves as the split `wanted`; nothing where it is that split.

    Args:
        name: of a file, a folder of books, or the split that a saved data set names.
        where: the source, for messages.

    Raises:
        UserError: the card knows the source as another split.
    """
    if _holds(card.splits[wanted], name) or not any(split.files or split.whole for split in card.splits.values()):
        return ()  # a card that names no files takes any
    others = [other for other, split in card.splits.items() if _holds(split, name)]
    if others:
        split = others[0] if len(others) == 1 else "NAME"
        hint = "Give the folder that holds all splits" if card.parts else f"Give the files of {wanted!r}"
        raise UserError(
            f"{where} holds the rows of split {' or '.join(map(repr, others))} of {card.name}, not of {wanted!r}.",
            f"{hint}, or --split {split}.",
        )
    known = ", ".join(dict.fromkeys((*card.splits[wanted].files, *card.splits[wanted].whole)))
    return (f"{where} serves as split {wanted!r} of {card.name}: by its name it could be any (known: {known})",)


def _holds(split: Split, name: str) -> bool:
    return name.casefold() in {known.casefold() for known in (*split.files, *split.whole)}


def folder_of(card: Card, name: str, base: Path, *, alone: bool) -> Path | None:
    """The folder of a sub-task, whichever level of the published layout `base` is; an archive unpacked into a folder of
    the sub-task's own name (sst2/SST-2) is found, too.

    Args:
        alone: no other sub-task is wanted, so that the files may stand in `base` itself.
    """
    part = card.parts[name]
    above = tops(base, card.source.folders)
    folders = [top / folder for top in above for folder in part.folders if (top / folder).is_dir()]
    here = base.absolute().name
    folders += [place / folder for place in folders for folder in part.folders if (place / folder).is_dir()]
    mine = _last_names(card, [name])
    if here in mine or (alone and here not in _last_names(card, card.parts)):
        folders += above
    narrowed = narrow(card, part, "test")
    return next(
        (place for place in folders if find(part.test, places(narrowed, place))), folders[0] if folders else None
    )


def _last_names(card: Card, parts: Iterable[str]) -> set[str]:
    return {Path(folder).name for part in parts for folder in card.parts[part].folders}


def narrow(card: Card, part: SubTask, wanted: str) -> Card:
    """The card with the source of one sub-task, and its files as the splits `train`, `test` and `wanted`."""
    source = card.source.model_copy(update={"hub": part.hub, "folders": ()})
    splits = {"train": part.train, "test": part.test}
    return card.model_copy(update={"source": source, "splits": {wanted: part.train, **splits}})


def sized(card: Card, name: str, source: str, size: str) -> tuple[SubTask, tuple[str, ...]]:
    """(a sub-task with its training rows of one size, a sentence where it is not the size that papers use).

    Args:
        source: "hub", a folder or a file.
        size: its name; "" for the first on the card that is there.

    Raises:
        UserError: the sub-task has no such size, or a single file is of one size anyway.
    """
    part = card.parts[name]
    if size and size not in part.sizes:
        if part.sizes:
            raise UnknownName(f"size of {name}", size, list(part.sizes))
        raise UserError(f"size={size}: the training rows of {name} have one size.", "Leave size out.")
    if source != "hub" and Path(source).is_file():
        if size:
            raise UserError(f"size={size} chooses among the files of a folder, {source} is one.", "Give the folder.")
        every = (*(file for size_of_part in part.sizes.values() for file in size_of_part.files), *part.train.files)
        return _with_training(part, every), ()
    at = places(narrow(card, part, "test"), Path(source))
    there = [
        known
        for known, size_of_part in part.sizes.items()
        if source == "hub" or find(Split(files=size_of_part.files), at)
    ]
    taken = size or next(iter(there), "")
    if not taken:
        return part, ()
    chosen, first = part.sizes[taken], next(iter(part.sizes))
    hub = part.hub.model_copy(update={"config": chosen.config})
    note = f"{name}: training rows of size {taken} ({chosen.files[0]}), for {part.sizes[first].files[0]} is not there"
    return _with_training(part.model_copy(update={"hub": hub}), chosen.files), () if size or taken == first else (note,)


def _with_training(part: SubTask, files: tuple[str, ...]) -> SubTask:
    return part.model_copy(update={"train": part.train.model_copy(update={"files": files})})
