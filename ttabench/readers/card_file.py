"""What a task card, or another file in YAML, may be: it comes from anywhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml

from ttabench.core.checked_file import read_text
from ttabench.core.errors import UserError

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


@contextmanager
def faults_told(path: Path, kind: str) -> Iterator[None]:
    """The fault of a file in YAML as one line.

    Raises:
        UserError: it cannot be read, is not UTF-8, is no YAML.
    """
    try:
        yield
    except OSError as error:
        raise UserError(f"Cannot read the {kind} {path} ({error.strerror}).", "Check the path.") from None
    except UnicodeDecodeError:
        raise UserError(f"The {kind} {path} is not UTF-8 text.", "Save it as UTF-8.") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f" line {mark.line + 1}" if mark is not None else ""
        problem = getattr(error, "problem", None) or "it cannot be parsed"
        raise UserError(f"{path}{line}: not valid YAML: {problem}.", "Mend that line.") from None


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
