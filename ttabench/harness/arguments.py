"""Model arguments of lm-eval (`method=icl,model=nano,set.truncate=left`) as a method on a base model."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import torch

from ttabench.core.architectures import NANO
from ttabench.core.declared import declared
from ttabench.core.digests import digest
from ttabench.core.environment import use_threads
from ttabench.core.errors import UnknownName, UserError
from ttabench.core.typed import as_typed, parse_value
from ttabench.harness.prompts import Prompts
from ttabench.lm.verbs.batching import AUTO
from ttabench.methods.states import load_state
from ttabench.run.base_model import ModelCache
from ttabench.run.request import RunRequest
from ttabench.run.resolve import resolve_method

NAME = "ttabench"
REQUEST = (
    "method model checkpoint preset task dtype bos base_checkpoint state random_weights device keep keep_tokens".split()
)
"""Fields of a request that are given as they are called."""
HERE = {"batch_size": str, "threads": int | None, "split": str, "delimiter": str, "swap_state": bool}
QUERIES = 32
"""At once, where nobody says how many."""

log = logging.getLogger(__name__)


def parts(given: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """The parts of an `AdaptedLM` by model arguments, of which lm-eval has turned some texts into numbers; it adds a
    batch size and a device (`more`)."""
    words = {key: as_typed(value) for key, value in given.items()}
    words = {**{key: str(value) for key, value in more.items() if value is not None}, **words}
    words.pop("max_batch_size", None)
    here = {key: parse_value(words.pop(key), kind, key) for key, kind in HERE.items() if key in words}
    request = _request(words, here.pop("batch_size", str(QUERIES)))
    use_threads(here.pop("threads", None))
    swap = here.pop("swap_state", False)
    prompts = Prompts(**here)
    resolved = resolve_method(request)
    lm = ModelCache().get(request)
    method = resolved.build(lm)
    if method.spec.trainable and resolved.checkpoint is None:
        log.warning("%s has no checkpoint here: its modules are untrained", request.method)
    belongs, start = resolved.belongs(lm), None
    info = {**belongs, "model": NAME, "base": lm.name, "split": prompts.split, "swap_state": swap, "state": "",
            "threads": torch.get_num_threads()}  # fmt: skip
    if request.state is not None:
        start = load_state(request.state, belongs, str(lm.device))
        info["state"] = digest(request.state)
    return {
        "method": method, "start": start, "batch_size": request.batch_size, "prompts": prompts, "swap_state": swap,
        "info": info,
    }  # fmt: skip


def _request(words: Mapping[str, str], size: str) -> RunRequest:
    """Model arguments as the request they are."""
    for key in words:
        if key not in REQUEST and not key.startswith("set."):
            raise UnknownName("model argument", key, [*REQUEST, *HERE, "set.KEY"])
    fields = {
        name: parse_value(words[name], declared(RunRequest)[name].kind, name) for name in REQUEST if name in words
    }
    if fields.get("device") == "cuda:0" and not torch.cuda.is_available():
        fields["device"] = "auto"  # lm-eval's command line says so where nobody did
    if fields.get("preset") == "none":
        fields["preset"] = ""
    if size != "auto" and (not size.isdecimal() or size == "0"):
        raise UserError(f"batch_size={size} is no number of queries.", "Give 1 or more, or auto.")
    return RunRequest(
        **{"method": "icl", "task": "", "model": NANO, **fields},
        settings=tuple(f"{key[4:]}={value}" for key, value in words.items() if key.startswith("set.")),
        batch_size=AUTO if size == "auto" else int(size),
    )
