"""Warn about words that the glossary replaces: `python docs/words.py`, part of `nox -s lint`."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FILES = ("README.md", "CONTRIBUTING.md", "docs/**/*.md", "ttabench/**/*.[pm][yd]")
USE = {
    "another's|another text's": "swapped",
    "was asked|asked of": "queries",
    "beside|behind": "next to, with, after",
    "ceiling": "full-context baseline",
    "floor": "no-context baseline",
    "mend(?:s|ed|ing)?": "fix",
    "miniature world|twins?": "synthetic version",
    "not settled|not told (?:from|apart)": "not significant",
    "pieces?": "chunk",
    "rooms?": "package",
    "set aside": "excluded",
    "ships|shipped": "bundled",
    "stands": "is, has, contains",
    "told|tells": "shown, reported",
}
WORD = re.compile(rf"\b(?:{'|'.join(f'({words})' for words in USE)})\b(?!:)", re.IGNORECASE)
ALLOWED = re.compile(r"--pieces|`pieces?`|\"pieces?\"|floor\(")


def main() -> None:
    """Print a warning for each line, and their number."""
    warnings = 0
    for path in sorted(path for pattern in FILES for path in ROOT.glob(pattern)):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if (found := WORD.search(line)) and found.lastindex and not ALLOWED.search(line):
                use = [*USE.values()][found.lastindex - 1]
                print(f"{path.relative_to(ROOT)}:{number}: {found[0]!r}: use {use!r}")
                warnings += 1
    print(f"{warnings} lines use words that the glossary replaces.")


main()
