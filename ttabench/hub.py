"""Models and tokenizers by name, folder or hub id, or random ones in a published shape. No remote code.

model, tokenizer = pretrained("gpt2", None)                                  from the hub or its cache
model, tokenizer, whose = random("llama-2-7b", torch.bfloat16, device, 0)    offline, for cost profiles
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ttabench.architectures import ARCHITECTURES, NANO, names
from ttabench.environment import offline_if_unreachable
from ttabench.errors import UnknownName, UserError

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

NANO_FOLDER = Path(__file__).parent / "assets" / "nano"


def pretrained(name: str, dtype: torch.dtype | None) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    """Model and tokenizer of a known name, a folder written by `save_pretrained`, or a hub id.

    Args:
        name: as the user gave it.
        dtype: of the weights; None keeps the checkpoint's own.

    Raises:
        UserError: unknown name (closest named), folder without a model, hub not reachable.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source = find_source(name)
    local = Path(source).is_dir()
    if not local:
        offline_if_unreachable()
    try:
        tokenizer = AutoTokenizer.from_pretrained(source, local_files_only=local)
        model = AutoModelForCausalLM.from_pretrained(
            source, local_files_only=local, dtype=dtype or "auto", use_safetensors=True
        )
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        more = ", or add --random-weights" if name in ARCHITECTURES else ""
        mend = f"Give a folder written by save_pretrained{more}."
        raise UserError(f"Model {name!r} could not be loaded from {source}: {reason}", mend) from error
    return model, tokenizer


def find_source(name: str) -> str:
    """Folder or hub id that a model is loaded from.

    Raises:
        UserError: an unknown name (closest named), a folder without a model.
    """
    if name == NANO:
        return str(NANO_FOLDER)
    if name in ARCHITECTURES:
        return ARCHITECTURES[name].hub
    folder = Path(name).expanduser()
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise UserError(f"Folder {name} has no config.json.", "Give a folder written by save_pretrained.")
        return str(folder)
    if name.count("/") != 1 or name.startswith((".", "/", "~")):
        raise UnknownName("model", name, names())
    return name


def random(
    name: str, dtype: torch.dtype | None, device: torch.device, seed: int
) -> tuple[PreTrainedModel, PreTrainedTokenizerFast, str]:
    """A known architecture with random weights, its tokenizer, and whose tokenizer that is.

    The tokenizer is the architecture's own if the local cache has it, else nano's, whose ids fit every vocabulary.

    Args:
        name: a short name of `architectures`.
        dtype: of the weights; None is bfloat16.
        device: where the weights are made.
        seed: of the weights; the global generator is left as it was.

    Raises:
        UnknownName: the architecture is not known.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    if name not in ARCHITECTURES:
        raise UnknownName("architecture for --random-weights", name, list(ARCHITECTURES))
    architecture = ARCHITECTURES[name]
    tokenizer, whose = _tokenizer(name, architecture.hub)
    config = AutoConfig.for_model(architecture.model_type, **architecture.config)
    with torch.random.fork_rng(), torch.device(device):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config, dtype=dtype or torch.bfloat16)
    return model, tokenizer, whose


def _tokenizer(name: str, hub: str) -> tuple[PreTrainedTokenizerFast, str]:
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(hub, local_files_only=True), name
    except (OSError, ValueError):
        return AutoTokenizer.from_pretrained(NANO_FOLDER, local_files_only=True), f"{NANO} (stand-in)"
