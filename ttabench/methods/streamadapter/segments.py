"""StreamAdapter trained on long texts in disjoint segments: every token is read once, and every token is a target.

Shape letters: L layers · B rows · M linear maps · R queries · E state channels of a query · T tokens · S segments ·
    D width.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from ttabench.core.types import Ask, Episode, Observe
from ttabench.lm.forward.deltas import deltas_applied
from ttabench.lm.forward.tokens import gold_ids, piece_ids, prompt_ids
from ttabench.lm.forward.window import Window
from ttabench.lm.model import LM
from ttabench.methods.streamadapter.networks import ChunkMapper, StreamAdapterNetworks

BASE_EVERY = 6
"""Of so many stretches of a training text the base model reads one, too."""
LOGITS_AT_ONCE = 128
"""Positions whose logits are alive at a time: 25 MB of them at a vocabulary of 49,152."""


def parts_of(networks: StreamAdapterNetworks, episodes: Sequence[Episode], count: int) -> Iterator[list[Episode]]:
    """Texts cut into stretches of `count` segments, all texts at once, each as long as the shortest allows.

    With `rehearse` every other stretch is half as many segments, twice.

    Yields:
        the same stretch of every text: one piece, its tokens behind one in front, see `learned`.
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
    texts = [
        torch.tensor([sequence_ids(networks.lm, episode)[:end]], device=networks.lm.device) for episode in episodes
    ]
    read = [forward_segment(networks, none, ids_1T)[1] for ids_1T in texts]
    for mapper, (_, values) in zip(networks.mappers, by_layer(read), strict=True):
        assert isinstance(mapper, ChunkMapper)
        # the first token takes the attention that no other deserves
        mapper.centre(torch.cat([value[:, :, 1:].transpose(0, 2) for value in values]).transpose(0, 2))


def learned_step(
    networks: StreamAdapterNetworks, h_LBMRE: Tensor | None, episodes: Sequence[Episode]
) -> tuple[dict[str, Tensor], Tensor]:
    """Add the gradient of one stretch of every text, row by row, so that the activations of one row are alive.

    `h_LBMRE`: states that the stretch before has left; not looked at where a text begins. Returns the mean loss,
    every `BASE_EVERY`-th stretch of a text also that of the base model; and the new states.
    """
    rows = [torch.tensor([episode.observes()[0].ids], device=networks.lm.device) for episode in episodes]
    segment, start, tokens = networks.settings.stride, episodes[0].start, rows[0].shape[1] - 1
    if h_LBMRE is None or not start:
        h_LBMRE = networks.empty(len(rows))["h"]
    share = 1 / (len(rows) * tokens)
    done = [learned(networks, h_LBMRE[:, i : i + 1], ids_1T, segment, share) for i, ids_1T in enumerate(rows)]
    mean = torch.stack([loss.mean() for loss, _ in done]).mean()
    parts = {"answer": mean, "loss": mean}
    if start // (segment * networks.settings.step_segments) % BASE_EVERY == BASE_EVERY - 1:
        parts["base"] = torch.stack([base_losses(networks, ids_1T, segment).mean() for ids_1T in rows]).mean()
    return parts, torch.cat([state for _, state in done], dim=1)


def learned(
    networks: StreamAdapterNetworks, h_LBMRE: Tensor, ids_BT: Tensor, segment: int, share: float
) -> tuple[Tensor, Tensor]:
    """Add the gradient of the loss of a stretch of text to the parameters. `h_LBMRE`: the state before the stretch;
    no gradient reaches it; `ids_BT`: the tokens, whole segments, and one more in front, which the first of them is
    predicted from; `segment`: tokens of a segment, whole chunks; `share`: factor of the summed loss; one over all
    tokens of a step makes it their mean. Returns NLL of every token [B, T - 1], and the state after the stretch."""
    assert (ids_BT.shape[1] - 1) % segment == 0, f"{ids_BT.shape[1] - 1} tokens are no whole segments of {segment}"
    state, states, leaves, losses = h_LBMRE.detach(), [], [], []
    ends = range(segment, ids_BT.shape[1], segment)
    for end in ends:
        leaf = state.detach().requires_grad_()
        part_BT = ids_BT[:, end - segment : end + 1]
        loss_BT, seen = _differentiated(networks, leaf, part_BT, share)
        losses.append(loss_BT)
        states.append(state)
        leaves.append(leaf)
        with torch.set_grad_enabled(end != ends[-1]):
            state = state_after(networks, state, seen)
    linked = [
        (state_of_segment, leaf.grad)
        for state_of_segment, leaf in zip(states, leaves, strict=True)
        if state_of_segment.requires_grad
    ]
    if linked:
        torch.autograd.backward(*zip(*linked, strict=True))  # type: ignore[arg-type]
    return torch.cat(losses, dim=1), state.detach()


@torch.no_grad()
def base_losses(networks: StreamAdapterNetworks, ids_BT: Tensor, segment: int) -> Tensor:
    """NLL [B, T - 1] of the same tokens under the base model alone."""
    none = networks.empty(ids_BT.shape[0])["h"]
    parts = [ids_BT[:, end - segment : end + 1] for end in range(segment, ids_BT.shape[1], segment)]
    return torch.cat([read_segment(networks, none, part)[0] for part in parts], dim=1)


Seen = Sequence[tuple[Tensor, Tensor]]
"""Keys and values [B, H, T, D] of each layer."""


def by_layer(rows: Sequence[Seen]) -> list[tuple[list[Tensor], list[Tensor]]]:
    """Hidden states that several rows saw, layer by layer."""
    return [([pair[0] for pair in layer], [pair[1] for pair in layer]) for layer in zip(*rows, strict=True)]


def forward_segment(networks: StreamAdapterNetworks, h_LBMRE: Tensor, part_BT: Tensor) -> tuple[Tensor, Seen]:
    """Last hidden states [B, T - 1, D] of all tokens but the last, and their keys and values, detached."""
    lm, start = networks.lm, list(networks.lm.start_ids)
    inputs_BT = torch.cat([part_BT.new_tensor(start).expand(len(part_BT), -1), part_BT[:, :-1]], dim=1)
    window = Window(lm, None, len(part_BT))
    with deltas_applied(lm, networks.deltas(h_LBMRE), len(part_BT)):
        hidden_BTD = window.feed(inputs_BT)[:, len(start) :]
    read = window.prefix()
    pairs = zip(read.keys_LBHPD, read.values_LBHPD, strict=True)
    return hidden_BTD, [(k.detach()[:, :, len(start) :], v.detach()[:, :, len(start) :]) for k, v in pairs]


def read_segment(networks: StreamAdapterNetworks, h_LBMRE: Tensor, part_BT: Tensor) -> tuple[Tensor, Seen]:
    """NLL [B, T - 1] of the tokens of a segment behind the first, under the weights of a state, and what was seen."""
    hidden_BTD, seen = forward_segment(networks, h_LBMRE, part_BT)
    parts = [_losses(networks, hidden_BTD[:, s], part_BT[:, 1:][:, s]) for s in _slices(hidden_BTD)]
    return torch.cat(parts, dim=1), seen


def _differentiated(
    networks: StreamAdapterNetworks, leaf_LBMRE: Tensor, part_BT: Tensor, share: float
) -> tuple[Tensor, Seen]:
    """As `read_segment`, and the gradient of the sum times `share` goes to the parameters and to the leaf."""
    hidden_BTD, seen = forward_segment(networks, leaf_LBMRE, part_BT)
    top_BTD, parts = hidden_BTD.detach().requires_grad_(), []
    for slice_BTD in _slices(hidden_BTD):
        loss_BT = _losses(networks, top_BTD[:, slice_BTD], part_BT[:, 1:][:, slice_BTD])
        (loss_BT.sum() * share).backward()  # type: ignore[no-untyped-call]
        parts.append(loss_BT.detach())
    hidden_BTD.backward(top_BTD.grad)  # type: ignore[no-untyped-call]
    return torch.cat(parts, dim=1), seen


def _slices(hidden_BTD: Tensor) -> list[slice]:
    return [slice(begin, begin + LOGITS_AT_ONCE) for begin in range(0, hidden_BTD.shape[1], LOGITS_AT_ONCE)]


def _losses(networks: StreamAdapterNetworks, hidden_BTD: Tensor, targets_BT: Tensor) -> Tensor:
    logits_BVT = networks.lm.logits(hidden_BTD).float().transpose(1, 2)
    return cross_entropy(logits_BVT, targets_BT, reduction="none")


def state_after(networks: StreamAdapterNetworks, h_LBMRE: Tensor, seen: Seen) -> Tensor:
    """The state after what was seen has gone into it."""
    keys, values = [k for k, _ in seen], [v for _, v in seen]
    chunks = keys[0].shape[2] // networks.settings.chunk
    full_B = torch.full((h_LBMRE.shape[1],), chunks, device=h_LBMRE.device)
    return networks.advanced(h_LBMRE, keys, values, full_B)
