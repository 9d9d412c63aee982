"""A session by names: `ttabench.Session("nano", "mac")`, for a few lines of Python.

session = Session("nano", "mac")
session.read(["Ada Voss lives in Port Ansel.", "Bo Lind collects stamps."])
session.ask("Where does Ada Voss live?")
session.save("mine")                       Session("nano", "mac", state="mine") goes on from there
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
from ttabench.methods.states import save_state
from ttabench.run.evaluation import ModelCache
from ttabench.run.request import REQUEST_KEY, RunRequest, UserPath, state_header
from ttabench.run.resolve import resolve_method, resolve_prompt


class Session(session.Session):
    """One reader under a method on a base model, all of them by name, as on the command line.

    Args:
        model: name, folder, GGUF file or hub id of the base model.
        state: a folder that `save` or `ttabench adapt` wrote, to go on from.
        task: whose words questions are asked in, and whose shipped checkpoint the method takes.
        checkpoint, preset, settings, device: as options of `ttabench eval`.

    Raises:
        UserError: an unknown name, a setting, checkpoint or state that does not fit; one line that says what to do.
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
    ) -> None:
        typed = tuple(f"{key}={value}" for key, value in (settings or {}).items())
        request = RunRequest(
            method=method,
            task=task,
            model=model,
            checkpoint=checkpoint,
            preset=preset,
            settings=typed,
            device=device,
        )
        self._prompt, resolved = resolve_prompt(request), resolve_method(request)
        lm = ModelCache().get(request, chat_template=self._prompt.chat)
        self._header = {
            **resolved.state_identity(lm),
            REQUEST_KEY: state_header(request, chat=self._prompt.chat),
        }
        before = None if state is None else resolved.stored_state(Path(state), lm)
        super().__init__(lm, resolved.build(lm), before)

    @validate_arguments
    def read(self, pieces: str | Sequence[str | Chunk]) -> None:
        """Read on: documents, demonstrations, turns of a dialogue ..., in order; one text alone is one piece."""
        texts = [pieces] if isinstance(pieces, str) else pieces
        observed = [Chunk(text=piece) if isinstance(piece, str) else piece for piece in texts]
        refuse_unreadable_texts([piece.text for piece in observed])
        super().read(observed)

    @validate_arguments
    def ask(self, question: str, max_new_tokens: Annotated[int, Field(ge=1, le=10**6)] = 16) -> str:
        """The model's answer to a question, asked in the words of the task.

        Raises:
            UserError: what was read does not fit the model; the task asks no questions.
        """
        want = self._prompt.card.prompt.make_generate(max_new_tokens=max_new_tokens)
        ask = self._prompt.make_query(question, question, want)
        (answer,) = self.answer([ask])
        return answer.prediction

    @validate_arguments
    def save(self, folder: UserPath, *, force: bool = False) -> Path:
        """Write the state, as `ttabench adapt` does; `force`: replace an earlier state, and never other files."""
        return save_state(Path(folder), self.state, self._header, force=force)
