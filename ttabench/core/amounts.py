"""Numbers as people read them: in tables, sentences and messages.

number(1234.56)  ->  1,234.6          size(3 * 2**20)  ->  3.0 MiB          count(1.2e6)  ->  1.20 M

And as people write them, `16k` tokens and `4GiB` of memory: options, tasks and methods all read them here.

lengths("1k,4k,1m")  ->  (1024, 4096, 1048576)          memory("1.5GiB")  ->  1610612736
"""

from __future__ import annotations

import re

from ttabench.core.errors import UserError

MIN_SCIENTIFIC_NOTATION = 1e9
"""From here on a number is shown by its order of magnitude."""


def format_number(value: float | int | None, digits: int = 1) -> str:
    """A number for people; "-" where there is none. What rounds to nothing has no sign."""
    if value is None:
        return "-"
    text = f"{value:,.{digits}f}" if abs(value) < MIN_SCIENTIFIC_NOTATION else f"{value:.2e}"
    return text if text.strip("-0.") else text.removeprefix("-")


def format_with_stderr(
    value: float, stderr: float | None, scale: float = 1.0, digits: int = 1
) -> str:
    """`71.2 ± 1.1`; without a standard error only the value."""
    text = format_number(value * scale, digits)
    return text if stderr is None else f"{text} ± {format_number(stderr * scale, digits)}"


def _scale_to_unit(value: float, step: int, units: tuple[str, ...]) -> tuple[float, str]:
    """A value in the largest of these units in which it is at least 1, each `step` times the one before."""
    for unit in units:
        if abs(value) < step or unit == units[-1]:
            break
        value /= step
    return value, unit


def format_bytes(count: float | int | None) -> str:
    """Bytes for people, in powers of 1,024."""
    if count is None:
        return "-"
    left, unit = _scale_to_unit(float(count), 1024, ("B", "KiB", "MiB", "GiB"))
    return f"{left:,.0f} {unit}" if unit == "B" or left >= 100 else f"{left:,.1f} {unit}"


def format_count(value: float | int | None) -> str:
    """A large count for people: 1.2 M, 3.4 G, 5.6 T."""
    if value is None:
        return "-"
    left, unit = _scale_to_unit(float(value), 1000, ("", " k", " M", " G", " T", " P"))
    return f"{left:,.2f}{unit}" if unit else f"{left:,.0f}"


def format_figure(name: str, value: str | int | float | None) -> str:
    """A figure of a record for people; its name says its unit."""
    if isinstance(value, str) or value is None:
        return value or "-"
    if name.endswith("_bytes"):
        return format_bytes(value)
    return f"{value:,}" if isinstance(value, int) else format_number(value, 3)


CHARS_PER_TOKEN = 4
"""Of English text, where no tokenizer is at hand."""
TOKEN_UNITS = {"": 1, "k": 2**10, "m": 2**20}
BYTE_UNITS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}


def parse_tokens(text: str) -> int | None:
    """`"16k"` as a number of tokens; k is 1,024 and m is 1,048,576, in either case. None where it says none."""
    match = re.fullmatch(r"([0-9]{1,9})([km]?)", text.strip().lower(), re.ASCII)
    return int(match[1]) * TOKEN_UNITS[match[2]] if match else None


def parse_lengths(text: str) -> tuple[int, ...]:
    """`"1k,4k"`, as `--prefill` takes it, as numbers of tokens, ascending, each once."""
    counts = {part.strip(): parse_tokens(part) or 0 for part in text.split(",")}
    for part, count in counts.items():
        if count < 1:
            raise UserError(
                f"--prefill {part!r} is no length.", "Write tokens from 1 up, like 512, 16k or 1m."
            )
    return tuple(sorted(set(counts.values())))


def parse_memory(text: str) -> int:
    """`"4GiB"`, `"4g"` or `"4GB"` as bytes, in powers of 1,024."""
    match = re.fullmatch(
        r"([0-9]{1,12}(?:\.[0-9]{1,6})?)\s*([kmgt]?)(?:i?b)?", text.strip().lower(), re.ASCII
    )
    count = int(float(match[1]) * BYTE_UNITS[match[2]]) if match else 0
    if count < 1:
        raise UserError(
            f"--memory-limit {text!r} is no amount of memory.", "Write it like 512MiB or 4GiB."
        )
    return count


def format_tokens(count: int) -> str:
    """A number of tokens as `tokens_in` reads it, in its largest whole unit: 16384 is `16k`."""
    for unit in ("m", "k"):
        if count and count % TOKEN_UNITS[unit] == 0:
            return f"{count // TOKEN_UNITS[unit]}{unit}"
    return str(count)
