"""Log-probabilities of continuations and options under a patch, and the training loss.

The text of an item starts with BOS unless the patch contains one. With an empty prompt and no BOS,
the first target is not scored. Logits are computed only where they predict targets, and never all
at once (`logprobs_of`). A prompt is read once for all its options.

Shape letters: B texts · T tokens of a text · N target tokens · D width · V vocabulary · R options
as rows · S longest option · X tokens of a slice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear
from torch.utils.checkpoint import checkpoint

from ttabench.core.errors import UserError
from ttabench.lm.forward import patching
from ttabench.lm.forward.capabilities import get_capabilities, require_capabilities
from ttabench.lm.forward.tokens import pad
from ttabench.lm.forward.window import Window
from ttabench.lm.model import LM
from ttabench.lm.patch import Patch

ScoringItem = tuple[list[int], list[int]]
"""Prompt ids and target ids, without BOS."""
ChoiceItem = tuple[list[int], list[list[int]]]
"""Prompt ids and the ids of each option, without BOS."""

TargetFunction = Callable[[LM, Tensor, Tensor], Tensor]
"""Function (lm, hidden_ND, targets_N) -> values [N] or [N, ...].

`hidden_ND`: last hidden states at the positions that predict the targets.
"""


@dataclass(frozen=True)
class ScoredContinuation:
    """Log-probabilities of a continuation, and its comparison with greedy decoding."""

    logprobs: Tensor
    """float32 on the CPU, one natural log per token."""
    greedy: bool
    """True if every token is the most likely one, as in lm-eval's `is_greedy`."""


@torch.no_grad()
def token_logprobs(
    lm: LM, patch: Patch, items: Sequence[ScoringItem], batch_size: int = 32
) -> list[Tensor]:
    """Compute the natural-log probability of every target token, float32 on the CPU, per item."""
    one_option_items = [(prompt, [target]) for prompt, target in items]
    return [
        values
        for (values,) in _score_in_batches(lm, patch, one_option_items, batch_size, logprobs_of)
    ]


def answer_nll(lm: LM, patch: Patch, items: Sequence[ScoringItem]) -> tuple[Tensor, int]:
    """Return the summed NLL of all targets in nats, and their number, from one forward pass.

    Differentiable.
    """
    values = target_logprobs(lm, patch, items)
    return -torch.cat(values).sum(), sum(len(value) for value in values)


def target_logprobs(
    lm: LM, patch: Patch, items: Sequence[ScoringItem], read: TargetFunction | None = None
) -> list[Tensor]:
    """Apply `read` (default: log-probabilities) to the targets of each item, in one forward pass.

    Differentiable.
    """
    one_option_items = [(prompt, [target]) for prompt, target in items]
    return [
        values
        for (values,) in _score_options(
            lm, patching.encode_patch(lm, patch), one_option_items, read or logprobs_of
        )
    ]


def target_hidden(lm: LM, patch: Patch, items: Sequence[ScoringItem]) -> list[Tensor]:
    """Return the last hidden states [N, D] that predict the targets of each item."""
    return target_logprobs(lm, patch, items, lambda _lm, hidden_ND, _targets: hidden_ND)


@torch.no_grad()
def option_logprobs(
    lm: LM, patch: Patch, items: Sequence[ChoiceItem], batch_size: int = 32
) -> list[Tensor]:
    """Sum the log-probability of each option after its prompt, float32 on the CPU."""
    scores = _score_in_batches(lm, patch, items, batch_size, logprobs_of)
    return [torch.stack([values.sum() for values in options]) for options in scores]


@torch.no_grad()
def score_options(
    lm: LM, patch: Patch, items: Sequence[ChoiceItem], batch_size: int = 32
) -> list[list[ScoredContinuation]]:
    """Score every token of each option after its prompt, and compare it with greedy decoding."""
    scores = _score_in_batches(lm, patch, items, batch_size, logprobs_and_best)
    pairs = [[values_N2.view(-1, 2).unbind(1) for values_N2 in options] for options in scores]
    return [
        [ScoredContinuation(values, bool((values >= best).all())) for values, best in options]
        for options in pairs
    ]


def _score_in_batches(
    lm: LM, patch: Patch, items: Sequence[ChoiceItem], batch_size: int, read: TargetFunction
) -> list[list[Tensor]]:
    """Apply `read` to the tokens of each option of each item, in batches.

    The results are moved to the CPU.
    """
    patch = patching.encode_patch(lm, patch, len(items))
    if lm.server is not None:
        if read is not logprobs_of:
            require_capabilities(lm, "weights")
        prompts = prompt_texts(lm, patch, [prompt for prompt, _ in items])
        continuations = [list(map(lm.decode, options)) for _, options in items]
        logprobs = lm.server.continuation_logprobs(list(zip(prompts, continuations, strict=True)))
        return [list(map(torch.tensor, options)) for options in logprobs]
    results: list[list[Tensor]] = [[]] * len(items)
    lengths = [len(prompt) + sum(map(len, options)) for prompt, options in items]
    shapes = [(len(prompt), length) for (prompt, _), length in zip(items, lengths, strict=True)]
    for batch in batches_by_length(lm, lengths, batch_size, shapes):
        scores = _score_options(
            lm, patching.select_rows(patch, batch), [items[i] for i in batch], read
        )
        for index, options in zip(batch, scores, strict=True):
            results[index] = [values.cpu() for values in options]
    return results


def prompt_texts(lm: LM, patch: Patch, prompts: Sequence[list[int]]) -> list[str]:
    """Return the text of an encoded patch, followed by each prompt, for a model on a server."""
    before = patching.prefix_texts(patch.prefix, len(prompts))
    return [lm.decode([*ids, *prompt]) for ids, prompt in zip(before, prompts, strict=True)]


def _score_options(
    lm: LM, patch: Patch, items: Sequence[ChoiceItem], read: TargetFunction
) -> list[list[Tensor]]:
    """Apply `read` to the tokens of each option of each item, in one batch.

    `patch` must be encoded (`patching.encode_patch`).
    """
    start = patching.text_start(lm, patch)
    texts = [(start + prompt, options) for prompt, options in items]
    evicts = patch.prefix is not None and patch.prefix.eviction is not None
    if evicts and all(len(option) < 2 for _, options in items for option in options):
        assert patch.prefix is not None
        # options of one token: nothing is read after the prompt, so nothing is evicted
        patch = replace(patch, prefix=replace(patch.prefix, eviction=None))
        evicts = False
    if evicts or any(len(options) != 1 for _, options in items):
        results = iter(_score_after_prompts(lm, patch, texts, read, evicts=evicts))
    else:
        results = iter(
            _score_in_one_forward(lm, patch, [(text, option) for text, (option,) in texts], read)
        )
    return [[next(results) for _ in options] for _, options in items]


def _score_in_one_forward(
    lm: LM, patch: Patch, items: Sequence[ScoringItem], read: TargetFunction
) -> list[Tensor]:
    """Read texts and targets as right-padded rows in one forward pass, then apply `read`."""
    rows = [text + target[:-1] for text, target in items]
    targets = [target if text else target[1:] for text, target in items]
    counts = list(map(len, targets))
    if not any(counts):
        return [torch.zeros(0)] * len(items)
    patching.check_fits(lm, patch.prefix, list(map(len, rows)))
    ids_BT = pad(rows, lm.pad_id, "right", lm.device)[0]
    targets_N = torch.tensor([token for target in targets for token in target], device=lm.device)
    with patching.deltas_applied(lm, patch.deltas, len(rows)):
        # causal attention never sees padding after the text: no mask, and a fast kernel
        hidden_BTD = Window(lm, patch.prefix, len(rows), retain=False).feed(ids_BT)
        hidden_ND = torch.cat(
            [
                hidden_TD[len(ids) - count : len(ids)]
                for hidden_TD, ids, count in zip(hidden_BTD, rows, counts, strict=True)
            ]
        )
        return list(torch.split(read(lm, hidden_ND, targets_N), counts))


def _score_after_prompts(
    lm: LM,
    patch: Patch,
    items: Sequence[tuple[list[int], list[list[int]]]],
    read: TargetFunction,
    *,
    evicts: bool,
) -> list[Tensor]:
    """Read the prompts once, then each option as a row of its own, and apply `read` to the targets.

    If the prefix evicts, options are read token by token, as in decoding.
    """
    rows: list[tuple[int, list[int], list[list[int]]]] = []
    for item, (text, options) in enumerate(items):
        if text:
            rows.append((item, text, options))
        else:  # no text: the first token of an option serves as prompt, and is not scored
            rows += [(item, option[:1], [option[1:]]) for option in options]
    owners, texts, options_of_rows = zip(*rows, strict=True)
    options = list(chain.from_iterable(options_of_rows))
    owner_R = torch.arange(len(rows), device=lm.device).repeat_interleave(
        torch.tensor(list(map(len, options_of_rows)), device=lm.device)
    )
    patch = patching.select_rows(patch, owners)
    read_tokens = [
        len(text) + max(0, max(map(len, own)) - 1)
        for text, own in zip(texts, options_of_rows, strict=True)
    ]
    patching.check_fits(lm, patch.prefix, read_tokens)
    ids_BT, mask_BT = pad(texts, lm.pad_id, "left")
    window = Window(lm, patch.prefix, len(rows))
    with patching.deltas_applied(lm, patch.deltas, len(rows)):
        hidden_BTD = window.feed(ids_BT.to(lm.device), patching.prepare_mask(lm, mask_BT))
    hidden = [hidden_BTD[:, -1:].index_select(0, owner_R)]
    window.select(owner_R)
    ids_RS, is_scored_RS = pad(options, lm.pad_id, "right", lm.device)
    rest_RT = ids_RS[:, :-1]
    with patching.deltas_applied(lm, patching.select_rows(patch, owner_R).deltas, len(options)):
        # Finished rows go on with their last token and padding; the output is not used.
        for next_RT in (
            torch.split(rest_RT, 1 if evicts else rest_RT.shape[1], 1) if rest_RT.shape[1] else ()
        ):
            hidden.append(window.feed(next_RT))
        # without any target, one hidden state is left of the prompt
        hidden_RSD = torch.cat(hidden, dim=1)[:, : ids_RS.shape[1]]
        values_N = read(lm, hidden_RSD[is_scored_RS], ids_RS[is_scored_RS])
        return list(torch.split(values_N, list(map(len, options))))


MAX_LOGITS = 2**26
"""Most float32 logits in memory at once, without gradients or with a trained head (256 MiB)."""
MAX_LOGITS_WITH_GRADIENTS = {"cpu": 2**22, "cuda": 2**26}
"""Most logits in memory at once with gradients through a frozen head, by device type. A CPU reuses
blocks of 16 MiB at no cost."""


def logprobs_of(lm: LM, hidden_ND: Tensor, targets_N: Tensor) -> Tensor:
    """Compute natural-log probabilities of the targets, float32 [N] (float64 for a float64 model).

    Differentiable.
    """
    if not torch.is_grad_enabled():
        values_N = torch.cat(
            [
                _gather_logprobs(lm.logits(h), t)
                for h, t in _split_by_logits(lm, MAX_LOGITS, hidden_ND, targets_N)
            ]
        )
        refuse_non_finite(values_N)
        return values_N
    head = lm.model.get_output_embeddings()
    is_plain_head = lm.has_linear_head and type(head) is nn.Linear and not head._forward_hooks
    is_trained = is_plain_head and any(part.requires_grad for part in head.parameters())
    if not is_plain_head or is_trained or head.weight.device != hidden_ND.device:
        parts = _split_by_logits(lm, MAX_LOGITS, hidden_ND, targets_N)
        if not is_plain_head or len(parts) == 1:
            return _gather_logprobs(lm.logits(hidden_ND), targets_N)
        # the weights of this forward pass, even if they are replaced before the backward pass
        weight_VD, bias_V = head.weight, head.bias

        def of_slice(hidden: Tensor, targets: Tensor) -> Tensor:
            return _gather_logprobs(
                linear(hidden.to(weight_VD.device), weight_VD, bias_V), targets.to(weight_VD.device)
            )

        # logits are computed again in the backward pass
        values = [
            checkpoint(of_slice, *part, use_reentrant=False, preserve_rng_state=False)
            for part in parts
        ]
        return torch.cat(values).to(hidden_ND.device)
    frozen_N: Tensor = _FrozenHead.apply(hidden_ND, targets_N, head.weight, head.bias)  # type: ignore[no-untyped-call]
    return frozen_N


class _FrozenHead(torch.autograd.Function):
    """Log-probabilities of targets through a frozen linear head, without storing logits.

    A log-probability depends only on its own hidden state. The forward pass therefore computes its
    gradient (slope [N, D]), and the backward pass scales it. All slices of logits share two
    buffers. For second derivatives, the backward pass computes the logits again with autograd.
    """

    @staticmethod
    def forward(
        ctx: Any, hidden_ND: Tensor, targets_N: Tensor, weight_VD: Tensor, bias_V: Tensor | None
    ) -> Tensor:
        size = max(
            1, MAX_LOGITS_WITH_GRADIENTS.get(hidden_ND.device.type, MAX_LOGITS) // len(weight_VD)
        )
        kind = torch.promote_types(hidden_ND.dtype, torch.float32)
        values_N, slopes_ND = (
            hidden_ND.new_empty(len(hidden_ND), dtype=kind),
            torch.empty_like(hidden_ND),
        )
        logits = hidden_ND.new_empty(min(size, len(hidden_ND)), len(weight_VD))
        logprobs = torch.empty_like(logits, dtype=kind)
        # d log p(target) / d hidden = (onehot - p) W, in slices of X tokens: no logits [N, V] kept
        for begin in range(0, len(hidden_ND), size):
            part, targets_X1 = slice(begin, begin + size), targets_N[begin : begin + size, None]
            logits_XV, logprobs_XV = logits[: len(targets_X1)], logprobs[: len(targets_X1)]
            torch.mm(hidden_ND[part], weight_VD.T, out=logits_XV)
            if bias_V is not None:
                logits_XV += bias_V
            torch.log_softmax(logits_XV, -1, dtype=kind, out=logprobs_XV)
            values_N[part] = logprobs_XV.gather(1, targets_X1)[:, 0]
            logprobs_XV.exp_().neg_().scatter_add_(
                1, targets_X1, logprobs_XV.new_ones(targets_X1.shape)
            )
            torch.mm(logprobs_XV.to(weight_VD.dtype), weight_VD, out=slopes_ND[part])
        ctx.save_for_backward(hidden_ND, targets_N, weight_VD, bias_V, slopes_ND)
        return values_N

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        hidden_ND, targets_N, weight_VD, bias_V, slopes_ND = ctx.saved_tensors
        if not torch.is_grad_enabled():
            return slopes_ND * gradients[0][:, None].to(slopes_ND.dtype), None, None, None
        values_N = _gather_logprobs(linear(hidden_ND, weight_VD, bias_V), targets_N)
        (slope_ND,) = torch.autograd.grad(values_N, hidden_ND, gradients[0], create_graph=True)
        return slope_ND, None, None, None


def logprobs_and_best(lm: LM, hidden_ND: Tensor, targets_N: Tensor) -> Tensor:
    """Compute log-probabilities of the targets and of the most likely tokens, float32 [N, 2]."""
    parts = []
    for hidden, targets in _split_by_logits(lm, MAX_LOGITS, hidden_ND, targets_N):
        logprobs_NV = lm.logits(hidden).float().log_softmax(-1)
        parts.append(
            torch.stack([logprobs_NV.gather(1, targets[:, None])[:, 0], logprobs_NV.amax(1)], dim=1)
        )
    values_N2 = torch.cat(parts)
    refuse_non_finite(values_N2)
    return values_N2


def _split_by_logits(
    lm: LM, most: int, hidden_ND: Tensor, targets_N: Tensor
) -> list[tuple[Tensor, Tensor]]:
    """Split hidden states and targets so that each part has at most `most` logits."""
    size = max(1, most // lm.vocab_size)
    return list(zip(torch.split(hidden_ND, size), torch.split(targets_N, size), strict=True))


def _gather_logprobs(logits_NV: Tensor, targets_N: Tensor) -> Tensor:
    kind = torch.promote_types(logits_NV.dtype, torch.float32)
    return -cross_entropy(logits_NV.to(kind), targets_N, reduction="none")


def batches_by_length(
    lm: LM, lengths: Sequence[int], size: int, shapes: Sequence[object] | None = None
) -> Iterator[list[int]]:
    """Yield batches of at most `size` row indices, longest rows first.

    If a row does not fit into memory, the first batch shows it.

    Args:
        shapes: what is equal in a batch if the model does not support padding, `lengths` by
            default.
    """
    shapes = lengths if shapes is None else shapes
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    groups = [order]
    if not get_capabilities(lm).supports_batching:
        groups = [
            [i for i in order if shapes[i] == shape]
            for shape in dict.fromkeys(shapes[i] for i in order)
        ]
    for rows in groups:
        for begin in range(0, len(rows), size):
            yield rows[begin : begin + size]


class NonFiniteError(UserError):
    """Error for log-probabilities that are not finite.

    This includes minus infinity, because it would make every mean infinite.
    """


def refuse_non_finite(values: Tensor) -> None:
    """Raise a NonFiniteError if logits or log-probabilities are not finite."""
    if not bool(torch.isfinite(values).all()):
        fault = "The model's logits are not finite (NaN or infinity)."
        raise NonFiniteError(fault, "Use --dtype float32, or fix the weights, checkpoint or state.")
