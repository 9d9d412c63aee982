"""A text that was read is repeated behind itself, and every slot is scored by the attention that its repetition pays.

KVzip (arXiv 2505.23416, section 3; released code: snu-mllab/KVzip): what is needed to say the text again is what any
question may need.
Shape letters: H key/value heads · N query heads · G = N / H · R tokens of a repetition · P slots of the text ·
    C slots that compete · D head size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from ttabench.core.errors import UserError
from ttabench.lm.attention.interface import Call, watched, widened
from ttabench.lm.forward.window import Window
from ttabench.lm.model import LM
from ttabench.lm.patch import Prefix
from ttabench.methods.eviction.scores import BLOCK, seen
from ttabench.methods.eviction.settings import KVzipSettings


@dataclass(frozen=True)
class Queries:
    """Queries of a layer that its attention is to be kept for."""

    query_NTD: Tensor
    seen_HTP: Tensor | None
    """[1 or H, T, P]: which slots of the text each of them sees; None for all."""
    scaling: float


@dataclass
class Repetition:
    """A watcher of one chunk being repeated. `text`: slots of the text, of which the chunk is a part; `chunk`: its
    first slot, and the one behind it."""

    settings: KVzipSettings
    text: int
    chunk: tuple[int, int]
    scores: dict[int, Tensor] = field(default_factory=dict)
    """float32 [H, chunk], by layer."""
    queries: dict[int, Queries] = field(default_factory=dict)
    weights: dict[int, Tensor] = field(default_factory=dict)
    """[R] by layer: by how much each token of the repetition counts."""
    later: list[Call] | None = None
    """Calls that are scored when the gradients are there; None: each at once."""
    kept_queries: int = 0

    def __call__(self, call: Call) -> None:
        """Look at one layer."""
        if self.later is not None:
            self.later.append(
                replace(call, query=call.query.detach(), key=call.key.detach(), value=call.value.detach())
            )
        else:
            self.scores[call.layer] = self.scored(call)
        if self.kept_queries:
            self.queries[call.layer] = self._queries(call)

    def _queries(self, call: Call) -> Queries:
        """Those of a layer, or as many of them as are kept, at even distances."""
        if call.weights is not None:
            fault = (
                f"The attention of {type(call.module).__name__} has terms (sinks, a soft cap) that only the model's own"
            )
            raise UserError(f"{fault} code computes, so it cannot be matched.", "Use --method kvzip.")
        tokens = call.query.shape[2]
        places = torch.linspace(0, tokens - 1, min(tokens, self.kept_queries), device=call.query.device).long()
        seen_HTP = None if call.mask is None else call.mask[0][:, places][..., : self.text]
        return Queries(call.query[0, :, places].detach(), seen_HTP, call.scaling)

    def scored(self, call: Call) -> Tensor:
        """float32 [H, chunk]: the largest attention that each slot of the chunk receives, as the settings weigh it."""
        heads, tokens = call.key.shape[1], call.query.shape[2]
        first, behind = self.chunk
        columns = self._columns(call)
        sinks = len(columns) - (behind - first) - tokens
        key_HDC = call.key[0][:, columns].float().transpose(1, 2)
        bias_H1C = _bias(call, columns)
        best_HC = torch.full((heads, behind - first), -1.0, device=call.key.device)
        value_HG1C = self._values(call) if self.settings.score != "max" else None
        for begin in range(0, tokens, BLOCK):
            part = slice(begin, min(begin + BLOCK, tokens))
            if call.weights is not None:
                paid = grouped(call.weights[0, :, part, first:behind].float(), heads)
            else:
                query_HXD = grouped(call.query[0, :, part].float(), heads).flatten(1, 2)
                scores = (query_HXD @ key_HDC * call.scaling).view(heads, -1, part.stop - begin, len(columns))
                scores = scores if bias_H1C is None else scores + bias_H1C
                hidden = ~seen(call, part)[0][..., columns]
                lowest = torch.finfo(torch.float32).min
                paid = scores.masked_fill_(hidden[:, None], lowest).softmax(-1)[..., sinks : sinks + behind - first]
            if value_HG1C is not None:
                paid = paid * value_HG1C * self.weights[call.layer][None, None, part, None]
            best_HC = torch.maximum(best_HC, paid.amax((1, 2)))
        return best_HC

    def _columns(self, call: Call) -> Tensor:
        """Slots that share the attention: sinks, the chunk, the repetition."""
        first, behind = self.chunk
        slots, tokens = call.key.shape[2], call.query.shape[2]
        parts = (0, min(self.settings.sinks, first)), (first, behind), (slots - tokens, slots)
        return torch.cat([torch.arange(*part, device=call.key.device) for part in parts])

    def _values(self, call: Call) -> Tensor:
        """|W_o v| [H, G, 1, chunk] of the chunk's values: what a slot can write, by query head."""
        value_HCD = call.value[0, :, slice(*self.chunk)].float()
        count, size = call.query.shape[1], value_HCD.shape[-1]
        map_OHGD = (
            _output_map(call.module, count * size).float().reshape(-1, len(value_HCD), count // len(value_HCD), size)
        )
        gram_HGDD = torch.einsum("ohgd,ohge->hgde", map_OHGD, map_OHGD)
        squares = torch.einsum("hcd,hgde,hce->hgc", value_HCD, gram_HGDD, value_HCD)
        return squares.clamp(min=0).sqrt()[:, :, None]


def _bias(call: Call, columns: Tensor) -> Tensor | None:
    """[H, 1, 1, C], or [H, G, 1, C] of query heads: what is added to the scores of these slots."""
    if call.bias is None:
        return None
    bias_MS = widened(call.bias.float(), call.key.shape[2])[0]
    return grouped(bias_MS[:, columns], call.key.shape[1])[:, :, None]


def grouped(tensor_NX: Tensor, heads: int) -> Tensor:
    """Of query heads as of key/value heads and those that share them, [N, ...] as [H, G, ...]."""
    return tensor_NX.reshape(heads, -1, *tensor_NX.shape[1:])


def _output_map(module: nn.Module | None, inputs: int) -> Tensor:
    """The map [out, N D] that an attention module ends with."""
    for child in reversed([] if module is None else list(module.children())):
        weight = getattr(child, "weight", None)
        if isinstance(child, nn.Linear) and child.in_features == inputs:
            return child.weight
        if type(child).__name__ == "Conv1D" and isinstance(weight, Tensor) and len(weight) == inputs:
            return weight.T
    fault = f"The attention {type(module).__name__} ends in no linear map of {inputs} features"
    raise UserError(f"{fault}, by which score=plus and score=grad weigh values.", "Use --set score=max.")


def attention_modules(lm: LM) -> list[nn.Module]:
    """The attention of every layer."""
    found = [
        [m for m in block.modules() if hasattr(m, "layer_idx") and hasattr(m, "is_causal")] for block in lm.blocks()
    ]
    if all(len(modules) == 1 for modules in found):
        return [modules[0] for modules in found]
    raise UserError(f"The attention modules of {lm.name} are not known to this method.", "Use --set score=max.")


@contextmanager
def _sizes_noted(lm: LM, repetition: Repetition) -> Iterator[None]:
    """While score=plus: how large what each layer's attention reads is, 1 / |h| by token."""

    def note(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        hidden_BTC = kwargs["hidden_states"] if "hidden_states" in kwargs else args[0]
        repetition.weights[int(module.layer_idx)] = 1 / hidden_BTC[0].detach().float().norm(dim=-1)  # type: ignore[arg-type]

    with ExitStack() as undo:
        for module in attention_modules(lm) if repetition.settings.score == "plus" else ():
            undo.callback(module.register_forward_pre_hook(note, with_kwargs=True).remove)
        yield


def repeated(lm: LM, whole: Prefix, ids: Sequence[int], repetition: Repetition) -> None:
    """Read a repetition behind the text and look at it; of one row."""
    ids_1R = torch.tensor([list(ids)], device=lm.device)
    if repetition.settings.score == "grad":
        _with_gradients(lm, whole, ids_1R, repetition)
        return
    with torch.no_grad(), watched(repetition), _sizes_noted(lm, repetition):
        Window(lm, whole, 1, room=len(ids), retain=False).feed(ids_1R)


def _with_gradients(lm: LM, whole: Prefix, ids_1R: Tensor, repetition: Repetition) -> None:
    """The same, with how much |last hidden states|^2 changes with the output of each attention, by token."""
    outputs: dict[int, Tensor] = {}
    last: list[Tensor] = []

    def note(module: nn.Module, _args: Any, output: Any) -> None:
        made = output[0] if isinstance(output, tuple) else output
        made.retain_grad()
        outputs[int(module.layer_idx)] = made  # type: ignore[arg-type]

    def end(_module: nn.Module, _args: Any, output: Any) -> None:
        last.append(output[0] if isinstance(output, tuple) else output)

    first, *others = whole.keys_LBHPD  # the first layer's keys begin the graph
    begun = replace(whole, keys_LBHPD=(first.detach().requires_grad_(), *others))
    repetition.later = []
    with ExitStack() as undo, torch.enable_grad(), watched(repetition):
        for module in attention_modules(lm):
            undo.callback(module.register_forward_hook(note).remove)
        undo.callback(lm.blocks()[-1].register_forward_hook(end).remove)
        Window(lm, begun, 1, room=ids_1R.shape[1], retain=False).feed(ids_1R)
        last[0].float().square().sum().backward()  # type: ignore[no-untyped-call]
    with torch.no_grad():
        for call in repetition.later:
            gradient = outputs[call.layer].grad
            assert gradient is not None, "the graph passes through every layer"
            repetition.weights[call.layer] = gradient[0].float().norm(dim=-1)
            repetition.scores[call.layer] = repetition.scored(call)
