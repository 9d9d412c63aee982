"""Sources of rows: the synthetic world, the hub, or the user's file or folder in any published
layout.

A folder contains one file per split (names on the card), numbered parquet shards as on the hub, or
the content of a published archive. A split that a paper cut out of a published split by row numbers
is cut only if the number of rows is the published one.

    request = Request(source="mini", options={"documents": "16", "questions": "2"})
    resolve_settings(card, request, Settings)
        -> Settings(documents=16, ...), {"questions": 2, "facts": 4}

Options that are parameters of the mini generator (here `questions`) are its arguments; all others
are protocol settings.
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
from ttabench.core.errors import MAX_TEXT_CHARS, UserError, require_known
from ttabench.core.files import reading_file
from ttabench.core.registry import Registry, import_object
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
"""Source of rows that a reader generates outside the synthetic world."""
MAX_GENERATED_ROWS, MAX_GENERATED_TOKENS = 10**6, 2**26
"""Limits of a synthetic version: the product of its count arguments, and tokens of running text."""


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
    """Source label in records and tables."""
    location: str = ""
    """File, folder or dataset in error messages."""
    folder: Path | None = None
    """Folder of companion files."""
    notes: tuple[str, ...] = ()
    unused: Counter[str] = field(default_factory=Counter)
    """Counts of rows that cannot be used, by reason, once they are parsed."""


def parse_table(
    data: RawTable, row_of: Callable[[RawRow], RowT | str], *, require_any: bool = True
) -> list[RowT]:
    """Parse rows in file order; for an unusable row `row_of` returns the reason, counted in
    `unused`.

    `require_any`: raise a UserError if no row is usable.
    """
    parsed: list[RowT] = []
    for number, raw in enumerate(data.rows):
        with report_row_errors(raw.location):
            if max(map(len, iter_texts(raw.values)), default=0) > MAX_TEXT_CHARS:
                raise ValueError(f"a text has more than {MAX_TEXT_CHARS:,} characters")
            row = row_of(raw._replace(number=number))
        if isinstance(row, str):
            data.unused[row] += 1
        else:
            parsed.append(row)
    if require_any and not parsed:
        reasons = format_reasons(data.unused)
        fault = f"None of the {len(data.rows)} rows of {data.location} is usable ({reasons})."
        raise UserError(fault, "Fix the rows, or use another source.")
    return parsed


def default_source(card: Card | None, *, nano: bool) -> str:
    """Return the default source of a task's rows under nano, or under another base model."""
    if nano:
        return "mini"
    return GENERATED_SOURCE if card is not None and card.reader == "ruler" else "hub"


def load_table(card: Card, request: Request, more: Formats | None = None) -> RawTable:
    """Load the rows of `request.split` from the hub, a file or a folder (for mini, see
    `synthetic_table`).

    `more`: further formats by suffix, which take precedence.
    """
    name, path = request.split, Path(request.source)
    split, formats, whole = card.splits[name], {**(more or {}), **DEFAULT_FORMATS}, True
    if request.source == "hub":
        loaded, label = load_hub_rows(card, name)
        with reading_file(label, max_bytes=None):
            rows = [RawRow(f"{label} row {number}", dict(row)) for number, row in enumerate(loaded)]
        data = RawTable(rows=rows, label=label, location=label)
    elif path.exists():
        files, whole = (
            find_split_files(split, data_folders(card, path), formats)
            if path.is_dir()
            else ([path], False)
        )
        if not files:
            expected = ", ".join(split.files + split.whole) or "one file of any name"
            fault = f"No file of split {name!r} of {card.name} in {path} (expected {expected}"
            hint = (
                "Use the folder that has all splits."
                if card.parts
                else "Set the file with --source FILE."
            )
            raise UserError(
                f"{fault}; {', '.join(formats)}, .gz too).", f"{hint} {card.source.how}".strip()
            )
        rows = [row for file in files for row in read_rows(file, formats)]
        label = f"{'folder' if path.is_dir() else 'file'}:{path}"
        data = RawTable(rows=rows, label=label, location=str(files[0]), folder=files[0].parent)
    else:
        fault = f"The source {request.source!r} of {card.name} does not exist."
        raise UserError(fault, "Set --source to mini, hub, or the path of the data.")
    if not data.rows:
        raise UserError(f"{data.location} has no rows for {card.name}.", "Use a source with rows.")
    whole = whole or (path.is_file() and len(data.rows) == split.of)
    if not whole or split.rows is None:
        return data
    first, last = split.rows
    if len(data.rows) != split.of:
        fault = f"Split {name!r} is rows {first} to {last} of {split.of}, "
        fault += f"but {data.location} has {len(data.rows)} rows."
        raise UserError(
            fault, "Use the published file, or set --source FILE to use all of your own file."
        )
    return replace(
        data, rows=data.rows[first:last], notes=(f"rows {first} to {last} of {split.of}",)
    )


def read_table(path: Path) -> RawTable:
    """Read all rows of one file."""
    return RawTable(rows=list(read_rows(path)), location=str(path))


def load_hub_rows(card: Card, name: str) -> tuple[Any, str]:
    """Load a split's dataset from the hub, without reading it into memory, and its source label."""
    import datasets

    hub, split = card.source.hub, card.splits[name].hub
    if hub is None or split is None:
        fault = f"Split {name!r} of the task {card.name} is not on the hub."
        raise UserError(fault, f"{card.source.how} Then use --source DIR.")
    hint = "Use local files with --source DIR" + (", or --source mini." if card.twin else ".")
    with reading_file(f"The data set {hub.path} on the hub", hint, max_bytes=None):
        loaded = datasets.load_dataset(hub.path, hub.config, split=split, revision=hub.revision)
    commit = re.fullmatch("([0-9a-f]{8})[0-9a-f]{32}", hub.revision or "")
    return loaded, f"hub:{hub.path}@{commit[1] if commit else 'unpinned'}"


# --- files of a split in an unpacked archive: OpenBookQA-V1-Sep2018/Data/Main/train.jsonl ---------


def archive_roots(base: Path, names: Sequence[str]) -> list[Path]:
    """Return the folder, and the top folders of the published archive in it."""
    return [base, *(base / name for name in names if (base / name).is_dir())]


def data_folders(card: Card, folder: Path) -> list[Path]:
    """Return possible folders of files: the folder, an archive's top folder, and the hub's folders
    `data` and config.
    """
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
    """Find (the file or shards of a split in the first folder that has them, whether it is a whole
    published split).

    Exact files of the split come before whole published splits. The list is empty if there are
    none.
    """
    folders = list(folders)
    for names, whole in ((split.files, False), (split.whole, True)):
        for place in (folder / name for folder in folders for name in names):
            if files := _files_named(place, formats):
                return files, whole
    return [], False


def _files_named(place: Path, formats: Formats) -> list[Path]:
    """Return the file of this name in the first format, unpacked before packed, or its shards."""
    endings = (suffix + packed for suffix in formats for packed in ("", ".gz"))
    for ending in (*endings, ""):  # QuALITY's names include the suffix, .dev
        if (file := place.with_name(place.name + ending)).is_file():
            return [file]
    shards = sorted(place.parent.glob(f"{place.name}-?????-of-?????*.parquet"))
    if shards and len(shards) != (count := int(shards[0].name.partition("-of-")[2][:5])):
        raise UserError(
            f"{place.parent} has {len(shards)} of {count} shards of {place.name!r}.",
            "Add the others.",
        )
    return shards


# --- synthetic versions ---------------------------------------------------------------------------


def load_rows(
    card: Card, request: Request, arguments: Mapping[str, object], more: Formats | None = None
) -> RawTable:
    """Load the rows of a request: synthetic ones with these arguments, or those of `load_table`."""
    if request.source == "mini":
        return synthetic_table(card, request.split, request.seed, arguments)
    return load_table(card, request, more)


def synthetic_table(card: Card, split: str, seed: int, arguments: Mapping[str, object]) -> RawTable:
    """Generate the rows of a split's synthetic version from a seed."""
    return table_of_generated(card, run_generator(card, split, seed, **arguments))


def book_arguments(books: int, tokens: int) -> dict[str, int]:
    """Return generator arguments for books of at least about `tokens` tokens."""
    return {"books": books, "tokens": tokens * 9 // 8 + 64}


def table_of_generated(card: Card, generated_rows: Sequence[Mapping[str, object]]) -> RawTable:
    """Convert generated rows to a table."""
    if not generated_rows:
        raise UserError(f"The synthetic {card.name} has no rows.", "Change --task-set.")
    rows = [
        RawRow(f"mini row {number}", dict(values)) for number, values in enumerate(generated_rows)
    ]
    return RawTable(rows=rows, location=f"the synthetic {card.name}")


def load_generator(card: Card) -> Callable[..., Any]:
    """Import the function that the card names as "ttabench.mini.module:function"."""
    assert card.twin is not None, "mini was accepted for a card without a synthetic version"
    try:
        generator: Callable[..., Any] = import_object(card.twin.generator)
    except (ImportError, AttributeError):
        fault = f"The task card {card.name}: twin.generator {card.twin.generator!r} does not exist."
        raise UserError(fault, "Fix that field.") from None
    return generator


def arguments_model(card: Card, source: str) -> type[BaseModel]:
    """Make a model of the generator's arguments with types and defaults, without split, seed and
    documents.

    It is empty unless the source is `mini`.
    """
    fields: dict[str, Any] = {}
    if source == "mini" and card.twin is not None:
        function = load_generator(card)
        hints = get_type_hints(function)
        for name, parameter in inspect.signature(function).parameters.items():
            if name not in ("split", "seed", "documents"):
                fields[name] = (
                    hints.get(name, str),
                    None if parameter.default is parameter.empty else parameter.default,
                )
    return create_model("Arguments", __config__=ConfigDict(extra="forbid"), **fields)


def run_generator(card: Card, split: str, seed: int, **arguments: object) -> Any:
    """Run the card's generator for a split; it returns rows, or rows by name."""
    try:
        counts = {key: n for key, n in arguments.items() if isinstance(n, int) and n > 0}
        n_rows = math.prod(n for key, n in counts.items() if key != "tokens")
        if n_rows > MAX_GENERATED_ROWS or n_rows * counts.get("tokens", 1) > MAX_GENERATED_TOKENS:
            sizes = ", ".join(f"{key}={short_repr(n, 20)}" for key, n in counts.items())
            raise UserError(
                f"The synthetic {card.name} would be too large with {sizes}.",
                "Set smaller values with --task-set.",
            )
        return load_generator(card)(split=card.splits[split].twin, seed=seed, **arguments)
    except (TypeError, ValueError) as error:
        raise UserError(
            f"The synthetic {card.name} refuses these arguments ({error}).", "Change --task-set."
        ) from None


# --- settings of a task: from its card, its synthetic version and the user's options, in that order

READERS = Registry[Callable[[Card, Request], Any]](
    "reader",
    {
        name: f"ttabench.readers.{name}:read"
        for name in (
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
    },
    group="ttabench.readers",
)
"""Functions that bind a card to its data."""
SettingsT = TypeVar("SettingsT", bound=ProtocolSettings)
ModelT = TypeVar("ModelT", bound=BaseModel)


def resolve_settings(
    card: Card, request: Request, model: type[SettingsT]
) -> tuple[SettingsT, dict[str, Scalar]]:
    """Return (protocol settings, arguments of the mini generator)."""
    if request.limit is not None and request.limit < 1:
        raise UserError(f"--limit {request.limit} leaves no question.", "Set --limit to 1 or more.")
    synthetic = card.twin if request.source == "mini" else None
    if request.source == "mini" and synthetic is None:
        hint = f"Use {'--source hub, or ' if card.source.hub else ''}--source PATH of the data."
        raise UserError(f"The task {card.name} has no synthetic version.", hint)
    inputs = arguments_model(card, request.source)
    known = [key for key in inputs.model_fields if key not in model.model_fields]
    options = {key: value for key, value in request.options.items() if key not in known}
    for key in options:
        require_known(f"setting of task {card.name}", key, [*model.model_fields, *known])
    base = {**card.protocol, **(synthetic.protocol if synthetic else {})}
    settings = _validated(card, "protocol", model, base, options)
    template, examples = getattr(settings, "prompt", None), getattr(settings, "examples", 0)
    if template is not None:
        require_known(f"prompt of task {card.name}", template, card.prompt.templates)
    if examples > len(card.prompt.examples):
        fault = f"examples={examples} exceeds the worked examples of {card.name}."
        raise UserError(fault, f"Set --task-set examples=N up to {len(card.prompt.examples)}.")
    more = {key: value for key, value in request.options.items() if key in known}
    card_arguments = synthetic.arguments if synthetic else {}
    arguments = _validated(card, "twin.arguments", inputs, card_arguments, more)
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
            what, f"Set another with --task-set {by_user[0]}=VALUE." if by_user else hint
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
"""Defaults of options that readers of earlier versions had, as in the records of their runs."""


def default_options(card: Card, source: str) -> dict[str, Json]:
    """Return option defaults as JSON: of the protocol, also of earlier versions, and under `mini`
    of the generator.
    """
    settings = _settings_of(card.reader)
    if settings is None:
        return {}
    values: dict[str, Json] = settings.model_construct().model_dump(mode="json")
    former = {"paper_quirks": False, **FORMER_DEFAULTS.get(card.reader, {})}
    return {**former, **arguments_model(card, source).model_construct().model_dump(), **values}


def known_options(card: Card, source: str) -> list[str] | None:
    """Return the names of a task's options, of protocol and (under `mini`) generator; None if
    unknown.
    """
    settings = _settings_of(card.reader)
    return (
        None
        if settings is None
        else [*settings.model_fields, *arguments_model(card, source).model_fields]
    )


def _settings_of(reader: str) -> type[BaseModel] | None:
    """Return the model `Settings` of a reader's module, if it has one."""
    if reader not in READERS.names:
        return None
    return getattr(import_module(READERS.find(reader).__module__), "Settings", None)
