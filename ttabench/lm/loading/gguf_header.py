"""The head of a GGUF file: architecture, quantisation, tensors and their places. Nothing else is read.

    header = read_header(Path("SmolLM2-135M-Instruct.Q4_1.gguf"))
    header.metadata["general.architecture"], header.metadata["general.file_type"], len(header.tensors)
    ->  ("llama", 3, 272)

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 2 and 3, little-endian. A head is read here,
bounds checked, before any library reads the file: a damaged length makes those run on and on.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from ttabench.core.checked_file import ANY, Unreadable, plain
from ttabench.core.errors import UserError

MAGIC = b"GGUF"
VERSIONS = (2, 3)
ALIGNMENT = 32
"""Where the head names no other."""
MOST_DIMENSIONS = 8
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9

Value: TypeAlias = str | int | float | bool | None


@dataclass(frozen=True)
class TensorInfo:
    """One tensor of the file."""

    name: str
    elements: int
    type: int
    """Number of its format, as `gguf.GGMLQuantizationType` has it."""
    offset: int
    """Bytes from the start of the data."""


@dataclass(frozen=True)
class Header:
    """The head of a GGUF file."""

    metadata: Mapping[str, Value]
    """Numbers and texts by name; lists are None."""
    tensors: tuple[TensorInfo, ...]
    data: int
    """Where the tensors begin, in bytes."""

    @property
    def architecture(self) -> str:
        """Name of the architecture, empty where the file has none."""
        return str(self.metadata.get("general.architecture") or "")


def is_gguf(file: Path) -> bool:
    """Whether the file begins as GGUF files do."""
    try:
        with plain(file, ANY).open("rb") as handle:
            return handle.read(len(MAGIC)) == MAGIC
    except (OSError, Unreadable) as error:
        raise UserError(
            f"{file} cannot be read: {getattr(error, 'strerror', None) or error}.", "Check the path."
        ) from None


def read_header(file: Path) -> Header:
    """The head of a GGUF file.

    Raises:
        UserError: no GGUF file, one of a version that is not known, or a damaged head.
    """
    if not is_gguf(file):
        raise UserError(f"{file} is no GGUF file.", "Give a .gguf file, or a folder written by save_pretrained.")
    with plain(file, ANY).open("rb") as handle, mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ) as data:
        walk = _Walk(data)
        try:
            version, tensors, entries = walk.take("IQQ")
            if version not in VERSIONS:
                hint = f"Convert it anew; versions {VERSIONS[0]} and {VERSIONS[1]}, little-endian, are read."
                raise UserError(f"{file} is a GGUF file of version {version}.", hint)
            metadata = dict(walk.entry() for _ in range(entries))
            infos = tuple(walk.tensor() for _ in range(tensors))
        except (struct.error, ValueError, OverflowError, MemoryError) as error:
            reason = "the file ends within it" if isinstance(error, struct.error) else error
            fault = f"{file} is truncated or damaged: its head cannot be read ({reason})."
            raise UserError(fault, "Download or copy it again.") from None
    alignment = metadata.get("general.alignment") or ALIGNMENT
    if not isinstance(alignment, int) or alignment < 1:
        raise UserError(f"{file} is damaged: its alignment is {alignment}.", "Download or copy it again.")
    return Header(metadata, infos, -(-walk.place // alignment) * alignment)


class _Walk:
    """Values of a GGUF head, one after the other; `struct.error` at the end of the file."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data = data
        self.place = len(MAGIC)

    def take(self, layout: str) -> tuple[int, ...]:
        values = struct.unpack_from(f"<{layout}", self.data, self.place)
        self.place += struct.calcsize(f"<{layout}")
        return values

    def skip(self, count: int) -> None:
        if count > len(self.data) - self.place:
            raise ValueError(f"something of {count:,} bytes goes past the end of the file")
        self.place += count

    def text(self) -> str:
        (length,) = self.take("Q")
        begin = self.place
        self.skip(length)
        return self.data[begin : self.place].decode("utf-8")

    def entry(self) -> tuple[str, Value]:
        name = self.text()
        return name, self.value(self.take("I")[0])

    def value(self, kind: int) -> Value:
        if kind == STRING:
            return self.text()
        if kind == ARRAY:
            self.skip_array()
            return None
        if kind not in SCALARS:
            raise ValueError(f"a value of type {kind}")
        return self.take(SCALARS[kind])[0]

    def skip_array(self) -> None:
        kind, count = self.take("IQ")
        if kind in SCALARS:
            self.skip(count * struct.calcsize(f"<{SCALARS[kind]}"))
        elif kind == STRING:
            for _ in range(count):
                self.skip(self.take("Q")[0])
        else:
            raise ValueError(f"a list of type {kind}")

    def tensor(self) -> TensorInfo:
        name = self.text()
        (dimensions,) = self.take("I")
        if dimensions > MOST_DIMENSIONS:
            raise ValueError(f"a tensor of {dimensions:,} dimensions")
        elements = 1
        for size in self.take("Q" * dimensions):
            elements *= size
        kind, offset = self.take("IQ")
        return TensorInfo(name, elements, kind, offset)
