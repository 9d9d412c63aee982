"""The nano LM that ships: a plain transformers folder that uses its context; and its recipe, in miniature: training,
how far positions jump in the last lessons, and what their losses see."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F
from transformers import LlamaConfig, LlamaForCausalLM

import ttabench
from tests.places import ROOT
from tools.nano import __main__ as nano, corpus, far, lessons
from tools.nano.teaching import losses_of
from ttabench.lm.model import LM, load
from ttabench.mini.world import rng

ASSETS = ROOT / "ttabench" / "assets"
FOLDER = ASSETS / "nano"


@pytest.fixture(scope="module")
def lm() -> LM:
    return load("nano", device="cpu")


def test_it_is_a_small_plain_transformers_folder() -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(FOLDER, local_files_only=True)
    assert model.num_parameters() <= 8_000_000
    assert (FOLDER / "model.safetensors").stat().st_size <= 16_000_000
    assert model.config.model_type == "llama"
    assert model.config.num_key_value_heads < model.config.num_attention_heads
    assert model.config.max_position_embeddings >= 4096
    assert (
        len(AutoTokenizer.from_pretrained(FOLDER, local_files_only=True)) <= model.config.vocab_size
    )


def test_it_answers_about_unseen_entities_from_its_context_alone(tmp_path: Path) -> None:
    options = {"documents": 4, "questions": 4}
    none, icl = (
        ttabench.evaluate(method, "streamingqa", task_set=options, out=tmp_path).record
        for method in ("none", "icl")
    )
    assert none.value("em").value <= 0.15
    assert icl.value("em").value >= 0.85


def test_the_tokenizer_knows_every_word_of_the_world_whole(lm: LM) -> None:
    assert all(len(lm.encode(f" {word}")) == 1 for word in corpus.vocabulary_words())


def test_the_recipe_trains_and_saves(tmp_path: Path) -> None:
    first = nano.train(tmp_path / "a", share=0.0004)
    assert first["tokens"] >= 0.0004 * sum(stage.tokens for stage in lessons.STAGES)
    assert first["steps"]["far"] == 1
    made = load(str(tmp_path / "a"), device="cpu")
    assert made.max_positions == 8192
    assert made.model.config.rope_parameters["rope_theta"] == 1e8
    assert all(torch.equal(weight, weight.half().float()) for weight in made.model.parameters())


def tiny() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=3072,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=8192,
        initializer_range=0.3,
    )
    return LlamaForCausalLM(config).eval()


def batches_of_questions(lm: LM) -> lessons.Batch:
    made = [
        lessons.encoded(lm.tokenizer.backend_tokenizer, far.dense_questions(rng("test", seed), 128))
        for seed in range(2)
    ]
    return lessons.batch_of(
        made, [far.jumped(each, 4000, rng("jump", place)) for place, each in enumerate(made)]
    )


def test_losses_see_through_jumps(lm: LM) -> None:
    """The same as a full causal mask: a jump cuts nothing off; and other positions are other losses."""
    model, batch = tiny(), batches_of_questions(lm)
    answer, _ = losses_of(model, batch, lessons.Teaching(0.0, 0.0))
    rows, width = batch.ids_BT.shape
    causal = torch.ones(width, width).tril().log()[None, None].expand(rows, 1, -1, -1)
    logits = model(
        input_ids=batch.ids_BT, position_ids=batch.positions_BT, attention_mask=causal
    ).logits
    each = F.cross_entropy(
        logits[:, :-1].flatten(0, 1), batch.ids_BT[:, 1:].flatten(), reduction="none"
    )
    weights = batch.weights_BT[:, 1:].flatten()
    torch.testing.assert_close(answer, torch.dot(each, weights) / weights.sum())
    plain = replace(batch, positions_BT=torch.arange(width).expand(rows, -1))
    assert abs(losses_of(model, plain, lessons.Teaching(0.0, 0.0))[0] - answer) > 1e-4
