"""The nano LM that ships: a plain transformers folder that uses its context; and its recipe, in miniature."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from results.nano_recipe import figures, lessons, nano
from tests.places import ROOT
from ttabench.lm.model import LM, load
from ttabench.methods.icl import InContextSettings
from ttabench.methods.icl.method import InContext
from ttabench.readers import load as load_task
from ttabench.records.store import RunFolder
from ttabench.run.runner import RunContext, run_episodes
from ttabench.stats.metrics import metric

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
    assert len(AutoTokenizer.from_pretrained(FOLDER, local_files_only=True)) <= model.config.vocab_size


@given(st.text(max_size=60))
@settings(max_examples=60, deadline=None)
def test_any_text_comes_back_from_its_tokens(text: str) -> None:
    lm = load("nano", device="cpu") if not _CACHE else _CACHE[0]
    _CACHE[:] = [lm]
    assert lm.decode(lm.encode(text)) == text


_CACHE: list[LM] = []


def test_it_answers_about_unseen_entities_from_its_context_alone(lm: LM) -> None:
    with torch.no_grad():
        assert figures.answering(lm, "streamingqa", 0, 1, figures.TEST) <= 15
        assert figures.answering(lm, "streamingqa", 4, 8, figures.TEST) >= 85


@pytest.mark.parametrize("task", ["hellaswag", "winogrande", "openbookqa", "arc_easy", "arc_challenge", "piqa"])
def test_demonstrations_help_it_on_every_unseen_task(lm: LM, task: str, tmp_path: Path) -> None:
    right = {}
    for shots in (0, 10):
        asked = load_task(task, split="validation", seed=1, options={"shots": shots, "queries": 32})
        sink = RunFolder(tmp_path, f"{shots}")
        context = RunContext(lm=lm, method=InContext(lm, InContextSettings()), metrics=(metric("acc"),))
        run_episodes(context, asked, sink, lambda *_: None)
        right[shots] = sum(sample.metrics["acc"] for sample in sink.samples) / len(sink.samples)
    assert right[0] < asked.card.chance + 0.25
    assert right[10] > right[0] + 0.2


def test_its_card_tells_the_training_and_the_figures_that_were_measured() -> None:
    card = (FOLDER / "README.md").read_text(encoding="utf-8")
    record = json.loads((FOLDER / "training.json").read_text(encoding="utf-8"))
    measured = json.loads((FOLDER / "figures.json").read_text(encoding="utf-8"))
    assert f"{record['tokens']:,}" in card
    for task, values in measured["exact_match"].items():
        assert f"| {task} | " + " | ".join(f"{value:.1f}" for value in values.values()) in card


def test_the_tokenizer_knows_every_word_of_the_world_whole(lm: LM) -> None:
    from results.nano_recipe.corpus import vocabulary_words

    assert all(len(lm.encode(f" {word}")) == 1 for word in vocabulary_words())


def test_the_recipe_trains_saves_and_goes_on(tmp_path: Path) -> None:
    first = nano.train(tmp_path / "a", share=0.0004)
    assert first["tokens"] >= 0.0004 * sum(stage.tokens for stage in lessons.STAGES)
    assert first["steps"]["far"] == 1
    again = nano.train(tmp_path / "a", share=0.0004)
    assert (again["tokens"], again["steps"]) == (first["tokens"], first["steps"])
    made = load(str(tmp_path / "a"), device="cpu")
    assert made.max_positions == 8192
    assert made.model.config.rope_parameters["rope_theta"] == 1e8
    assert all(torch.equal(weight, weight.half().float()) for weight in made.model.parameters())
