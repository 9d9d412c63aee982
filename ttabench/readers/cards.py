"""Task cards: one YAML file a task, literal data only (source, splits, prompts, protocol, metrics, paper, licence).

What a card may say is the model `Card`; unknown fields are refused. Its protocol is checked by its reader. Shipped
cards lie in `tasks/` (inside the package in a wheel).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Annotated, Literal

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    model_validator,
)

from ttabench.core.declared import first_validation_error
from ttabench.core.errors import UnknownName, UserError
from ttabench.core.files import read_text, reading_file
from ttabench.core.types import Choose, Generate
from ttabench.stats.clusters import SamplingUnit
from ttabench.stats.metrics import metric

Scalar = str | int | float | bool | None
STRICT_CONFIG = ConfigDict(strict=True, extra="forbid", frozen=True)
"""Of the models that a card is made of: values are of their type, and none is unknown."""
Slug = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9_]*$")]
"""Of a task or sub-task."""
MAX_YAML_BYTES, MAX_YAML_DEPTH = 2**17, 32
"""Of a card, or another file in YAML: its length, and how far values stand within each other."""


def _check_relative_path(path: str) -> str:
    if (
        not path
        or "\\" in path
        or PurePosixPath(path).is_absolute()
        or ".." in PurePosixPath(path).parts
    ):
        raise ValueError(f"{path!r} is no path below the folder that is given")
    return path


RelativePath = Annotated[str, AfterValidator(_check_relative_path)]
"""A file name, or the path of a folder, below the folder given with --source."""


class _CardModel(BaseModel):
    model_config = STRICT_CONFIG


class ProtocolSettings(BaseModel):
    """Base of the settings of every reader."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Hub(_CardModel):
    """A data set of the Hugging Face hub."""

    path: str
    config: RelativePath | None = None
    revision: str | None = None
    """Commit, or a branch; a branch and None mean unpinned, which every record then says."""


class Articles(_CardModel):
    """A companion file that holds the texts when the question file holds only a reference to them."""

    files: tuple[RelativePath, ...]
    """File names without suffix, looked for beside the question file."""
    key: tuple[str, ...]
    text: tuple[str, ...]


class Source(_CardModel):
    """Where the real data come from."""

    hub: Hub | None = None
    folders: tuple[RelativePath, ...] = ()
    """Names of the top folder that the published archive or repository makes where it is unpacked."""
    answers: Literal["joined", "literal", "single"] = "single"
    """How an answer cell that is a plain string is read: backslash-joined, a Python literal, or one answer."""
    articles: Articles | None = None
    how: str = ""
    """One sentence for users who lack the data."""


class Split(_CardModel):
    """Where one split lies in each source."""

    files: tuple[RelativePath, ...] = ()
    """File names without suffix that hold exactly this split."""
    whole: tuple[RelativePath, ...] = ()
    """File names without suffix that hold a published split of which this one is `rows`."""
    hub: str | None = None
    rows: tuple[int, int] | None = None
    """First row and the row after the last, in the published split."""
    of: int | None = None
    """Number of rows of the published split: `rows` means nothing in a file of another length."""
    twin: Literal["train", "validation", "test"] = "test"
    """The split of the miniature twin that stands for it."""
    note: str = ""
    """Said in every record of real data: what is asked, where the publisher's split of this name is not."""


class SubTask(_CardModel):
    """One multiple-choice task of a card: where its rows are, what shape they have, and the words around them."""

    shape: Literal["labels", "copa", "pair", "letters", "endings", "blank"]
    """How a row becomes options, see `readers.choices`."""
    hub: Hub
    folders: tuple[RelativePath, ...] = ()
    """Its folder in the published layout, from the archive's top folder or any further down."""
    columns: dict[str, tuple[str, ...]]
    """Field -> names of that column in the published layouts; the first one present counts."""
    train: Split
    """The rows demonstrations are drawn from."""
    test: Split
    """The rows that papers score."""
    templates: dict[str, str]
    """Prompts by name; `{field}` stands for a field of the row. Demonstrations always use "lm_eval"."""
    options: tuple[str, ...] = ()
    """Answer words by label, where a label stands for a word."""
    labels: tuple[str, ...] = ()
    """Names of the labels in files that spell them out, in the order of their numbers."""

    @model_validator(mode="after")
    def _check_templates(self) -> SubTask:
        if "lm_eval" not in self.templates:
            raise ValueError(f"templates must have 'lm_eval', received {list(self.templates)}")
        if self.shape == "labels" and len(self.options) < 2:
            raise ValueError(f"shape 'labels' needs options, received {list(self.options)}")
        return self


class ChatPrompt(_CardModel):
    """How questions are asked."""

    prompt: str
    """Name of a template."""
    examples: Annotated[int, Field(ge=0)] = 0
    """Worked examples in front of every question."""
    turns: bool = True
    """Context and question are a turn of the chat template."""


class Prompt(_CardModel):
    """Literal texts around the data."""

    templates: dict[str, str] = {}
    """Question templates by name; `{question}` is replaced, nothing else is. Sub-tasks have templates of their own."""
    delimiter: str = " "
    joiner: str = "\n\n"
    examples: tuple[tuple[str, str], ...] = ()
    """Questions with their answers that a prompt may show in front of its own (`examples=2`): no rows of the data."""
    chat: ChatPrompt | None = None
    """How models with a chat template are asked where nothing is said; none: like any other."""
    stops: tuple[str, ...] = ()
    """Texts that end a generated answer."""
    leads: tuple[str, ...] = ()
    """Words that are taken off the front of a generated answer."""

    def fill_template(self, question: str, template: str, examples: int = 0) -> str:
        """A question in the words of a template, behind so many worked examples."""
        words = self.templates[template]
        shown = [
            words.replace("{question}", text) + self.delimiter + answer
            for text, answer in self.examples
        ]
        return self.joiner.join([*shown[:examples], words.replace("{question}", question)])

    def make_generate(self, answers: tuple[str, ...] = (), max_new_tokens: int = 16) -> Generate:
        """The want of a query that is answered by writing."""
        return Generate(
            answers=answers,
            delimiter=self.delimiter,
            max_new_tokens=max_new_tokens,
            stops=self.stops,
            leads=self.leads,
        )

    def make_choose(self, options: Sequence[str], answer: str) -> Choose:
        """The want of a query that is answered by one of the options."""
        texts = tuple(self.delimiter + option for option in options)
        return Choose(options=texts, gold=options.index(answer), delimiter=self.delimiter)

    @model_validator(mode="after")
    def _check_placeholders(self) -> Prompt:
        for name, template in self.templates.items():
            if template.count("{question}") != 1:
                raise ValueError(
                    f"template {name!r} must hold {{question}} once, received {template!r}"
                )
        return self


class Profile(_CardModel):
    """One sub-task of users and their profiles, for the reader `lamp`."""

    folders: tuple[RelativePath, ...]
    """Its folder in the published layout."""
    entry: str
    """An entry of a profile in words; `{column}` stands for a column of the entry."""
    marker: str
    """Ends the instruction within a published input; the text it is about follows."""
    text: str = ""
    """Column of an entry that holds a text like the one that is asked about; empty where there is none."""
    output: str = ""
    """Column of an entry that holds its answer; likewise."""
    options: tuple[str, ...] = ()
    """Answers to choose from; without, an answer is written."""
    metrics: Annotated[tuple[str, ...], Field(min_length=1)]
    """The first is the main one."""
    chance: float | None = None
    """See `Card.chance`."""


class SyntheticVersion(_CardModel):
    """The generator of the task's miniature twin, and what differs from the protocol there."""

    generator: Annotated[str, StringConstraints(pattern=r"^ttabench\.mini\.[a-z0-9_]+:[a-z0-9_]+$")]
    """Only the package's own miniature world may be named: a card is data and must not run other code."""
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
    """Field of the reader's row type -> names of that column in the published layouts; the first one present counts."""
    parts: dict[Slug, SubTask] = {}
    """Sub-tasks by name, for the reader `demonstrations`; its cards have no columns of their own."""
    profiles: dict[Slug, Profile] = {}
    """Sub-tasks by name, for the reader `lamp`, whose cards have no columns either; the first has the twin."""
    splits: dict[str, Split]
    prompt: Prompt = Prompt()
    protocol: dict[str, Scalar] = {}
    metrics: Annotated[tuple[str, ...], Field(min_length=1)]
    main_metric: str
    chance: float | None = None
    """Main metric (0 to 1) of an answer drawn without reading; null where nothing is drawn (perplexity)."""
    unit: SamplingUnit = "query"
    """The unit that varies from one reader to the next: errors of figures are over it."""
    twin: SyntheticVersion | None = None

    def with_metrics(self, main: str, *others: str, **more: object) -> Card:
        """The card with these metrics, the main one first, and other changes."""
        return self.model_copy(update={"metrics": (main, *others), "main_metric": main, **more})

    @model_validator(mode="after")
    def _check_columns_and_metrics(self) -> Card:
        if not self.columns and not self.parts and not self.profiles:
            raise ValueError("columns or parts must say what the rows hold")
        if self.main_metric not in self.metrics:
            raise ValueError(
                f"main_metric {self.main_metric!r} is not among metrics {list(self.metrics)}"
            )
        return self


def cards_folder() -> Path:
    """The folder of the shipped cards: `ttabench/tasks` of a wheel, `tasks/` of a checkout."""
    package = Path(__file__).resolve().parents[1]
    return package / "tasks" if (package / "tasks").is_dir() else package.parent / "tasks"


def card_names() -> list[str]:
    """Names of the shipped tasks, sorted."""
    return sorted(path.stem for path in cards_folder().glob("*.yaml"))


def load_card(name: str) -> Card:
    """The card of a shipped task, or of the YAML file at a path (anything with a slash or ending in .yaml/.yml).

    Raises:
        UnknownName: no shipped task has that name, or the card names a metric that does not exist.
        UserError: the file is missing, is no YAML, does not fit `Card`, or takes the name of a shipped task.
    """
    if "/" not in name and not name.endswith((".yaml", ".yml")):
        if name not in card_names():
            raise UnknownName("task", name, card_names())
        return _read_card(cards_folder() / f"{name}.yaml")
    path = Path(name)
    card = _read_card(path)
    if card.name in card_names() and card != _read_card(cards_folder() / f"{card.name}.yaml"):
        raise UserError(
            f"{path}: the name {card.name!r} belongs to a shipped task.",
            "Give a changed task a new name: results are told apart by it.",
        )
    return card


def load_yaml(path: Path) -> object:
    """What a file in YAML holds: a task card, or a mixture of tasks.

    Raises:
        UserError: see `read_checked_yaml`.
    """
    text = read_checked_yaml(path, "task card")
    with reading_file(path):
        return YAML_LOADER(text).get_single_data()


def _read_card(path: Path) -> Card:
    data = load_yaml(path)
    try:
        # By way of JSON, strict mode takes lists for tuples and still refuses a number for a text (arxiv: 2205.1)
        card = Card.model_validate_json(json.dumps(data, default=str), strict=True)
    except ValidationError as error:
        raise UserError(*first_validation_error(error, f"The task card {path}", Card)) from None
    except (TypeError, ValueError):
        raise UserError(
            f"{path}: not a task card.", "Its top level must be a mapping of plain values."
        ) from None
    for name in (
        *card.metrics,
        *(name for part in card.profiles.values() for name in part.metrics),
    ):
        metric(name)
    return card


YAML_LOADER = getattr(
    yaml, "CSafeLoader", yaml.SafeLoader
)  # of libyaml, many times as fast, where it was compiled in


def read_checked_yaml(path: Path, kind: str) -> str:
    """The text of a file in YAML, a "task card" say. A few aliases stand for more values than a memory holds."""
    text, depth = read_text(path, MAX_YAML_BYTES), 0
    with reading_file(path):
        for token in yaml.scan(text, Loader=YAML_LOADER):
            name, where = type(token).__name__, f"{path} line {token.start_mark.line + 1}"
            depth += name.endswith(("SequenceStartToken", "MappingStartToken"))
            depth -= name.endswith(("SequenceEndToken", "MappingEndToken", "BlockEndToken"))
            if depth > MAX_YAML_DEPTH:  # the scanner takes the square of it
                raise UserError(
                    f"{where}: not a {kind}: nested deeper than {MAX_YAML_DEPTH}.",
                    "Mend that line.",
                )
            if isinstance(token, yaml.AliasToken):
                raise UserError(
                    f"{where}: a {kind} may hold no alias (*{token.value}).", "Write the value out."
                )
    return text
