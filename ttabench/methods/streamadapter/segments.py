"""StreamAdapter trained on long texts in disjoint segments: every token is read once, and every token is a target.

Shape letters: L layers · B rows · M linear maps · R queries · E state channels of a query · T tokens · D width.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from ttabench.core.types import Ask, Episode, Observe
from ttabench.lm.forward.deltas import deltas_applied
from ttabench.lm.forward.head import logprobs_of
from ttabench.lm.forward.tokens import gold_ids, piece_ids, prompt_ids
from ttabench.lm.forward.window import Window
from ttabench.lm.model import LM
from ttabench.lm.patch import Prefix
from ttabench.methods.streamadapter.networks import ChunkMapper, StreamAdapterNetworks

JUDGED_TOKENS = 4096
"""Of each validation text."""


def stretches(networks: StreamAdapterNetworks, episodes: Sequence[Episode], count: int) -> Iterator[list[Episode]]:
    """Texts cut into stretches of `count` segments, all texts at once, each as long as the shortest allows.

    With `rehearse` every other stretch is half as many segments, twice.

    Yields:
        the same stretch of every text: one piece, its tokens behind one in front.
    """
    segment = networks.settings.stride
    rows = [sequence_ids(networks.lm, episode) for episode in episodes]
    whole = (min(len(row) for row in rows) - 1) // segment
    first = number = 0
    while first < whole:
        times = 2 if networks.settings.rehearse and number % 2 else 1
        last = min(first + max(1, count // times), whole)
        begin, end = first * segment, last * segment
        read = [(row[begin], *times * row[begin + 1 : end + 1]) for row in rows]
        yield [
            Episode(key=episode.key, start=begin, steps=(Observe(text="", joiner="", ids=ids),))
            for episode, ids in zip(episodes, read, strict=True)
        ]
        first, number = last, number + 1


def sequence_ids(lm: LM, episode: Episode) -> list[int]:
    """The text of an episode that a reader cut into pieces and queries about what comes next."""
    ids = [token for piece in episode.observes() for token in piece_ids(lm, piece, first=True)]
    if isinstance(last := episode.steps[-1], Ask):
        ids += [*prompt_ids(lm, last, follows=True), *gold_ids(lm, last)]
    return ids


@torch.no_grad()
def centre(networks: StreamAdapterNetworks, episodes: Sequence[Episode]) -> None:
    """Centre all mappers on the values of the first segment of each text, see `ChunkMapper.centre`."""
    end, none = networks.settings.stride + 1, networks.empty(1)["h"]
    texts = [torch.tensor([sequence_ids(networks.lm, one)[:end]], device=networks.lm.device) for one in episodes]
    read = [_segment(networks, none, ids_1T)[1].values_LBHPD for ids_1T in texts]
    for mapper, values in zip(networks.mappers, zip(*read, strict=True), strict=True):
        assert isinstance(mapper, ChunkMapper)
        # the first token takes the attention that no other deserves
        mapper.centre(torch.cat([value[:, :, len(networks.lm.start_ids) + 1 :] for value in values], 2))


def learned(
    networks: StreamAdapterNetworks, carried: Mapping[str, Tensor], episodes: Sequence[Episode]
) -> tuple[Tensor, dict[str, Tensor]]:
    """Add the gradient of one stretch of every text, row by row, so that the activations of one row are alive.

    `carried`: `h` that the stretch before has left; not looked at where a text begins. Returns the mean loss, and the
    new `h`.
    """
    rows = [torch.tensor([episode.observes()[0].ids], device=networks.lm.device) for episode in episodes]
    h_LBMRE = carried["h"] if carried and episodes[0].start else networks.empty(len(rows))["h"]
    states, losses = list[Tensor](), list[Tensor]()
    for row, ids_1T in enumerate(rows):
        loss_1T, state = read(networks, h_LBMRE[:, row : row + 1], ids_1T, 1 / (ids_1T[:, 1:].numel() * len(rows)))
        losses.append(loss_1T.mean())
        states.append(state)
    return torch.stack(losses).mean(), {"h": torch.cat(states, 1)}


def read(networks: StreamAdapterNetworks, h_LBMRE: Tensor, ids_BT: Tensor, share: float) -> tuple[Tensor, Tensor]:
    """Add the gradient of the loss of a stretch, in the memory of one segment: what a segment saw counts as given, so
    its loss is differentiated at once, down to the state before it, and these gradients then go through the states.

    `ids_BT`: whole segments, and one token in front, which the first of them is predicted from; `share`: factor of the
    summed loss. Returns the NLL [B, T - 1] of all tokens but the first, and the state after them.
    """
    segment, losses, state = networks.settings.stride, list[Tensor](), h_LBMRE.detach()
    assert (ids_BT.shape[1] - 1) % segment == 0, f"{ids_BT.shape[1] - 1} tokens are no whole segments of {segment}"
    reached = list[tuple[Tensor, Tensor]]()
    for end in range(segment, ids_BT.shape[1], segment):
        leaf = state.detach().requires_grad_()
        loss_BT, seen = _segment(networks, leaf, ids_BT[:, end - segment : end + 1])
        (share * loss_BT.sum()).backward()  # type: ignore[no-untyped-call]
        losses.append(loss_BT.detach())
        if state.requires_grad and leaf.grad is not None:
            reached.append((state, leaf.grad))
        state = _after(networks, state, seen)
    if reached:
        torch.autograd.backward(*zip(*reached, strict=True))  # type: ignore[arg-type]
    return torch.cat(losses, 1), state.detach()


@torch.no_grad()
def judged(networks: StreamAdapterNetworks, episodes: Sequence[Episode]) -> dict[str, float]:
    """Mean NLL of a token of texts from their second segment on under three states: the text's own, that of the next
    text at the same place ("other"), and "none"; and how much worse the others are, with standard errors over texts."""
    segment, losses = networks.settings.stride, list[Tensor]()
    rows = next(stretches(networks, episodes, max(2, JUDGED_TOKENS // segment)))
    ids_BT = torch.tensor([row.observes()[0].ids for row in rows], device=networks.lm.device)
    own = networks.empty(len(rows))["h"]
    for end in range(segment, ids_BT.shape[1], segment):
        part_BT = ids_BT[:, end - segment : end + 1]
        (loss_BT, seen), *others = (
            _segment(networks, h, part_BT) for h in (own, own.roll(-1, 1), torch.zeros_like(own))
        )
        losses.append(torch.stack([loss_BT, *(loss for loss, _ in others)]))
        own = _after(networks, own, seen)
    by_text = torch.cat(losses[1:], 2).mean(2)  # [state, text]
    figures = dict(zip(("own", "other", "none"), by_text.mean(1).tolist(), strict=True))
    for number, name in enumerate(("other", "none"), 1):
        worse_B = by_text[number] - by_text[0]
        figures[f"{name}_less_own"] = float(worse_B.mean())
        figures[f"{name}_less_own_stderr"] = float(worse_B.std() / len(worse_B) ** 0.5)
    return {"loss": figures["own"], **figures}


def _segment(networks: StreamAdapterNetworks, h_LBMRE: Tensor, part_BT: Tensor) -> tuple[Tensor, Prefix]:
    """NLL [B, T - 1] of the tokens of a segment behind the first, under the weights of a state, and what was seen."""
    lm = networks.lm
    start_BS = part_BT.new_tensor(lm.start_ids).expand(len(part_BT), -1)
    window = Window(lm, None, len(part_BT))
    with deltas_applied(lm, networks.deltas(h_LBMRE), len(part_BT)):
        hidden_BTD = window.feed(torch.cat([start_BS, part_BT[:, :-1]], 1))[:, start_BS.shape[1] :]
    values_N = logprobs_of(lm, hidden_BTD.flatten(0, 1), part_BT[:, 1:].flatten())
    return -values_N.view(hidden_BTD.shape[:2]), window.prefix()


def _after(networks: StreamAdapterNetworks, h_LBMRE: Tensor, seen: Prefix) -> Tensor:
    """The state after what was seen, but for what begins a text, has gone into it."""
    start = len(networks.lm.start_ids)
    keys, values = ([each.detach()[:, :, start:] for each in part] for part in (seen.keys_LBHPD, seen.values_LBHPD))
    full_B = torch.full((h_LBMRE.shape[1],), keys[0].shape[2] // networks.settings.chunk, device=h_LBMRE.device)
    return networks.advanced(h_LBMRE, keys, values, full_B)
