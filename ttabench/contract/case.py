"""Case of a contract test: method, two-layer base model, texts and queries; comparison of results.

BASE_MODELS["llama"]()    random Llama with grouped queries and BOS, byte tokenizer, in memory
BASE_MODELS["gpt2"]()     random GPT-2 without BOS
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from ttabench.core.types import Chunk, Episode, Generate, Query
from ttabench.lm.forward.capabilities import get_capabilities
from ttabench.lm.forward.patching import encode_patch, forward, text_start
from ttabench.lm.forward.tokens import pad
from ttabench.lm.inference.answering import generate
from ttabench.lm.model import LM
from ttabench.lm.patch import LowRank, Patch, State
from ttabench.lm.texts import byte_tokenizer
from ttabench.methods.base import Method
from ttabench.methods.spec import MethodSpec

MAX_POSITIONS = 512
INIT_STD = 0.18
"""Standard deviation of weights, about 1 / sqrt(width). At 0.02, two layers ignore the context."""


def random_lm(cls: type[Any], config: Any, name: str, seed: int, *, bos: bool = True) -> LM:
    """Create a model of this class with random weights from the seed."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        lm = LM(cls(config), byte_tokenizer(bos=bos), name, random_weights=True)
    get_capabilities(lm)
    return lm


def tiny_llama(seed: int = 0, gqa: bool = True) -> LM:
    """Create a Llama: 2 layers, hidden 32, 4 heads (2 key/value heads with `gqa`), with BOS."""
    config = LlamaConfig(
        vocab_size=259,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2 if gqa else 4,
        max_position_embeddings=MAX_POSITIONS,
        bos_token_id=256,
        eos_token_id=257,
        pad_token_id=258,
        initializer_range=INIT_STD,
    )
    return random_lm(LlamaForCausalLM, config, f"tiny-llama-{seed}", seed)


def tiny_gpt2(seed: int = 0) -> LM:
    """Create a GPT-2: 2 layers, hidden 32, 4 heads, 512 positions, without BOS."""
    config = GPT2Config(
        vocab_size=259,
        n_embd=32,
        n_layer=2,
        n_head=4,
        n_positions=MAX_POSITIONS,
        bos_token_id=257,
        eos_token_id=257,
        initializer_range=INIT_STD,
    )
    return random_lm(GPT2LMHeadModel, config, f"tiny-gpt2-{seed}", seed, bos=False)


BASE_MODELS: Mapping[str, Callable[[], LM]] = {"llama": tiny_llama, "gpt2": tiny_gpt2}

TEXTS = (
    "Ada Voss lives in Port Ansel.",
    "Bo Lind collects blue stamps.",
    "Cy Marr sails to Tern Island.",
    "Di Okoro repairs old radios..",
)
"""Chunks of equal length, so that a growing state grows by equal amounts."""
PROMPTS = ("Where does Ada live?", "What does Bo collect?", "Who sails?")
PERTURBATION_STD = 0.05
"""Standard deviation of noise on parameters: untrained methods often have no effect."""


@dataclass(frozen=True)
class Case:
    """Method with settings, and factory of its base model."""

    spec: MethodSpec
    settings: Any
    make_base: Callable[[], LM]

    def make_untrained(self) -> Method[Any]:
        """Create the untrained method on a new base model. Raises a UserError if unsupported."""
        made: Method[Any] = self.spec.load()(self.make_base(), self.settings)
        return made

    def make_method(self) -> Method[Any]:
        """Create the method with noise on its parameters, as if trained. The noise is fixed."""
        method = self.make_untrained()
        with torch.no_grad(), torch.random.fork_rng():
            torch.manual_seed(1)
            for part in (method, *method.parts()):
                for parameter in part.modules().parameters():
                    parameter.add_(torch.randn_like(parameter) * PERTURBATION_STD)
        return method


def make_chunks(*texts: str) -> list[Chunk]:
    """Create chunks with keys."""
    return [Chunk(text=text, key=f"d{index}") for index, text in enumerate(texts)]


def make_queries(*prompts: str, answer: str = "Port Ansel") -> list[Query]:
    """Create queries with short answers."""
    want = Generate(answers=(answer,), max_new_tokens=4)
    return [Query(prompt=prompt, key=prompt, want=want) for prompt in prompts]


QUERIES = make_queries(*PROMPTS)


def make_episode(key: str = "e", documents: int = 3) -> Episode:
    """Create an episode of documents about residences, then a question about each."""
    people = [f"{key}{index}" for index in range(documents)]
    texts = [Chunk(text=f"{who} lives in {who}ville.", key=who) for who in people]
    queries = [
        Query(
            prompt=f"Where does {who} live?",
            key=who,
            want=Generate(answers=(f"{who}ville",)),
            source_key=who,
        )
        for who in people
    ]
    return Episode(key=key, steps=(*texts, *queries))


def read_texts(method: Method[Any], *texts: str) -> State:
    """Read texts into one state, split as the `granularity` of the method requires."""
    state = method.begin(1)
    chunks = [[chunk] for chunk in make_chunks(*texts)]
    for part in [chunks] if method.granularity == "full" else [[chunk] for chunk in chunks]:
        state = method.adapt(state, part)
    return state


@torch.no_grad()
def query_logits(method: Method[Any], state: State, questions: Sequence[Query]) -> list[Tensor]:
    """Return the logits [T, V] of each question under its patch, in one padded batch."""
    lm = method.lm
    patch = encode_patch(lm, method.patch(state, questions))
    start = text_start(lm, patch)
    ids, mask = pad([start + lm.encode(query.prompt) for query in questions], lm.pad_id, "right")
    # causal attention never sees padding after the text, so it needs no mask
    out, _ = forward(lm, patch, ids)
    return [row[kept][len(start) :] for row, kept in zip(out, mask, strict=True)]


def generate_answers(
    method: Method[Any], state: State, questions: Sequence[Query]
) -> list[list[int]]:
    """Generate answers as token ids."""
    prompts = [method.lm.encode(query.prompt) for query in questions]
    return generate(method.lm, method.patch(state, questions), prompts, max_new_tokens=4)


def patch_tensors(patch: Patch) -> list[Tensor]:
    """Return the tensors of a patch, deltas sorted by name."""
    tensors = [patch.tokens_BT, patch.tokens_mask_BT]
    if (prefix := patch.prefix) is not None:
        tensors += [
            *prefix.keys_LBHPD,
            *prefix.values_LBHPD,
            prefix.next_position_B,
            prefix.mask_BP,
        ]
        tensors += prefix.bias_LBHP or ()
    for _, delta in sorted(patch.deltas.items()):
        tensors += [delta.a_BRI, delta.b_BOR] if isinstance(delta, LowRank) else [delta.delta]
    return [tensor for tensor in tensors if tensor is not None]


TOLERANCE = 1e-4
"""Tolerance of one computation in two orders: a share of the largest value (or 1), plus of each.

In float32, batched and single rows were observed to differ by 3.6e-5 of the largest logit."""


class PromiseBroken(Exception):
    """Error for a broken promise, with the observation."""


def require_close(what: str, ours: Sequence[Tensor], theirs: Sequence[Tensor]) -> None:
    """Raise PromiseBroken if shapes differ, or values by more than `TOLERANCE`."""
    if len(ours) != len(theirs):
        raise PromiseBroken(f"{what}: {len(ours)} tensors versus {len(theirs)}")
    for one, other in zip(ours, theirs, strict=True):
        if one.shape != other.shape:
            raise PromiseBroken(f"{what}: shapes {tuple(one.shape)} and {tuple(other.shape)}")
        difference, most = (
            (one.float() - other.float()).abs(),
            other.float().abs().max().clamp(min=1.0),
        )
        if not bool((difference <= TOLERANCE * (most + other.float().abs())).all()):
            raise PromiseBroken(f"{what} differ by up to {float(difference.max()):.2g}")


def require_equal(what: str, ours: Sequence[Tensor], theirs: Sequence[Tensor]) -> None:
    """Raise PromiseBroken unless tensors are bit-identical."""
    if len(ours) != len(theirs) or not all(
        torch.equal(one, other) for one, other in zip(ours, theirs, strict=True)
    ):
        raise PromiseBroken(f"{what} are not bit-identical")
