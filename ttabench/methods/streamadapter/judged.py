"""Whether StreamAdapter's states remember: texts under their own state, under another text's, and under none.

    own 3.41   other 3.47   none 3.60      0.06 of the gain is memory of this text, 0.13 practice on texts of its kind

Texts are read in segments, as in training (`segments`, whose shape letters hold here).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ttabench.core.types import Episode
from ttabench.methods.streamadapter.networks import StreamAdapterNetworks
from ttabench.methods.streamadapter.segments import Seen, by_layer, parts_of, read_segment, state_after

JUDGED_TOKENS = 4096
"""Of each validation text."""


def validated(networks: StreamAdapterNetworks, episodes: Sequence[Episode]) -> dict[str, float]:
    """NLL a token of texts under their own state, another text's and none, see `judged` and `compared`."""
    rows = next(parts_of(networks, episodes, max(2, JUDGED_TOKENS // networks.settings.stride)))
    ids_BT = torch.tensor([row.observes()[0].ids for row in rows], device=networks.lm.device)
    return compared(judged(networks, ids_BT, networks.settings.stride), networks.settings.stride)


def compared(losses: Mapping[str, Tensor], segment: int) -> dict[str, float]:
    """Means of what `judged` found, and how much worse another state is, with standard errors over texts.

    The first segment of a text has no state and is left out; "late" is the second half of every segment.
    """
    by_name = {name: values.view(len(values), -1, segment)[:, 1:] for name, values in losses.items()}
    means = {name: float(values.mean()) for name, values in by_name.items()}
    for name in ("other", "none"):
        worse_BST = by_name[name] - by_name["own"]
        for part, values_BST in (("", worse_BST), ("_late", worse_BST[..., segment // 2 :])):
            each_B = values_BST.mean((1, 2))
            means[f"{name}_less_own{part}"] = float(each_B.mean())
            means[f"{name}_less_own{part}_stderr"] = float(each_B.std() / len(each_B) ** 0.5)
    return means


@torch.no_grad()
def judged(networks: StreamAdapterNetworks, ids_BT: Tensor, segment: int) -> dict[str, Tensor]:
    """NLL [B, T - 1] of every token of texts from their beginning, under three states.

    Args:
        networks: what is judged.
        ids_BT: texts of two rows or more, as `learned` takes them.
        segment: tokens of a segment.

    Returns:
        "own": under the text's state; "other": under that of the next row at the same place; "none": the base model.
    """
    losses_by_state: dict[str, list[Tensor]] = {"own": [], "other": [], "none": []}
    h_LBMRE = networks.empty(ids_BT.shape[0])["h"]
    for end in range(segment, ids_BT.shape[1], segment):
        part_BT = ids_BT[:, end - segment : end + 1]
        states = {"own": h_LBMRE, "other": h_LBMRE.roll(-1, 1), "none": torch.zeros_like(h_LBMRE)}
        known = {"own": h_LBMRE} if end == segment else states
        read = {name: _by_row(networks, losses, part_BT) for name, losses in known.items()}
        for name, parts in losses_by_state.items():
            parts.append(torch.cat([loss for loss, _ in read.get(name, read["own"])]))
        seen = by_layer([row for _, row in read["own"]])
        h_LBMRE = state_after(networks, h_LBMRE, [(torch.cat(keys), torch.cat(values)) for keys, values in seen])
    return {name: torch.cat(parts, dim=1) for name, parts in losses_by_state.items()}


def _by_row(networks: StreamAdapterNetworks, h_LBMRE: Tensor, part_BT: Tensor) -> list[tuple[Tensor, Seen]]:
    """Row by row, so that the logits of one are alive at a time."""
    return [read_segment(networks, h_LBMRE[:, i : i + 1], part_BT[i : i + 1]) for i in range(len(part_BT))]
