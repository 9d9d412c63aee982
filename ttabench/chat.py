"""A tokenizer's chat template, cut where the user's words stand.

    chat = chat_of(tokenizer, "smollm2-135m", lm.encode_template)
    chat.start    "<|im_start|>system\\nYou are ...<|im_end|>\\n<|im_start|>user\\n"
    chat.end      "<|im_end|>\\n<|im_start|>assistant\\n"

Context and question are one user's turn, the answer is the assistant's. The words of the turn stay apart from the
template, so that a context is read once and asked many times: what opens the turn begins a text, as BOS does elsewhere,
and what closes it ends a prompt. Special tokens are parsed in the template and nowhere else.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ttabench.errors import UserError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

CHAT_MODELS = frozenset({"smollm2-135m", "llama-2-7b-chat", "mistral-7b-instruct"})
"""Known names whose tokenizers have a chat template."""
HEADER_BYTES = 32 * 2**20
"""A GGUF file keeps its metadata in front of its weights."""
WORDS = "THE-WORDS-OF-THE-USER"


@dataclass(frozen=True)
class Chat:
    """A chat template around one turn of a user."""

    start: str
    """Up to the user's words; the template's own system message, if it has one, is in it."""
    end: str
    """Behind them, up to where the answer begins."""
    start_ids: tuple[int, ...]
    end_ids: tuple[int, ...]


def chat_of(tokenizer: PreTrainedTokenizerFast, name: str, encode: Callable[[str], list[int]]) -> Chat:
    """The chat template of a tokenizer.

    Args:
        tokenizer: with a template.
        name: for messages.
        encode: ids of a text whose special tokens are meant.

    Raises:
        UserError: there is no template, it fails, or it does not give the user's words back as they are.
    """
    if not getattr(tokenizer, "chat_template", None):
        raise UserError(f"The tokenizer of {name} has no chat template.", "Leave --chat-template out.")
    text = _rendered(tokenizer, name)
    start, words, end = text.partition(WORDS)
    if not words or WORDS in end:
        what = f"The chat template of {name} does not hold the words of a user once."
        raise UserError(what, "Leave --chat-template out.")
    return Chat(start, end, tuple(encode(start)), tuple(encode(end)))


def _rendered(tokenizer: Any, name: str) -> str:
    import jinja2

    turn = [{"role": "user", "content": WORDS}]
    try:
        text = tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=True)
    except (jinja2.exceptions.TemplateError, ValueError, TypeError, KeyError) as error:
        reason = " ".join(str(error).split())[:120]
        raise UserError(f"The chat template of {name} fails: {reason}.", "Leave --chat-template out.") from None
    return str(text)


def has_template(model: str) -> bool:
    """Whether the model of that name, folder or GGUF file has a chat template, as far as its files here tell."""
    path = Path(model).expanduser()
    if model in CHAT_MODELS:
        return True
    try:
        if path.suffix == ".gguf":
            with path.open("rb") as file:
                return b"tokenizer.chat_template" in file.read(HEADER_BYTES)
        if (path / "chat_template.jinja").is_file():
            return True
        told = json.loads((path / "tokenizer_config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(told, dict) and bool(told.get("chat_template"))
