"""An adapted model as a standard artefact: the low-rank deltas of a patch as a peft LoRA folder.

    save_lora(lm, method.patch(state, []), Path("mine/peft"))
    PeftModel.from_pretrained(base, "mine/peft")                 the same logits, without this package

What a patch holds beside deltas (tokens in the window, a key/value prefix) has no place in such a folder: load it and
put the tokens in front of the prompt.
"""

from __future__ import annotations

from pathlib import Path

from transformers.pytorch_utils import Conv1D

from ttabench.core.errors import UserError
from ttabench.core.files import replacing_folder
from ttabench.lm import tensors as files_of_tensors
from ttabench.lm.model import LM
from ttabench.lm.patch import LowRank, Patch

WEIGHTS = "adapter_model.safetensors"


def exportable(patch: Patch) -> bool:
    """Whether a patch has deltas and all of them are low-rank ones that every row shares."""
    return bool(patch.deltas) and all(
        isinstance(delta, LowRank) and delta.a_BRI.shape[0] == delta.b_BOR.shape[0] == 1
        for delta in patch.deltas.values()
    )


def save_lora(lm: LM, patch: Patch, folder: Path) -> Path:
    """Write `adapter_config.json` and `adapter_model.safetensors`.

    Args:
        lm: the base model.
        patch: see `exportable`.
        folder: does not exist, or is empty.

    Raises:
        UserError: the folder cannot be written, or holds something.
    """
    from peft import LoraConfig

    assert exportable(patch), "only low-rank deltas of one row are a LoRA"
    tensors, ranks = {}, {}
    for name, delta in patch.deltas.items():
        assert isinstance(delta, LowRank)
        ranks[name] = delta.a_BRI.shape[1]
        tensors[f"base_model.model.{name}.lora_A.weight"] = delta.a_BRI[0].detach().float().cpu().contiguous()
        tensors[f"base_model.model.{name}.lora_B.weight"] = delta.b_BOR[0].detach().float().cpu().contiguous()
    rank = max(ranks.values())
    others = {name: each for name, each in ranks.items() if each != rank}
    config = LoraConfig(
        r=rank,
        lora_alpha=rank,  # any scale is inside the factors
        rank_pattern=others,
        alpha_pattern=others,
        target_modules=sorted(ranks),
        fan_in_fan_out=isinstance(lm.model.get_submodule(next(iter(ranks))), Conv1D),
        base_model_name_or_path=lm.name,
        task_type="CAUSAL_LM",
        inference_mode=True,
    )
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with replacing_folder(folder) as scratch:
            config.save_pretrained(scratch)
            files_of_tensors.write(scratch / WEIGHTS, tensors)
    except OSError as error:
        raise UserError(f"{folder} cannot be written: {error.strerror or error}.", "Choose another --out.") from None
    return folder
