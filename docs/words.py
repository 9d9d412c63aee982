"""Warn about words that the glossary replaces: `python docs/words.py`, part of `nox -s lint`."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
USE = {
    "another's|another text's": "swapped",
    "asks (?:a|the|its|of)|was asked|asked of": "queries, has queries",
    "beside|behind": "next to, with, after",
    "ceiling": "full-context baseline",
    "floor": "no-context baseline",
    "mend(?:s|ed|ing)?": "fix",
    "miniature world|twins?": "synthetic version",
    "not settled|not told (?:from|apart)": "not significant",
    "of (?:the )?gap": "recovered",
    "pieces?": "chunk",
    "rooms?": "package",
    "set aside": "excluded",
    "ships|shipped": "bundled",
    "stands|stand in": "is, has, contains",
    "told|tells": "shown, reported, says",
}
WORD = re.compile(rf"\b(?:{'|'.join(f'({words})' for words in USE)})\b(?!:)", re.IGNORECASE)
ALLOWED = re.compile(r"--pieces|`pieces?`|\"pieces?\"|math\.floor|floor\(")


def main() -> None:
    """Print a warning for each line, and their number."""
    paths = [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    paths += sorted(path for end in ("py", "md") for path in ROOT.glob(f"ttabench/**/*.{end}"))
    paths += sorted(ROOT.glob("docs/**/*.md"))
    warnings = 0
    for path in paths:
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if (found := WORD.search(line)) and found.lastindex and not ALLOWED.search(line):
                use = list(USE.values())[found.lastindex - 1]
                print(f"{path.relative_to(ROOT)}:{number}: {found[0]!r}: use {use!r}")
                warnings += 1
    print(f"{warnings} lines use words that the glossary replaces.")


if __name__ == "__main__":
    main()
