"""MAC's amortiser as one encoder or one causal LM (Table 7): invariants, and where its weights come from."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import BertConfig, BertModel

from tests.tiny import tiny_llama
from tests.tiny_methods import tiny_mac
from ttabench.lm.model import LM
from ttabench.methods.mac.method import Mac
from ttabench.methods.parts.stored import MODULE, REQUIREMENT

SHORT, LONG = [7, 8, 9], [10, 11, 12, 13, 14, 15]
ONE_STACK = ["encoder", "decoder"]


@pytest.fixture
def lm() -> LM:
    return tiny_llama()


def bert(folder: Path, positions: int = 80) -> BertModel:
    sizes: dict[str, Any] = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    torch.manual_seed(3)
    config = BertConfig(vocab_size=300, intermediate_size=24, max_position_embeddings=positions, **sizes)
    model = BertModel(config)
    model.save_pretrained(folder)
    return model


def of_folder(lm: LM, folder: Path, **settings: Any) -> Mac:
    lm.random_weights = False
    names = {"amortiser": str(folder), "input_encoder": str(folder)}
    return tiny_mac(lm, **names, tokenizer="base", document_tokens=64, question_tokens=32, **settings)


@pytest.mark.parametrize("design", ONE_STACK)
def test_padding_changes_no_latent(lm: LM, design: str) -> None:
    networks = tiny_mac(lm, design=design).networks
    together = networks.documents([SHORT, LONG])
    torch.testing.assert_close(together[:1], networks.documents([SHORT]), atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(together[1:], networks.documents([LONG]), atol=1e-5, rtol=1e-4)


def test_a_decoders_latents_see_those_before_them_alone(lm: LM) -> None:
    networks = tiny_mac(lm, design="decoder").networks
    before = networks.document_states([LONG])
    with torch.no_grad():
        networks.amortiser.prompts[2, 0] += 1.0
    changed = (networks.document_states([LONG]) - before).abs().amax(-1)[0] > 1e-6
    assert changed.tolist() == [False, False, True, True]


def test_an_encoder_starts_from_a_folder(lm: LM, tmp_path: Path) -> None:
    given = bert(tmp_path)
    mac = of_folder(lm, tmp_path, design="encoder")
    held = dict(mac.networks.amortiser.transformer.named_parameters())
    assert held.keys() == {name for name, _ in given.named_parameters() if not name.startswith("pooler.")}
    assert not torch.equal(held["embeddings.word_embeddings.weight"], given.embeddings.word_embeddings.weight)
    mac.prepare_training()
    assert all(torch.equal(held[name], part) for name, part in given.named_parameters() if name in held)


@pytest.mark.english
@pytest.mark.skipif(find_spec(MODULE) is None, reason=f"{REQUIREMENT} is not installed")
def test_minilm_reads_by_its_own_tokenizer(lm: LM) -> None:
    lm.random_weights = False
    mac = tiny_mac(lm, design="encoder", amortiser="dense", document_tokens=128)
    mac.prepare_training()
    text = mac.networks.document_text
    (row,), _ = text.encode(["hello"], 8, "start")
    assert text.tokenizer.convert_ids_to_tokens(row) == ["hello", "[SEP]"]
    assert mac.networks.documents([row]).shape == (1, 4, lm.hidden_size)
