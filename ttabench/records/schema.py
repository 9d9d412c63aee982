"""The record of a run: one JSON file with its configuration, its environment and its figures.

    OUT/<run id>/run.json          the record, written last: its presence means the run is finished
    OUT/<run id>/samples.parquet   one row a query: prompt, prediction, answers, metrics, milliseconds
    OUT/<run id>/partial.jsonl     finished queries of a run still going on (see store.py)

    OUT/runs.parquet, OUT/samples.parquet      the same of all runs of a suite (see packed.py)
    OUT/runs.parquet, OUT/scores.parquet       the same without a text (see scores.py)

Tables are computed from records and never typed. All figures of a record are in its tidy `rows`, one number a row.
"""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ttabench.core.checked_file import json_in, json_of
from ttabench.core.errors import UserError
from ttabench.core.files import write_atomically
from ttabench.core.types import Json
from ttabench.records import suite_archive
from ttabench.records.groups import ConfigGroup, HardwareGroup, MethodGroup, ModelGroup, TaskGroup
from ttabench.stats.varying import Varying, unit_of

SCHEMA = 2
"""2: the id is a hash of what differs from the defaults."""
RECORD_FILE = "run.json"
SAMPLES_FILE = "samples.parquet"
REMEDY = "Restore it, run again with --force, or remove its folder."


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
    """Pieces observed before the query, or the length up to which a text was read; None for a figure over all steps."""
    subtask: str | None = None
    """Sub-task or book, or "mean" for the mean over them; None for a figure over all queries."""
    context_tokens: float | None = None
    """Mean tokens of context read before the query."""
    metric: str
    value: float
    n: int
    stderr: float | None = None
    ci_low: float | None = None
    ci_high: float | None = None
    weight: float | None = None
    """Units that the value is a mean over (tokens, words, texts); None where these are the n queries."""


class RunRecord(BaseModel):
    """Everything needed to read, compare and repeat one run. JSON values only."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    schema_version: int = SCHEMA
    id: str
    formerly: str = ""
    """The id that it had before ids were hashes of what differs from the defaults; empty for most."""
    created: str
    """UTC, ISO 8601."""
    config: ConfigGroup
    method: MethodGroup
    """Settings in use, defaults included; preset, growth, checkpoint with its training record."""
    model: ModelGroup
    """Name, parameters, fingerprint, tokenizer, dtype, device."""
    task: TaskGroup
    """Card name, source, protocol, counts."""
    source: str
    seeds: dict[str, int]
    n: int
    """Queries answered."""
    sample_digests: dict[str, str] = Field(default_factory=dict)
    """Of the samples, by column, see `score_digests`. Records of older versions lack them."""
    rows: tuple[Row, ...]
    cost: dict[str, float | int | None]
    """adapt_seconds (encode_seconds of it to encode the patch all queries share), ask_ms, state_bytes (what is kept
    between queries), patch_bytes, peak_memory_bytes, pieces, tokens_read ...

    Of the whole run, loading included: wall_seconds, cpu_seconds, and the machine's load average over a minute at start
    and end (None where the system counts none). Records of older versions lack these."""
    paths: dict[str, str] = Field(default_factory=dict)
    """How the model was run while reading ("adapt") and answering ("ask"): lean, sdpa, eager .., see `lm.plan`; several
    joined by +. Records of older versions lack it."""
    dropped: dict[str, int]
    """Rows of the source that were not used, by reason."""
    notes: tuple[str, ...] = ()
    versions: dict[str, str]
    hardware: HardwareGroup
    determinism: dict[str, Json]
    code: dict[str, Json]

    def value(self, metric: str) -> Row | None:
        """The row of a metric over all steps and sub-tasks."""
        whole = (row for row in self.rows if row.step is None and row.subtask is None)
        return next((row for row in whole if row.metric == metric), None)

    @property
    def base(self) -> str:
        """The base model as tables name it, see `RunConfig.base`."""
        return self.rows[0].model if self.rows else str(self.config.get("model", ""))

    @property
    def state_of(self) -> str:
        """Whose state answered, one of `config.STATES_OF`."""
        return str(self.config.get("state_of", "own"))

    @property
    def unit(self) -> Varying:
        """The unit that varies from one reader to the next, see `stats.varying`."""
        return unit_of(self.task)

    @property
    def main_metric(self) -> str:
        """The metric its task is known by."""
        return str(self.task.get("main_metric") or (self.rows[0].metric if self.rows else ""))


def text_of(record: RunRecord) -> str:
    """The text of `run.json`."""
    return json.dumps(record.model_dump(mode="json"), indent=1, ensure_ascii=False) + "\n"


def save_record(record: RunRecord, folder: Path) -> Path:
    """Write `run.json` in the run's folder and return its path."""
    path = folder / RECORD_FILE
    write_atomically(path, text_of(record))
    return path


def is_stored(folder: Path) -> bool:
    """Whether the record of this run is there: in its folder, or packed with those of its suite."""
    return (folder / RECORD_FILE).exists() or suite_archive.record(folder) is not None


def load_record(path: Path) -> RunRecord:
    """Read a record from `run.json`, from the run's folder, or from where it is packed.

    Raises:
        UserError: missing, corrupted, or of another schema.
    """
    file = path / RECORD_FILE if path.is_dir() else path
    if file.name == suite_archive.RUNS_FILE:
        suite_archive.runs(file.parent)  # says what is wrong with it
    if file.name != RECORD_FILE and file.exists():
        raise UserError(f"{path} is no record of a run.", f"Give the folder of a run, or its {RECORD_FILE}.")
    try:
        text = None if file.is_file() else suite_archive.record(path)
        content = json_of(file) if text is None else json_in(text)
    except FileNotFoundError:
        raise UserError(f"No run is recorded in {path}.", "See `ttabench list runs`.") from None
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"The record {file} cannot be read ({_one_line(error)}).", REMEDY) from None
    if not isinstance(content, dict):
        raise UserError(f"The record {file} is not a JSON object.", REMEDY)
    if not isinstance(content.get("schema_version"), int):
        raise UserError(f"The record {file} is corrupted: it names no schema_version.", REMEDY)
    if content["schema_version"] != SCHEMA:
        fault = f"The record {file} has schema version {content['schema_version']}, this ttabench reads {SCHEMA}."
        raise UserError(fault, "Install the ttabench that wrote it, or run it again.")
    try:
        return RunRecord.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        place, message = ".".join(map(str, first["loc"])), first["msg"].removeprefix("Value error, ")
        raise UserError(
            f"The record {file} is corrupted: {': '.join(filter(None, (place, message)))}.", REMEDY
        ) from None


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:160]
