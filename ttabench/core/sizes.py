"""Sizes as people write them: `16k` tokens, `4GiB` of memory, and back. Options, tasks and methods all read them here.

lengths("1k,4k,1m")  ->  (1024, 4096, 1048576)          memory("1.5GiB")  ->  1610612736
"""

from __future__ import annotations

import re

from ttabench.core.errors import UserError

CHARACTERS_A_TOKEN = 4
"""Of English text, where no tokenizer is at hand."""
TOKENS = {"": 1, "k": 2**10, "m": 2**20}
BYTES = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}


def tokens_in(text: str) -> int | None:
    """`"16k"` as a number of tokens; k is 1,024 and m is 1,048,576, in either case. None where it says none."""
    match = re.fullmatch(r"([0-9]{1,9})([km]?)", text.strip().lower(), re.ASCII)
    return int(match[1]) * TOKENS[match[2]] if match else None


def tokens(text: str) -> int:
    """As `tokens_in`, of the option `--prefill`."""
    count = tokens_in(text) or 0
    if count < 1:
        raise UserError(f"--prefill {text.strip()!r} is no length.", "Write tokens from 1 up, like 512, 16k or 1m.")
    return count


def lengths(text: str) -> tuple[int, ...]:
    """`"1k,4k"` as numbers of tokens, ascending, each once."""
    return tuple(sorted({tokens(part) for part in text.split(",")}))


def memory(text: str) -> int:
    """`"4GiB"`, `"4g"` or `"4GB"` as bytes, in powers of 1,024."""
    match = re.fullmatch(r"([0-9]{1,12}(?:\.[0-9]{1,6})?)\s*([kmgt]?)(?:i?b)?", text.strip().lower(), re.ASCII)
    count = int(float(match[1]) * BYTES[match[2]]) if match else 0
    if count < 1:
        raise UserError(f"--memory-limit {text!r} is no amount of memory.", "Write it like 512MiB or 4GiB.")
    return count


def short(count: int) -> str:
    """A number of tokens as `tokens` reads it, in its largest whole unit: 16384 is `16k`."""
    for unit in ("m", "k"):
        if count and count % TOKENS[unit] == 0:
            return f"{count // TOKENS[unit]}{unit}"
    return str(count)
