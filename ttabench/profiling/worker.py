"""One process of a profile: reads a request on standard input, measures, and writes what it found as lines of JSON.

    {"task": "measure", "method": "icl", "lengths": [1024, 4096], "limits": {...}, "job": "{...}"}
    ->  {"kind": "model", ...}   {"kind": "method", ...}   {"kind": "at", "value": 1024}   {"kind": "row", ...}   ...

Standard output belongs to these lines alone: what libraries print goes to standard error. A fault of the user's is a
line too; where the process dies, the lines so far are what it leaves behind. Standard input stays open as long as
somebody listens.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Mapping

import torch

from ttabench.core.environment import quiet_libraries, seed_everything, use_threads
from ttabench.core.errors import UserError
from ttabench.core.types import Json
from ttabench.lm.loading.devices import find_device, find_dtype
from ttabench.profiling.job import Emit, Job
from ttabench.profiling.limits import Limits
from ttabench.profiling.machine import machine_limits


def work(request: Mapping[str, Json], emit: Emit) -> None:
    """Do what a request asks."""
    job = Job.from_json(request["job"])
    use_threads(request.get("threads"))
    try:
        if request["task"] == "machine":
            emit("machine", _limits(job).model_dump())
            return
        from ttabench.profiling.method_rows import rows  # transformers takes seconds

        quiet_libraries()
        seed_everything(0)
        rows(request, job, emit)
    except UserError as error:
        emit("fault", {"what": error.what, "hint": error.hint})


def _limits(job: Job) -> Limits:
    """Rates of the device, in the number format the model will have."""
    device = find_device(job.device)
    return machine_limits(device, find_dtype(job.dtype, device) or torch.bfloat16)


def _end_with_the_driver() -> None:
    """End at once when standard input is closed: nobody is left who would hear what is found."""
    while os.read(0, 4096):
        pass
    os._exit(1)


def main() -> None:
    """Answer the request on standard input."""
    request = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_the_driver, daemon=True).start()
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as lines:
        os.dup2(2, 1)

        def emit(kind: str, value: Json) -> None:
            lines.write(json.dumps({"kind": kind, "value": value}) + "\n")
            lines.flush()

        work(request, emit)
