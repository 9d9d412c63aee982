"""Tokenizer of the nano LM: a byte-level BPE with one token per word of the synthetic world."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tools.nano import corpus
from ttabench.mini.world import rng

if TYPE_CHECKING:
    from tokenizers import Tokenizer

BOS, EOS, PAD = "<|bos|>", "<|eos|>", "<|pad|>"
VOCABULARY = 3072


def train_tokenizer(samples: int = 100) -> Tokenizer:
    """Train a byte-level BPE with one token per word of the world. Any UTF-8 text round-trips."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    source = rng("tokenizer")
    texts = [
        "".join(segment.text for segment in family(source, 512) if segment.text != corpus.END)
        for _ in range(samples)
        for family in corpus.FAMILIES.values()
    ]
    texts += [" " + " ".join(corpus.vocabulary_words())] * 3 * samples
    tokenizer = Tokenizer(models.BPE())
    # A break between two texts is always one token, as if the texts were tokenized separately.
    breaks = pre_tokenizers.Split("\n\n", "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [breaks, pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
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
