"""Task cards: one YAML file per task with literal data only (source, splits, prompts, protocol,
metrics, paper, licence).

The model `Card` defines the fields; unknown fields are refused. The reader checks the protocol.
Bundled cards are in `tasks/` (inside the package in a wheel).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Annotated, Literal

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeInt,
    StringConstraints,
    ValidationError,
    model_validator,
)

from ttabench.core.declared import first_validation_error
from ttabench.core.errors import UserError
from ttabench.core.files import read_text, reading_file
from ttabench.core.registry import Registry
from ttabench.core.types import Choose, Generate
from ttabench.stats.clusters import SamplingUnit
from ttabench.stats.metrics import metric

Scalar = str | int | float | bool | None
STRICT_CONFIG = ConfigDict(strict=True, extra="forbid", frozen=True)
"""Configuration of all card models: no type conversion, no unknown fields."""
Slug = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9_]*$")]
"""Name of a task or sub-task."""
MAX_YAML_BYTES, MAX_YAML_DEPTH = 2**17, 32
"""Maximum size and nesting depth of a card or another YAML file."""


def _check_relative_path(path: str) -> str:
    if (
        not path
        or "\\" in path
        or PurePosixPath(path).is_absolute()
        or ".." in PurePosixPath(path).parts
    ):
        raise ValueError(f"{path!r} is not a relative path below the source folder")
    return path


RelativePath = Annotated[str, AfterValidator(_check_relative_path)]
"""A file name, or the path of a folder, below the folder of --source."""


class _CardModel(BaseModel):
    model_config = STRICT_CONFIG


class ProtocolSettings(BaseModel):
    """Base of the settings of every reader."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Hub(_CardModel):
    """A dataset on the Hugging Face hub."""

    path: str
    config: RelativePath | None = None
    revision: str | None = None
    """Commit or branch; a branch or None is unpinned, which every record notes."""


class Articles(_CardModel):
    """A companion file with the texts, for question files that contain only references to them."""

    files: tuple[RelativePath, ...]
    """File names without suffix, searched in the folder of the question file."""
    key: tuple[str, ...]
    text: tuple[str, ...]


class Source(_CardModel):
    """Location of the real data."""

    hub: Hub | None = None
    folders: tuple[RelativePath, ...] = ()
    """Names of the top folder of the published archive or repository after unpacking."""
    answers: Literal["joined", "literal", "single"] = "single"
    """Parsing of an answer cell that is a plain string: backslash-joined, a Python literal, or one
    answer.
    """
    articles: Articles | None = None
    how: str = ""
    """Instructions for users who lack the data, in one sentence."""


class Split(_CardModel):
    """Location of one split in each source."""

    files: tuple[RelativePath, ...] = ()
    """File names without suffix that contain exactly this split."""
    whole: tuple[RelativePath, ...] = ()
    """File names without suffix of a published split; this one is its `rows`."""
    hub: str | None = None
    rows: tuple[int, int] | None = None
    """First row and the row after the last, in the published split."""
    of: int | None = None
    """Number of rows of the published split; `rows` does not apply to a file of another length."""
    twin: Literal["train", "validation", "test"] = "test"
    """Corresponding split of the synthetic version."""
    note: str = ""
    """Note in every record of real data: which rows are queried, if not the publisher's split of
    this name.
    """


class SubTask(_CardModel):
    """One multiple-choice task of a card: its rows, their shape, and its prompts."""

    shape: Literal["labels", "copa", "pair", "letters", "endings", "blank"]
    """Conversion of a row into options, see `readers.choices`."""
    hub: Hub
    folders: tuple[RelativePath, ...] = ()
    """Its folder in the published layout, below the archive's top folder or deeper."""
    columns: dict[str, tuple[str, ...]]
    """Field -> names of that column in the published layouts; the first one present is used."""
    train: Split
    """Rows from which demonstrations are drawn."""
    test: Split
    """Rows that papers score."""
    templates: dict[str, str]
    """Prompts by name; `{field}` is replaced by a field of the row. Demonstrations always use
    "lm_eval".
    """
    options: tuple[str, ...] = ()
    """Answer words by label, for labels that mean a word."""
    labels: tuple[str, ...] = ()
    """Names of the labels in files that spell them out, in numeric order."""

    @model_validator(mode="after")
    def _check_templates(self) -> SubTask:
        if "lm_eval" not in self.templates:
            raise ValueError(f"templates must have 'lm_eval', received {list(self.templates)}")
        if self.shape == "labels" and len(self.options) < 2:
            raise ValueError(f"shape 'labels' needs options, received {list(self.options)}")
        return self


class ChatPrompt(_CardModel):
    """Prompt format for models with a chat template."""

    prompt: str
    """Name of a template."""
    examples: NonNegativeInt = 0
    """Worked examples before every question."""
    turns: bool = True
    """True if context and question form one turn of the chat template."""


class Prompt(_CardModel):
    """Literal texts around the data."""

    templates: dict[str, str] = {}
    """Question templates by name; only `{question}` is replaced. Sub-tasks have their own
    templates.
    """
    delimiter: str = " "
    joiner: str = "\n\n"
    examples: tuple[tuple[str, str], ...] = ()
    """Questions with answers that a prompt may show before its own (`examples=2`); not rows of the
    data.
    """
    chat: ChatPrompt | None = None
    """Default prompt format for models with a chat template; None: the same as for other models."""
    stops: tuple[str, ...] = ()
    """Texts that end a generated answer."""
    leads: tuple[str, ...] = ()
    """Words removed from the start of a generated answer."""

    def fill_template(self, question: str, template: str, examples: int = 0) -> str:
        """Fill a template with a question, after `examples` worked examples."""
        pattern = self.templates[template]
        shown = [
            pattern.replace("{question}", text) + self.delimiter + answer
            for text, answer in self.examples
        ]
        return self.joiner.join([*shown[:examples], pattern.replace("{question}", question)])

    def make_generate(self, answers: tuple[str, ...] = (), max_new_tokens: int = 16) -> Generate:
        """Return the target of a query with a generated answer."""
        return Generate(
            answers=answers,
            delimiter=self.delimiter,
            max_new_tokens=max_new_tokens,
            stops=self.stops,
            leads=self.leads,
        )

    def make_choose(self, options: Sequence[str], answer: str) -> Choose:
        """Return the target of a query with a choice of options."""
        texts = tuple(self.delimiter + option for option in options)
        return Choose(options=texts, gold=options.index(answer), delimiter=self.delimiter)

    @model_validator(mode="after")
    def _check_placeholders(self) -> Prompt:
        for name, template in self.templates.items():
            if template.count("{question}") != 1:
                raise ValueError(
                    f"template {name!r} must contain {{question}} once, received {template!r}"
                )
        return self


class Profile(_CardModel):
    """One sub-task of users and their profiles, for the reader `lamp`."""

    folders: tuple[RelativePath, ...]
    """Its folder in the published layout."""
    entry: str
    """Template of a profile entry; `{column}` is replaced by a column of the entry."""
    marker: str
    """End of the instruction in a published input; the text that it is about follows."""
    text: str = ""
    """Column of an entry with a text like the query's; empty if there is none."""
    output: str = ""
    """Column of an entry with its answer; empty if there is none."""
    options: tuple[str, ...] = ()
    """Answers to choose from; if empty, the answer is generated."""
    metrics: Annotated[tuple[str, ...], Field(min_length=1)]
    """Metrics, the main one first."""
    chance: float | None = None
    """See `Card.chance`."""


class SyntheticVersion(_CardModel):
    """Generator of the task's synthetic version, and its changes to the protocol."""

    generator: Annotated[str, StringConstraints(pattern=r"^ttabench\.mini\.[a-z0-9_]+:[a-z0-9_]+$")]
    """Function of `ttabench.mini` only: a card is data and must not run other code."""
    protocol: dict[str, Scalar] = {}
    arguments: dict[str, Scalar] = {}


class Card(_CardModel):
    """A task."""

    name: Slug
    reader: str
    title: str = ""
    paper: str = ""
    arxiv: Annotated[str, StringConstraints(pattern=r"^(\d{4}\.\d{4,5})?$")] = ""
    licence: str = ""
    source: Source = Source()
    columns: dict[str, tuple[str, ...]] = {}
    """Field of the reader's row type -> names of that column in the published layouts; the first
    one present is used.
    """
    parts: dict[Slug, SubTask] = {}
    """Sub-tasks by name, for the reader `demonstrations`, with no columns on its cards."""
    profiles: dict[Slug, Profile] = {}
    """Sub-tasks by name, for the reader `lamp`, also without columns; the first has the synthetic
    version.
    """
    splits: dict[str, Split]
    prompt: Prompt = Prompt()
    protocol: dict[str, Scalar] = {}
    metrics: Annotated[tuple[str, ...], Field(min_length=1)]
    main_metric: str
    chance: float | None = None
    """Main metric (0 to 1) of a random answer; null if answers are not drawn (perplexity)."""
    unit: SamplingUnit = "query"
    """Sampling unit: standard errors treat these as independent."""
    twin: SyntheticVersion | None = None

    def with_metrics(self, main: str, *others: str, **more: object) -> Card:
        """Return the card with these metrics, the main one first, and other changes."""
        return self.model_copy(update={"metrics": (main, *others), "main_metric": main, **more})

    @model_validator(mode="after")
    def _check_columns_and_metrics(self) -> Card:
        if not self.columns and not self.parts and not self.profiles:
            raise ValueError("set columns, parts or profiles")
        if self.main_metric not in self.metrics:
            raise ValueError(
                f"main_metric {self.main_metric!r} is not among metrics {list(self.metrics)}"
            )
        return self


def cards_folder() -> Path:
    """Return the folder of bundled cards: `ttabench/tasks` in a wheel, `tasks/` in a checkout."""
    package = Path(__file__).resolve().parents[1]
    return package / "tasks" if (package / "tasks").is_dir() else package.parent / "tasks"


CARDS = Registry[Card](
    "task",
    {path.stem: str(path) for path in sorted(cards_folder().glob("*.yaml"))},
    load=cache(lambda path: _read_card(Path(path))),
)
"""Cards of the bundled tasks."""


def load_card(name: str) -> Card:
    """Load the card of a bundled task, or a YAML file (a path with a slash or ending in
    .yaml/.yml).

    Raises:
        UnknownName: no bundled task has that name, or the card names an unknown metric.
        UserError: the file is missing, not YAML, does not fit `Card`, or has the name of a bundled
            task.
    """
    if "/" not in name and not name.endswith((".yaml", ".yml")):
        return CARDS.find(name)
    card = _read_card(Path(name))
    if card.name in CARDS and card != CARDS[card.name]:
        raise UserError(
            f"{name}: the name {card.name!r} belongs to a bundled task.",
            "Choose a new name: it distinguishes the results.",
        )
    return card


def load_yaml(path: Path) -> object:
    """Load a YAML file: a task card, or a mixture of tasks.

    Raises:
        UserError: see `read_checked_yaml`.
    """
    text = read_checked_yaml(path, "task card")
    with reading_file(path):
        return YAML_LOADER(text).get_single_data()


def _read_card(path: Path) -> Card:
    data = load_yaml(path)
    try:
        # JSON: strict mode then takes lists for tuples, but no number for a text (arxiv: 2205.1)
        card = Card.model_validate_json(json.dumps(data, default=str), strict=True)
    except ValidationError as error:
        raise UserError(*first_validation_error(error, f"The task card {path}", Card)) from None
    except (TypeError, ValueError):
        raise UserError(
            f"{path} is not a task card.", "Use a mapping of plain values at its top level."
        ) from None
    for name in (
        *card.metrics,
        *(name for part in card.profiles.values() for name in part.metrics),
    ):
        metric(name)
    return card


# libyaml, where it is compiled in, is many times as fast
YAML_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read_checked_yaml(path: Path, kind: str) -> str:
    """Read a YAML file of some kind ("task card"); refuse aliases, which can expand beyond any
    memory, and deep nesting.
    """
    text, depth = read_text(path, MAX_YAML_BYTES), 0
    with reading_file(path):
        for token in yaml.scan(text, Loader=YAML_LOADER):
            name, where = type(token).__name__, f"{path} line {token.start_mark.line + 1}"
            depth += name.endswith(("SequenceStartToken", "MappingStartToken"))
            depth -= name.endswith(("SequenceEndToken", "MappingEndToken", "BlockEndToken"))
            if depth > MAX_YAML_DEPTH:  # scanning takes time quadratic in the depth
                raise UserError(
                    f"{where}: a {kind} must not nest deeper than {MAX_YAML_DEPTH}.",
                    "Fix that line.",
                )
            if isinstance(token, yaml.AliasToken):
                raise UserError(
                    f"{where}: a {kind} must not use aliases (*{token.value}).",
                    "Use the value itself.",
                )
    return text
