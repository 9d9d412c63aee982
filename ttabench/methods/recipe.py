"""How a method is trained where `ttabench train` is told no more.

Recipe(steps=300, lr=3e-4, first=Stage(settings=("rank=8",), recipe=Recipe(steps=300)))      LoRA, then the method on it
Recipe(first=Stage(method="generative_adapter", settings=("objective=both",)))      the method itself, which goes on
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How a method is trained: `ttabench train` with no more said. A method's presets may have their own."""

    documents: tuple[int, ...] = (16,)
    """Pieces in an episode, one number for each equal part of the steps."""
    rounds: int = 1
    """How often the steps go through all of these numbers."""
    questions: int = 1
    """Queries about each piece."""
    batch_documents: int = 0
    """Pieces in one step, in as many episodes as that makes; 0 for one episode a step."""
    steps: int = 1000
    lr: float = 1e-4
    warmup: int = 0
    """Steps of linear warm-up."""
    schedule: str = "constant"
    optimizer: str = "adam"
    """Or `muon`."""
    beta2: float = 0.999
    """Adam's decay of squared gradients."""
    clip: float = 100.0
    """Largest norm of the gradient."""
    decay: float = 0.0
    """Weight decay, decoupled from the gradient (AdamW)."""
    first: Stage | None = None
    """What is trained before, unless there is a checkpoint to begin from or that the base stands on: another method,
    which is added to the base model's weights, or the method itself, whose parameters are trained on."""

    def episodes(self, documents: int) -> int:
        """Episodes of a step whose episodes hold so many documents."""
        return max(1, self.batch_documents // documents)


@dataclass(frozen=True, kw_only=True)
class Stage:
    """An earlier stage of a training, on the same task; its recipe may have a `first`."""

    method: str = "lora"
    """One that reads nothing, or the method that is trained."""
    settings: tuple[str, ...] = ()
    """Settings as they are typed, `rank=8`; of the method itself those that differ from the later stage's."""
    task_options: tuple[str, ...] = ()
    """Options of the task beside those that were typed, `ratio=1.0`."""
    recipe: Recipe = field(default_factory=Recipe)
