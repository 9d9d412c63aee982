"""StreamAdapter: the keys and values of a context, summarised chunk by chunk, become weight deltas of the frozen LM.

Paper: Muhtar et al., "StreamAdapter: Efficient Test Time Adaptation from Contextual Streams", arXiv 2411.09289.
Shape letters: L layers · B rows · S slots · M linear maps · R queries · E state channels of a query.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain

import torch
from torch import Tensor, nn

from ttabench.core.types import Ask, Episode, Observe
from ttabench.lm.forward.deltas import deltas_applied
from ttabench.lm.forward.patching import check_fits
from ttabench.lm.forward.tokens import new_ids, pad
from ttabench.lm.model import LM
from ttabench.lm.patch import Delta, Patch, State
from ttabench.methods.base import labelled
from ttabench.methods.parts.cached import cached, prefix_of, read_on
from ttabench.methods.parts.lora import dense
from ttabench.methods.parts.newest import ids_of, window_of
from ttabench.methods.streamadapter import STREAMADAPTER, StreamAdapterSettings, segments
from ttabench.methods.streamadapter.networks import StreamAdapterNetworks
from ttabench.methods.streamadapter.segments import by_layer, read_segment, state_after
from ttabench.methods.trainable import Trainable

LABEL_NOTES = {
    "later_pieces_read_apart": {
        True: "read later pieces without the earlier ones in view, because they were not read in one go"
    }
}


class StreamAdapter(Trainable[StreamAdapterSettings]):
    """StreamAdapter. State: `h` [L, B, M, R, E]; the unfinished chunk's keys and values, or the window's tokens."""

    spec = STREAMADAPTER
    label_notes = LABEL_NOTES
    own_tensors = ("tokens", "lengths")
    needs = ("cache", "shape")

    def __init__(self, lm: LM, settings: StreamAdapterSettings) -> None:
        super().__init__(lm, settings)
        self.growth = "linear" if settings.keep_cache and settings.window is None else "constant"
        self.networks = StreamAdapterNetworks(lm, settings)
        self.reads = "run" if settings.window is None and not settings.keep_cache else "pieces"
        self._learning = False
        self._carried: dict[str, Tensor] = {}

    def modules(self) -> nn.ModuleDict:
        """mappers, one a layer."""
        return nn.ModuleDict(dict(self.networks.named_children()))

    def adapt(self, state: State, chunks: Sequence[Sequence[Observe]]) -> State:
        """Read all pieces of a row as one text; without a window its later pieces see the earlier ones."""
        rows = [list(chain(*pieces)) for pieces in new_ids(self.lm, state, chunks)]
        read = [before + len(new) for before, new in zip(state.meta["tokens_read"], rows, strict=True)]
        with torch.set_grad_enabled(self._learning):
            tensors = self._whole(state, rows) if self.settings.window is None else self._windows(state, rows)
        apart = self.reads == "run" and any(state.meta["tokens_read"])  # did not attend to what was read before
        return State(state.rows, tensors, {"tokens_read": read, **labelled(state, "later_pieces_read_apart", apart)})

    def patch(self, state: State, asks: Sequence[Ask]) -> Patch:  # noqa: ARG002  # the contract's arguments
        """Deltas of every adapted linear map, with the tokens of the window."""
        if "h" not in state.tensors:
            return window_of(state.tensors)
        with torch.set_grad_enabled(self._learning):
            hooked = self.networks.deltas(self.networks.flushed(state.tensors))
            deltas: Mapping[str, Delta] = hooked
            if self.settings.merge and state.rows == 1:
                deltas = dense(self.lm, hooked)
        return replace(window_of(state.tensors), deltas=deltas)

    def prepare_training(self, first: Sequence[Episode] = ()) -> None:
        """With `centred`, turn the down-projections away from the mean values of the first texts."""
        if self.settings.centred:
            segments.centre(self.networks, first)

    def training_steps(self, batches: Iterable[Sequence[Episode]]) -> Iterator[Sequence[Episode]]:
        """With `form=segments` the texts of a batch, stretch by stretch; else a batch a step."""
        if self.settings.form != "segments":
            yield from batches
            return
        for batch in batches:
            yield from segments.parts_of(self.networks, batch, self.settings.step_segments)

    def accumulate_gradients(self, episodes: Sequence[Episode], parts: int = 1) -> dict[str, Tensor]:
        """See `Trainable`; with `form=segments` row by row, from the state that the step before has left."""
        if self.settings.form != "segments":
            return super().accumulate_gradients(episodes, parts)
        means, h_LBMRE = segments.learned_step(self.networks, self._carried.get("h"), episodes)
        self._carried = {"h": h_LBMRE}
        return means

    def training_state(self) -> dict[str, Tensor]:
        """`h` [L, B, M, R, E] of the texts that are being read (`form=segments`)."""
        return dict(self._carried)

    def load_training_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Go on with these states."""
        self._carried = {name: tensor.to(self.lm.device) for name, tensor in tensors.items()}

    def validate(self, episodes: Sequence[Episode]) -> dict[str, float]:
        """With `form=segments`: NLL under the text's own state, another text's and none, see `compared`."""
        if self.settings.form != "segments":
            return super().validate(episodes)
        networks, stride = self.networks, self.settings.stride
        rows = next(segments.parts_of(networks, episodes, max(2, JUDGED_TOKENS // stride)))
        ids_BT = torch.tensor([row.observes()[0].ids for row in rows], device=self.lm.device)
        return compared(judged(networks, ids_BT, stride), stride)

    def loss_parts(self, episodes: Sequence[Episode]) -> dict[str, Tensor]:
        """Mean negative log-likelihood of the answers under the deltas: what is read is read by the base model (no
        gradient), mapped, and the queries answered by the adapted weights."""
        self._learning = torch.is_grad_enabled()
        try:
            return super().loss_parts(episodes)
        finally:
            self._learning = False

    # everything into the weights

    def _whole(self, state: State, rows: list[list[int]]) -> dict[str, Tensor]:
        held = prefix_of(state.tensors)
        start = [] if held is not None else list(self.lm.start_ids)
        ids_BT, mask_BT = (
            padded.to(self.lm.device) for padded in pad([start + row for row in rows], self.lm.pad_id, "right")
        )
        check_fits(self.lm, held, mask_BT.sum(1), "Read through a sliding window: --set window=1024 (presets *-book).")
        with torch.no_grad():
            whole, tokens = read_on(self.lm, held, ids_BT, mask_BT), ids_BT.shape[1]
        new = slice(whole.keys_LBHPD[0].shape[2] - tokens + len(start), None)
        tensors = self.networks.absorbed(
            self._before(state),
            [keys[:, :, new] for keys in whole.keys_LBHPD],
            [values[:, :, new] for values in whole.values_LBHPD],
            mask_BT[:, len(start) :],
        )
        if not self.settings.keep_cache:
            return tensors
        return {**tensors, **cached(whole)}

    def _before(self, state: State) -> dict[str, Tensor]:
        names = ("h", "tail", "tail_keys", "tail_values")
        tensors = {name: state.tensors[name] for name in names if name in state.tensors}
        return tensors or self.networks.empty(state.rows)

    # what leaves the window

    def _windows(self, state: State, rows_new: list[list[int]]) -> dict[str, Tensor]:
        assert self.settings.window is not None
        window, stride = self.settings.window, self.settings.stride
        h_LBMRE = self._before(state)["h"]
        rows = [[*old, *new] for old, new in zip(ids_of(state.tensors, state.rows), rows_new, strict=True)]
        while leaving := [row for row, ids in enumerate(rows) if len(ids) >= window - 1]:
            index_N = torch.tensor(leaving, device=h_LBMRE.device)
            moved = self._evicted(h_LBMRE.index_select(1, index_N), [rows[row][:stride] for row in leaving])
            h_LBMRE = moved if len(leaving) == len(rows) else h_LBMRE.index_copy(1, index_N, moved)
            rows = [ids[stride:] if row in leaving else ids for row, ids in enumerate(rows)]
        lengths_B = torch.tensor([len(ids) for ids in rows], device=h_LBMRE.device)
        tokens_BT = pad([*rows, [0] * (window - 2)], self.lm.pad_id, "right")[0][:-1]
        return {"h": h_LBMRE, "tokens": tokens_BT.to(h_LBMRE.device), "lengths": lengths_B}

    def _evicted(self, h_LBMRE: Tensor, rows: list[list[int]]) -> Tensor:
        """The state after these tokens, as the weights in force see them, have gone into it."""
        if self.settings.bptt == "detach":
            h_LBMRE = h_LBMRE.detach()
        start, device = list(self.lm.start_ids), self.lm.device
        ids_BT = torch.tensor([start + row for row in rows], device=device)
        with torch.no_grad(), deltas_applied(self.lm, self.networks.deltas(h_LBMRE), len(rows)):
            seen = read_on(self.lm, None, ids_BT)
        keys, values = (
            [tensor[:, :, len(start) :] for tensor in pair] for pair in (seen.keys_LBHPD, seen.values_LBHPD)
        )
        full_B = torch.full((len(rows),), self.settings.stride // self.settings.chunk, device=device)
        return self.networks.advanced(h_LBMRE, keys, values, full_B)


JUDGED_TOKENS = 4096
"""Of each validation text."""


def compared(losses: Mapping[str, Tensor], segment: int) -> dict[str, float]:
    """Means of what `judged` found, and how much worse another state is, with standard errors over texts. The first
    segment of a text has no state and is left out; "late" is the second half of every segment."""
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
    """NLL [B, T - 1] of every token of texts from their beginning, under three states. `ids_BT`: texts of two rows
    or more, as `learned` takes them. Returns "own": under the text's state; "other": under that of the next row at
    the same place; "none": the base model."""
    losses_by_state: dict[str, list[Tensor]] = {"own": [], "other": [], "none": []}
    h_LBMRE = networks.empty(ids_BT.shape[0])["h"]
    for end in range(segment, ids_BT.shape[1], segment):
        part_BT = ids_BT[:, end - segment : end + 1]
        states = {"own": h_LBMRE, "other": h_LBMRE.roll(-1, 1), "none": torch.zeros_like(h_LBMRE)}
        known = {"own": h_LBMRE} if end == segment else states
        read = {
            name: [read_segment(networks, h[:, i : i + 1], part_BT[i : i + 1]) for i in range(len(part_BT))]
            for name, h in known.items()
        }  # row by row, so that the logits of one are alive at a time
        for name, parts in losses_by_state.items():
            parts.append(torch.cat([loss for loss, _ in read.get(name, read["own"])]))
        seen = by_layer([row for _, row in read["own"]])
        h_LBMRE = state_after(networks, h_LBMRE, [(torch.cat(keys), torch.cat(values)) for keys, values in seen])
    return {name: torch.cat(parts, dim=1) for name, parts in losses_by_state.items()}
