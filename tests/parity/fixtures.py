"""A fixture: numbers of a published algorithm, and a JSON file that says what they are (tests/fixtures/README.md).

Names of cases, shapes and configurations of models are read from the JSON, so that any fixture of the same layout can
take its place: `pytest tests/parity --parity-fixtures DIR`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from typing import Any

from safetensors.torch import load_file
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

from tests.places import fixture_file
from ttabench.lm.model import LM


@dataclass(frozen=True)
class Fixture:
    """Part of a fixture or all of it: what its JSON says, and its tensors by name."""

    spec: dict[str, Any]
    tensors: dict[str, Tensor]

    def under(self, folder: str) -> dict[str, Tensor]:
        """The tensors of a folder, by their names in it."""
        start = f"{folder}/"
        return {
            name.removeprefix(start): t
            for name, t in self.tensors.items()
            if name.startswith(start)
        }

    def case(self, name: str) -> Fixture:
        """One case, by a name of `cases`."""
        return Fixture(self.spec["cases"][name], self.under(name))


@cache
def load(name: str) -> Fixture:
    """A fixture by its name; what it holds is shared and must not be changed."""
    spec = json.loads(fixture_file(f"{name}.json").read_text(encoding="utf-8"))
    return Fixture(spec, load_file(fixture_file(f"{name}.safetensors")))


def cases(name: str, **wanted: Any) -> list[str]:
    """Names of the cases of a fixture, or of those whose fields, where they have them, have the wanted values."""
    found = json.loads(fixture_file(f"{name}.json").read_text(encoding="utf-8"))["cases"]
    return [
        case
        for case, spec in found.items()
        if all(spec.get(field, value) == value for field, value in wanted.items())
    ]


CONFIG = {
    "vocab": "vocab_size",
    "hidden": "hidden_size",
    "intermediate": "intermediate_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
}
"""What the models of fixtures and transformers call the same number."""


def llama_config(config: dict[str, Any], **more: Any) -> dict[str, Any]:
    """What transformers takes of a fixture's model, and more."""
    same = ("head_dim", "rms_norm_eps", "rope_theta")
    return {**{CONFIG.get(name, name): config[name] for name in (*CONFIG, *same)}, **more}


def base_lm(kind: str, config: dict[str, Any], weights: dict[str, Tensor]) -> LM:
    """A GPT-2 or Llama of this configuration with these weights; token 3 is the word "w3".

    Args:
        kind: gpt2 or llama.
        config: as transformers names its fields.
        weights: as transformers names them; tied ones may be left out.
    """
    model = (
        GPT2LMHeadModel(GPT2Config(**config))
        if kind == "gpt2"
        else LlamaForCausalLM(LlamaConfig(**config))
    )
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert not unexpected
    assert set(missing) <= {"lm_head.weight"}
    assert not missing or model.config.tie_word_embeddings
    model.tie_weights()
    backend = Tokenizer(
        models.WordLevel({f"w{i}": i for i in range(config["vocab_size"])}, unk_token="w0")
    )
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()  # type: ignore[assignment]
    eos = f"w{model.config.eos_token_id}"
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=eos, pad_token=eos)
    return LM(model, tokenizer, f"fixture-{kind}", random_weights=True)
