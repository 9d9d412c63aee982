"""What tables and pictures need of a stored profile: a record that lacks it is damaged, however well it is formed.

check(json.loads(text))      nothing, or pydantic's ValidationError with the place of the fault
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from ttabench.core.types import Json
from ttabench.profiling.limits import Limits


class _Part(BaseModel):
    """What tables and pictures need of a part of a record; other keys may stand beside it."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class _Load(_Part):
    prompt_tokens: int
    generate: int


class _Resolved(_Part):
    digest: str


class _Config(_Part):
    mode: Literal["latency", "throughput", "training"]
    model: str
    random_weights: bool
    methods: dict[str, _Resolved]
    lengths: Annotated[list[int], Field(min_length=1)]
    load: _Load


class _Built(_Part):
    growth: str
    parameters: int
    notes: list[str]


class _Record(_Part):
    """A record whose tables can be shown."""

    config: _Config
    methods: dict[str, _Built]

    @model_validator(mode="after")
    def _agrees(self) -> _Record:
        if unknown := sorted(set(self.methods) - set(self.config.methods)):
            raise ValueError(f"{unknown[0]!r} is among the methods but not in config")
        return self


class _Latency(_Part):
    """Only latencies are held against the machine's limits."""

    machine: Limits


def check(content: Json) -> None:
    """Whether the JSON of a record holds all that is shown of it.

    Raises:
        ValidationError: something is missing or of another type.
    """
    if _Record.model_validate(content).config.mode == "latency":
        _Latency.model_validate(content)
