"""Numbers as people read them: in tables, sentences and messages.

number(1234.56)  ->  1,234.6          size(3 * 2**20)  ->  3.0 MiB          count(1.2e6)  ->  1.20 M
"""

from __future__ import annotations

LARGE = 1e9
"""From here on a number is shown by its order of magnitude."""


def number(value: float | int | None, digits: int = 1) -> str:
    """A number for people; "-" where there is none. What rounds to nothing has no sign."""
    if value is None:
        return "-"
    text = f"{value:,.{digits}f}" if abs(value) < LARGE else f"{value:.2e}"
    return text if text.strip("-0.") else text.removeprefix("-")


def plus_minus(value: float, stderr: float | None, scale: float = 1.0, digits: int = 1) -> str:
    """`71.2 ± 1.1`; without a standard error only the value."""
    text = number(value * scale, digits)
    return text if stderr is None else f"{text} ± {number(stderr * scale, digits)}"


def size(count: float | int | None) -> str:
    """Bytes for people, in powers of 1,024."""
    if count is None:
        return "-"
    left = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(left) < 1024 or unit == "GiB":
            break
        left /= 1024
    return f"{left:,.0f} {unit}" if unit == "B" or left >= 100 else f"{left:,.1f} {unit}"


def count(value: float | int | None) -> str:
    """A large count for people: 1.2 M, 3.4 G, 5.6 T."""
    if value is None:
        return "-"
    left = float(value)
    for unit in ("", " k", " M", " G", " T", " P"):
        if abs(left) < 1000 or unit == " P":
            break
        left /= 1000
    return f"{left:,.0f}{unit}" if unit == "" else f"{left:,.2f}{unit}"


def figure(name: str, value: str | int | float | None) -> str:
    """A figure of a record for people; its name says its unit."""
    if isinstance(value, str) or value is None:
        return value or "-"
    if name.endswith("_bytes"):
        return size(value)
    return f"{value:,}" if isinstance(value, int) else number(value, 3)
