"""Formatting of numbers for tables and messages, and parsing of token and memory sizes.

format_number(1234.56)  ->  1,234.6     format_bytes(3 * 2**20)  ->  3.0 MiB
parse_lengths("1k,4k")  ->  (1024, 4096)     parse_memory("1.5GiB")  ->  1610612736
"""

from __future__ import annotations

import re

from ttabench.core.errors import UserError

MIN_SCIENTIFIC_NOTATION = 1e9
"""Smallest absolute value that is shown in scientific notation."""


def format_number(value: float | int | None, digits: int = 1) -> str:
    """Format a number; None is "-". A value that rounds to zero has no sign."""
    if value is None:
        return "-"
    text = f"{value:,.{digits}f}" if abs(value) < MIN_SCIENTIFIC_NOTATION else f"{value:.2e}"
    return text if text.strip("-0.") else text.removeprefix("-")


def format_with_stderr(
    value: float, stderr: float | None, scale: float = 1.0, digits: int = 1
) -> str:
    """Format a value with its standard error: `71.2 ± 1.1`. Without one, the value alone."""
    text = format_number(value * scale, digits)
    return text if stderr is None else f"{text} ± {format_number(stderr * scale, digits)}"


def _scale_to_unit(value: float, step: int, units: tuple[str, ...]) -> tuple[float, str]:
    """Convert to the largest unit with a value of at least 1; units differ by a factor `step`."""
    for unit in units:
        if abs(value) < step or unit == units[-1]:
            break
        value /= step
    return value, unit


def format_bytes(count: float | int | None) -> str:
    """Format bytes in binary units (powers of 1,024)."""
    if count is None:
        return "-"
    left, unit = _scale_to_unit(float(count), 1024, ("B", "KiB", "MiB", "GiB"))
    return f"{left:,.0f} {unit}" if unit == "B" or left >= 100 else f"{left:,.1f} {unit}"


def format_count(value: float | int | None) -> str:
    """Format a large count with a decimal unit: 1.20 M, 3.40 G, 5.60 T."""
    if value is None:
        return "-"
    left, unit = _scale_to_unit(float(value), 1000, ("", " k", " M", " G", " T", " P"))
    return f"{left:,.2f}{unit}" if unit else f"{left:,.0f}"


def format_figure(name: str, value: str | int | float | None) -> str:
    """Format a value of a record. The suffix `_bytes` of its name selects byte units."""
    if isinstance(value, str) or value is None:
        return value or "-"
    if name.endswith("_bytes"):
        return format_bytes(value)
    return f"{value:,}" if isinstance(value, int) else format_number(value, 3)


CHARS_PER_TOKEN = 4
"""Estimate for English text when no tokenizer is available."""
TOKEN_UNITS = {"": 1, "k": 2**10, "m": 2**20}
BYTE_UNITS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}


def parse_tokens(text: str) -> int | None:
    """Parse a number of tokens such as `16k`. k is 1,024, m is 1,048,576. None if invalid."""
    match = re.fullmatch(r"([0-9]{1,9})([km]?)", text.strip().lower(), re.ASCII)
    return int(match[1]) * TOKEN_UNITS[match[2]] if match else None


def parse_context_length(value: str | int) -> int:
    """Parse the value of `--max-context`, such as `64k`. Raises ValueError if invalid."""
    count = parse_tokens(str(value))
    if count is None:
        raise ValueError(f"{str(value)[:40]!r} must be a number of tokens, such as 8192 or 64k")
    return count


def parse_lengths(text: str) -> tuple[int, ...]:
    """Parse the value of `--prefill`, `1k,4k`, into ascending, distinct numbers of tokens."""
    counts = {part.strip(): parse_tokens(part) or 0 for part in text.split(",")}
    for part, count in counts.items():
        if count < 1:
            raise UserError(
                f"--prefill {part!r} is not a length.",
                "Use a number of tokens of at least 1, such as 512, 16k or 1m.",
            )
    return tuple(sorted(set(counts.values())))


def parse_memory(text: str) -> int:
    """Parse memory such as `4GiB`, `4g` or `4GB` into bytes. All units are powers of 1,024."""
    match = re.fullmatch(
        r"([0-9]{1,12}(?:\.[0-9]{1,6})?)\s*([kmgt]?)(?:i?b)?", text.strip().lower(), re.ASCII
    )
    count = int(float(match[1]) * BYTE_UNITS[match[2]]) if match else 0
    if count < 1:
        raise UserError(
            f"--memory-limit {text!r} is not an amount of memory.",
            "Use a value such as 512MiB or 4GiB.",
        )
    return count


def format_tokens(count: int) -> str:
    """Format a number of tokens in its largest whole unit: 16384 is `16k`."""
    for unit in ("m", "k"):
        if count and count % TOKEN_UNITS[unit] == 0:
            return f"{count // TOKEN_UNITS[unit]}{unit}"
    return str(count)
