"""From where on compressing a context into a few keys and values pays, as Kim et al. (arXiv 2312.03414) count it."""

from __future__ import annotations

from ttabench.cost.shape import Shape


def break_even_tokens(shape: Shape, comp_tokens: int, piece_tokens: int) -> float:
    """Tokens of prompts and answers from which on compressing a piece saves operations (arXiv 2312.03414, table 12).

    A COMP token costs 2 operations a parameter of the layers; a slot less saves attention to every later token. This
    is the paper's own rule, by which its table can be computed again; `table.break_even` compares whole costs instead.
    """
    saved = shape.attention(piece_tokens - comp_tokens)
    return comp_tokens * 2 * shape.body / saved
