"""A fixed share of the architectures. `nox -s architectures` runs all of them."""

from __future__ import annotations

import pytest
import torch

from tools.architectures import PAGE, evaluate_methods, failures
from tools.tiny_architectures import (
    KINDS,
    MAX_GROUP,
    RELEASED,
    UNMADE,
    released_config,
    tiny_config,
    tiny_model,
)

EVERY = 31


@pytest.mark.parametrize("kind", KINDS[::EVERY])
def test_every_method_is_right_or_refused(kind: str) -> None:
    assert failures({kind: evaluate_methods(kind)}) == []


@pytest.mark.parametrize(
    "kind", ["gemma2", "gpt_oss", "mistral", "cohere", "glm", "mamba", "bloom"]
)
def test_architectures_with_special_attention(kind: str) -> None:
    """A scaled head, sinks, a sliding window, a scale, interleaved rotation, no keys, ALiBi."""
    results = evaluate_methods(kind)
    assert failures({kind: results}) == []
    assert results["none"] == "right"
    refused = {name for name, result in results.items() if result.startswith("refused")}
    evicting = {"window", "snapkv", "h2o", "kvzip"}
    few = evicting if kind in ("gemma2", "gpt_oss", "mamba", "bloom") else set()
    assert refused - {"generative_adapter"} == few


def test_an_architecture_has_a_tiny_model_or_a_reason() -> None:
    for kind in KINDS:
        if kind not in UNMADE:
            assert next(tiny_model(kind).parameters()).dtype == torch.float32


@pytest.mark.parametrize("kind", RELEASED)
def test_tiny_models_keep_the_structure_of_the_released_model(kind: str) -> None:
    released, tiny = (config(kind).get_text_config() for config in (released_config, tiny_config))
    for name in ("layer_types", "mlp_layer_types"):
        assert set(getattr(tiny, name, ())) == set(getattr(released, name, ()))
    groups = [
        config.num_attention_heads // config.num_key_value_heads for config in (released, tiny)
    ]
    assert min(groups[0], MAX_GROUP) == groups[1]
    assert tiny.tie_word_embeddings == released.tie_word_embeddings
    assert tiny.num_hidden_layers < 20
    assert tiny.hidden_size < released.hidden_size


def test_the_ratio_of_local_layers_and_the_type_of_rope_are_kept() -> None:
    assert tiny_config("gemma3_text").layer_types.count("sliding_attention") == 5
    assert tiny_config("smollm3").no_rope_layers == [1, 1, 1, 0]
    assert tiny_config("llama").rope_parameters["rope_type"] == "llama3"
    assert tiny_config("phi3").rope_parameters["rope_type"] == "longrope"
    assert tiny_config("granitemoehybrid").position_embedding_type == "nope"
    assert tiny_config("deepseek_v3").n_group == 2


@pytest.mark.parametrize("kind", ["gemma3n_text", "gemma4_text"])
def test_layers_that_share_keys_follow_a_source_of_each_kind(kind: str) -> None:
    config = tiny_config(kind)
    own = config.num_hidden_layers - config.num_kv_shared_layers
    assert set(config.layer_types[:own]) == set(config.layer_types[own:])
    assert len(set(config.layer_types)) == 2


def test_the_page_has_the_table() -> None:
    text = PAGE.read_text()
    count = int(text.partition(" are right under icl")[0].rpartition(" ")[2])
    assert count >= 70
    assert "wrong" not in text.partition("<!-- architectures -->")[2]
