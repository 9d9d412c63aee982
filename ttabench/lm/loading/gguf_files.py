"""A GGUF file as a model in float32 and a tokenizer; files that cannot be read are refused in one line."""

from __future__ import annotations

import contextlib
import io
import json
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from ttabench.core.errors import UserError
from ttabench.lm.loading import model_reader
from ttabench.lm.loading.gguf_header import Header, read_header
from ttabench.lm.loading.model_reader import Source

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

INSTALL = "pip install gguf"
DIGITS_APART = ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b")
"""Ways to split text (`tokenizer.ggml.pre`) that put every digit apart and then split as GPT-2 does. transformers 5.23
splits these as GPT-2 does at once, so blanks and line breaks before a number become other tokens."""
PLAIN = ("F32", "F16", "BF16", "F64")
"""Formats that are not quantised."""


def readable_header(file: Path) -> Header:
    """The head of a file that transformers can be expected to read.

    Raises:
        UserError: it cannot.
    """
    header = read_header(file)
    if find_spec("gguf") is None:
        raise UserError(f"Reading {file} takes the package gguf.", f"Install it: {INSTALL}")
    import gguf
    from transformers.modeling_gguf_pytorch_utils import GGUF_SUPPORTED_ARCHITECTURES

    if header.architecture not in GGUF_SUPPORTED_ARCHITECTURES:
        known = ", ".join(sorted(GGUF_SUPPORTED_ARCHITECTURES))
        raise UserError(f"{file} is of an unknown architecture, {header.architecture!r}.", f"Known: {known}.")
    size = file.stat().st_size
    for tensor in header.tensors:
        if tensor.type not in set(gguf.GGMLQuantizationType):
            hint = "A newer package gguf may know it."
            raise UserError(f"Tensor {tensor.name} of {file} is of an unknown format, {tensor.type}.", hint)
        block, block_bytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(tensor.type)]
        if header.data + tensor.offset + tensor.elements * block_bytes // block > size:
            fault = f"{file} is truncated: tensor {tensor.name} ends after its {size:,} bytes."
            raise UserError(fault, "Download or copy it again.")
    return header


def weights_of(header: Header) -> str:
    """The weights' format for records, "Q4_1, dequantised": by the file's word, else by the format of most numbers."""
    import gguf

    file_type = header.metadata.get("general.file_type")
    if isinstance(file_type, int) and file_type in set(gguf.LlamaFileType):
        kind = gguf.LlamaFileType(file_type).name.removeprefix("MOSTLY_").removeprefix("ALL_")
    else:
        sizes: dict[int, int] = {}
        for tensor in header.tensors:
            sizes[tensor.type] = sizes.get(tensor.type, 0) + tensor.elements
        kind = gguf.GGMLQuantizationType(max(sizes, key=lambda file: sizes[file])).name
    return kind if kind in PLAIN else f"{kind}, dequantised"


def dequantised(source: Source, header: Header) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    """Model in float32 on the CPU and tokenizer, from the file itself, as if they had never been of a GGUF file.

    Raises:
        UserError: see `model_reader.read`.
    """
    import torch

    with contextlib.redirect_stderr(io.StringIO()):  # a progress bar that transformers has no switch for
        model, tokenizer = model_reader.read(source, torch.float32, torch.device("cpu"))
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.hf_quantizer = None
    return model, _mended(tokenizer, header, model.config.vocab_size)


def _mended(tokenizer: PreTrainedTokenizerFast, header: Header, vocabulary: int) -> PreTrainedTokenizerFast:
    """The tokenizer as the file means it, where transformers makes another of it.

    It adds an "<|endoftext|>" that has no embedding where a byte-level vocabulary has none, and see `DIGITS_APART`.
    """
    from tokenizers import Tokenizer, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    if len(tokenizer) > vocabulary:
        definition = json.loads(tokenizer.backend_tokenizer.to_str())
        definition["added_tokens"] = [token for token in definition["added_tokens"] if token["id"] < vocabulary]
        backend, template = Tokenizer.from_str(json.dumps(definition)), tokenizer.chat_template
        roles = {role: token for role, token in tokenizer.special_tokens_map.items() if isinstance(token, str)}
        known = {role: token for role, token in roles.items() if backend.token_to_id(token) is not None}
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, chat_template=template, **known)
    if header.metadata.get("tokenizer.ggml.pre") in DIGITS_APART:
        byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
        digits = pre_tokenizers.Digits(individual_digits=True)
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, byte_level])
    return tokenizer
