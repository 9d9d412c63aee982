"""What a task card, or another file in YAML, may be: it comes from anywhere."""

from __future__ import annotations

from pathlib import Path

import yaml

from ttabench.core.errors import UserError
from ttabench.core.opening import read_text

MOST_BYTES, DEEPEST = 2**17, 32
"""Of such a file: its length, and how far values stand within each other."""
_OPENING = (
    yaml.FlowSequenceStartToken, yaml.FlowMappingStartToken, yaml.BlockSequenceStartToken, yaml.BlockMappingStartToken,
)  # fmt: skip
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # of libyaml, many times as fast, where it was compiled in
_CLOSING = (yaml.FlowSequenceEndToken, yaml.FlowMappingEndToken, yaml.BlockEndToken)


def parsed(path: Path) -> object:
    """The YAML of a card.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is not UTF-8.
        yaml.YAMLError: it is no YAML.
        UserError: see `checked`.
    """
    loader = _LOADER(checked(path, "task card"))
    try:
        data: object = loader.get_single_data()
    finally:
        loader.dispose()
    return data


def checked(path: Path, kind: str) -> str:
    """The text of a file in YAML. Aliases are refused: a few lines of them stand for more values than a memory holds.

    Args:
        path: of the file.
        kind: what it is, for messages: "task card".

    Raises:
        OSError: the file cannot be read.
        ValueError: it is not UTF-8.
        yaml.YAMLError: it is no YAML.
        UserError: it is too long or nested too deep, or holds an alias.
    """
    if path.stat().st_size > MOST_BYTES:
        raise UserError(f"{path} is too long for a {kind} ({MOST_BYTES:,} bytes at most).", "Check the path.")
    text = read_text(path)
    depth = 0
    for token in yaml.scan(text, Loader=_LOADER):
        where = f"{path} line {token.start_mark.line + 1}"
        depth += isinstance(token, _OPENING) - isinstance(token, _CLOSING)
        if depth > DEEPEST:
            raise UserError(f"{where}: not a {kind}: nested deeper than {DEEPEST}.", "Mend that line.")
        if isinstance(token, yaml.AliasToken):
            raise UserError(f"{where}: a {kind} may hold no alias (*{token.value}).", "Write the value out.")
    return text
