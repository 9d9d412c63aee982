"""Which slots SnapKV and H2O keep, one head and one query at a time.

SnapKV: Li et al., arXiv 2404.14469, section 4. H2O: Zhang et al., arXiv 2306.14048, algorithm 1.

Shape letters: N query heads · H key/value heads · T tokens · D head size · W window · P slots kept.
"""

from __future__ import annotations

import torch
from torch import Tensor


def attention_row(query_D: Tensor, keys_SD: Tensor) -> Tensor:
    return torch.softmax(keys_SD @ query_D * query_D.shape[0] ** -0.5, dim=0)


def best(scores: list[float], count: int) -> list[int]:
    """Places of the highest scores, ties to the lower place, ascending."""
    return sorted(sorted(range(len(scores)), key=lambda place: (-scores[place], place))[:count])


def snapkv_scores(query_NTD: Tensor, key_HTD: Tensor, window: int, kernel: int, pooling: str) -> Tensor:
    """Pooled attention [N, T-W] that every query head's window pays to what stands before it."""
    heads, tokens, _ = query_NTD.shape
    group, past, half = heads // len(key_HTD), tokens - window, kernel // 2
    pooled_NP = torch.zeros(heads, past, dtype=query_NTD.dtype)
    for head in range(heads):
        keys = key_HTD[head // group]
        rows = [attention_row(query_NTD[head, t], keys[: t + 1])[:past] for t in range(past, tokens)]
        sums = torch.stack(rows).sum(0)
        for place in range(past):
            near = sums[max(0, place - half) : place + half + 1]
            pooled_NP[head, place] = near.max() if pooling == "max" else near.sum() / kernel
    return pooled_NP


def snapkv(query_NTD: Tensor, key_HTD: Tensor, spec: dict[str, int | str]) -> tuple[Tensor, Tensor]:
    """Scores [sets, T-W] and kept places [sets, P] of one layer; a set a query head, or one a key/value head."""
    window, capacity, tokens = int(spec["window"]), int(spec["capacity"]), query_NTD.shape[1]
    scores = snapkv_scores(query_NTD, key_HTD, window, int(spec["kernel"]), str(spec["pooling"]))
    if spec["gqa"] == "group_mean":
        scores = scores.view(len(key_HTD), -1, scores.shape[-1]).mean(1)
    last = list(range(tokens - window, tokens))
    return scores, torch.tensor([best(row.tolist(), capacity - window) + last for row in scores])


def h2o(query_GTD: Tensor, key_TD: Tensor, ends: list[int], heavy: int, recent: int) -> list[dict[int, float]]:
    """Scores by place of what one key/value head has kept after every step; its G query heads count alike.

    Args:
        query_GTD: queries of the group.
        key_TD: its keys.
        ends: tokens read after every step.
        heavy: heavy hitters kept.
        recent: last tokens kept.
    """
    kept: dict[int, float] = {}
    after = []
    for begin, end in zip([0, *ends], ends, strict=False):
        held = list(kept)
        for token in range(begin, end):
            seen = [*held, *range(begin, token + 1)]
            for query_TD in query_GTD:
                for place, weight in zip(seen, attention_row(query_TD[token], key_TD[seen]).tolist(), strict=True):
                    kept[place] = kept.get(place, 0.0) + weight / len(query_GTD)
        places = sorted(kept)
        if len(places) > heavy + recent:
            older = places[:-recent]
            places = [older[rank] for rank in best([kept[place] for place in older], heavy)] + places[-recent:]
        kept = {place: kept[place] for place in places}
        after.append(dict(kept))
    return after


def margin(scores: list[float], count: int) -> float:
    """Relative gap between the last score that stays and the first that goes; 1 where nothing goes or they tie."""
    ranked = sorted(scores, reverse=True)
    if not 0 < count < len(ranked) or ranked[count - 1] == ranked[count]:
        return 1.0
    return (ranked[count - 1] - ranked[count]) / ranked[count - 1]
