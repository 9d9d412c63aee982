"""Texts as a tokenizer means them: what begins them, how they go on behind other text, what is a special token in them.

texts = Texts(tokenizer, "smollm2-135m")
texts.encode("Ada <|im_end|>")            "<|im_end|>" in a document is text
texts.encode("\\n\\nBo", follows=True)    as it stands behind other text
texts.start_ids                           what stands in front of a text: BOS where the tokenizer adds one, else nothing

A chat template is cut where the words of user and assistant stand, so that a context is read once: what opens the first
turn begins a text, as BOS does elsewhere, and what closes it ends a prompt.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

from tokenizers import Tokenizer

from ttabench.core.architectures import ARCHITECTURES, is_hub_id
from ttabench.core.errors import UserError, refuse_unreadable_texts
from ttabench.core.files import read_json_object, read_text, reading_file
from ttabench.core.types import Json

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


MAX_GGUF_HEADER_BYTES = 32 * 2**20
"""A GGUF file keeps its metadata in front of its weights."""
MAX_TEMPLATE_BYTES = 2**16
"""The longest chat template that is looked for in a GGUF file."""
TEMPLATE_DATE = date(2024, 7, 26)
"""What templates that print today's date are given, so that a run can be repeated: Llama 3.1's own fallback."""
THINKING_PATTERN = re.compile(r"\b(enable_)?thinking\b")
"""Variables by which templates turn thinking on or off (Qwen3, SmolLM3; Granite, DeepSeek)."""
KNOWN_TEMPLATE = "{{ messages }}"
"""Stands for the template of a known architecture; none of those asks for a date or for thinking."""
TURN_PLACEHOLDERS = ("THE-FIRST-WORDS", "THE-ANSWER-TO-THEM", "THE-LAST-WORDS")


@dataclass(frozen=True)
class ChatTemplate:
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


def parse_chat_template(texts: TextTokenizer, *, thinking: bool = False) -> ChatTemplate:
    """The chat template of a tokenizer; `thinking`: as it is for answers that begin with thoughts."""
    tokenizer, name = texts.tokenizer, texts.tokenizer_name
    if not getattr(tokenizer, "chat_template", None):
        raise UserError(
            f"The tokenizer of {name} has no chat template.", "Leave --chat-template out."
        )
    roles = ("user", "assistant", "user")
    turns = [
        {"role": role, "content": words}
        for role, words in zip(roles, TURN_PLACEHOLDERS, strict=True)
    ]
    with reading_file(f"The chat template of {name}", "Leave --chat-template out.", max_bytes=None):
        template = str(tokenizer.get_chat_template())
        how = {"chat_template": template, "enable_thinking": thinking, "thinking": thinking}
        if "strftime_now" in template:
            how["chat_template"] = _date_macro() + template
        rest = str(
            tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True, **how)
        )
    parts = []
    for words in TURN_PLACEHOLDERS:
        part, separator, rest = rest.partition(words)
        if not separator or words in rest:
            fault = f"The chat template of {name} does not hold the words of every turn once."
            raise UserError(fault, "Leave --chat-template out.")
        parts.append(part)
    start, answer, following = parts
    ids = (tuple(texts.encode(part, parse_special=True)) for part in (*parts, rest))
    return ChatTemplate(start, answer, following, rest, *ids)


def _date_macro() -> str:
    """A macro of Jinja in place of the function that prints today's date; transformers hands on no function."""
    directives = [f"%{letter}" for letter in "aAbBdHIjmMpSwyY"]
    filters = "".join(
        f" | replace('{each}', '{TEMPLATE_DATE.strftime(each)}')" for each in directives
    )
    return (
        "{%- macro strftime_now(format) -%}{{ format | replace('%-', '%')"
        + filters
        + " }}{%- endmacro -%}"
    )


def find_chat_template(model: str) -> str:
    """The chat template of a model (a name, hub id, folder or GGUF file), as far as files here tell; "" for none."""
    for name, known in ARCHITECTURES.items():
        if model in (name, known.hub):
            return KNOWN_TEMPLATE if known.has_chat_template else ""
    path = Path(model).expanduser()
    if is_hub_id(model) and not path.exists():
        from huggingface_hub import try_to_load_from_cache

        file = try_to_load_from_cache(model, "tokenizer_config.json")
        path = Path(file).parent if isinstance(file, str) else path
    try:
        if path.suffix == ".gguf":
            with reading_file(path), path.open("rb") as file:
                found = file.read(MAX_GGUF_HEADER_BYTES).partition(b"tokenizer.chat_template")[2]
            return found[:MAX_TEMPLATE_BYTES].decode("utf-8", "replace")
        if (path / "chat_template.jinja").is_file():
            return read_text(path / "chat_template.jinja")
        return str(read_json_object(path / "tokenizer_config.json").get("chat_template") or "")
    except UserError:
        return ""


def template_values(template: str, *, thinking: bool) -> str:
    """The values that a chat template is given beside the turns, as far as it asks for them; part of a run's inputs."""
    values = []
    if "strftime_now" in template:
        values.append(f"date {TEMPLATE_DATE}")
    if THINKING_PATTERN.search(template):
        values.append(f"thinking {'on' if thinking else 'off'}")
    return ", ".join(values)


class TextTokenizer:
    """Texts to token ids and back.

    Args:
        name: of the tokenizer, for messages and records.
        bos: "auto" begins texts with what the tokenizer itself adds, "yes" with its BOS token, "no" with nothing.

    Attributes:
        bos_ids: what begins a text: one token for Llama-likes, () for GPT-2 and for SmolLM2.
        eos_id: the token that ends a text.
        pad_id: fills padded slots, which nothing attends to; EOS where the tokenizer has no padding token.
        chat: the chat template in use, see `use_chat_template`; None by default.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast, name: str, bos: str = "auto") -> None:
        self.tokenizer = tokenizer
        self.tokenizer_name = name
        eos, pad = tokenizer.eos_token_id, tokenizer.pad_token_id
        if eos is None:
            raise UserError(
                f"Tokenizer {name!r} has no end-of-sequence token.",
                "Set eos_token in its configuration.",
            )
        self.eos_id, self.pad_id = int(eos), int(eos if pad is None else pad)
        self.bos_ids = _first_ids(tokenizer, bos, name)
        # Own copies: a call of `tokenizer` changes truncation, padding and special tokens of its backend.
        self._texts = copy_backend(tokenizer)
        self._templates = copy_backend(tokenizer, special_tokens_as_text=False)
        self._behind = _continuation_tokenizer(self._texts)
        self.chat: ChatTemplate | None = None

    @property
    def start_ids(self) -> tuple[int, ...]:
        """Ids in front of every text: those that open the user's turn of a chat template, else `bos_ids`."""
        return self.bos_ids if self.chat is None else self.chat.start_ids

    @property
    def frame_tokens(self) -> int:
        """Tokens around a context and a question: those of `start_ids`, and what closes a user's turn."""
        return len(self.start_ids) + (0 if self.chat is None else len(self.chat.end_ids))

    def use_chat_template(self, *, thinking: bool = False) -> None:
        """Read contexts and questions as a user's turn of the tokenizer's chat template, answers as the next turn."""
        self.chat = parse_chat_template(self, thinking=thinking)

    def encode(
        self,
        text: str,
        max_tokens: int | None = None,
        *,
        is_continuation: bool = False,
        parse_special: bool = False,
    ) -> list[int]:
        """Token ids, the first so many; "<|eos|>" in a document is text, not its end, unless `parse_special` are meant, as
        those of a chat template are.

        Of a text that follows other text, tokenizers that put a blank in front of every text (SentencePiece) put none.
        """
        return self.encode_many(
            [text], max_tokens, is_continuation=is_continuation, parse_special=parse_special
        )[0]

    def encode_with_starts(self, text: str) -> tuple[list[int], list[int]]:
        """Token ids without special tokens, and where in the text each token begins (in characters)."""
        refuse_unreadable_texts([text])
        encoding = self._texts.encode(text, add_special_tokens=False)
        return encoding.ids, [start for start, _ in encoding.offsets]

    def encode_many(
        self,
        texts: Sequence[str],
        max_tokens: int | None = None,
        *,
        is_continuation: bool = False,
        parse_special: bool = False,
    ) -> list[list[int]]:
        """`encode` of many texts, in parallel."""
        refuse_unreadable_texts(texts)
        copied = (
            self._templates if parse_special else self._behind if is_continuation else self._texts
        )
        return [
            row.ids[:max_tokens]
            for row in copied.encode_batch(list(texts), add_special_tokens=False)
        ]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids, special tokens left out."""
        return str(
            self.tokenizer.decode(
                list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False
            )
        )


def copy_backend(
    tokenizer: PreTrainedTokenizerFast, *, special_tokens_as_text: bool = True
) -> Tokenizer:
    """A copy of the tokenizer's backend that neither cuts nor pads, and that no call of the tokenizer changes."""
    copied = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    copied.no_truncation()
    copied.no_padding()
    copied.encode_special_tokens = special_tokens_as_text
    return copied


def _first_ids(tokenizer: PreTrainedTokenizerFast, bos: str, name: str) -> tuple[int, ...]:
    """Ids that begin a text. A BOS token that the tokenizer knows but does not add (SmolLM2, GPT-2) begins none."""
    if bos == "no":
        return ()
    if bos == "yes":
        if tokenizer.bos_token_id is None:
            raise UserError(f"Tokenizer {name!r} has no BOS token.", "Leave --bos out.")
        return (int(tokenizer.bos_token_id),)
    bare = tokenizer.backend_tokenizer.encode("a", add_special_tokens=False).ids
    whole = tokenizer.backend_tokenizer.encode("a", add_special_tokens=True).ids
    places = [i for i in range(len(whole)) if whole[i : i + len(bare)] == bare]
    return tuple(whole[: places[0]]) if places else ()


def _continuation_tokenizer(copied: Tokenizer) -> Tokenizer:
    """What reads texts that follow other text: a copy that puts no blank in front, or the same where it puts none."""
    current = {name: getattr(copied, name) for name in ("normalizer", "pre_tokenizer")}
    parts = {
        name: None if part is None else json.loads(part.__getstate__())
        for name, part in current.items()
    }
    changed = {name: _without_prefix_space(part) for name, part in parts.items()}
    if changed == parts:
        return copied
    copy = Tokenizer.from_str(json.dumps(json.loads(copied.to_str()) | changed))
    copy.encode_special_tokens = True
    return copy


def _without_prefix_space(part: Json) -> Json:
    """A part of a tokenizer's definition, putting no blank in front of texts (SentencePiece does)."""
    if isinstance(part, list):
        return [inner for inner in map(_without_prefix_space, part) if inner is not None]
    if not isinstance(part, dict):
        return part
    if part.get("type") == "Prepend":
        return None
    changes = {"prepend_scheme": "never", "add_prefix_space": False}
    return {name: changes.get(name, _without_prefix_space(inner)) for name, inner in part.items()}
