"""The rates of a machine, as they stand in a profile; `machine` measures them."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Limits(BaseModel):
    """Measured rates of a machine."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    flops: float
    """Operations a second of the best square matrix product; a multiply and an add are two."""
    bytes: float
    """Bytes a second of a triad, a = b + s c: two arrays read, one written."""
    dtype: str
    device: str
    threads: int

    def share(self, flops: float, moved: float, seconds: float) -> float:
        """The least time in which the machine could do this much, as a share of the time it took."""
        assert seconds > 0, f"{seconds} seconds"
        return max(flops / self.flops, moved / self.bytes) / seconds
