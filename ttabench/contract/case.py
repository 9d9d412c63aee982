"""A method that is checked, the base models of two layers that it is read and asked on, and when results are equal.

BASES["llama"]()      a random Llama with grouped queries and a BOS, its tokenizer a token a byte, built in memory
BASES["gpt2"]()       GPT-2, which begins texts with nothing
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from ttabench.core.types import Ask, Episode, Generate, Observe
from ttabench.lm.forward.patching import encoded, forward, text_start
from ttabench.lm.forward.tokens import pad
from ttabench.lm.forward.ways import ways_of
from ttabench.lm.model import LM
from ttabench.lm.patch import LowRank, Patch, State
from ttabench.lm.verbs.answering import generate
from ttabench.methods.base import BaseMethod
from ttabench.methods.spec import MethodSpec

SPECIALS = ("<|bos|>", "<|eos|>", "<|pad|>")
POSITIONS = 512
SPREAD = 0.18
"""Of weights, about 1 / sqrt(width): at the usual 0.02 a model of two layers ignores its context."""


def byte_tokenizer(*, bos: bool = True) -> PreTrainedTokenizerFast:
    """256 bytes + <|bos|> <|eos|> <|pad|>; any text round-trips. Without `bos`, as in GPT-2, nothing begins a text."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE(vocab={symbol: i for i, symbol in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(list(SPECIALS))
    if bos:
        backend.post_processor = processors.TemplateProcessing(single="<|bos|> $A", special_tokens=[("<|bos|>", 256)])
    start = {"bos_token": "<|bos|>"} if bos else {}
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|eos|>", pad_token="<|pad|>", **start)


def drawn(cls: type[Any], config: Any, name: str, seed: int, *, bos: bool = True) -> LM:
    """A model of this class whose weights are drawn from the seed."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        lm = LM(cls(config), byte_tokenizer(bos=bos), name, random_weights=True)
    ways_of(lm)
    return lm


def tiny_llama(seed: int = 0, gqa: bool = True) -> LM:
    """Llama, 2 layers, hidden 32, 4 heads (2 key/value heads with `gqa`), 512 positions, with a BOS."""
    config = LlamaConfig(
        vocab_size=259, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2 if gqa else 4, max_position_embeddings=POSITIONS, bos_token_id=256, eos_token_id=257,
        pad_token_id=258, initializer_range=SPREAD,
    )  # fmt: skip
    return drawn(LlamaForCausalLM, config, f"tiny-llama-{seed}", seed)


def tiny_gpt2(seed: int = 0) -> LM:
    """GPT-2, 2 layers, hidden 32, 4 heads, 512 positions, without a BOS."""
    config = GPT2Config(
        vocab_size=259, n_embd=32, n_layer=2, n_head=4, n_positions=POSITIONS, bos_token_id=257, eos_token_id=257,
        initializer_range=SPREAD,
    )  # fmt: skip
    return drawn(GPT2LMHeadModel, config, f"tiny-gpt2-{seed}", seed, bos=False)


BASES: Mapping[str, Callable[[], LM]] = {"llama": tiny_llama, "gpt2": tiny_gpt2}

TEXTS = (
    "Ada Voss lives in Port Ansel.",
    "Bo Lind collects blue stamps.",
    "Cy Marr sails to Tern Island.",
    "Di Okoro repairs old radios..",
)
"""Pieces of one length, so that what grows grows by the same amount."""
PROMPTS = ("Where does Ada live?", "What does Bo collect?", "Who sails?")
MOVED = 0.05
"""Standard deviation of what parameters are moved by: before training many methods change nothing."""


@dataclass(frozen=True)
class Case:
    """A method with settings, and how a base model is made for it."""

    spec: MethodSpec
    settings: Any
    base: Callable[[], LM]

    def untrained(self) -> BaseMethod[Any]:
        """The method as it begins, on a base of its own; a UserError where it refuses this base."""
        made: BaseMethod[Any] = self.spec.load()(self.base(), self.settings)
        return made

    def method(self) -> BaseMethod[Any]:
        """The same with parameters that a training could have left; always the same ones."""
        method = self.untrained()
        with torch.no_grad(), torch.random.fork_rng():
            torch.manual_seed(1)
            for part in (method, *method.parts()):
                for parameter in part.modules().parameters():
                    parameter.add_(torch.randn_like(parameter) * MOVED)
        return method


def observes(*texts: str) -> list[Observe]:
    """Pieces with keys."""
    return [Observe(text=text, key=f"d{index}") for index, text in enumerate(texts)]


def asks(*prompts: str, answer: str = "Port Ansel") -> list[Ask]:
    """Queries that are answered in a few tokens."""
    want = Generate(answers=(answer,), max_new_tokens=4)
    return [Ask(prompt=prompt, key=prompt, want=want) for prompt in prompts]


QUESTIONS = asks(*PROMPTS)


def episode(key: str = "e", documents: int = 3) -> Episode:
    """Documents that say where somebody lives, then a question about each."""
    people = [f"{key}{index}" for index in range(documents)]
    texts = [Observe(text=f"{who} lives in {who}ville.", key=who) for who in people]
    asked = [
        Ask(prompt=f"Where does {who} live?", key=who, want=Generate(answers=(f"{who}ville",)), source_key=who)
        for who in people
    ]
    return Episode(key=key, steps=(*texts, *asked))


def read(method: BaseMethod[Any], *texts: str) -> State:
    """One reader that has read these texts as the method says: one at a time, or what it wants together at once."""
    state = method.begin(1)
    pieces = [[piece] for piece in observes(*texts)]
    for part in [pieces] if method.reads == "once" else [[piece] for piece in pieces]:
        state = method.adapt(state, part)
    return state


@torch.no_grad()
def logits(method: BaseMethod[Any], state: State, questions: Sequence[Ask]) -> list[Tensor]:
    """Logits [T, V] of each question's tokens under its patch, all in one padded batch."""
    lm = method.lm
    patch = encoded(lm, method.patch(state, questions))
    start = text_start(lm, patch)
    ids, mask = pad([start + lm.encode(ask.prompt) for ask in questions], lm.pad_id, "right")
    out, _ = forward(lm, patch, ids, mask)
    return [row[kept][len(start) :] for row, kept in zip(out, mask, strict=True)]


def answers(method: BaseMethod[Any], state: State, questions: Sequence[Ask]) -> list[list[int]]:
    """The generated answers, as token ids."""
    prompts = [method.lm.encode(ask.prompt) for ask in questions]
    return generate(method.lm, method.patch(state, questions), prompts, max_new_tokens=4)


def tensors_of(patch: Patch) -> list[Tensor]:
    """Everything in a patch, rows first; deltas by name, in whatever order the patch has them."""
    tensors = [patch.tokens_BT, patch.tokens_mask_BT]
    if (prefix := patch.prefix) is not None:
        tensors += [*prefix.keys_LBHPD, *prefix.values_LBHPD, prefix.next_position_B, prefix.mask_BP]
        tensors += prefix.bias_LBHP or ()
    for _, delta in sorted(patch.deltas.items()):
        tensors += [delta.a_BRI, delta.b_BOR] if isinstance(delta, LowRank) else [delta.delta]
    return [tensor for tensor in tensors if tensor is not None]


APART = 1e-4
"""How far numbers of one computation in two orders may lie apart: a share of the largest (or of 1), and of each.
In float32 rows of a batch were seen 3.6e-5 of the largest logit apart from rows alone."""


class Broken(Exception):
    """A promise is not kept; says what was seen."""


def near(what: str, ours: Sequence[Tensor], theirs: Sequence[Tensor]) -> None:
    """Break on tensors of other shapes, or further apart than one computation in two orders."""
    if len(ours) != len(theirs):
        raise Broken(f"{what}: {len(ours)} tensors, and {len(theirs)}")
    for one, other in zip(ours, theirs, strict=True):
        if one.shape != other.shape:
            raise Broken(f"{what}: shapes {tuple(one.shape)} and {tuple(other.shape)}")
        apart, most = (one.float() - other.float()).abs(), other.float().abs().max().clamp(min=1.0)
        if not bool((apart <= APART * (most + other.float().abs())).all()):
            raise Broken(f"{what} differ by up to {float(apart.max()):.2g}")


def equal(what: str, ours: Sequence[Tensor], theirs: Sequence[Tensor]) -> None:
    """Break on tensors that are not bit for bit the same."""
    if len(ours) != len(theirs) or not all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True)):
        raise Broken(f"{what} are not bit for bit the same")
