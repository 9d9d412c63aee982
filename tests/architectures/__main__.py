"""The whole table, and 1 where any is neither right nor refused: `python -m tests.architectures [--write] [KIND ..]`.

With --write it goes into docs/reference/architectures.md; of some architectures, their entries do.
"""

from __future__ import annotations

import sys

from tests.architectures.matrix import bad, row, table, write
from tests.architectures.tiny import KINDS

if __name__ == "__main__":
    found = {}
    for kind in [name for name in sys.argv[1:] if not name.startswith("-")] or KINDS:
        found[kind] = row(kind)
        print(kind, found[kind], flush=True)
    if "--write" in sys.argv:
        write(found)
    print("\n".join(table(found)))
    sys.exit(1 if bad(found) else 0)
