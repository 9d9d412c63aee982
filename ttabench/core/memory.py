"""Running out of memory: how it shows, and a limit that makes it happen sooner.

limit(4 * 2**30)                 from here on, what this process takes beyond 4 GiB fails as if there were no more
out_of_memory(error)             whether an error says that memory did not suffice
told("--batch-size")             one line for the user
"""

from __future__ import annotations

import errno
from contextlib import suppress
from pathlib import Path

from ttabench.core.amounts import size
from ttabench.core.errors import UserError

SIGNS = ("out of memory", "not enough memory", "t allocate memory", "cannot allocate memory", "unable to allocate",
         "bad_alloc", "memory allocation of", "failed to map segment", "memoryerror",
         "storage size calculation overflowed")  # fmt: skip
"""Messages of torch, CUDA, numpy, the C++ library and the loader of libraries."""
_KINDS = (RuntimeError, OSError, ImportError)


def out_of_memory(error: BaseException) -> bool:
    """Whether this is a GPU or a CPU that ran out of memory."""
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return True
    known = isinstance(error, _KINDS) or type(error).__name__ == "SafetensorError"
    return known and says_so(str(error))


def says_so(text: str) -> bool:
    """Whether a text tells that memory did not suffice."""
    return any(sign in text.lower() for sign in SIGNS)


def told(hint: str) -> UserError:
    """The user error for a failed allocation; frees the memory that a limit kept back, so that it can be reported."""
    most = released()
    within = f" within --memory-limit {size(most)}" if most else ""
    return UserError(f"Out of memory{within}.", hint)


_limit: int | None = None


def limit(most: int) -> None:
    """From here on, what this process takes beyond so many bytes fails; libraries that are mapped do not count."""
    global _limit
    try:
        import resource
    except ImportError:
        raise UserError("This system cannot limit memory.", "Leave --memory-limit out.") from None
    # private writable memory: what malloc and torch take
    resource.setrlimit(resource.RLIMIT_DATA, (most, resource.getrlimit(resource.RLIMIT_DATA)[1]))
    _limit = most


def limited() -> bool:
    """Whether memory is limited."""
    return _limit is not None


def check(most: int) -> None:
    """Whether a limit leaves anything to what is not done yet."""
    if (taken := in_use()) is not None and taken >= most:
        raise UserError(f"--memory-limit {size(most)} is less than the {size(taken)} libraries take.", "Allow more.")


def released() -> int | None:
    """Lift the limit; returns what it was, None where there is none."""
    global _limit
    most, _limit = _limit, None
    if most is not None:
        import resource

        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))
    return most


def in_use() -> int | None:
    """Bytes of private writable memory of this process, as the limit counts them; None where it is not known."""
    with suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
            if line.startswith("VmData:"):
                return int(line.split()[1]) * 1024
    return None
