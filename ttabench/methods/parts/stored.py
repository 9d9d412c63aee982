"""Pretrained encoders in folders or on the hub, whatever reads with them: configuration, weights, tokenizer. No code.

    config = stored_config("google-t5/t5-base", "T5")
    model = stored_model(T5Model, "google-t5/t5-base", "T5", hint)
    tokenizer = stored_tokenizer("google-t5/t5-base", "T5", hint)

`kind` says in messages what is looked for. Weights are safetensors; nothing is unpickled.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import AutoConfig, AutoTokenizer, PretrainedConfig

from ttabench.core.environment import offline_if_unreachable, quiet_loading
from ttabench.core.errors import UserError
from ttabench.lm.loading.finite import first_not_finite
from ttabench.lm.loading.model_files import check

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast


def stored_config(name: str) -> PretrainedConfig | None:
    """The configuration of a folder or hub id; None where there is none that can be read.

    Raises:
        UserError: it names code, other files, or is damaged.
    """
    local = _checked(name)
    try:
        return AutoConfig.from_pretrained(name, local_files_only=local, trust_remote_code=False)
    except Exception:  # a damaged file raises whatever the libraries stumble over
        return None


def stored_model(cls: type[Any], name: str, kind: str, hint: str, *, unused: Sequence[str] = ()) -> PreTrainedModel:
    """A model of this class with the weights of a folder or hub id, in float32.

    Args:
        cls: a class of transformers.
        name: folder or hub id.
        kind: of the model, for messages.
        hint: what mends weights that cannot be loaded.
        unused: what names of parameters begin with that may be missing.

    Raises:
        UserError: no weights there; a tensor is missing, misshapen or not finite.
    """
    local = _checked(name)
    try:
        with quiet_loading():
            model, report = cls.from_pretrained(
                name,
                local_files_only=local,
                use_safetensors=True,
                trust_remote_code=False,
                ignore_mismatched_sizes=True,  # they are in the report, and refused
                output_loading_info=True,
            )
    except Exception:  # a damaged file raises whatever the libraries stumble over
        raise UserError(f"The weights of the {kind} {name!r} cannot be loaded.", hint) from None
    faults = sorted({*report["missing_keys"], *(key for key, *_ in report["mismatched_keys"])})
    lost = [key for key in faults if not key.startswith(tuple(unused))]
    held = {key: parameter for key, parameter in model.named_parameters() if key not in faults}
    if broken := lost[0] if lost else first_not_finite(held.items()):
        fault = f"Tensor {broken} of the {kind} {name!r} is missing, misshapen or not finite."
        raise UserError(fault, "Copy it again, or give another.")
    loaded: PreTrainedModel = model
    return loaded


def stored_tokenizer(name: str, kind: str, hint: str) -> PreTrainedTokenizerFast:
    """The tokenizer of a folder or hub id."""
    local = _checked(name)
    try:
        tokenizer: PreTrainedTokenizerFast = AutoTokenizer.from_pretrained(
            name, local_files_only=local, trust_remote_code=False
        )
    except Exception:  # a damaged file raises whatever the libraries stumble over
        raise UserError(f"The tokenizer of the {kind} {name!r} cannot be loaded.", hint) from None
    return tokenizer


def _checked(name: str) -> bool:
    """Whether it is a folder, once its small files are checked."""
    if not (local := Path(name).is_dir()):
        offline_if_unreachable()
    check(name)
    return local
