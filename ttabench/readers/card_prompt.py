"""What a task card says of its prompts: literal texts around the data, and how models with a chat template are asked.

Prompt(templates={"qa": "Question: {question}\\nAnswer:"}).asked("Who?", "qa")    "Question: Who?\\nAnswer:"
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, Field, model_validator

from ttabench.core.errors import UnknownName, UserError
from ttabench.core.types import Generate
from ttabench.readers.card_names import STRICT


class _Part(BaseModel):
    model_config = STRICT


class Manner(_Part):
    """How questions are asked."""

    prompt: str
    """Name of a template."""
    examples: Annotated[int, Field(ge=0)] = 0
    """Worked examples in front of every question."""
    turns: bool = True
    """Context and question are a turn of the chat template."""

    def options(self) -> dict[str, str]:
        """As options of a task."""
        return {"prompt": self.prompt, "examples": str(self.examples)}


class Prompt(_Part):
    """Literal texts around the data."""

    templates: dict[str, str] = {}
    """Question templates by name; `{question}` is replaced, nothing else is. Sub-tasks have templates of their own."""
    delimiter: str = " "
    joiner: str = "\n\n"
    examples: tuple[tuple[str, str], ...] = ()
    """Questions with their answers that a prompt may show in front of its own (`examples=2`): no rows of the data."""
    chat: Manner | None = None
    """How models with a chat template are asked where nothing is said; none: like any other."""
    stops: tuple[str, ...] = ()
    """Texts that end a generated answer."""
    leads: tuple[str, ...] = ()
    """Words that are taken off the front of a generated answer."""

    def asked(self, question: str, template: str, examples: int = 0) -> str:
        """A question in the words of a template, behind so many worked examples."""

        def worded(text: str) -> str:
            return self.templates[template].replace("{question}", text)

        demonstrations = (
            f"{worded(text)}{self.delimiter}{answer}{self.joiner}" for text, answer in self.examples[:examples]
        )
        return "".join(demonstrations) + worded(question)

    def check(self, task: str, template: str, examples: int) -> None:
        """Whether questions can be asked so.

        Raises:
            UserError: there is no such template, or there are fewer worked examples.
        """
        if template not in self.templates:
            raise UnknownName(f"prompt of task {task}", template, list(self.templates))
        if examples > len(self.examples):
            known = len(self.examples)
            fault = f"examples={examples} are more than the {known} worked examples of task {task}."
            raise UserError(fault, f"Give --task-set examples={known} or fewer.")

    def generated(self, answers: tuple[str, ...] = (), max_new_tokens: int = 16) -> Generate:
        """The want of a query that is answered by writing."""
        return Generate(
            answers=answers,
            delimiter=self.delimiter,
            max_new_tokens=max_new_tokens,
            stops=self.stops,
            leads=self.leads,
        )

    @model_validator(mode="after")
    def _has_question(self) -> Prompt:
        for name, template in self.templates.items():
            if template.count("{question}") != 1:
                raise ValueError(f"template {name!r} must hold {{question}} once, received {template!r}")
        if self.chat and self.chat.prompt not in self.templates:
            raise ValueError(f"chat must name one of the templates {list(self.templates)}: {self.chat.prompt!r}")
        if self.chat and self.chat.examples > len(self.examples):
            raise ValueError(f"chat shows {self.chat.examples} examples, there are {len(self.examples)}")
        return self
