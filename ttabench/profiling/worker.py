"""The process of a profile that measures a machine or a method; what it finds is told as (kind, value)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ttabench.core.child import Tell
from ttabench.core.environment import quiet_libraries, seed_everything, use_threads
from ttabench.core.errors import UserError
from ttabench.lm.loading.devices import find_device, find_dtype
from ttabench.profiling.job import Emit, Job
from ttabench.profiling.machine import machine_limits


def answer(request: Mapping[str, Any], tell: Tell) -> None:
    """Do what a request asks in a process of its own, see `core.child`."""
    work(request, lambda kind, value: tell((kind, value)))


def work(request: Mapping[str, Any], emit: Emit) -> None:
    """Do what a request asks; a fault of the user's is a finding, too."""
    job: Job = request["job"]
    use_threads(request.get("threads"))
    try:
        if request["task"] == "machine":
            device = find_device(job.device)
            emit("machine", machine_limits(device, find_dtype(job.dtype, device) or torch.bfloat16).model_dump())
            return
        from ttabench.profiling.methods import rows  # transformers takes seconds

        quiet_libraries()
        seed_everything(0)
        rows(request, job, emit)
    except UserError as error:
        emit("fault", {"what": error.what, "hint": error.hint})
