"""Types the commands of a first hour in a terminal of 80 columns, and writes what it showed: docs/guide/first-hour.md.

    python docs/recordings.py         some minutes; seconds, bytes and dates are those of the machine

Progress and remarks, which go to standard error, are left out.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import shlex
import struct
import subprocess
import sys
import tempfile
import termios
from pathlib import Path

PAGE = Path(__file__).resolve().parent / "guide" / "first-hour.md"
COLUMNS = 80
NOTES = """\
Notes of Monday: Mirel Dovan keeps a goat. The home of Mirel Dovan is in Corwen.

Report of Friday: Tavo Brenik works as a baker.
"""
"""Written to notes.txt, which the commands read; nano knows the words of its own world alone."""
BEGIN = """\
# The first hour

What a researcher types first, and what the terminal shows at 80 columns; written by `docs/recordings.py`. Progress and
remarks, which go to standard error, are left out. All of it runs on the embedded model, in seconds.
"""
STEPS = (
    ("What is there?", "ttabench list methods"),
    (
        "What does a method take, and what does its preset for this model set?",
        "ttabench list methods snapkv",
    ),
    ("The floor: nothing is read.", "ttabench eval --method none --task streamingqa --seeds 0,1,2"),
    (
        "The ceiling: all is read, and stays in view.",
        "ttabench eval --method icl --task streamingqa --seeds 0,1,2",
    ),
    ("A compressed memory.", "ttabench eval --method mac --task streamingqa --seeds 0,1,2"),
    (
        "A fifth of the cache: first what would run.",
        "ttabench eval --method snapkv --set budget=0.2 --task streamingqa --dry-run",
    ),
    (
        "Then for real.",
        "ttabench eval --method snapkv --set budget=0.2 --task streamingqa --seeds 0,1,2",
    ),
    ("Who leads, and is it more than chance?", "ttabench compare"),
    (
        "What did it get wrong? The id is one that `ttabench list runs` shows.",
        "ttabench show {snapkv} --wrong",
    ),
    (
        "Notes of one's own are read once ...",
        "ttabench adapt --method mac --context notes.txt --pieces paragraphs",
    ),
    (
        "... and asked, beside the floor and the ceiling.",
        'ttabench ask "What animal does Mirel Dovan keep?" --compare',
    ),
    (
        "What does it cost by length?",
        "ttabench profile --methods icl,mac --prefill 1k,4k --repeat 3",
    ),
)
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def typed(words: str, folder: Path) -> str:
    """What a command writes on standard output, a terminal of `COLUMNS` columns.

    Raises:
        RuntimeError: it fails.
    """
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, COLUMNS, 0, 0))
    command = [sys.executable, "-m", *shlex.split(words)]
    environment = {**os.environ, "COLUMNS": str(COLUMNS), "TERM": "xterm"}
    process = subprocess.Popen(
        command, cwd=folder, stdout=theirs, stderr=subprocess.PIPE, env=environment
    )
    os.close(theirs)
    found = b""
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:  # the terminal is closed
            break
        if not part:
            break
        found += part
    _, said = process.communicate()
    os.close(ours)
    if process.returncode:
        raise RuntimeError(f"{words}: {said.decode(errors='replace')}")
    text = (
        ESCAPES.sub("", found.decode("utf-8", "replace"))
        .replace("\r\n", "\n")
        .replace(str(folder), "~")
    )
    return "\n".join(line.rstrip() for line in text.splitlines()).strip("\n")


def main() -> None:
    """Type all, and write the page."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / "notes.txt").write_text(NOTES, encoding="utf-8")
        parts = [BEGIN, f'```text title="notes.txt"\n{NOTES}```\n']
        ids: dict[str, str] = {}
        for why, words in STEPS:
            line = words.format(**ids)
            print(line, flush=True)
            shown = typed(line, folder)
            if stored := re.search(r"--method (\w+).*--seeds", line):
                (ids[stored[1]],) = re.findall(r"Stored in \S*?([0-9a-f]{12})", shown)[:1]
            parts.append(f"{why}\n\n```bash\n{line}\n```\n\n```text\n{shown}\n```\n")
    PAGE.write_text("\n".join(parts), encoding="utf-8")


if __name__ == "__main__":
    main()
