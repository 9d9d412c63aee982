"""The base LM: names, folders, special tokens, fingerprints, and published sizes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoConfig

from tests.tiny import tiny_gpt2, tiny_llama
from ttabench.core import architectures
from ttabench.cost import shape_of
from ttabench.lm.loading import hub
from ttabench.lm.model import load

TEXTS = ["", "Ada Voss lives in Port Ansel.", "naïve 中文 \n\n\t🙂", "a <|eos|> b"]


@pytest.mark.parametrize("text", TEXTS)
def test_any_text_round_trips(text: str) -> None:
    lm = tiny_llama()
    assert lm.decode(lm.encode(text)) == text
    assert lm.eos_id not in lm.encode(text)
    assert lm.encode_many([text, text]) == [lm.encode(text)] * 2
    assert lm.encode(text, 3) == lm.encode(text)[:3]


def test_fingerprint_names_the_weights_not_their_precision() -> None:
    first, half = tiny_llama().fingerprint, tiny_llama()
    half.model.to(torch.bfloat16)
    assert first == tiny_llama().fingerprint == half.fingerprint
    assert (
        len(
            {
                first,
                tiny_llama(1).fingerprint,
                tiny_llama(gqa=False).fingerprint,
                tiny_gpt2().fingerprint,
            }
        )
        == 4
    )


def test_known_architectures_assemble(tiny_base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "NANO_FOLDER", tiny_base)
    small = {
        **architectures.ARCHITECTURES["distilgpt2"].config,
        "n_layer": 1,
        "n_embd": 24,
        "n_positions": 32,
    }
    tiny = architectures.Architecture(hub="nobody/none", model_type="gpt2", config=small)
    monkeypatch.setitem(architectures.ARCHITECTURES, "tiny", tiny)  # type: ignore[arg-type]
    first, again, other = (
        load("tiny", random_weights=True, device="cpu", seed=seed) for seed in (0, 0, 1)
    )
    assert first.fingerprint == again.fingerprint != other.fingerprint
    assert first.describe()["tokenizer"] == "nano (stand-in)"
    assert first.random_weights


def test_published_architectures_have_the_published_size() -> None:
    from transformers import AutoModelForCausalLM

    for name, known in architectures.ARCHITECTURES.items():
        config = AutoConfig.for_model(known.model_type, **known.config)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
        shape = shape_of(name)
        assert shape is not None
        assert sum(parameter.numel() for parameter in model.parameters()) == shape.parameters
