"""Texts and token ids: start of a text, continuations, special tokens, chat templates.

tokenizer = TextTokenizer(backend, "smollm2-135m")
tokenizer.encode("Ada <|im_end|>")                        "<|im_end|>" in a document is text
tokenizer.encode("\\n\\nBo", is_continuation=True)        as it follows other text
tokenizer.start_ids                                       ids before a text: BOS, or none

A chat template is split at the messages of user and assistant, so that a context is read once. Its
opening of the first turn starts a text, like BOS; its closing of a turn ends a prompt.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

from ttabench.core.architectures import ARCHITECTURES, is_hub_id
from ttabench.core.errors import UserError, refuse_unreadable_texts
from ttabench.core.files import read_json_object, read_text, reading_file
from ttabench.core.types import Json

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


MAX_GGUF_HEADER_BYTES = 32 * 2**20
"""Bytes that are searched for metadata, which GGUF files store before the weights."""
MAX_TEMPLATE_BYTES = 2**16
"""Longest chat template that is read from a GGUF file, in bytes."""
TEMPLATE_DATE = date(2024, 7, 26)
"""Date for templates that print today's date, for repeatable runs: the default of Llama 3.1."""
THINKING_PATTERN = re.compile(r"\b(enable_)?thinking\b")
"""Template variables that switch thinking (Qwen3, SmolLM3; Granite, DeepSeek)."""
KNOWN_TEMPLATE = "{{ messages }}"
"""Placeholder for the template of a known architecture: it uses no date and no thinking."""
BYTE_SPECIAL_TOKENS = ("<|bos|>", "<|eos|>", "<|pad|>")
TURN_PLACEHOLDERS = ("THE-FIRST-WORDS", "THE-ANSWER-TO-THEM", "THE-LAST-WORDS")


@dataclass(frozen=True)
class ChatTemplate:
    """Parts of a chat template around user and assistant messages."""

    end: str
    """Text between the last question and the start of its answer."""
    start_ids: tuple[int, ...]
    """Ids before the first user message, including any system message of the template."""
    answer_ids: tuple[int, ...]
    """Ids between a question and its answer, for demonstrations."""
    next_ids: tuple[int, ...]
    """Ids between an answer and the next question."""
    end_ids: tuple[int, ...]


def parse_chat_template(texts: TextTokenizer, *, thinking: bool = False) -> ChatTemplate:
    """Parse the chat template of a tokenizer. `thinking`: the answers start with thoughts."""
    tokenizer, name = texts.tokenizer, texts.tokenizer_name
    if not getattr(tokenizer, "chat_template", None):
        raise UserError(f"The tokenizer of {name} has no chat template.", "Remove --chat-template.")
    roles = ("user", "assistant", "user")
    turns = [
        {"role": role, "content": words}
        for role, words in zip(roles, TURN_PLACEHOLDERS, strict=True)
    ]
    with reading_file(f"The chat template of {name}", "Remove --chat-template.", max_bytes=None):
        template = str(tokenizer.get_chat_template())
        options = {"chat_template": template, "enable_thinking": thinking, "thinking": thinking}
        if "strftime_now" in template:
            options["chat_template"] = _date_macro() + template
        rest = str(
            tokenizer.apply_chat_template(
                turns, tokenize=False, add_generation_prompt=True, **options
            )
        )
    parts = []
    for words in TURN_PLACEHOLDERS:
        part, separator, rest = rest.partition(words)
        if not separator or words in rest:
            fault = f"The chat template of {name} does not contain every message exactly once."
            raise UserError(fault, "Remove --chat-template.")
        parts.append(part)
    ids = (tuple(texts.encode(part, parse_special=True)) for part in (*parts, rest))
    return ChatTemplate(rest, *ids)


def _date_macro() -> str:
    """Build a Jinja macro that replaces `strftime_now`; transformers does not accept functions."""
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
    """Return the chat template of a model (name, hub id, folder or GGUF file) from local files.

    Empty if none is found.
    """
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
    """Return the values that a chat template gets besides the messages; part of the run inputs."""
    values = []
    if "strftime_now" in template:
        values.append(f"date {TEMPLATE_DATE}")
    if THINKING_PATTERN.search(template):
        values.append(f"thinking {'on' if thinking else 'off'}")
    return ", ".join(values)


class TextTokenizer:
    """Conversion of texts to token ids and back.

    Args:
        name: name of the tokenizer, for messages and records.
        bos: start of a text: "auto" for what the tokenizer adds, "yes" for BOS, "no" for nothing.

    Attributes:
        bos_ids: ids that start a text: one token for Llama-like models, () for GPT-2 and SmolLM2.
        eos_id: token that ends a text.
        pad_id: token in padded slots, which nothing attends to; EOS if there is no padding token.
        chat: chat template in use, see `use_chat_template`; None by default.
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
        # Copies, because calls of `tokenizer` change truncation, padding and special tokens.
        self._texts = copy_backend(tokenizer)
        self._templates = copy_backend(tokenizer, special_tokens_as_text=False)
        self._continuations = _continuation_tokenizer(self._texts)
        self.chat: ChatTemplate | None = None

    @property
    def start_ids(self) -> tuple[int, ...]:
        """Ids before every text: opening of a user turn of the chat template, else `bos_ids`."""
        return self.bos_ids if self.chat is None else self.chat.start_ids

    @property
    def frame_tokens(self) -> int:
        """Number of tokens around context and question: `start_ids` and the end of a user turn."""
        return len(self.start_ids) + (0 if self.chat is None else len(self.chat.end_ids))

    def use_chat_template(self, *, thinking: bool = False) -> None:
        """Use the chat template: contexts and questions in user turns, answers in the next turn."""
        self.chat = parse_chat_template(self, thinking=thinking)

    def encode(
        self,
        text: str,
        max_tokens: int | None = None,
        *,
        is_continuation: bool = False,
        parse_special: bool = False,
    ) -> list[int]:
        """Convert a text to at most `max_tokens` token ids.

        Args:
            is_continuation: the text follows other text; SentencePiece then adds no leading blank.
            parse_special: "<|eos|>" in the text is a special token, as in chat templates.
        """
        return self.encode_many(
            [text], max_tokens, is_continuation=is_continuation, parse_special=parse_special
        )[0]

    def encode_with_starts(self, text: str) -> tuple[list[int], list[int]]:
        """Return token ids without special tokens, and the character offset of each token."""
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
        """Encode many texts in parallel, see `encode`."""
        refuse_unreadable_texts(texts)
        copied = (
            self._templates
            if parse_special
            else self._continuations
            if is_continuation
            else self._texts
        )
        return [
            row.ids[:max_tokens]
            for row in copied.encode_batch(list(texts), add_special_tokens=False)
        ]

    def decode(self, ids: Sequence[int]) -> str:
        """Convert token ids to text, without special tokens."""
        return str(
            self.tokenizer.decode(
                list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False
            )
        )


def byte_tokenizer(*, bos: bool = True) -> PreTrainedTokenizerFast:
    """Create a tokenizer of 256 bytes, <|bos|>, <|eos|>, <|pad|>. `bos=False`: no BOS is added."""
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(
        models.BPE(vocab={symbol: i for i, symbol in enumerate(alphabet)}, merges=[])
    )
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(list(BYTE_SPECIAL_TOKENS))
    if bos:
        backend.post_processor = processors.TemplateProcessing(
            single="<|bos|> $A", special_tokens=[("<|bos|>", 256)]
        )
    start = {"bos_token": "<|bos|>"} if bos else {}
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="<|eos|>", pad_token="<|pad|>", **start
    )


def copy_backend(
    tokenizer: PreTrainedTokenizerFast, *, special_tokens_as_text: bool = True
) -> Tokenizer:
    """Copy the backend of a tokenizer, without truncation and padding."""
    copied = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    copied.no_truncation()
    copied.no_padding()
    copied.encode_special_tokens = special_tokens_as_text
    return copied


def _first_ids(tokenizer: PreTrainedTokenizerFast, bos: str, name: str) -> tuple[int, ...]:
    """Return the ids that start a text. `auto` uses BOS only if the tokenizer adds it."""
    if bos == "no":
        return ()
    if bos == "yes":
        if tokenizer.bos_token_id is None:
            raise UserError(f"Tokenizer {name!r} has no BOS token.", "Remove --bos.")
        return (int(tokenizer.bos_token_id),)
    bare = tokenizer.backend_tokenizer.encode("a", add_special_tokens=False).ids
    whole = tokenizer.backend_tokenizer.encode("a", add_special_tokens=True).ids
    places = [i for i in range(len(whole)) if whole[i : i + len(bare)] == bare]
    return tuple(whole[: places[0]]) if places else ()


def _continuation_tokenizer(copied: Tokenizer) -> Tokenizer:
    """Return a tokenizer for continuations: it adds no leading blank. The same if none is added."""
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
    """Change a part of a tokenizer definition so that it adds no leading blank (SentencePiece)."""
    if isinstance(part, list):
        return [inner for inner in map(_without_prefix_space, part) if inner is not None]
    if not isinstance(part, dict):
        return part
    if part.get("type") == "Prepend":
        return None
    changes = {"prepend_scheme": "never", "add_prefix_space": False}
    return {name: changes.get(name, _without_prefix_space(inner)) for name, inner in part.items()}
