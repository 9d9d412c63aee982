"""Nano LM: recipe and training command of the bundled base model.

    python -m tools.nano --out FOLDER        # about an hour and a half on two cores

A small Llama (grouped-query attention, RoPE, tied embeddings) with a byte-level BPE, trained only
on the training split of the synthetic world. Three things make it learn to *use* its context:
layers with small initial outputs, so that words stay comparable; losses on attention to names and
answers (`teaching`); and a curriculum. The curriculum has documents that differ only in the entity,
then all nine families, then ever longer contexts, and at last a larger base of the rotary
frequencies for answers over 8,192 tokens (`far`).
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from tools.nano import far
from tools.nano.lessons import STAGES, Batch, Teaching, batches
from tools.nano.teaching import losses_of
from tools.nano.tokens import BOS, EOS, PAD, VOCABULARY, train_tokenizer

WARMUP = 177_500
"""Tokens of linear warm-up."""
CONFIG: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 128,
    "intermediate_size": 384,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 4096,
    "initializer_range": 128**-0.5,
    "tie_word_embeddings": True,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
}
OPTIMISER: dict[str, Any] = {"betas": (0.9, 0.98), "weight_decay": 0.01, "fused": True}


def learning_rate(seen: int, total: float, peak: float) -> float:
    """Return the rate: warm-up, constant, then a cosine to 5 % of the peak over the last third of
    `total` tokens.
    """
    if seen < WARMUP:
        return peak * seen / WARMUP
    done = max(0.0, seen / total - 0.67) / 0.33
    return peak * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * done)))


def schedule(
    tokenizer: Any, last: far.FarStage, seed: int, share: float, peak: float
) -> Iterator[tuple[str, Batch, Teaching, float]]:
    """Yield (stage, batch, teaching losses, rate): stages of growing lengths, counted in tokens,
    then the last one, counted in steps.
    """
    total, end, seen = share * sum(stage.tokens for stage in STAGES), 0.0, 0
    for stage in STAGES:
        end += share * stage.tokens
        for batch in batches(tokenizer, stage, seed):
            if seen >= end:
                break
            rate = learning_rate(seen, total, peak)
            yield stage.name, batch, Teaching(stage.naming, stage.pointing), rate
            seen += batch.ids_BT.numel()
    for step, (batch, teaching) in enumerate(far.batches(tokenizer, last, seed)):
        yield last.name, batch, teaching, last.rate(step, peak)


def new_model() -> LlamaForCausalLM:
    """Create the model, with layers that add little to the residual stream.

    With tied embeddings the word vectors are as small as the weights. Full-sized outputs of the
    first layer would dominate them. After 150 and 210 steps, centred states of a question and of
    its answer's position, at the third layer, had a cosine of 0.05 at full size and of 0.75 at a
    tenth.
    """
    model = LlamaForCausalLM(LlamaConfig(**CONFIG))
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.mul_(0.1)
            layer.mlp.down_proj.weight.mul_(0.1)
    return model


def lengthened(model: LlamaForCausalLM, last: far.FarStage) -> LlamaForCausalLM:
    """Return the model with the positions and the rotary frequencies of the last stage."""
    rope = {"rope_type": "default", "rope_theta": last.rope_theta}
    changed = {"max_position_embeddings": last.span, "rope_parameters": rope}
    longer = LlamaForCausalLM(LlamaConfig(**{**CONFIG, **changed}))
    longer.load_state_dict(model.state_dict())
    return longer


def train(out: Path, *, seed: int = 0, share: float = 1.0, peak: float = 1e-3) -> dict[str, Any]:
    """Train the nano LM and write a transformers folder to `out`.

    Args:
        share: factor on the length of every stage, for tests and trials.

    Returns:
        The training record: tokens, steps, seconds, and the mean loss of each stage's last tenth.
    """
    torch.manual_seed(seed)
    begin, seen, last = time.monotonic(), 0, far.FAR.shortened(share)
    tokenizer, model = train_tokenizer(), new_model()
    optimiser = torch.optim.AdamW(model.parameters(), **OPTIMISER)
    losses: dict[str, list[float]] = {}
    curve: list[tuple[str, int, float]] = []
    for stage, batch, teaching, rate in schedule(tokenizer, last, seed, share, peak):
        if stage == last.name and stage not in losses:
            model = lengthened(model, last)
            optimiser = torch.optim.AdamW(model.parameters(), **OPTIMISER)
        for group in optimiser.param_groups:
            group["lr"] = rate
        answer, taught = losses_of(model, batch, teaching)
        (answer + taught).backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        seen += batch.ids_BT.numel()
        own = losses.setdefault(stage, [])
        own.append(answer.item())
        if len(own) % 50 == 0:
            curve.append((stage, seen, round(fmean(own[-50:]), 4)))
            print(*curve[-1], flush=True)
    record = {
        "seed": seed,
        "peak_lr": peak,
        "share": share,
        "tokens": seen,
        "steps": {stage: len(own) for stage, own in losses.items()},
        "seconds": round(time.monotonic() - begin, 1),
        "losses": {stage: fmean(own[-max(1, len(own) // 10) :]) for stage, own in losses.items()},
        "curve": curve,
        "stages": [asdict(stage) for stage in (*STAGES, last)],
    }
    # float32 with the precision of float16 compresses to two thirds.
    model.half().float().save_pretrained(out)
    words = {"bos_token": BOS, "eos_token": EOS, "pad_token": PAD}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **words).save_pretrained(out)
    (out / "training.json").write_text(json.dumps(record, indent=1), encoding="utf-8")
    return record


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder of the trained model")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--share", type=float, default=1.0, help="share of the curriculum's length")
    options = parser.parse_args()
    train(options.out, seed=options.seed, share=options.share)
