"""A tokenizer's chat template, cut where the words of user and assistant stand, so that a context is read once.

    chat.start    "<|im_start|>system\\nYou are ...<|im_end|>\\n<|im_start|>user\\n"
    chat.end      "<|im_end|>\\n<|im_start|>assistant\\n"

What opens the first turn begins a text, as BOS does elsewhere, and what closes it ends a prompt.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ttabench.core.architectures import ARCHITECTURES
from ttabench.core.checked_file import object_of, reading
from ttabench.core.errors import UserError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

HEADER_BYTES = 32 * 2**20
"""A GGUF file keeps its metadata in front of its weights."""
WORDS = ("THE-FIRST-WORDS", "THE-ANSWER-TO-THEM", "THE-LAST-WORDS")


@dataclass(frozen=True)
class Chat:
    """A chat template around turns of user and assistant."""

    start: str
    """Up to the user's first words; the template's own system message, if it has one, is in it."""
    answer: str
    """Between a question that was answered and its answer."""
    next: str
    """Between an answer and the next question."""
    end: str
    """Behind the last question, up to where its answer begins."""
    start_ids: tuple[int, ...]
    answer_ids: tuple[int, ...]
    next_ids: tuple[int, ...]
    end_ids: tuple[int, ...]


def chat_of(
    tokenizer: PreTrainedTokenizerFast, name: str, encode: Callable[[str], list[int]], system: str = ""
) -> Chat:
    """The chat template of a tokenizer."""
    if not getattr(tokenizer, "chat_template", None):
        raise UserError(f"The tokenizer of {name} has no chat template.", "Leave --chat-template out.")
    roles = ("user", "assistant", "user")
    turns = [{"role": role, "content": words} for role, words in zip(roles, WORDS, strict=True)]
    turns = [*([{"role": "system", "content": system}] if system else []), *turns]
    with reading(f"The chat template of {name}", "Leave --chat-template out.", most=None):
        rest = str(tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True))
    parts = []
    for words in WORDS:
        part, separator, rest = rest.partition(words)
        if not separator or words in rest:
            fault = f"The chat template of {name} does not hold the words of every turn once."
            raise UserError(fault, "Leave --chat-template out.")
        parts.append(part)
    start, answer, following = parts
    ids = (tuple(encode(text)) for text in (start, answer, following, rest))
    return Chat(start, answer, following, rest, *ids)


def has_template(model: str) -> bool:
    """Whether the model of that name, hub id, folder or GGUF file has a chat template, as far as files here tell."""
    for name, known in ARCHITECTURES.items():
        if model in (name, known.hub):
            return known.chats
    path = Path(model).expanduser()
    if model.count("/") == 1 and not path.exists():
        from huggingface_hub import try_to_load_from_cache

        file = try_to_load_from_cache(model, "tokenizer_config.json")
        path = Path(file).parent if isinstance(file, str) else path
    try:
        if path.suffix == ".gguf":
            with reading(path), path.open("rb") as file:
                return b"tokenizer.chat_template" in file.read(HEADER_BYTES)
        return (path / "chat_template.jinja").is_file() or bool(
            object_of(path / "tokenizer_config.json").get("chat_template")
        )
    except UserError:
        return False
