"""Probe of the capabilities of a model, by comparison with transformers' own forward.

Each way to run the model reads a short random text as a whole, after a cache, token by token, and
in rows of unequal length, beyond the model's own windows. The first way with equal logits is used.
There is no list of architectures.

Shape letters: B rows · T tokens · S slots · V vocabulary · L layers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from inspect import signature
from typing import Any

import torch
from torch import Tensor

from ttabench.core import environment
from ttabench.core.environment import is_out_of_memory, quiet_loading
from ttabench.core.errors import UserError
from ttabench.lm.attention import AttentionCall, learn_layers, observe_attention
from ttabench.lm.forward.capabilities import (
    MISSING_CAPABILITY_REASONS,
    Angles,
    Capabilities,
    Rotary,
    apply_capabilities,
    capability_probes,
    learn_rotary,
    record_angles,
)
from ttabench.lm.forward.model_cache import cache_tensors, holds_keys, own_layers
from ttabench.lm.forward.tokens import pad
from ttabench.lm.forward.window import Layout, Window
from ttabench.lm.model import LM
from ttabench.lm.patch import Prefix

MAX_LOGPROB_DIFFERENCE = {
    torch.float64: 1e-3,
    torch.float32: 1e-3,
    torch.float16: 0.02,
    torch.bfloat16: 0.15,
}
"""Tolerance of log-probabilities; for half precision that of their mean difference."""
MAX_FLOAT32_BYTES = 2**33
"""Memory limit for float32 copies of half-precision weights while a model is probed on a CPU."""
WINDOW_NAMES = re.compile(
    r"(?!.*(?:pattern|layers|num|conv)).*window.*|attention_chunk_size|local_attention"
)
"""Names of windows in configurations. One that has another name is found by `GAP_SLOTS`."""
PROBE_WINDOW_TOKENS = 8
"""Length of the model's sliding windows while it is probed."""
TEXT_TOKENS, FIRST_PART_TOKENS, SHARED_TOKENS, SHIFT_POSITIONS = 18, 11, 5, 32
"""Tokens of the text, of its first part, and shared by both texts; shift of moved keys."""
LONG_TEXT_TOKENS = 96
"""Tokens of a text for opaque caches, which may select or compress what they hold."""
CACHE_NAMES = "past_key_values", "cache_params", "state"
"""Names of the cache in the forward functions of transformers."""
GAP_SLOTS = 2**13
"""Padded slots between two tokens in the probe: any window with fewer slots is detected."""


def probe_capabilities(lm: LM) -> Capabilities:
    """Probe the capabilities of a model. Servers are not contacted."""
    if lm.server is not None:
        return Capabilities(attention="server")
    with torch.no_grad(), torch.random.fork_rng(), quiet_loading():
        with _in_float32(lm):
            capabilities = _probe(lm)
        if capabilities.started_cache is not None:  # in the number format of the model
            apply_capabilities(lm, capabilities)
            capabilities = replace(capabilities, started_cache=_start_cache(lm))
    return capabilities


@contextmanager
def _in_float32(lm: LM) -> Iterator[None]:
    """Use float32 for a half-precision model if memory allows: rounding would look like a fault."""
    tensors = [*lm.model.parameters(), *lm.model.buffers()]
    half_precision = {
        tensor: tensor.data for tensor in tensors if tensor.dtype in (torch.float16, torch.bfloat16)
    }
    free = environment.call_device_function(lm.device, "mem_get_info") or (MAX_FLOAT32_BYTES,)
    fits = 4 * sum(tensor.numel() for tensor in half_precision) < free[0]
    try:
        for tensor in half_precision if fits else ():
            tensor.data = tensor.data.float()
        yield
    finally:
        for tensor, data in half_precision.items():
            tensor.data = data


def _probe(lm: LM) -> Capabilities:
    texts = _make_texts(lm)
    with _short_windows(lm):
        try:
            capabilities = _first_correct(lm, texts, [reference_logprobs(lm, ids) for ids in texts])
        except Exception as error:  # models that cannot run raise various errors
            reason = " ".join(str(error).split())[:160].rstrip(".")
            fault = f"{lm.name} ({lm.config.model_type}) cannot read a text: {reason}"
            raise UserError(f"{fault}.", MISSING_CAPABILITY_REASONS["none"][1]) from error
    if capabilities.attention == "none":
        return capabilities
    apply_capabilities(lm, capabilities)
    if not capabilities.supports_hooks:
        return capabilities
    capabilities, angles = _learn_layers(lm, capabilities)
    apply_capabilities(lm, capabilities)
    if capabilities.has_latent_keys:  # only a part of what is cached would be rotated
        return capabilities
    return replace(capabilities, rotary=_learn_rotary(lm, angles, texts[0]))


def _make_texts(lm: LM) -> list[Tensor]:
    """Make two texts that start alike; the second is shorter."""
    ids_1T, other_1T = _random_ids(lm, TEXT_TOKENS), _random_ids(lm, TEXT_TOKENS - 7, seed=1)
    return [ids_1T, torch.cat([ids_1T[:, :SHARED_TOKENS], other_1T[:, SHARED_TOKENS:]], dim=1)]


def _random_ids(lm: LM, tokens: int, seed: int = 0) -> Tensor:
    made, least = torch.Generator().manual_seed(seed), min(lm.vocab_size - 1, 16)
    return torch.randint(least, lm.vocab_size, (1, tokens), generator=made).to(lm.device)


@contextmanager
def _short_windows(lm: LM) -> Iterator[None]:
    """Shorten the model's own windows, so that the text exceeds them, for both sides."""
    long = {
        name: value
        for name, value in vars(lm.config).items()
        if WINDOW_NAMES.fullmatch(name) and type(value) is int and value > PROBE_WINDOW_TOKENS
    }
    try:
        for name in long:
            setattr(lm.config, name, PROBE_WINDOW_TOKENS)
        yield
    finally:
        for name, value in long.items():
            setattr(lm.config, name, value)


def reference_logprobs(lm: LM, ids_1T: Tensor) -> Tensor:
    """Compute log-probabilities [T, V] of a text [1, T] by transformers alone (eager, own head)."""
    used = lm.attention_implementation or lm.native_attention
    lm.set_attention(lm.native_attention)
    try:
        logits: Tensor = lm.model(input_ids=ids_1T, use_cache=False).logits
    finally:
        lm.set_attention(used)
    return logits[0].float().log_softmax(-1)


def _first_correct(lm: LM, texts: Sequence[Tensor], reference: Sequence[Tensor]) -> Capabilities:
    """Return the first way that passes all checks, else the first that passes row by row."""
    unbatched, fault = Capabilities(attention="none"), ""
    for attention, positions, by_token in (
        ("sdpa", True, False),
        ("transformers", True, False),
        ("transformers", False, False),
        ("opaque", True, False),
        ("opaque", False, False),
        ("opaque", True, True),
        ("again", False, False),
    ):
        tried = Capabilities(
            attention=attention,
            no_hooks_because=fault,
            takes_positions=positions,
            continues_by_token=by_token,
        )
        try:
            capabilities = _check_capabilities(lm, tried, texts, reference)
        except Exception as error:  # an error means that this way does not work
            if is_out_of_memory(error):
                raise
            if attention == "sdpa" and isinstance(error, AssertionError):
                fault = str(error)
            continue
        if capabilities.supports_batching:
            return capabilities
        unbatched = capabilities if unbatched.attention == "none" else unbatched
    return unbatched


def _check_capabilities(
    lm: LM, capabilities: Capabilities, texts: Sequence[Tensor], reference: Sequence[Tensor]
) -> Capabilities:
    """Check a way, and return it with its capabilities. Raises an exception if it fails."""
    apply_capabilities(lm, capabilities)
    if capabilities.supports_hooks:
        capabilities = _learn_layers(lm, capabilities)[0]
        apply_capabilities(lm, capabilities)
    if capabilities.is_opaque:
        names = signature(lm.decoder.forward).parameters
        (name,) = [name for name in CACHE_NAMES if name in names]
        capabilities = replace(capabilities, cache_name=name)
        apply_capabilities(lm, capabilities)
    hidden = Window(lm, None, 1, retain=False).feed(texts[0])
    assert _is_equal(lm, lm.logits(hidden), reference[0]), "other logits"
    with suppress(Exception):
        linear = _is_equal(lm, lm.model.get_output_embeddings()(hidden), reference[0])
        capabilities = replace(capabilities, has_linear_head=linear)
        apply_capabilities(lm, capabilities)
    window = Window(lm, None, 1)
    assert _reads_correctly(
        lm, window, texts[:1], reference, [(0, FIRST_PART_TOKENS, TEXT_TOKENS - 1, TEXT_TOKENS)]
    ), "other logits after a cache"
    if not capabilities.supports_cache:
        return replace(capabilities, supports_batching=False)
    if capabilities.is_opaque:
        text_1T = _random_ids(lm, min(LONG_TEXT_TOKENS, lm.max_positions))
        end = text_1T.shape[1]
        long_reference = [reference_logprobs(lm, text_1T)]
        assert _reads_correctly(
            lm, Window(lm, None, 1), [text_1T], long_reference, [(0, end // 2, end - 1, end)]
        ), "other logits of a long text after a cache"
    if capabilities.is_opaque or any(map(cache_tensors, capabilities.own_layers.values())):
        capabilities = replace(capabilities, started_cache=_start_cache(lm))
        apply_capabilities(lm, capabilities)
        assert _copies_correctly(lm, texts, reference), "other logits after a copied cache"
    rows, prefix = False, window.prefix()
    with suppress(Exception):
        cuts = [
            (0, FIRST_PART_TOKENS, TEXT_TOKENS - 3, TEXT_TOKENS),
            (0, SHARED_TOKENS, TEXT_TOKENS - 11, TEXT_TOKENS - 7),
        ]
        rows = _reads_correctly(
            lm, Window(lm, None, 2), texts, reference, cuts
        ) and _reads_correctly_over_gap(lm, texts, reference)
    pairs = zip(prefix.keys_LBHPD, prefix.values_LBHPD, strict=True)
    shapes = [(keys.shape[1], keys.shape[3], values.shape[3]) for keys, values in pairs]
    capabilities = replace(capabilities, supports_batching=rows, kv_shapes=shapes)
    return (
        _check_hooks(lm, capabilities, texts, reference)
        if capabilities.supports_hooks
        else capabilities
    )


def _check_hooks(
    lm: LM, capabilities: Capabilities, texts: Sequence[Tensor], reference: Sequence[Tensor]
) -> Capabilities:
    """Check capabilities that need our attention: layouts, shared prefixes, embeddings, gaps."""
    seen, shared, first = (
        set[tuple[int, int, int]](),
        Window(lm, None, 1),
        texts[0][:, :SHARED_TOKENS],
    )
    with observe_attention(
        lambda call: seen.add((call.key.shape[1], call.key.shape[3], call.value.shape[3]))
    ):
        shared.feed(first)
    is_known = capabilities.has_latent_keys or seen == set(capabilities.kv_shapes)
    assert is_known, "attention gets other keys than those of the cache"
    behind = Window(lm, shared.prefix(), 2)
    assert _reads_correctly(
        lm, behind, texts, reference, [(SHARED_TOKENS, texts[1].shape[1])] * 2
    ), "other logits after a shared prefix"
    embeds = False
    apply_capabilities(lm, replace(capabilities, supports_embeddings=True))
    with suppress(Exception):
        hidden = Window(lm, None, 1).feed(first, layout=Layout(embeddings_BTC=lm.embed(first)))
        embeds = _is_equal(lm, lm.logits(hidden), reference[0][:SHARED_TOKENS])
    steps_1T, keys = torch.arange(SHARED_TOKENS, device=lm.device)[None], list[dict[int, Tensor]]()
    for gap in (0, 5):
        held = dict[int, Tensor]()
        with observe_attention(lambda call, held=held: held.update({call.layer: call.key})):  # type: ignore[misc]
            hidden = Window(lm, None, 1).feed(
                first, layout=Layout(positions_BT=steps_1T + gap * (steps_1T > 1))
            )
        keys.append(held)
    broken = bool(reference[0].isnan().any())  # NaN weights allow no conclusion
    # with small random weights, positions change keys, but hardly the logits
    moved = any((keys[1][layer] - key).norm() > 1e-2 * key.norm() for layer, key in keys[0].items())
    gaps = broken or moved or not _is_equal(lm, lm.logits(hidden), reference[0][:SHARED_TOKENS])
    # attention without positions (NoPE) is that of models that do not count slots either
    gaps = gaps or _reads_correctly_over_gap(lm, texts, reference)
    return replace(capabilities, supports_embeddings=embeds, supports_gaps=gaps)


def _reads_correctly(
    lm: LM,
    window: Window,
    texts: Sequence[Tensor],
    reference: Sequence[Tensor],
    cuts: Sequence[Sequence[int]],
) -> bool:
    """True if a batch of texts is read correctly in parts; parts are padded left, then right."""
    seen: list[list[Tensor]] = [[] for _ in texts]
    for step in range(len(cuts[0]) - 1):
        parts = [
            ids[0, cut[step] : cut[step + 1]].tolist() for ids, cut in zip(texts, cuts, strict=True)
        ]
        ids_BT, mask_BT = pad(parts, 0, "right" if step == 1 else "left", lm.device)
        hidden = window.feed(ids_BT, None if bool(mask_BT.all()) else mask_BT)
        for row, own in enumerate(seen):
            own.append(hidden[row][mask_BT[row]])
    rows = zip(seen, reference, cuts, strict=False)
    return all(
        _is_equal(lm, lm.logits(torch.cat(own)[None]), right[cut[0] : cut[-1]])
        for own, right, cut in rows
    )


def _start_cache(lm: LM) -> Any:
    """Return the cache of a text of one token."""
    window = Window(lm, None, 1)
    window.feed(torch.full((1, 1), min(16, lm.vocab_size - 1), device=lm.device))
    return window.cache


def _copies_correctly(lm: LM, texts: Sequence[Tensor], reference: Sequence[Tensor]) -> bool:
    """True if two texts can be read on from a copy of their cache with exchanged rows, twice."""
    first, end = texts[1].shape[1] - 4, texts[1].shape[1]
    ids_2T = torch.cat([ids_1T[:, :end] for ids_1T in texts])
    window, exchanged_2 = Window(lm, None, 2), torch.tensor([1, 0], device=lm.device)
    window.feed(ids_2T[:, :first])
    prefix = window.prefix().select(exchanged_2)
    return all(
        _reads_correctly(lm, Window(lm, prefix, 2), texts[::-1], reference[::-1], [cut] * 2)
        for cut in ((first, end), (first, end - 1, end))
    )


def _reads_correctly_over_gap(lm: LM, texts: Sequence[Tensor], reference: Sequence[Tensor]) -> bool:
    """True if padding after the first token has no effect. Windows that count slots would fail."""
    window, slots = Window(lm, None, 1), min(GAP_SLOTS, lm.max_positions - SHARED_TOKENS)
    window.feed(texts[0][:, :1])
    first = window.prefix()
    keys, values = (
        tuple(layer.expand(-1, -1, slots, -1) for layer in part)
        for part in (first.keys_LBHPD, first.values_LBHPD)
    )
    mask_1P = torch.arange(slots, device=lm.device)[None] == 0
    padded = replace(first, keys_LBHPD=keys, values_LBHPD=values, mask_BP=mask_1P)
    return _reads_correctly(
        lm, Window(lm, padded, 1, retain=False), texts[:1], reference, [(1, SHARED_TOKENS)]
    )


def _is_equal(lm: LM, logits_1TV: Tensor, expected: Tensor) -> bool:
    """True if logits have these log-probabilities, within their tolerance. NaN equals NaN."""
    own = logits_1TV[0].float().log_softmax(-1)
    if lm.dtype in (torch.float16, torch.bfloat16):
        return float((own - expected).nan_to_num().abs().mean()) <= MAX_LOGPROB_DIFFERENCE[lm.dtype]
    is_close = (own - expected).abs() <= MAX_LOGPROB_DIFFERENCE[lm.dtype] + 1e-4 * expected.abs()
    return bool((is_close | (own == expected) | (own.isnan() & expected.isnan())).all())


def _learn_layers(lm: LM, capabilities: Capabilities) -> tuple[Capabilities, list[Angles]]:
    """Learn cache layers, mask functions and angle functions of the model from a short forward."""
    ids_1T = torch.full((1, 2), min(16, lm.vocab_size - 1), device=lm.device)
    own = own_layers(lm)
    apply_capabilities(lm, replace(capabilities, own_layers=own))
    cache = Window(lm, None, 1).cache
    with record_angles(lm) as angles, learn_layers() as learned:
        lm.decoder(input_ids=ids_1T, past_key_values=cache, use_cache=True)
    made = [layer for layer in range(lm.layers) if holds_keys(own.get(layer))]
    attending = sorted(learned)
    assert made, "no layer has keys and values"
    assert set(made) <= learned.keys(), "layers that do not attend through the interface"
    # a layer without keys of its own attends to those of an earlier one
    kv_layers = {
        layer: next(i for i, owner in enumerate(made) if learned[owner].key is learned[layer].key)
        for layer in attending
    }
    functions = {
        kv_layers[layer]: function
        for layer in attending
        if (function := learned[layer].mask_function) is not None
    }
    is_latent = any(cache.layers[layer].keys.shape != learned[layer].key.shape for layer in made)
    found = replace(
        capabilities, own_layers=own, local_masks=functions, kv_layers={}, has_latent_keys=is_latent
    )
    return (replace(found, kv_layers=kv_layers) if own else found), angles


def _learn_rotary(lm: LM, angles: Sequence[Angles], ids_1T: Tensor) -> Rotary | None:
    """Learn the rotations of keys and queries; None if they cannot be moved."""
    ids_B1, readings = ids_1T.T, list[dict[int, AttentionCall]]()
    at_B1 = torch.arange(len(ids_B1), device=lm.device)[:, None]
    with suppress(Exception):  # after any error, keys cannot be moved
        for shift in (0, SHIFT_POSITIONS):
            begun, seen = Prefix((), (), at_B1[:, 0] + shift), dict[int, AttentionCall]()
            with observe_attention(lambda call, seen=seen: seen.update({call.layer: call})):  # type: ignore[misc]
                Window(lm, begun, len(ids_B1)).feed(ids_B1)
            readings.append(seen)
        calls = [(readings[0][layer], readings[1][layer]) for layer in range(len(lm.kv_layers))]
        return learn_rotary(lm, angles, calls, at_B1, SHIFT_POSITIONS)
    return None


capability_probes[:] = [probe_capabilities]
