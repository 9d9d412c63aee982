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
    assert len({first, tiny_llama(1).fingerprint, tiny_llama(gqa=False).fingerprint, tiny_gpt2().fingerprint}) == 4


def test_known_architectures_assemble(tiny_base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "NANO_FOLDER", tiny_base)
    small = {**architectures.ARCHITECTURES["distilgpt2"].config, "n_layer": 1, "n_embd": 24, "n_positions": 32}
    tiny = architectures.Architecture(hub="nobody/none", model_type="gpt2", config=small)
    monkeypatch.setitem(architectures.ARCHITECTURES, "tiny", tiny)  # type: ignore[arg-type]
    first, again, other = (load("tiny", random_weights=True, device="cpu", seed=seed) for seed in (0, 0, 1))
    assert first.fingerprint == again.fingerprint != other.fingerprint
    assert first.describe()["tokenizer"] == "nano (stand-in)"
    assert first.random_weights


PARAMETERS = {
    "smollm2-135m": 134_515_008,
    "gemma3-270m": 268_098_176,
    "distilgpt2": 81_912_576,
    "gpt2": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "opt-2.7b": 2_651_596_800,
    "tinyllama-1.1b": 1_100_048_384,
    "llama-2-7b": 6_738_415_616,
    "llama-7b": 6_738_415_616,
    "llama-13b": 13_015_864_320,
    "llama-2-7b-chat": 6_738_415_616,
    "llama-3-8b": 8_030_261_248,
    "mistral-7b": 7_241_732_096,
    "mistral-7b-instruct": 7_241_732_096,
    "phi-3-medium": 13_960_238_080,
}


def test_published_architectures_have_the_published_size() -> None:
    from transformers import AutoModelForCausalLM

    for name, known in architectures.ARCHITECTURES.items():
        config = AutoConfig.for_model(known.model_type, **known.config)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
        shape = shape_of(name)
        assert shape is not None
        assert sum(parameter.numel() for parameter in model.parameters()) == shape.parameters == PARAMETERS[name]
        theta = getattr(config, "rope_parameters", None)
        assert name == "gemma3-270m" or theta is None or theta["rope_theta"] == THETA.get(name, 10000.0)


THETA = {"smollm2-135m": 100000.0, "llama-3-8b": 500000.0, "mistral-7b-instruct": 1000000.0}
