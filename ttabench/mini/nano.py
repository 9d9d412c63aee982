"""The nano LM: recipe and training command of the base model that ships with the package.

    python -m ttabench.mini.nano --out ttabench/assets/nano        # about two hours on two cores, minutes on a GPU

A small Llama (grouped-query attention, RoPE, tied embeddings) with a byte-level BPE, trained on the training split of
the miniature world only. Three things make it learn to *use* its context: layers that start quiet, so that words can be
compared (`_quieten`); attention that is taught where names and answers stand (`losses_of`); and a curriculum: documents
that only the entity tells apart, then all nine families, then ever longer contexts.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from ttabench.mini import corpus
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


@dataclass(frozen=True)
class Stage:
    """One lesson of the curriculum."""

    name: str
    tokens: int
    lengths: tuple[int, ...]
    """Target lengths of the sequences of a batch, one drawn a batch."""
    families: dict[str, float]
    """Share of each family."""
    batch: int = 8192
    """Tokens of a batch. Early lessons are learned by the number of steps, not of tokens."""
    one_relation: float = 0.3
    """Share of question-answering sequences whose documents all tell the same relation."""
    naming: float = 0.0
    pointing: float = 0.0
    """Weights of the teaching losses, see `losses_of`."""


_QA = {"streamingqa": 2.4, "squad_seq": 1.4, "archivalqa": 1.4}
_ALL = _QA | {"superglue": 1.1, "metaicl": 1.1, "lamp": 0.7, "msc": 0.8, "dailydialog": 0.5, "pg19": 0.6}
STAGES = (
    Stage("tell apart", 2_500_000, (64, 96, 128, 192), _QA | {"metaicl": 0.8}, 4096, 0.6, naming=0.3, pointing=0.5),
    Stage("all families", 3_000_000, (128, 192, 256, 384), _ALL, 4096, 0.4, naming=0.1, pointing=0.3),
    Stage("longer", 4_000_000, (256, 384, 512, 768, 1024), _ALL, pointing=0.3),
    Stage("longest", 4_500_000, (384, 512, 1024, 1536, 2048, 2560), _ALL, pointing=0.2),
)


def train_tokenizer(samples: int = 100) -> Tokenizer:
    """A byte-level BPE that knows every word of the world whole; any UTF-8 text round-trips."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    source = rng("tokenizer")
    texts = [
        "".join(segment.text for segment in family(source, 512) if segment.text != corpus.END)
        for _ in range(samples)
        for family in corpus.FAMILIES.values()
    ]
    texts += [" " + " ".join(corpus.vocabulary_words())] * 3 * samples
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[BOS, EOS, PAD],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


@dataclass
class Sequence:
    """Token ids, loss weights, and for each answer where it starts and the earlier places that hold it."""

    ids: list[int]
    weights: list[float]
    pointers: list[tuple[int, list[int]]] = field(default_factory=list)
    """(position that predicts the answer, positions of its first token in the segments that hold it)."""
    groups: list[int] = field(default_factory=list)
    """Of each token: the document, question or demonstration it belongs to."""
    keys: list[int] = field(default_factory=list)
    """Of each token: 1 or 2 where it is the first or second word that tells its group from the others, 3 for both."""

    def cut(self, length: int) -> Sequence:
        """The first `length` tokens."""
        kept = [pointer for pointer in self.pointers if pointer[0] < length]
        return Sequence(self.ids[:length], self.weights[:length], kept, self.groups[:length], self.keys[:length])


def _sequence(tokenizer: Tokenizer, stage: Stage, length: int, seed: object) -> Sequence:
    """One training sequence, at most a quarter longer than `length`."""
    source = rng("nano", stage.name, seed)
    (name,) = source.choices(list(stage.families), list(stage.families.values()))
    kinds = {"streamingqa": "person", "squad_seq": "place", "archivalqa": "company"}
    family = corpus.question_answering(kinds[name], stage.one_relation) if name in kinds else corpus.FAMILIES[name]
    segments = family(source, length)
    texts = [segment.text for segment in segments if segment.text != corpus.END]
    encoded = iter(tokenizer.encode_batch(texts, add_special_tokens=False))
    made = Sequence([0], [0.0], groups=[0], keys=[0])
    names = tokenizer.encode_batch(
        [f" {key}" for segment in segments for key in segment.keys], add_special_tokens=False
    )
    words = iter([name.ids[0] for name in names])
    pieces: list[tuple[int, list[int]]] = []
    for segment in segments:
        ids = [1] if segment.text == corpus.END else next(encoded).ids
        start = len(made.ids)
        found = [at + i for at, held in (pieces[s] for s in segment.sources) for i, t in enumerate(held) if t == ids[0]]
        if found:
            made.pointers.append((start - 1, found))
        pieces.append((start, ids))
        known = [next(words) for _ in segment.keys]
        made.groups += [made.groups[-1] + bool(known)] * len(ids)
        made.keys += [sum(place + 1 for place, word in enumerate(known) if word == token) for token in ids]
        made.ids += ids
        made.weights += [segment.weight] * len(ids)
    return made.cut(length * 5 // 4)


@dataclass(frozen=True)
class Batch:
    """Padded sequences. Shape letters: B rows, T tokens, N pointers of all rows."""

    ids_BT: Tensor
    weights_BT: Tensor
    row_N: Tensor
    query_N: Tensor
    """Position that predicts an answer."""
    held_NT: Tensor
    """True at the earlier places that hold it."""
    groups_BT: Tensor
    keys_BT: Tensor

    def to(self, device: str) -> Batch:
        """The same on another device."""
        parts = (self.ids_BT, self.weights_BT, self.row_N, self.query_N, self.held_NT, self.groups_BT, self.keys_BT)
        return Batch(*(part.to(device) for part in parts))


def _batch(sequences: list[Sequence]) -> Batch:
    import torch
    from torch.nn.utils.rnn import pad_sequence

    ids_BT = pad_sequence([torch.tensor(s.ids) for s in sequences], batch_first=True, padding_value=2)
    weights_BT = pad_sequence([torch.tensor(s.weights) for s in sequences], batch_first=True)
    flat = [(row, query, held) for row, s in enumerate(sequences) for query, held in s.pointers]
    held_NT = torch.zeros(len(flat), ids_BT.shape[1], dtype=torch.bool)
    for n, (_, _, held) in enumerate(flat):
        held_NT[n, held] = True
    rows, queries = (torch.tensor([f[i] for f in flat], dtype=torch.int64) for i in (0, 1))
    groups_BT = pad_sequence([torch.tensor(s.groups) for s in sequences], batch_first=True, padding_value=-1)
    keys_BT = pad_sequence([torch.tensor(s.keys) for s in sequences], batch_first=True)
    return Batch(ids_BT, weights_BT, rows, queries, held_NT, groups_BT, keys_BT)


def batches(tokenizer: Tokenizer, stage: Stage, seed: int) -> Iterator[Batch]:
    """Endless batches of about `stage.batch` tokens each."""
    step = 0
    while True:
        length = rng("length", stage.name, seed, step).choice(stage.lengths)
        rows = max(1, stage.batch // length)
        yield _batch([_sequence(tokenizer, stage, length, f"{seed}-{step}-{row}") for row in range(rows)])
        step += 1


NAMING_LAYER, POINTING_LAYER, TAUGHT_HEADS = 1, 2, 4
"""The first four heads of the second layer are taught to look at names, those of the third at answers."""


def losses_of(model: LlamaForCausalLM, batch: Batch, naming: float, pointing: float) -> tuple[Tensor, Tensor]:
    """(weighted mean cross-entropy, weighted teaching losses); logits are computed only where a weight is not zero.

    Plain training leaves a model of this size at chance between entities for millions of tokens, because nothing draws
    its attention to the names nearby before it can use them. Two losses on attention weights break the deadlock:

    - naming: every token looks at the words that tell its own document, question or demonstration from the others
      (heads 0, 1: the second word; heads 2, 3: the first);
    - pointing: where an answer is predicted, the model looks at the earlier places that hold it.

    Both are -log of the attention paid, averaged over heads.
    """
    import torch
    from torch.nn import functional as F

    found = model.model(input_ids=batch.ids_BT, use_cache=False, output_hidden_states=naming + pointing > 0)
    kept = batch.weights_BT[:, 1:] > 0
    losses = F.cross_entropy(
        model.lm_head(found.last_hidden_state[:, :-1][kept]), batch.ids_BT[:, 1:][kept], reduction="none"
    )
    weights = batch.weights_BT[:, 1:][kept]
    answer = torch.dot(losses, weights) / weights.sum()
    taught = answer.new_zeros(())
    if naming:
        taught = taught + naming * _naming(model, found.hidden_states[NAMING_LAYER], batch)
    if pointing and len(batch.row_N):
        taught = taught + pointing * _pointing(model, found.hidden_states[POINTING_LAYER], batch)
    return answer, taught


def _taught(model: LlamaForCausalLM, index: int, hidden_BTD: Tensor) -> tuple[Tensor, Tensor]:
    """Rotated queries (scaled) and keys [B, TAUGHT_HEADS, T, E] of a layer."""
    import torch
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    layer, config = model.model.layers[index], model.config
    size = config.hidden_size // config.num_attention_heads
    share = config.num_attention_heads // config.num_key_value_heads
    normed_BTD = layer.input_layernorm(hidden_BTD)
    query_BHTE = layer.self_attn.q_proj(normed_BTD).unflatten(-1, (-1, size)).transpose(1, 2)
    key_BHTE = layer.self_attn.k_proj(normed_BTD).unflatten(-1, (-1, size)).transpose(1, 2)
    cos, sin = model.model.rotary_emb(normed_BTD, torch.arange(hidden_BTD.shape[1], device=hidden_BTD.device)[None])
    query_BHTE, key_BHTE = apply_rotary_pos_emb(query_BHTE, key_BHTE, cos, sin)
    return query_BHTE[:, :TAUGHT_HEADS] * size**-0.5, key_BHTE.repeat_interleave(share, 1)[:, :TAUGHT_HEADS]


def _naming(model: LlamaForCausalLM, hidden_BTD: Tensor, batch: Batch) -> Tensor:
    import torch

    query_BHTE, key_BHTE = _taught(model, NAMING_LAYER, hidden_BTD)
    causal_TT = torch.ones(hidden_BTD.shape[1], hidden_BTD.shape[1], dtype=torch.bool, device=hidden_BTD.device).tril()
    near_BTT = (batch.groups_BT[:, :, None] == batch.groups_BT[:, None, :]) & causal_TT
    scores_BHTT = (query_BHTE @ key_BHTE.transpose(-1, -2)).masked_fill(~causal_TT, float("-inf"))
    shares_BHTT = scores_BHTT.softmax(-1)
    parts = []
    for heads, word in ((slice(0, 2), 2), (slice(2, 4), 1)):
        wanted_BTT = near_BTT & (batch.keys_BT & word > 0)[:, None, :]
        paid_BHT = (shares_BHTT[:, heads] * wanted_BTT[:, None]).sum(-1)
        parts.append((paid_BHT.mean(1)[wanted_BTT.any(-1)] + 1e-9).log())
    return -torch.cat(parts).mean() if sum(map(len, parts)) else hidden_BTD.new_zeros(())


def _pointing(model: LlamaForCausalLM, hidden_BTD: Tensor, batch: Batch) -> Tensor:
    """Only for the positions that matter: N queries instead of B x T."""
    import torch

    query_BHTE, key_BHTE = _taught(model, POINTING_LAYER, hidden_BTD)
    order_T = torch.arange(hidden_BTD.shape[1], device=hidden_BTD.device)
    parts = []
    for row in range(hidden_BTD.shape[0]):
        mine = (batch.row_N == row).nonzero()[:, 0]
        at = batch.query_N[mine]
        scores_HNT = query_BHTE[row, :, at] @ key_BHTE[row].transpose(-1, -2)
        scores_HNT = scores_HNT.masked_fill(order_T > at[:, None], float("-inf"))
        paid_HN = (scores_HNT.softmax(-1) * batch.held_NT[mine]).sum(-1)
        parts.append((paid_HN.mean(0) + 1e-9).log())
    return -torch.cat(parts).mean()


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
    drown them, and no later layer could compare names (cosine of equal names 0.05 instead of 0.75 at the third layer).
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
        wrapped.save_pretrained(out)
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
        from safetensors.torch import load_file

        tensors = load_file(self.progress, device=self.device)
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
        answer, taught = losses_of(self.model, batch.to(self.device), stage.naming, stage.pointing)
        (answer + taught).backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)
        self.seen += batch.ids_BT.numel()
        return float(answer.item())

    def save(self) -> None:
        """The model folder, and beside it what a continued training needs."""
        from safetensors.torch import save_file

        self.model.save_pretrained(self.out)
        tensors = {
            f"model.{name}": value for name, value in self.model.state_dict().items() if name != "lm_head.weight"
        }
        for index, moments in self.optimiser.state_dict()["state"].items():
            tensors |= {f"moment.{index}.{name}": value.contiguous() for name, value in moments.items()}
        part = self.progress.with_suffix(".part")
        save_file(tensors, part)
        part.replace(self.progress)
        (self.out / "training.json").write_text(json.dumps(self.record(), indent=1))

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
