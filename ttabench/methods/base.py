"""What every method has, with defaults: an empty state, one piece at a time, no parameters, a training loss.

A method overrides `adapt` and `patch`, and what else it does differently:

    class Echo(BaseMethod[NoSettings]):
        name, growth = "echo", "constant"
        def adapt(self, state, chunk): ...
        def patch(self, state, asks): ...
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

import torch
from torch import Tensor, nn

from ttabench.config import Recipe
from ttabench.patching import follows_text
from ttabench.scoring import nll
from ttabench.stream import choice_ids, gold_ids, prompt_ids
from ttabench.types import Ask, Episode, Growth, Json, Observe, Patch, State

if TYPE_CHECKING:
    from ttabench.lm import LM


@dataclass(frozen=True, kw_only=True)
class NoSettings:
    """Settings of a method that has none."""


SettingsT = TypeVar("SettingsT")


class BaseMethod(Generic[SettingsT]):
    """Defaults of everything optional in `ttabench.types.Method`.

    Args:
        lm: the frozen base model.
        settings: an instance of the class's `Settings`.
    """

    name: ClassVar[str] = ""
    summary: ClassVar[str] = ""
    """One line for `list methods`."""
    paper: ClassVar[str] = ""
    """arXiv id."""
    Settings: ClassVar[type[Any]] = NoSettings
    presets: ClassVar[Mapping[str, Any]] = {}
    """Settings by preset name; a preset named like the base model is its default."""
    recipes: ClassVar[Mapping[str, Recipe]] = {}
    """How presets are trained, by preset name, where that differs from `Recipe()`."""
    growth: Growth = "none"
    looks_at_question: bool = False
    trainable: bool = False
    reads_once: bool = False
    """Whether everything must be shown in one `adapt_many`, so that no task may ask in between (kvpress)."""
    own_tensors: tuple[str, ...] = ()
    """Tensors of the state that are text in the window: they stay the text's own under `eval --swap-state`."""
    num_beams: int = 1
    """Beams of generation, where the paper searches rather than decoding greedily."""

    def __init__(self, lm: LM, settings: SettingsT) -> None:
        self.lm = lm
        self.settings = settings

    def begin(self, rows: int) -> State:
        """An empty state for `rows` independent readers."""
        return State(rows, meta={"tokens_read": [0] * rows})

    def adapt(self, state: State, chunk: Sequence[Observe]) -> State:
        """Read one more piece per row."""
        raise NotImplementedError

    def adapt_many(self, state: State, chunks: Sequence[Sequence[Observe]]) -> State:
        """Read several pieces per row, one after the other; methods that can read them in one batch override this."""
        for chunk in chunks:
            state = self.adapt(state, chunk)
        return state

    def adapt_window(self, state: State, chunks: Sequence[Sequence[Observe]]) -> State:
        """Read what fills `own_tensors` and `meta` as `adapt_many` does; the other tensors may stay as they were.

        For runs whose answers come from another state (`swapping`). Methods that can leave work out override this.
        """
        return self.adapt_many(state, chunks)

    def patch(self, state: State, asks: Sequence[Ask]) -> Patch:
        """The patch for these queries, see `ttabench.types.Method.patch`."""
        raise NotImplementedError

    def labels(self) -> dict[str, Json]:
        """What readers of a record should know about how the method did its work, once it has read something."""
        return {}

    def modules(self) -> nn.ModuleDict:
        """What is trained and saved."""
        return nn.ModuleDict()

    def prepare_training(self, first: Sequence[Episode] = ()) -> None:
        """Load pretrained parts, or begin where the data are. Called once, before training that does not start from a
        checkpoint, with the episodes of its first step."""

    def training_steps(self, batches: Iterable[Sequence[Episode]]) -> Iterator[Sequence[Episode]]:
        """The episodes of each optimiser step; by default a batch a step."""
        return iter(batches)

    def learn(self, episodes: Sequence[Episode], parts: int = 1) -> dict[str, Tensor]:
        """Add the gradient of the training loss of these episodes to the parameters.

        Args:
            episodes: of one optimiser step.
            parts: take the episodes in so many groups, one after the other, each weighed by its target tokens: the
                memory of one group, and the gradient of all at once wherever the loss is a mean over target tokens.

        Returns:
            the named parts of the loss, without gradients, their sum "loss", and whatever else is worth telling.
        """
        size = -(-len(episodes) // parts)
        groups = [episodes[begin : begin + size] for begin in range(0, len(episodes), size)]
        counts = [self._targets(group) for group in groups] if len(groups) > 1 else [1]
        told: dict[str, Tensor] = {}
        for group, count in zip(groups, counts, strict=True):
            scaled = {name: part * (count / sum(counts)) for name, part in self.loss_parts(group).items()}
            torch.stack(list(scaled.values())).sum().backward()  # type: ignore[no-untyped-call]
            for name, part in scaled.items():
                told[name] = told[name] + part.detach() if name in told else part.detach()
        return {**told, "loss": torch.stack(list(told.values())).sum()}

    def _targets(self, episodes: Sequence[Episode]) -> int:
        return sum(len(training_item(self.lm, ask)[1]) for episode in episodes for ask in episode.asks())

    def carried(self) -> dict[str, Tensor]:
        """What training carries from step to step beside the parameters; by default nothing."""
        return {}

    def carry(self, tensors: Mapping[str, Tensor]) -> None:
        """Go on from what `carried` gave."""
        assert not tensors, f"{self.name} carries nothing from step to step"

    def judge(self, episodes: Sequence[Episode]) -> dict[str, float]:
        """Validation figures of episodes that are not trained on; by default "loss", that of training."""
        with torch.no_grad():
            return {"loss": float(torch.stack(list(self.loss_parts(episodes).values())).sum())}

    def loss_parts(self, episodes: Sequence[Episode]) -> dict[str, Tensor]:
        """Named scalars whose sum is the training loss of these episodes.

        By default one part, "answer": the mean negative log-likelihood of the target tokens, each query asked after
        the pieces that stand before it, through the same `adapt` and `patch` as in use.
        """
        total: Tensor | None = None
        count = 0
        for episode in episodes:
            state = self.begin(1)
            for asking, steps in groupby(episode.steps, lambda step: isinstance(step, Ask)):
                if not asking:
                    state = self.adapt_many(state, [[step] for step in steps if isinstance(step, Observe)])
                    continue
                asks = [step for step in steps if isinstance(step, Ask)]
                patch = self.patch(state, asks)
                follows = follows_text(patch)
                summed, tokens = nll(self.lm, patch, [training_item(self.lm, ask, follows=follows) for ask in asks])
                total = summed if total is None else total + summed
                count += tokens
        assert total is not None, "training episodes without a query"
        return {"answer": total / count}


def training_item(
    lm: LM, ask: Ask, max_prompt: int | None = None, *, follows: bool = False
) -> tuple[list[int], list[int]]:
    """Prompt and target ids of a query with its first gold answer, or its right option.

    Args:
        lm: the base model, for its tokenizer.
        ask: the query.
        max_prompt: the prompt keeps its last so many tokens; the answer is never cut.
        follows: whether other text stands before the prompt in the window.
    """
    prompt = prompt_ids(lm, ask, follows=follows)
    if max_prompt is not None:
        prompt = prompt[max(0, len(prompt) - max_prompt) :]
    if ask.mode == "choose":
        assert ask.gold is not None, f"query {ask.key} has options but no right one"
        (pairs,) = choice_ids(lm, [ask], follows=follows)
        prompt, options = pairs[ask.gold] if ask.heads else pairs[0]
        return prompt[len(prompt) - (max_prompt or len(prompt)) :], options[0 if ask.heads else ask.gold]
    assert ask.answers, f"query {ask.key} has no answer to train on"
    return prompt, gold_ids(lm, ask)


def tokens_read(state: State) -> list[int]:
    """Tokens of context each row has taken in."""
    return list(state.meta["tokens_read"])
