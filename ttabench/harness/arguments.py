"""Model arguments of lm-eval (`method=icl,model=nano,set.truncate=left`) as a method on a base model."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from ttabench.core.architectures import NANO
from ttabench.core.digests import digest
from ttabench.core.environment import use_threads
from ttabench.core.errors import UnknownName, UserError
from ttabench.harness.prompts import Prompts
from ttabench.lm.verbs.batching import AUTO
from ttabench.methods.states import load_state
from ttabench.run.evaluation import ModelCache
from ttabench.run.request import RunRequest
from ttabench.run.resolve import resolve_method

NAME = "ttabench"
TEXTS = ("method", "model", "checkpoint", "preset", "task", "dtype", "bos", "base_checkpoint")
ARGUMENTS = (*TEXTS, "state", "random_weights", "device", "threads", "keep", "keep_tokens")
HERE = ("batch_size", "split", "delimiter", "swap_state")
QUERIES = 32
"""At once, where nobody says how many."""
NOT_GIVEN = ("state", "preset")
"""Where `none`, which lm-eval reads as nothing, names nothing; elsewhere it is a name (method, checkpoint, split)."""

log = logging.getLogger(__name__)


def parts(given: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """The parts of an `AdaptedLM` by model arguments, of which lm-eval has turned some texts into numbers; it adds a
    batch size and a device (`more`)."""
    named = {
        key: "none" if value is None else value
        for key, value in given.items()
        if key not in NOT_GIVEN or value not in (None, "none")
    }
    given = {**{key: value for key, value in more.items() if value is not None}, **named}
    given.pop("max_batch_size", None)
    request = _request(given)
    use_threads(_number(given, "threads", int))
    resolved = resolve_method(request)
    lm = ModelCache().get(request)
    method = resolved.build(lm)
    if method.spec.trainable and resolved.checkpoint is None:
        log.warning("%s has no checkpoint here: its modules are untrained", request.method)
    start = None
    if request.state is not None:
        start = load_state(request.state, resolved.belongs(lm), str(lm.device))
    prompts = Prompts(split=str(given.get("split", "auto")), delimiter=str(given.get("delimiter", "\n\n")))
    info = {**resolved.belongs(lm), "model": NAME, "base": lm.name, "split": prompts.split}
    info["state"] = digest(request.state) if request.state is not None else ""
    swap = str(given.get("swap_state", False)).lower()
    if swap not in ("true", "false"):
        raise UserError(f"swap_state={given['swap_state']} is neither true nor false.", "Give swap_state=true.")
    info["swap_state"] = swap == "true"
    info["threads"] = torch.get_num_threads()
    return {
        "method": method, "start": start, "batch_size": request.batch_size, "prompts": prompts,
        "swap_state": swap == "true", "info": info,
    }  # fmt: skip


def _request(given: Mapping[str, Any]) -> RunRequest:
    """Model arguments as the request they are. lm-eval has turned some of the texts into numbers."""
    settings = tuple(f"{key[4:]}={value}" for key, value in given.items() if key.startswith("set."))
    for key in given:
        if key not in (*ARGUMENTS, *HERE) and not key.startswith("set."):
            raise UnknownName("model argument", key, [*ARGUMENTS, *HERE, "set.KEY"])
    device = str(given.get("device", "auto"))
    if device == "cuda:0" and not torch.cuda.is_available():
        device = "auto"  # lm-eval's command line says so where nobody did
    size = str(given.get("batch_size", QUERIES))
    if size != "auto" and (not size.isdecimal() or size == "0"):
        raise UserError(f"batch_size={size} is no number of queries.", "Give 1 or more, or auto.")
    texts: dict[str, Any] = {name: str(given[name]) for name in TEXTS if name in given}
    return RunRequest(
        **{"method": "icl", "task": "", "model": NANO, **texts},
        settings=settings,
        state=Path(str(given["state"])) if given.get("state") else None,
        random_weights=bool(given.get("random_weights", False)),
        device=device,
        batch_size=AUTO if size == "auto" else int(size),
        keep=_number(given, "keep", float),
        keep_tokens=_number(given, "keep_tokens", int),
    )


def _number(given: Mapping[str, Any], name: str, kind: Callable[[str], Any]) -> Any:
    """A number where one is given, as a text or as lm-eval has read it; else None."""
    if given.get(name) in (None, ""):
        return None
    try:
        return kind(str(given[name]))
    except ValueError:
        raise UserError(f"{name}={given[name]} is not a number.", f"Give one, as {name}=0.2 or 256.") from None
