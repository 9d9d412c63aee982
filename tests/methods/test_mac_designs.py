"""MAC's amortiser as one encoder or one causal LM (Table 7): invariants, where its weights come from, refusals."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import BertConfig, BertModel, GPT2Config, GPT2LMHeadModel, T5EncoderModel

from tests.tiny import tiny_llama
from tests.tiny_methods import TINY_MAC, episode, tiny_mac
from ttabench.core.errors import UserError
from ttabench.lm.model import LM
from ttabench.methods.mac.method import Mac
from ttabench.methods.mac.settings import MacSettings
from ttabench.methods.mac.t5 import config_of, word_size
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


def gpt2(folder: Path) -> GPT2LMHeadModel:
    torch.manual_seed(3)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=300, n_embd=16, n_layer=2, n_head=2, n_positions=80))
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


def test_the_encoder_of_a_t5_is_one(lm: LM, tmp_path: Path) -> None:
    torch.manual_seed(3)
    given = T5EncoderModel(config_of(TINY_MAC.amortiser, lm.vocab_size))
    given.save_pretrained(tmp_path)
    mac = of_folder(lm, tmp_path, design="encoder")
    mac.prepare_training()
    assert torch.equal(mac.networks.amortiser.words, given.shared.weight)


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


def test_what_is_no_encoder_or_has_too_few_positions_is_refused(lm: LM, tmp_path: Path) -> None:
    bert(tmp_path / "bert")
    gpt2(tmp_path / "gpt2")
    with pytest.raises(UserError, match="holds no causal LM") as refused:
        of_folder(lm, tmp_path / "bert", design="decoder")
    assert "set design=encoder" in str(refused.value.hint)
    with pytest.raises(UserError, match="holds no encoder"):
        of_folder(lm, tmp_path / "gpt2", design="encoder")
    with pytest.raises(UserError, match="No causal LM 't5-small' can be loaded"):
        tiny_mac(lm, design="decoder", amortiser="t5-small", tokenizer="base")
    bert(tmp_path / "short", positions=66)
    with pytest.raises(UserError, match="has 66 positions, and a text and its latent tokens take 68"):
        of_folder(lm, tmp_path / "short", design="encoder")
    with pytest.raises(ValueError, match="amortiser_init is a T5"):
        MacSettings(design="encoder", amortiser_init="folder")


def test_the_loss_of_words_is_as_sharp_whatever_size_embeddings_start_at(lm: LM) -> None:
    first = {}
    for design in ("encoder-decoder", "decoder"):
        mac = tiny_mac(lm, design=design, words_aux=1.0, amortiser="scratch:32,1,2,32", embeddings_from_base=True,
                       share_t5=True)  # fmt: skip
        mac.prepare_training()
        transformer = mac.networks.amortiser.transformer
        words = mac.networks.amortiser.words
        first[design] = float((words / word_size(transformer)).detach().square().mean())
        sharp = mac.loss_parts([episode()])["words"].detach()
        with torch.no_grad():
            words.mul_(0.1)
        assert abs(float(mac.loss_parts([episode()])["words"].detach() - sharp)) > 0.02
    assert first["decoder"] == pytest.approx(first["encoder-decoder"], rel=0.01)
