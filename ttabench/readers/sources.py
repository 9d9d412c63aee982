"""Where rows come from: the miniature world, the hub, or the user's file or folder in any published layout.

A folder holds one file a split (names on the card), numbered parquet shards as the hub stores them, or what a published
archive unpacks to. A split that a paper cut out of a published split by row numbers is cut only where the number of
rows is the published one.

    resolve(card, Request(source="mini", options={"documents": "16", "questions": "2"}), Settings)
        -> Settings(documents=16, ...), {"questions": 2, "facts": 4}

Options that a mini generator takes as arguments (here `questions`) are told from protocol settings by its signature.
"""

from __future__ import annotations

import inspect
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from ttabench.core.declared import first_validation_error
from ttabench.core.errors import MAX_TEXT_CHARS, UnknownName, UserError
from ttabench.core.files import reading_file
from ttabench.core.plugins import plugin_entry_points
from ttabench.core.types import Json
from ttabench.readers.cards import Card, ProtocolSettings, Scalar, Split
from ttabench.readers.formats import (
    DEFAULT_FORMATS,
    Formats,
    RawRow,
    format_reasons,
    iter_texts,
    read_rows,
    report_row_errors,
    short_repr,
)

RowT = TypeVar("RowT")
GENERATED_SOURCE = "generated"
"""The source of rows that a reader makes and that are not of the miniature world."""
MAX_GENERATED_ROWS, MAX_GENERATED_TOKENS = 10**6, 2**26
"""What a twin makes at most: rows, or whatever its arguments count, multiplied; and tokens of running text."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """A user's request for a task; see `readers.load`."""

    source: str = "mini"
    split: str = "test"
    seed: int = 0
    limit: int | None = None
    options: Mapping[str, object]


@dataclass(frozen=True, kw_only=True)
class RawTable:
    """Rows of one split."""

    rows: list[RawRow] = field(default_factory=list)
    label: str = "mini"
    """Stands in records and tables as the source."""
    location: str = ""
    """Names the file, folder or data set in error messages."""
    folder: Path | None = None
    """Where companion files may lie."""
    notes: tuple[str, ...] = ()
    unused: Counter[str] = field(default_factory=Counter)
    """Rows that cannot be used by reason, once they were looked at."""


def parse_table(
    data: RawTable, row_of: Callable[[RawRow], RowT | str], *, require_any: bool = True
) -> list[RowT]:
    """What rows hold, in file order; of a row that cannot be used `row_of` gives the reason, counted in `unused`.

    `require_any`: there has to be a row that can be used.
    """
    held: list[RowT] = []
    for number, raw in enumerate(data.rows):
        with report_row_errors(raw.location):
            if max(map(len, iter_texts(raw.values)), default=0) > MAX_TEXT_CHARS:
                raise ValueError(f"a text has more than {MAX_TEXT_CHARS:,} characters")
            row = row_of(raw._replace(number=number))
        if isinstance(row, str):
            data.unused[row] += 1
        else:
            held.append(row)
    if require_any and not held:
        fault = f"None of the {len(data.rows)} rows of {data.location} is usable ({format_reasons(data.unused)})."
        raise UserError(fault, "Give others.")
    return held


def default_source(card: Card | None, *, nano: bool) -> str:
    """Where the rows of a task come from under a base model, nano or another, where nobody says."""
    return (
        "mini"
        if nano
        else GENERATED_SOURCE
        if card is not None and card.reader == "ruler"
        else "hub"
    )


def load_table(card: Card, request: Request, more: Formats | None = None) -> RawTable:
    """The rows of `request.split` from the hub, a file or a folder (the mini source goes through `synthetic_table`).

    `more`: other formats by suffix, which come before the usual ones.
    """
    name, path = request.split, Path(request.source)
    split, formats, whole = card.splits[name], {**(more or {}), **DEFAULT_FORMATS}, True
    if request.source == "hub":
        loaded, label = load_hub_rows(card, name)
        with reading_file(label, max_bytes=None):
            held = [RawRow(f"{label} row {number}", dict(row)) for number, row in enumerate(loaded)]
        data = RawTable(rows=held, label=label, location=label)
    elif path.exists():
        files, whole = (
            find_split_files(split, data_folders(card, path), formats)
            if path.is_dir()
            else ([path], False)
        )
        if not files:
            expected = ", ".join(split.files + split.whole) or "one file of any name"
            fault = f"No file of split {name!r} of {card.name} in {path} (looked for {expected}"
            hint = (
                "Give the folder that has all splits."
                if card.parts
                else "Name the file with --source FILE."
            )
            raise UserError(
                f"{fault}; {', '.join(formats)}, .gz too).", f"{hint} {card.source.how}".strip()
            )
        held = [row for file in files for row in read_rows(file, formats)]
        label = f"{'folder' if path.is_dir() else 'file'}:{path}"
        data = RawTable(rows=held, label=label, location=str(files[0]), folder=files[0].parent)
    else:
        fault = f"No file or folder {request.source!r} to read {card.name} from."
        raise UserError(fault, "Check the path; --source takes mini, hub, or the path of the data.")
    if not data.rows:
        raise UserError(
            f"{data.location} holds no rows for {card.name}.", "Give a source with rows."
        )
    whole = whole or (path.is_file() and len(data.rows) == split.of)
    if not whole or split.rows is None:
        return data
    first, last = split.rows
    if len(data.rows) != split.of:
        fault = f"Split {name!r} is rows {first} to {last} of {split.of}, but {data.location} has {len(data.rows)} rows."
        raise UserError(
            fault,
            "Give the published file, or name a file of your own with --source FILE to use all of it.",
        )
    return replace(
        data,
        rows=data.rows[first:last],
        notes=(*data.notes, f"rows {first} to {last} of {split.of}"),
    )


def load_hub_rows(card: Card, name: str) -> tuple[Any, str]:
    """The data set of a split on the hub, not in memory, and the label of the source."""
    import datasets

    hub, split = card.source.hub, card.splits[name].hub
    if hub is None or split is None:
        fault = f"Split {name!r} of the task {card.name} is on no hub."
        raise UserError(fault, f"{card.source.how} Then give --source DIR.")
    hint = "Use local files with --source DIR" + (", or --source mini." if card.twin else ".")
    with reading_file(f"The data set {hub.path} on the hub", hint, max_bytes=None):
        loaded = datasets.load_dataset(hub.path, hub.config, split=split, revision=hub.revision)
    commit = re.fullmatch("([0-9a-f]{8})[0-9a-f]{32}", hub.revision or "")
    return loaded, f"hub:{hub.path}@{commit[1] if commit else 'unpinned'}"


# --- where the files of a split lie in what people unpack: OpenBookQA-V1-Sep2018/Data/Main/train.jsonl ---------------


def archive_roots(base: Path, names: Sequence[str]) -> list[Path]:
    """The folder, and the top folders of the published archive that stand in it."""
    return [base, *(base / name for name in names if (base / name).is_dir())]


def data_folders(card: Card, folder: Path) -> list[Path]:
    """Where files may stand: the folder, an archive's top folder in it, and the hub's folders `data` and config."""
    hub = card.source.hub
    inner = ("data", hub.config if hub and hub.config else "default")
    return [
        place
        for top in archive_roots(folder, card.source.folders)
        for place in (top, *(top / name for name in inner))
    ]


def find_split_files(
    split: Split, folders: Iterable[Path], formats: Formats = DEFAULT_FORMATS
) -> tuple[list[Path], bool]:
    """(the file of a split, or every shard of it, in the first of the folders that has them, whether it is a whole
    published split, whose names come last); no files where there are none.
    """
    folders = list(folders)
    for names, whole in ((split.files, False), (split.whole, True)):
        for place in (folder / name for folder in folders for name in names):
            if files := _files_named(place, formats):
                return files, whole
    return [], False


def _files_named(place: Path, formats: Formats) -> list[Path]:
    """The file of this name, in the first of the formats and rather not packed, or its shards."""
    for ending in (suffix + packed for suffix in formats for packed in ("", ".gz")):
        if (file := place.with_name(place.name + ending)).is_file():
            return [file]
    shards = sorted(place.parent.glob(f"{place.name}-?????-of-?????*.parquet"))
    if shards and len(shards) != (count := int(shards[0].name.partition("-of-")[2][:5])):
        raise UserError(
            f"{place.parent} holds {len(shards)} of {count} shards of {place.name!r}.",
            "Get the others.",
        )
    return shards


# --- miniature twins -------------------------------------------------------------------------------------------------


def load_rows(
    card: Card, request: Request, arguments: Mapping[str, object], more: Formats | None = None
) -> RawTable:
    """The rows that a request is about: of a twin with these arguments, or those of `load_table`."""
    if request.source == "mini":
        return synthetic_table(card, request.split, request.seed, arguments)
    return load_table(card, request, more)


def synthetic_table(card: Card, split: str, seed: int, arguments: Mapping[str, object]) -> RawTable:
    """Rows of the miniature twin of this split, drawn from a seed."""
    return table_of_generated(card, run_generator(card, split, seed, **arguments))


def book_arguments(books: int, tokens: int) -> dict[str, int]:
    """Arguments of a generator for so many books of at least about so many tokens."""
    return {"books": books, "tokens": tokens * 9 // 8 + 64}


def table_of_generated(card: Card, generated_rows: Sequence[Mapping[str, object]]) -> RawTable:
    """Rows that a generator made, as a table."""
    if not generated_rows:
        raise UserError(f"The twin of {card.name} gives no rows.", "Change --task-set.")
    held = [
        RawRow(f"mini row {number}", dict(values)) for number, values in enumerate(generated_rows)
    ]
    return RawTable(rows=held, location=f"the miniature twin of {card.name}")


def load_generator(card: Card) -> Callable[..., Any]:
    """The function that the card names as "ttabench.mini.module:function"."""
    assert card.twin is not None, "mini was accepted for a card without a twin"
    module, _, function = card.twin.generator.partition(":")
    try:
        generator: Callable[..., Any] = getattr(import_module(module), function)
    except (ImportError, AttributeError):
        fault = f"The task card {card.name}: there is no twin.generator {card.twin.generator!r}."
        raise UserError(fault, "Mend that field.") from None
    return generator


def arguments_model(card: Card, source: str) -> type[BaseModel]:
    """Arguments of the card's generator beyond its place, with types and defaults; none but of `mini`."""
    fields: dict[str, Any] = {}
    if source == "mini" and card.twin is not None:
        function = load_generator(card)
        hints = get_type_hints(function)
        for name, one in inspect.signature(function).parameters.items():
            if name not in ("split", "seed", "documents"):
                fields[name] = (
                    hints.get(name, str),
                    None if one.default is one.empty else one.default,
                )
    return create_model("Arguments", __config__=ConfigDict(extra="forbid"), **fields)


def run_generator(card: Card, split: str, seed: int, **arguments: object) -> Any:
    """What the card's generator makes for a split: rows, or rows by name."""
    try:
        counts = {key: n for key, n in arguments.items() if isinstance(n, int) and n > 0}
        n_rows = math.prod(n for key, n in counts.items() if key != "tokens")
        if n_rows > MAX_GENERATED_ROWS or n_rows * counts.get("tokens", 1) > MAX_GENERATED_TOKENS:
            asked = ", ".join(f"{key}={short_repr(n, 20)}" for key, n in counts.items())
            raise UserError(
                f"The twin of {card.name} would make too much with {asked}.",
                "Give smaller --task-set.",
            )
        return load_generator(card)(split=card.splits[split].twin, seed=seed, **arguments)
    except (TypeError, ValueError) as error:
        raise UserError(
            f"The twin of {card.name} refuses that ({error}).", "Change --task-set."
        ) from None


# --- a task's settings from its card, its twin and the user's options, in that order ---------------------------------

ENTRY_POINT_GROUP = "ttabench.readers"
"""Entry points of other packages: functions of a card and a request."""
READERS = (
    "qa_stream",
    "demonstrations",
    "metaicl",
    "book",
    "dialogue",
    "sessions",
    "lamp",
    "recall",
    "shared_context",
    "ruler",
    "lm_eval",
)
"""Modules here, each with a function `read`."""


def load_reader(name: str) -> Callable[[Card, Request], Any]:
    """The function that binds a card of this reader to its data."""
    if name not in READERS and name not in plugin_entry_points(ENTRY_POINT_GROUP):
        raise UnknownName(
            "reader", name, sorted([*READERS, *plugin_entry_points(ENTRY_POINT_GROUP)])
        )
    own = (
        import_module(f"ttabench.readers.{name}").read
        if name in READERS
        else plugin_entry_points(ENTRY_POINT_GROUP)[name].load()
    )
    read: Callable[[Card, Request], Any] = own
    return read


def origin(reader: str) -> str:
    """Of what package, in what state, a reader is; "" for those here."""
    return (
        ""
        if reader in READERS or reader not in plugin_entry_points(ENTRY_POINT_GROUP)
        else plugin_entry_points(ENTRY_POINT_GROUP)[reader].origin
    )


SettingsT = TypeVar("SettingsT", bound=ProtocolSettings)
ModelT = TypeVar("ModelT", bound=BaseModel)


def resolve_settings(
    card: Card, request: Request, model: type[SettingsT]
) -> tuple[SettingsT, dict[str, Scalar]]:
    """(protocol settings, arguments of the mini generator)."""
    if request.limit is not None and request.limit < 1:
        raise UserError(
            f"A limit of {request.limit} questions leaves nothing to ask.",
            "Give --limit 1 or more.",
        )
    twin = card.twin if request.source == "mini" else None
    if request.source == "mini" and twin is None:
        hint = f"Give {'--source hub, or ' if card.source.hub else ''}--source PATH of the data."
        raise UserError(f"The task {card.name} has no miniature twin.", hint)
    inputs = arguments_model(card, request.source)
    known = [key for key in inputs.model_fields if key not in model.model_fields]
    options = {key: value for key, value in request.options.items() if key not in known}
    if unknown := next((key for key in options if key not in model.model_fields), None):
        raise UnknownName(f"setting of task {card.name}", unknown, [*model.model_fields, *known])
    base = {**card.protocol, **(twin.protocol if twin else {})}
    settings = _validated(card, "protocol", model, base, options)
    template, examples = getattr(settings, "prompt", None), getattr(settings, "examples", 0)
    if template is not None and template not in card.prompt.templates:
        raise UnknownName(f"prompt of task {card.name}", template, list(card.prompt.templates))
    if examples > len(card.prompt.examples):
        fault = f"examples={examples} are more than the {len(card.prompt.examples)} worked examples of {card.name}."
        raise UserError(fault, "Give --task-set examples=N with a smaller N.")
    more = {key: value for key, value in request.options.items() if key in known}
    arguments = _validated(card, "twin.arguments", inputs, twin.arguments if twin else {}, more)
    return settings, arguments.model_dump(exclude_unset=True)


def _validated(
    card: Card,
    place: str,
    model: type[ModelT],
    base: Mapping[str, object],
    options: Mapping[str, object],
) -> ModelT:
    try:
        return model.model_validate({**base, **options})
    except ValidationError as error:
        by_user = [
            str(fault["loc"][0])
            for fault in error.errors()
            if fault["loc"] and fault["loc"][0] in options
        ]
        location = (
            f"--task-set of {card.name}" if by_user else f"{place} of the task card {card.name}"
        )
        what, hint = first_validation_error(error, location, model)
        raise UserError(
            what, f"Give another with --task-set {by_user[0]}=VALUE." if by_user else hint
        ) from None


FORMER_DEFAULTS: Mapping[str, Mapping[str, Json]] = {
    "qa_stream": {
        "downsample": "contexts",
        "dedupe": True,
        "document_tokens": 512,
        "question_tokens": 128,
        "answer_tokens": 24,
    },
    "demonstrations": {"copa_single_blank": False},
    "metaicl": {
        "protocol": "ccm",
        "layout": "ccm",
        "answer": "choose",
        "pmi": False,
        "max_new_tokens": 10,
        "too_long": "cut",
        "omit": "",
        "pmi_tasks": "",
        "drop_last": False,
    },
    "book": {"protocol": "strides", "unit": 1024, "score_first": False},
    "dialogue": {"speakers": "same", "wording": "plain", "eval_split": "test", "context_at_12": 12},
    "sessions": {"session": None, "include_current": False, "window_turns": 16},
    "lamp": {"least_kept": 0.9},
    "recall": {"every": 0, "ask": "question"},
}
"""Defaults of options that readers of earlier versions had, which stand in the records of their runs."""


def default_options(card: Card, source: str) -> dict[str, Json]:
    """Defaults of the protocol, of earlier versions too, and under `mini` of the generator's arguments, as JSON."""
    settings = _settings_of(card.reader)
    if settings is None:
        return {}
    values: dict[str, Json] = settings.model_construct().model_dump(mode="json")
    former = {"paper_quirks": False, **FORMER_DEFAULTS.get(card.reader, {})}
    return {**former, **arguments_model(card, source).model_construct().model_dump(), **values}


def known_options(card: Card, source: str) -> list[str] | None:
    """Names of the options of a task: of its protocol, and under `mini` of its generator; None where nobody knows."""
    settings = _settings_of(card.reader)
    return (
        None
        if settings is None
        else [*settings.model_fields, *arguments_model(card, source).model_fields]
    )


def _settings_of(reader: str) -> type[BaseModel] | None:
    """The model `Settings` of a reader's module, if it has one."""
    if reader not in READERS and reader not in plugin_entry_points(ENTRY_POINT_GROUP):
        return None
    return getattr(import_module(load_reader(reader).__module__), "Settings", None)
