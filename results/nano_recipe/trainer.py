"""Resumable training of the nano LM: weights, optimizer state, counts, curve."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from results.nano_recipe.far import FAR, FarStage
from results.nano_recipe.lessons import STAGES, Batch, Teaching
from results.nano_recipe.tokens import BOS, EOS, PAD, VOCABULARY, tokenizer_of
from ttabench.core.files import read_json, write_atomically

if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from transformers import LlamaForCausalLM


@contextmanager
def _placed(folder: Path) -> Iterator[Path]:
    """Yield a scratch folder. Its files replace those of `folder` one by one at the end of the
    block.
    """
    with TemporaryDirectory(dir=folder) as scratch:
        yield Path(scratch)
        for path in sorted(Path(scratch).iterdir()):
            path.replace(folder / path.name)


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


def _quieten(model: LlamaForCausalLM) -> None:
    """Scale the initial layers so that they add little to the residual stream.

    With tied embeddings the word vectors are as small as the weights. Full-sized outputs of the
    first layer would dominate them. After 150 and 210 steps, centred states of a question and of
    its answer's position, at the third layer, had a cosine of 0.05 at full size and of 0.75 at a
    tenth.
    """
    import torch

    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.mul_(0.1)
            layer.mlp.down_proj.weight.mul_(0.1)


def _rope(stage: FarStage) -> dict[str, object]:
    return {"rope_type": "default", "rope_theta": stage.rope_theta}


class Trainer:
    """State of a training: model, optimizer and progress. `nano.train` runs the stages."""

    def __init__(
        self,
        out: Path,
        *,
        seed: int,
        share: float,
        device: str,
        peak: float,
        start: Path | None = None,
    ) -> None:
        self.out, self.device, self.seed, self.share, self.peak = out, device, seed, share, peak
        self.tokenizer = tokenizer_of(out, start)
        self.seen, self.seconds, self.began_at = 0, 0.0, 0
        self.steps: dict[str, int] = {}
        self.losses: dict[str, float] = {}
        self.curve: list[tuple[str, int, float]] = []
        """(stage, tokens, mean loss of the 50 steps before)."""
        self.far: FarStage | None = None
        """The last stage, once it has begun."""
        out.mkdir(parents=True, exist_ok=True)
        self._save_tokenizer()
        self.progress = out / "progress.safetensors"
        self.model = self._model()
        _quieten(self.model)
        self.optimiser = self._optimiser()
        if self.progress.exists():
            self._resume()
        elif start is not None:
            self._start(start)
        self.clock = time.monotonic()

    def _save_tokenizer(self) -> None:
        from transformers import PreTrainedTokenizerFast

        wrapped = PreTrainedTokenizerFast(
            tokenizer_object=self.tokenizer, bos_token=BOS, eos_token=EOS, pad_token=PAD
        )
        with _placed(self.out) as scratch:
            wrapped.save_pretrained(scratch)

    def _model(self) -> LlamaForCausalLM:
        from transformers import LlamaConfig, LlamaForCausalLM

        last = self.far
        changed = (
            {}
            if last is None
            else {"max_position_embeddings": last.span, "rope_parameters": _rope(last)}
        )
        return LlamaForCausalLM(LlamaConfig(**{**CONFIG, **changed})).to(self.device)

    def _optimiser(self) -> torch.optim.AdamW:
        import torch

        return torch.optim.AdamW(
            self.model.parameters(), lr=self.peak, betas=(0.9, 0.98), weight_decay=0.01, fused=True
        )

    def lengthen(self, stage: FarStage) -> None:
        """Switch to the positions and the rotary frequencies of the last stage, with a new
        optimizer.
        """
        if self.far is None:
            weights, self.far = self.model.state_dict(), stage
            self.model = self._model()
            self.model.load_state_dict(weights)
            self.optimiser = self._optimiser()

    def _take(self, saved: Mapping[str, Any]) -> None:
        self.seen, self.seconds, self.steps, self.losses = (
            saved[k] for k in ("tokens", "seconds", "steps", "losses")
        )
        self.curve = [tuple(point) for point in saved.get("curve", [])]
        self.began_at = self.seen

    def _start(self, folder: Path) -> None:
        """Load the weights and the record of a model. Its last stage starts again."""
        from ttabench.lm.loading import safetensors_io as files_of_tensors

        weights, _ = files_of_tensors.read_tensors(folder / "model.safetensors", self.device)
        self.model.load_state_dict(weights, strict=False)
        self._take(read_json(folder / "training.json"))
        self.steps.pop(FAR.name, None)
        self.lengthen(FAR.shortened(self.share))

    def _resume(self) -> None:
        """Load weights, optimizer state and counts of `save`."""
        from ttabench.lm.loading import safetensors_io as files_of_tensors

        self._take(read_json(self.out / "training.json"))
        if FAR.name in self.steps:
            self.lengthen(FAR.shortened(self.share))
        tensors, _ = files_of_tensors.read_tensors(self.progress, self.device)
        self.model.load_state_dict(
            {k[6:]: v for k, v in tensors.items() if k.startswith("model.")}, strict=False
        )
        state: dict[int, dict[str, Tensor]] = {}
        for key, value in tensors.items():
            kind, index, name = (*key.split(".", 2), "")[:3]
            if kind == "moment":
                state.setdefault(int(index), {})[name] = value.cpu() if name == "step" else value
        self.optimiser.load_state_dict({**self.optimiser.state_dict(), "state": state})

    @property
    def rate(self) -> float:
        """Tokens per second since this process started."""
        return (self.seen - self.began_at) / (time.monotonic() - self.clock)

    def skip(self, stage: str) -> int:
        """Return the number of batches of a stage that were already used."""
        return self.steps.get(stage, 0)

    def step(self, batch: Batch, teaching: Teaching, rate: float) -> float:
        """Make one update. Returns the cross-entropy."""
        import torch

        for group in self.optimiser.param_groups:
            group["lr"] = rate
        from results.nano_recipe.teaching import losses_of

        answer, taught = losses_of(self.model, batch.to(self.device), teaching)
        (answer + taught).backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)
        self.seen += batch.ids_BT.numel()
        return float(answer.item())

    def ended(self, stage: str, losses: Sequence[float]) -> None:
        """Count a step. Print every 50 and save every 250 steps."""
        self.steps[stage] = self.steps.get(stage, 0) + 1
        if len(losses) % 50 == 0:
            self.curve.append((stage, self.seen, round(sum(losses[-50:]) / 50, 4)))
            print(
                f"{stage}: {self.seen / 1e6:.2f}M tokens, loss {self.curve[-1][2]}, {self.rate:,.0f}/s",
                flush=True,
            )
        if len(losses) % 250 == 0:
            self.save()

    def close(self, stage: str, losses: Sequence[float]) -> None:
        """Record the mean loss of a stage's last tenth, or of the part that this process has seen."""
        if losses:
            tail = losses[-max(1, len(losses) // 10) :]
            self.losses[stage] = sum(tail) / len(tail)
            self.save()

    def save(self) -> None:
        """Write the model folder, and the state for resuming a training.

        Saved weights are float32 with the precision of float16, so that the file compresses to two
        thirds.
        """
        from ttabench.lm.loading import safetensors_io as files_of_tensors

        with _placed(self.out) as scratch:
            self.model.save_pretrained(scratch)
            weights, metadata = files_of_tensors.read_tensors(scratch / "model.safetensors")
            rounded = {name: weight.half().float() for name, weight in weights.items()}
            files_of_tensors.write_tensors(scratch / "model.safetensors", rounded, metadata)
        tensors = {
            f"model.{name}": value
            for name, value in self.model.state_dict().items()
            if name != "lm_head.weight"
        }
        for index, moments in self.optimiser.state_dict()["state"].items():
            tensors |= {
                f"moment.{index}.{name}": value.contiguous() for name, value in moments.items()
            }
        files_of_tensors.write_tensors(self.progress, tensors)
        write_atomically(self.out / "training.json", json.dumps(self.record(), indent=1))

    def record(self) -> dict[str, object]:
        """Return the training record, as JSON."""
        return {
            "seed": self.seed,
            "peak_lr": self.peak,
            "share": self.share,
            "device": self.device,
            "tokens": self.seen,
            "steps": self.steps,
            "seconds": round(self.seconds + time.monotonic() - self.clock, 1),
            "losses": self.losses,
            "curve": self.curve,
            "stages": [asdict(stage) for stage in STAGES]
            + ([asdict(self.far)] if self.far else []),
        }
