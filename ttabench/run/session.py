"""Python sessions: `ttabench.Session("nano", "mac")` reads chunks and answers questions.

session = Session("nano", "mac")
session.read(["Ada Voss lives in Port Ansel.", "Bo Lind collects stamps."])
session.ask("Where does Ada Voss live?")
session.save("mine")                       Session("nano", "mac", state="mine") continues from it
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

from pydantic import Field

from ttabench.core.declared import validate_arguments
from ttabench.core.errors import refuse_unreadable_texts
from ttabench.core.types import Chunk
from ttabench.methods import session
from ttabench.methods.states import reporting_misfit, save_state
from ttabench.readers.cards import load_card
from ttabench.run.evaluation import ModelCache
from ttabench.run.prompts import resolve_prompt
from ttabench.run.request import REQUEST_KEY, RunRequest, UserPath, state_header
from ttabench.run.resolve import resolve_method


class Session(session.Session):
    """Session of a method on a base model, both chosen by name as on the command line.

    Args:
        model: name, folder, GGUF file or hub id of the base model.
        state: folder written by `save` or `ttabench adapt`, to continue from.
        task: task that sets the prompt and the method's bundled checkpoint.
        checkpoint, preset, settings, device, max_context: as the options of `ttabench eval`.

    Raises:
        UserError: a name is unknown, or a setting, checkpoint or state does not fit. The message
            says how to fix it.
    """

    @validate_arguments
    def __init__(
        self,
        model: str = "nano",
        method: str = "icl",
        state: UserPath | None = None,
        *,
        task: str = "streamingqa",
        checkpoint: str = "",
        preset: str = "",
        settings: Mapping[str, object] | None = None,
        device: str = "auto",
        max_context: int | None = None,
    ) -> None:
        request = RunRequest(
            method=method,
            task=task,
            model=model,
            checkpoint=checkpoint,
            preset=preset,
            settings=settings or {},
            device=device,
            max_context=max_context,
        )
        self._prompt = resolve_prompt(request, load_card(request.task))
        resolved = resolve_method(request)
        lm = ModelCache().get(request, chat_template=self._prompt.chat)
        self._header = {
            **resolved.state_identity(lm),
            REQUEST_KEY: state_header(request, chat=self._prompt.chat),
        }
        self._folder = None if state is None else Path(state)
        before = None if self._folder is None else resolved.stored_state(self._folder, lm)
        super().__init__(lm, resolved.build(lm), before)

    @validate_arguments
    def read(self, pieces: str | Sequence[str | Chunk]) -> None:
        """Read more context in order, such as documents or turns. A single text is one chunk."""
        texts = [pieces] if isinstance(pieces, str) else pieces
        chunks = [Chunk(text=text) if isinstance(text, str) else text for text in texts]
        refuse_unreadable_texts([chunk.text for chunk in chunks])
        super().read(chunks)

    @validate_arguments
    def ask(self, question: str, max_new_tokens: Annotated[int, Field(ge=1, le=10**6)] = 16) -> str:
        """Answer a question with the task's prompt template.

        Raises:
            UserError: the context does not fit the model, the stored state does not fit the
                method, or the task has no prompt template.
        """
        want = self._prompt.card.prompt.make_generate(max_new_tokens=max_new_tokens)
        query = self._prompt.make_query(question, question, want)
        with reporting_misfit(self._folder, self.method.name):
            (answer,) = self.answer([query])
        return answer.prediction

    @validate_arguments
    def save(self, folder: UserPath, *, force: bool = False) -> Path:
        """Write the state as `ttabench adapt` does.

        `force`: replace a state in the folder; other files are never replaced.
        """
        with reporting_misfit(self._folder, self.method.name):
            state = self.state
        return save_state(Path(folder), state, self._header, force=force)
