"""The nano LM: recipe and training command of the base model that ships with the package.

    python -m ttabench.mini.nano --out ttabench/assets/nano        # about half an hour on two cores

A small Llama (grouped-query attention, RoPE, tied embeddings) with a byte-level BPE, trained on the training split of
the miniature world only. Three things make it learn to *use* its context: layers that start quiet, so that words can be
compared (`_quieten`); attention that is taught where names and answers stand (`teaching`); and a curriculum: documents
that only the entity tells apart, then all nine families, then ever longer contexts.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from ttabench.core.files import replacing_files, write_atomically
from ttabench.mini import corpus
from ttabench.mini.lessons import STAGES, Batch, Stage, batches
from ttabench.mini.world import rng

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from torch import Tensor
    from transformers import LlamaForCausalLM

BOS, EOS, PAD = "<|bos|>", "<|eos|>", "<|pad|>"
VOCABULARY = 3072
CONFIG = {
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


def train_tokenizer(samples: int = 100) -> Tokenizer:
    """A byte-level BPE that knows every word of the world whole; any UTF-8 text round-trips."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    source = rng("tokenizer")
    texts = [
        "".join(segment.text for segment in family(source, 512) if segment.text != corpus.END)
        for _ in range(samples)
        for family in corpus.FAMILIES.values()
    ]
    texts += [" " + " ".join(corpus.vocabulary_words())] * 3 * samples
    tokenizer = Tokenizer(models.BPE())
    # A break between two texts is one token wherever it stands, as it was when texts were tokenised one by one.
    breaks = pre_tokenizers.Split("\n\n", "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([breaks, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[BOS, EOS, PAD],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    begins = [(BOS, tokenizer.token_to_id(BOS))]
    tokenizer.post_processor = processors.TemplateProcessing(f"{BOS} $A", f"{BOS} $A $B", begins)
    return tokenizer


WARMUP = 177_500
"""Tokens of linear warm-up."""


def learning_rate(seen: int, total: float, peak: float) -> float:
    """Warm-up, constant, then a cosine to 5 % of the peak over the last third of the `total` tokens."""
    if seen < WARMUP:
        return peak * seen / WARMUP
    done = seen / total
    return peak if done < 0.67 else peak * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * (done - 0.67) / 0.33)))


def train(
    out: Path, *, seed: int = 0, share: float = 1.0, device: str = "cpu", peak: float = 1e-3
) -> dict[str, object]:
    """Train the nano LM and write a plain transformers folder to `out`; a training that was stopped there goes on.

    Args:
        share: shortens every stage to this share (for tests and trials).

    Returns:
        The training record: tokens, seconds, and the mean loss of each stage's last tenth.
    """
    import torch

    torch.manual_seed(seed)
    run = _Run(out, seed=seed, share=share, device=device, peak=peak)
    total, end = share * sum(stage.tokens for stage in STAGES), 0.0
    for stage in STAGES:
        end += share * stage.tokens
        losses: list[float] = []
        for batch in islice(batches(run.tokenizer, stage, seed), run.skip(stage.name), None):
            if run.seen >= end:
                break
            losses.append(run.step(batch, stage, learning_rate(run.seen, total, peak)))
            run.steps[stage.name] = run.steps.get(stage.name, 0) + 1
            if len(losses) % 50 == 0:
                print(
                    f"{stage.name}: {run.seen / 1e6:.2f}M tokens, loss {sum(losses[-50:]) / 50:.4f}, {run.rate:,.0f}/s",
                    flush=True,
                )
            if len(losses) % 500 == 0:
                run.save()
        if losses:
            tail = losses[-max(1, len(losses) // 10) :]
            run.losses[stage.name] = sum(tail) / len(tail)
            run.save()
    return run.record()


def _quieten(model: LlamaForCausalLM) -> None:
    """Start with layers that add little to the residual stream.

    With tied embeddings the words enter it as small as the weights are; at full size the first layer's outputs would
    drown them. Seen after 150 and 210 steps:
    centred states of a question and of its answer's place, at the third layer,
    had a cosine of 0.05 at full size and of 0.75 at a tenth.
    """
    import torch

    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.mul_(0.1)
            layer.mlp.down_proj.weight.mul_(0.1)


class _Run:
    """The state of a training: model, optimiser, and how far it has come."""

    def __init__(self, out: Path, *, seed: int, share: float, device: str, peak: float) -> None:
        import torch
        from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

        self.out, self.device, self.seed, self.share, self.peak = out, device, seed, share, peak
        self.tokenizer = train_tokenizer()
        self.seen, self.seconds, self.began_at = 0, 0.0, 0
        self.steps: dict[str, int] = {}
        self.losses: dict[str, float] = {}
        out.mkdir(parents=True, exist_ok=True)
        wrapped = PreTrainedTokenizerFast(tokenizer_object=self.tokenizer, bos_token=BOS, eos_token=EOS, pad_token=PAD)
        with replacing_files(out) as scratch:
            wrapped.save_pretrained(scratch)
        self.progress = out / "progress.safetensors"
        self.model = LlamaForCausalLM(LlamaConfig(**CONFIG)).to(device)
        _quieten(self.model)
        self.optimiser = torch.optim.AdamW(
            self.model.parameters(), lr=peak, betas=(0.9, 0.98), weight_decay=0.01, fused=True
        )
        if self.progress.exists():
            self._resume()
        self.clock = time.monotonic()

    def _resume(self) -> None:
        """Weights, moments and counts as `save` left them."""
        from ttabench.lm import tensors as files_of_tensors

        tensors, _ = files_of_tensors.read(self.progress, self.device)
        self.model.load_state_dict({k[6:]: v for k, v in tensors.items() if k.startswith("model.")}, strict=False)
        state: dict[int, dict[str, Tensor]] = {}
        for key, value in tensors.items():
            kind, index, name = (*key.split(".", 2), "")[:3]
            if kind == "moment":
                state.setdefault(int(index), {})[name] = value.cpu() if name == "step" else value
        self.optimiser.load_state_dict({**self.optimiser.state_dict(), "state": state})
        told = json.loads((self.out / "training.json").read_text(encoding="utf-8"))
        self.seen, self.seconds, self.steps, self.losses = (told[k] for k in ("tokens", "seconds", "steps", "losses"))
        self.began_at = self.seen

    @property
    def rate(self) -> float:
        """Tokens per second since this process began."""
        return (self.seen - self.began_at) / (time.monotonic() - self.clock)

    def skip(self, stage: str) -> int:
        """Batches of a stage that were already trained on."""
        return self.steps.get(stage, 0)

    def step(self, batch: Batch, stage: Stage, rate: float) -> float:
        """One update; returns the cross-entropy."""
        import torch

        for group in self.optimiser.param_groups:
            group["lr"] = rate
        from ttabench.mini.teaching import losses_of

        answer, taught = losses_of(self.model, batch.to(self.device), stage.naming, stage.pointing)
        (answer + taught).backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)
        self.seen += batch.ids_BT.numel()
        return float(answer.item())

    def save(self) -> None:
        """The model folder, and beside it what a continued training needs."""
        from ttabench.lm import tensors as files_of_tensors

        with replacing_files(self.out) as scratch:
            self.model.save_pretrained(scratch)
        tensors = {
            f"model.{name}": value for name, value in self.model.state_dict().items() if name != "lm_head.weight"
        }
        for index, moments in self.optimiser.state_dict()["state"].items():
            tensors |= {f"moment.{index}.{name}": value.contiguous() for name, value in moments.items()}
        files_of_tensors.write(self.progress, tensors)
        write_atomically(self.out / "training.json", json.dumps(self.record(), indent=1))

    def record(self) -> dict[str, object]:
        """What was done, as JSON."""
        return {
            "seed": self.seed,
            "peak_lr": self.peak,
            "share": self.share,
            "device": self.device,
            "tokens": self.seen,
            "steps": self.steps,
            "seconds": round(self.seconds + time.monotonic() - self.clock, 1),
            "losses": self.losses,
            "stages": [asdict(stage) for stage in STAGES],
        }


def main() -> None:
    """Command line of the recipe."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder of the trained model")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--share", type=float, default=1.0, help="share of the curriculum's tokens")
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    print(json.dumps(train(options.out, seed=options.seed, share=options.share, device=options.device)))


if __name__ == "__main__":
    main()
