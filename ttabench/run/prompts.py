"""Resolution of the prompt of a task for a model. No model is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pydantic import ValidationError

from ttabench.core.errors import UserError
from ttabench.core.files import read_json_object
from ttabench.core.types import Json, Query, Want
from ttabench.lm.texts import find_chat_template, template_values
from ttabench.methods.checkpoints import HEADER_FILE
from ttabench.readers.cards import Card, ChatPrompt
from ttabench.run.adapters import checkpoint_path
from ttabench.run.request import RunRequest

READERS_WITH_PROMPTS = ("qa_stream", "sessions")
"""Dataset readers of tasks with prompt templates."""
SCORING_READERS = ("book", "dialogue")
"""Dataset readers of tasks that score given texts."""
TRAINING_PROMPT_KEY = "asked"
"""Key of the prompt in a checkpoint's training record."""


@dataclass(frozen=True, kw_only=True)
class ResolvedPrompt:
    """Resolved prompt of a task."""

    card: Card
    chat: bool
    """True if context and query are formatted with the chat template of the model."""
    options: Mapping[str, Json]
    """Task options: those typed by the user, and those of the prompt chosen for the model."""
    template_values: str
    """Values that the chat template gets besides the messages; empty if it is not used."""

    def make_query(self, question: str, key: str, want: Want) -> Query:
        """Build a query from a question with the task's prompt template.

        Raises:
            UserError: the task has no prompt template.
        """
        options = {**self.card.protocol, **self.options}
        if self.card.reader not in READERS_WITH_PROMPTS or "prompt" not in options:
            raise UserError(
                f"The task {self.card.name} has no prompt template for your own questions.",
                "Remove --task.",
            )
        examples = int(str(options.get("examples", 0)))
        prompt = self.card.prompt.fill_template(question, str(options["prompt"]), examples)
        return Query(
            prompt=prompt, question=question, key=key, joiner=self.card.prompt.joiner, want=want
        )

    @property
    def max_answer_tokens(self) -> int:
        """Maximum number of tokens of a generated answer, as set by the task."""
        return int(
            str(self.options.get("max_new_tokens", self.card.protocol.get("max_new_tokens", 16)))
        )


def resolve_prompt(request: RunRequest, card: Card) -> ResolvedPrompt:
    """Resolve the prompt of a request's task for its model.

    Args:
        card: the task's card.

    Raises:
        UserError: `--chat-template` does not apply to the task.
    """
    typed_options = request.task_options
    scores_turns = (
        card.reader == "sessions"
        and typed_options.get("ask", card.protocol.get("ask", "questions")) != "questions"
    )
    if request.chat_template and (scores_turns or card.reader in SCORING_READERS):
        fault = f"{card.name} scores given texts, so it uses no chat template."
        raise UserError(fault, "Remove --chat-template.")
    template = find_chat_template(request.model)
    chat_prompt = _choose_chat_prompt(request, card, has_template=bool(template))
    chat = (
        bool(chat_prompt and chat_prompt.turns)
        if request.chat_template is None
        else request.chat_template
    )
    prompt_options = (
        {}
        if chat_prompt is None or "prompt" in typed_options
        else {"prompt": chat_prompt.prompt, "examples": str(chat_prompt.examples)}
    )
    return ResolvedPrompt(
        card=card,
        chat=chat,
        options={**prompt_options, **typed_options},
        template_values=template_values(template, thinking=request.thinking) if chat else "",
    )


def _choose_chat_prompt(
    request: RunRequest, card: Card, *, has_template: bool
) -> ChatPrompt | None:
    """Return the prompt of the checkpoint, or that of the card for chat models; None for neither."""
    of_checkpoint = _prompt_of_checkpoint(request, card)
    of_card = None if request.random_weights else card.prompt.chat
    if of_checkpoint is not None or of_card is None:
        return of_checkpoint
    if request.chat_template and not of_card.turns:
        return ChatPrompt(prompt=of_card.prompt)  # without its examples
    return of_card if request.chat_template or has_template else None


def training_prompt(task_options: Mapping[str, Json], chat: bool) -> dict[str, Json]:
    """Return the training prompt for a checkpoint's record, by `TRAINING_PROMPT_KEY`.

    Empty if the task has only one prompt.
    """
    if "prompt" not in task_options:
        return {}
    return {
        TRAINING_PROMPT_KEY: {
            "prompt": task_options["prompt"],
            "examples": task_options["examples"],
            "turns": chat,
        }
    }


def _prompt_of_checkpoint(request: RunRequest, card: Card) -> ChatPrompt | None:
    """Return the prompt that the checkpoint was trained with.

    None without a checkpoint, if it stores no prompt, or if the card lacks that prompt.
    """
    checkpoint = request.base_checkpoint or (request.checkpoint if request.method == "lora" else "")
    if checkpoint in ("", "none"):
        return None
    try:
        folder = checkpoint_path(checkpoint, request.model)
        training_record = read_json_object(folder / HEADER_FILE)["training"]
        chat_prompt = ChatPrompt.model_validate(
            training_record["config"]["data"][TRAINING_PROMPT_KEY]
        )
    except (KeyError, TypeError, ValidationError, UserError):
        return None  # loading the checkpoint reports a missing or damaged header
    return chat_prompt if chat_prompt.prompt in card.prompt.templates else None
