"""Good inputs made bad, by a generator of random numbers that a case's name seeds."""

from __future__ import annotations

import copy
import json
import os
import struct
from pathlib import Path
from random import Random
from typing import Any

DEEP: Any = "x"
for _ in range(60):
    DEEP = [DEEP]
HOSTILE: list[Any] = [
    None, True, False, -1, 0, 1, 1.5, 1e308, float("nan"), float("inf"), 10**12, 10**30, "", " ", "x", "\x1b[2J\x07",
    "\u202ea", "é漢𝄞", "\x00", "x" * 3000, "../../etc/passwd", "/etc/passwd", "~", "${HOME}", "-1", "1e9", "NaN", [],
    {}, [[]], [None], {"a": None}, {"": 1}, DEEP, ["x"] * 50,
]  # fmt: skip
"""Values that fit nowhere, or look as if they did."""
TYPED = [
    "", " ", "-1", "0", "1.5", "x", "NaN", "inf", "1e9", "٣", "9" * 30, "9" * 5000, "../x", "/", ".", "~", "é漢",
    "\x1b[2J", "a=b", "=", "a=", "=b", ",", "1,,2", "--", "none", "auto", "mini", "x" * 300, "a\nb", "\ud800", "*",
    "a**b", "[", "$(id)",
]  # fmt: skip
"""What somebody may type."""


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) below a JSON value."""
    found: list[tuple[Any, Any]] = []
    todo = [value]
    while todo:
        at = todo.pop()
        keys = list(at) if isinstance(at, dict) else list(range(len(at))) if isinstance(at, list) else []
        found += [(at, key) for key in keys]
        todo += [at[key] for key in keys]
    return found


def value_of(value: Any, random: Random) -> Any:
    """A JSON value with one to three places changed, dropped, doubled or added."""
    changed = copy.deepcopy(value)
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        inside = places(changed)
        if not inside or random.random() < 0.03:
            changed = random.choice(HOSTILE)
            continue
        container, key = random.choice(inside)
        how = random.random()
        if how < 0.2:
            del container[key]
        elif how < 0.3 and isinstance(container, dict):
            container[random.choice(["", "extra", "\x1b[1m", key + " "])] = random.choice(HOSTILE)
        elif how < 0.4:
            container[key] = [container[key]] if random.random() < 0.5 else {"a": container[key]}
        elif how < 0.5 and isinstance(container[key], str):
            container[key] += random.choice(["\x1b", " ", "x", "\u202e"])
        elif how < 0.6 and isinstance(container[key], int | float):
            container[key] *= random.choice([-1, 0, 2, 1000, 0.5])
        else:
            container[key] = copy.deepcopy(random.choice(HOSTILE))
    return changed


def json_text(value: Any, random: Random) -> bytes:
    """A JSON text that is damaged in what it says, or as a text."""
    how = random.random()
    if how < 0.7:
        return json.dumps(value_of(value, random), ensure_ascii=random.random() < 0.5).encode("utf-8", "replace")
    if how < 0.75:
        return random.choice([b"", b"null", b"[" * 100_000, b'{"a":' * 50_000, b'"\\ud800"', b"\xef\xbb\xbf{}", b"NaN"])
    return bytes_of(json.dumps(value).encode(), random)


def bytes_of(data: bytes, random: Random) -> bytes:
    """Bytes cut, turned over, doubled, filled or put in."""
    made = bytearray(data)
    for _ in range(random.choice((1, 1, 2, 4))):
        at = random.randrange(len(made)) if made else 0
        more = random.randbytes(random.choice((1, 2, 8, 64)))
        how = random.randrange(8)
        if how == 0:
            del made[at:]
        elif how == 1:
            del made[at : at + random.choice((1, 3, 100))]
        elif how == 2:
            made[at:at] = more
        elif how == 3:
            made[at:at] = made[at : at + 50]
        elif how == 4:
            made[at : at + 8] = bytes(8)
        elif how == 5:
            made[at:at] = random.choice(
                [b'"', b"\n", b"\r", b",", b"\x00", b"\t", b"\xff\xfe", b"{", b"\\", b"\x1b[2J"]
            )
        elif made:
            made[at] ^= 1 << random.randrange(8)
    return bytes(made)


def place(path: Path, random: Random) -> None:
    """Put something else where a file was: nothing, a folder, a pipe, a link to nothing or to itself."""
    path.unlink()
    how = random.randrange(5)
    if how == 0:
        return
    if how == 1:
        path.mkdir()
    elif how == 2:
        os.mkfifo(path)
    else:
        path.symlink_to(path.name if how == 3 else "nowhere")


def safetensors(data: bytes, random: Random) -> bytes:
    """A safetensors file with another header that is valid JSON, with other values, or damaged anywhere."""
    how = random.random()
    if how < 0.4:
        return bytes_of(data, random)
    size = struct.unpack("<Q", data[:8])[0]
    header, body = json.loads(data[8 : 8 + size]), bytearray(data[8 + size :])
    if how < 0.8:
        if random.random() < 0.5:
            names = [name for name in header if name != "__metadata__"]
            old = random.choice(names)
            found = header.pop(old)
            kinds = ["F16", "BF16", "F64", "I32", "U8", "BOOL", "F8_E4M3", "X", ""]
            changes = [
                {"dtype": random.choice(kinds)},
                {"shape": found["shape"][::-1]},
                {"shape": [*found["shape"], 1]},
                {},
            ]
            header[old + random.choice(["", "x"])] = {**found, **random.choice(changes)}
        else:
            header = value_of(header, random)
        text = json.dumps(header).encode("utf-8", "replace")
        return struct.pack("<Q", len(text)) + text + bytes(body)
    for _ in range(3):
        at = random.randrange(max(1, len(body) // 4)) * 4
        body[at : at + 4] = struct.pack("<f", random.choice([float("nan"), float("inf"), -float("inf"), 1e30]))
    return data[: 8 + size] + bytes(body)


def file(path: Path, random: Random) -> None:
    """Damage one file by what it holds."""
    data = path.read_bytes()
    if random.random() < 0.12:
        place(path, random)
    elif path.suffix == ".safetensors":
        path.write_bytes(safetensors(data, random))
    elif path.suffix == ".json":
        path.write_bytes(json_text(json.loads(data), random))
    elif path.suffix == ".jsonl":
        lines = data.splitlines(keepends=True)
        at = random.randrange(len(lines))
        lines[at] = json_text(json.loads(lines[at]), random) + b"\n"
        path.write_bytes(b"".join(lines) if random.random() < 0.7 else bytes_of(data, random))
    else:
        path.write_bytes(bytes_of(data, random))
