"""The record of a run: one JSON file with its configuration, environment and figures.

    OUT/<run id>/run.json          the record, written last: if it exists, the run is finished
    OUT/<run id>/samples.parquet   one row per query: prompt, prediction, answers, metrics, ms
    OUT/<run id>/partial.jsonl     finished queries of an unfinished run (see folder.py)

Runs of a suite can be packed (see results/packing.py), and runs of others come in one file. A run
in a folder of its own replaces a packed one:

    OUT/runs.parquet               one row per run: id, creation time, `record` (text of run.json)
    OUT/samples.parquet            samples of all runs by `run`; `own_columns` names a run's columns
    OUT/scores.parquet             the same without texts, if they may not be published
    lab-b.parquet                  runs of others: scores.parquet, with `created` and `record` in
                                   the first row of each run

Tables are computed from records. All figures of a record are in its tidy `rows`, one number per
row.
"""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeAlias, get_type_hints

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PositiveInt

from ttabench.core.declared import create_fields_model
from ttabench.core.errors import UserError
from ttabench.core.files import open_parquet, parse_json, read_json, reading_file, write_atomically
from ttabench.core.types import Json
from ttabench.records.run_fields import RunConfig
from ttabench.stats.clusters import SamplingUnit, sampling_unit
from ttabench.stats.metrics import METRIC_FIELDS, register_metric

SCHEMA_VERSION = 2
"""2: the id is a hash of the values that differ from the defaults."""
RECORD_FILE = "run.json"
SAMPLES_FILE = "samples.parquet"
"""Samples of a run in its folder, or of all runs of a packed suite."""
RUNS_FILE = "runs.parquet"
TRASH_FOLDER = ".trash"
"""Removed runs of a folder of runs. They are not found until they are moved back."""
RECORD_REMEDY = "Restore it, run again with --force, or remove its folder."
PACKED_REMEDY = "Restore it. It contains packed runs."
SUBMISSION_SUFFIX = ".parquet"
SUBMISSION_REMEDY = "Use a file that `ttabench export` wrote."
Proportion = Annotated[float, Field(gt=0, le=1)]
RECORD_TYPES: dict[str, dict[str, Any]] = {
    "config": {
        **get_type_hints(RunConfig),
        "keep": Proportion | None,
        "keep_tokens": PositiveInt | None,
    },
    "method": {"name": str, "settings": dict[str, Json], "preset": str, "parameters": int},
    "model": {
        "name": str,
        "parameters": int,
        "positions": int,
        "fingerprint": str,
        "tokenizer": str,
        "device": str,
        "dtype": str,
        "stands_on": dict[str, Json],
    },
    "task": {
        "task": str,
        "reader": str,
        "unit": SamplingUnit,
        "main_metric": str,
        "chance": float | None,
        "protocol": dict[str, Json],
        "arguments": dict[str, Json],
    },
    "hardware": {"memory_bytes": int | None},
}
"""Types of values in the groups of a record, so that a damaged record is refused early.

Every name may be missing. Names that are not listed may have any JSON value, because earlier
versions and tasks of others have more.
"""


def _types_validator(field_types: dict[str, Any]) -> AfterValidator:
    """Validator of the types of a group's values; it returns the group unchanged."""
    model = create_fields_model(field_types)

    def validate_values(values: dict[str, Json]) -> dict[str, Json]:
        model.model_validate(values)
        return values

    return AfterValidator(validate_values)


RECORD_TYPES["task"]["declared"] = dict[
    str, Annotated[dict[str, Json], _types_validator(METRIC_FIELDS)]
]


class Row(BaseModel):
    """One number of a run, in the tidy form that tables and plots are made from."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    run: str
    method: str
    task: str
    source: str
    model: str
    seed: int
    step: int | None = None
    """Chunks read before the query, or the length up to which a text was read; `None` for a
    figure over all steps."""
    subtask: str | None = None
    """Sub-task or book, or "mean" for the mean over them; `None` for a figure over all queries."""
    context_tokens: float | None = None
    """Mean tokens of context read before the query."""
    metric: str
    value: float
    n: int
    stderr: float | None = None
    ci_low: float | None = None
    ci_high: float | None = None
    weight: float | None = None
    """Number of units that the value is a mean over (tokens, words, texts); `None` if these are
    the n queries."""


class RunRecord(BaseModel):
    """Everything needed to read, compare and repeat one run. JSON values only."""

    model_config = ConfigDict(frozen=True)

    schema_version: int = SCHEMA_VERSION
    id: str
    created: str
    """UTC, ISO 8601."""
    config: Annotated[dict[str, Json], _types_validator(RECORD_TYPES["config"])]
    method: Annotated[dict[str, Json], _types_validator(RECORD_TYPES["method"])]
    """Settings in use, including defaults; preset, growth, checkpoint with its training record."""
    model: Annotated[dict[str, Json], _types_validator(RECORD_TYPES["model"])]
    """Name, parameters, fingerprint, tokenizer, dtype, device."""
    task: Annotated[dict[str, Json], _types_validator(RECORD_TYPES["task"])]
    """Card name, source, protocol, counts, metrics; for metrics of others, their declaration."""
    source: str
    seeds: dict[str, int]
    n: int
    """Queries answered."""
    sample_digests: dict[str, str] = Field(default_factory=dict)
    """Digests of the sample columns, see `column_digest`. Records of older versions lack them."""
    rows: tuple[Row, ...]
    cost: dict[str, float | int | None]
    """adapt_seconds (including encode_seconds, for the patch that all queries share), ask_ms,
    state_bytes (kept between queries), patch_bytes, peak_memory_bytes, pieces, tokens_read ...

    Totals of the run, including loading: wall_seconds, cpu_seconds, and the machine's load average
    over one minute at start and end (`None` if the system has none). Records of older versions lack
    these.
    """
    dropped: dict[str, int]
    """Unused rows of the source, by reason."""
    auto: dict[str, Json] = Field(default_factory=dict)
    """Resolved values of options and settings that are "auto". Records of older versions lack
    it."""
    notes: tuple[str, ...] = ()
    versions: dict[str, str]
    hardware: Annotated[dict[str, Json], _types_validator(RECORD_TYPES["hardware"])]
    determinism: dict[str, Json]
    code: dict[str, Json]

    def model_post_init(self, _: Any) -> None:
        """Register the display of metrics of others.

        Raises:
            UserError: another record declares a metric of the same name differently.
        """
        for name, declared in self.task.get("declared", {}).items():
            register_metric(name, declared, f"run {self.id}")

    def value(self, metric: str) -> Row | None:
        """Find the row of a metric over all steps and sub-tasks."""
        totals = (row for row in self.rows if row.step is None and row.subtask is None)
        return next((row for row in totals if row.metric == metric), None)

    @property
    def base(self) -> str:
        """Name of the base model in tables, see `RunConfig.base`."""
        return self.rows[0].model if self.rows else str(self.config.get("model", ""))

    @property
    def state_of(self) -> str:
        """The state that answered, one of `run_fields.ANSWERING_STATES`."""
        return str(self.config.get("state_of", "own"))

    @property
    def unit(self) -> SamplingUnit:
        """The sampling unit of the task, see `stats.clusters`."""
        return sampling_unit(self.task)

    @property
    def main_metric(self) -> str:
        """The main metric of the task."""
        return str(self.task.get("main_metric") or (self.rows[0].metric if self.rows else ""))


FileVersion: TypeAlias = tuple[Path, tuple[int, ...]]
"""A path with inode, size and modification time, or () if the file is missing; the key of read
caches."""


class PackedRun(NamedTuple):
    """Record and creation time of a packed run."""

    record: str
    created: str


def record_text(record: RunRecord) -> str:
    """Format a record as the text of `run.json`."""
    return json.dumps(record.model_dump(mode="json"), indent=1, ensure_ascii=False) + "\n"


def save_record(record: RunRecord, folder: Path) -> None:
    """Write `run.json` in the run's folder."""
    write_atomically(folder / RECORD_FILE, record_text(record))


def is_stored(folder: Path) -> bool:
    """Return True if the record of this run exists, in its folder or packed with its suite."""
    return (folder / RECORD_FILE).exists() or folder.name in packed_runs(folder.parent)


def load_record(path: Path) -> RunRecord:
    """Load a record from `run.json`, a run's folder, or a packed file (`lab-b.parquet/ID`).

    Raises:
        UserError: the record is missing, damaged, or of another schema version.
    """
    file = path / RECORD_FILE if path.is_dir() else path
    if file.name == RUNS_FILE:
        packed_runs(file.parent)  # raises a more specific error
    if file.name != RECORD_FILE and file.exists():
        raise UserError(
            f"{path} is not a run record.", f"Use the folder of a run, or its {RECORD_FILE}."
        )
    packed = None if file.is_file() else packed_runs(path.parent).get(path.name)
    if packed is None and not file.exists():
        raise UserError(f"{path} has no run record.", "Run `ttabench list runs` to see all runs.")
    with reading_file(file, RECORD_REMEDY, max_bytes=None):
        content = (
            read_json(file, hint=RECORD_REMEDY) if packed is None else parse_json(packed.record)
        )
        if (version := content["schema_version"]) != SCHEMA_VERSION:
            fault = f"The record {file} has schema version {version!r:.20}, not {SCHEMA_VERSION}."
            raise UserError(fault, "Use the ttabench version that wrote it, or run it again.")
        return RunRecord.model_validate(content)


def submission_file(run: Path) -> Path | None:
    """Return the submission file that contains a run; `None` for a run in a folder."""
    return run.parent if run.parent.suffix == SUBMISSION_SUFFIX and run.parent.is_file() else None


def is_submission(file: Path) -> bool:
    """Return True if the file is a readable submission."""
    try:
        return file.suffix == SUBMISSION_SUFFIX and file.is_file() and bool(packed_runs(file))
    except UserError:
        return False


def packed_runs(suite: Path) -> dict[str, PackedRun]:
    """Read the packed runs of a suite or a submission by id, oldest first; {} if there are none."""
    is_single_file = suite.suffix == SUBMISSION_SUFFIX and suite.is_file()
    path, version = file_version(suite if is_single_file else suite / RUNS_FILE)
    return _runs(path, version, is_single_file) if version else {}


@lru_cache(maxsize=64)
def _runs(path: Path, _version: tuple[int, ...], is_single_file: bool) -> dict[str, PackedRun]:
    names = ("run" if is_single_file else "id", "record", "created")
    with open_parquet(path, SUBMISSION_REMEDY if is_single_file else PACKED_REMEDY) as (file, _):
        if missing := [name for name in names if name not in file.schema_arrow.names]:
            raise ValueError(f"it has no column {missing[0]}")
        table = file.read(columns=list(names))
        if is_single_file:
            table = table.filter(table["record"].is_valid())
        run_names, records, created = (text_column(table, name) for name in names)
        return {
            name: PackedRun(*values)
            for name, *values in zip(run_names, records, created, strict=True)
        }


def file_version(path: Path) -> FileVersion:
    """Return the current version of a file."""
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return path, ()
    return path, (status.st_ino, status.st_size, status.st_mtime_ns)


def text_column(table: Any, name: str) -> list[str]:
    """Return a column of a `pyarrow.Table` as texts.

    Raises:
        ValueError: a value is not a text.
    """
    values: list[str] = table[name].to_pylist()
    if not all(isinstance(value, str) for value in values):
        raise ValueError(f"the column {name} has values that are not texts")
    return values
