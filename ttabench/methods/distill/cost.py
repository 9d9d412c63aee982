"""What context distillation costs.

cost(settings, shape, work).adapt_flops     the teacher reads, asks itself and answers; the student takes its steps
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from ttabench.core.sizes import CHARACTERS_A_TOKEN
from ttabench.cost.load import SINGLE, Cost, Workload, answer, closed_book
from ttabench.cost.lowrank import Factors, targeted
from ttabench.cost.shape import Shape
from ttabench.methods.distill.settings import QUESTION, DistillSettings

JOINT = 1
"""Tokens between a context and what is read behind it, in most tokenizers."""
Lesson = tuple[int, int]
"""Tokens that the student reads, and how many it predicts."""


def cost(settings: DistillSettings, shape: Shape, work: Workload) -> Cost:
    """Context distillation (arXiv 2209.15189): gradient steps on what the base says with the context in its window.

    The state is the student in float32. Questions and answers are counted at their greatest length, and what joins
    texts is left out; contexts that go into several windows are counted as one window of that size each.
    """
    s, bare = settings, closed_book(shape, work)
    factors = Factors(shape, s.rank, targeted(s.targets, shape))
    if not work.pieces:
        return bare
    window = min(s.window, work.tokens)
    lessons = _lessons(s, work)
    prefix = s.slots if s.target == "prefix" else 0
    before = JOINT if prefix else shape.starts
    asked = [(tokens + before, targets) for tokens, targets in lessons]
    step = (lambda tokens, targets: _prefix_step(shape, prefix, tokens, targets)) if prefix else factors.step
    learning = _steps(s, asked, lambda tokens, targets: step(tokens, targets) + shape.head(targets))
    windows = work.tokens / window
    flops = windows * shape.forward(shape.starts + window) + _told(s, shape, work, window, lessons)
    floats = shape.slot_floats * prefix or factors.size
    asking = answer(shape, work, prefix, begun=True) if prefix else bare.ask_flops + factors.forward(bare.positions)
    longest = shape.starts + window + JOINT + max(tokens for tokens, _ in lessons)
    return replace(
        bare,
        state_floats=floats,
        state_bytes=SINGLE * floats,
        adapt_slots=longest,
        ask_slots=prefix + (work.asked if prefix else bare.ask_slots),
        adapt_flops=round(flops + learning + (shape.forward(prefix) if prefix else 0)),
        ask_flops=asking,
        positions=max(longest, prefix + work.asked, bare.positions),
    )


def _lessons(settings: DistillSettings, work: Workload) -> list[Lesson]:
    """Of every piece, behind nothing."""
    size = settings.length
    if settings.ask == "text":
        cut = [min(size, piece - begin) for piece in work.pieces for begin in range(0, piece, size)]
        return [(tokens - 1, tokens) for tokens in cut if tokens > 1] or [(1, 1)]
    worded = len(settings.template.replace(QUESTION, "")) // CHARACTERS_A_TOKEN
    return [(worded + 2 * size - 1, size)] * (settings.questions * len(work.pieces))


def _told(settings: DistillSettings, shape: Shape, work: Workload, window: int, lessons: Sequence[Lesson]) -> int:
    """Operations of the teacher behind its window: it reads all lessons; it asks behind each piece, and answers."""
    context = shape.starts + window
    reading = sum(shape.forward(JOINT + tokens, context) for tokens, _ in lessons)
    if settings.ask == "text":
        return reading
    size, again = settings.length, replace(shape, dense=False)
    writing = sum(
        shape.forward(shape.starts + piece) + settings.questions * (again.forward(size, piece) + shape.head(size))
        for piece in work.pieces
    )
    return reading + writing + sum(again.forward(tokens, context) + shape.head(size) for tokens, _ in lessons)


def _steps(settings: DistillSettings, lessons: Sequence[Lesson], operations_of: Callable[[int, int], int]) -> float:
    """Operations of all steps, over all lessons again and again; of the last, partial pass by their mean."""
    whole = sum(operations_of(*lesson) for lesson in lessons)
    passes, left = divmod(settings.steps, -(-len(lessons) // settings.batch))
    return whole * (passes + left * settings.batch / len(lessons))


def _prefix_step(shape: Shape, slots: int, tokens: int, targets: int) -> int:
    """A gradient step of keys and values in front of `tokens`: nothing goes back below the first layer's attention."""
    there = shape.forward(tokens, slots) + shape.head(targets)
    below = sum(linear.size for linear in shape.attention_linears[:-1])
    products = 4 * (shape.layers - 1) + 3
    return (
        there
        + 2 * tokens * (shape.body - below)
        + shape.head(targets)
        + 2 * shape.width * shape.pairs(tokens, slots) * products
    )
