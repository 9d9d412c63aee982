"""Cost on paper is cost as measured: bytes and parameters exactly, operations within a few per cent.

What torch's FlopCounterMode counts: every matrix product, and attention where it is made of matrix products (its CPU
kernel is not counted, so the math backend is asked for) with all pairs behind the causal mask. `Shape.counts_masked_pairs` counts
those pairs too. Sums, norms, activations and rotations count nowhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from tests.tiny import byte_tokenizer, tiny_gpt2, tinyllama_shaped
from tests.tiny_methods import TEXTS, TINY_SETTINGS, make_chunks, make_queries
from tools.tiny_architectures import tiny_model
from ttabench.core.types import Generate
from ttabench.cost import COVERED_MODEL_TYPES, Cost, Shape, Workload, shape_from
from ttabench.lm.forward.patching import continues_text, encode_patch
from ttabench.lm.forward.tokens import chunk_ids, prompt_ids
from ttabench.lm.inference.answering import answer_queries
from ttabench.lm.model import LM, load
from ttabench.lm.patch import State
from ttabench.methods.base import Method
from ttabench.methods.ccm import CcmSettings, GistingSettings
from ttabench.methods.distill import CartridgeSettings, LoraPerDocumentSettings
from ttabench.methods.doc_to_lora import DocToLoraSettings
from ttabench.methods.eviction.expected_attention import ExpectedAttentionSettings
from ttabench.methods.eviction.h2o import H2OSettings
from ttabench.methods.eviction.kvzap import KVzapSettings
from ttabench.methods.eviction.kvzip import KVzipSettings
from ttabench.methods.eviction.random_slots import RandomSlotsSettings
from ttabench.methods.eviction.snapkv import SnapKVSettings
from ttabench.methods.eviction.spec import BudgetSettings
from ttabench.methods.eviction.window import WindowSettings
from ttabench.methods.generative_adapter import GenerativeAdapterSettings, svd_flops
from ttabench.methods.icl import InContextSettings
from ttabench.methods.in_place_ttt import InPlaceSettings
from ttabench.methods.lora import LoraSettings
from ttabench.methods.qttt import QueryTrainingSettings
from ttabench.methods.quantised import pack_state
from ttabench.methods.registry import compute_cost, find_method, methods
from ttabench.methods.still import StillSettings
from ttabench.methods.streamadapter import StreamAdapterSettings
from ttabench.methods.templora import TempLoraSettings
from ttabench.methods.text_compression import PromptCompressionSettings, SummarySettings

QUESTION = make_queries("Where does Ada live?")
BASES: dict[str, Callable[[], LM]] = {
    "gpt2": tiny_gpt2,
    "tinyllama": tinyllama_shaped,
    "nano": lambda: load("nano", device="cpu"),
}
STREAMADAPTER = StreamAdapterSettings(queries=3, down=5, chunk=8)
GENERATOR = GenerativeAdapterSettings(inner=12, rank=5, chunk=16)
SEEDS = ("Question:", "Summary:", "The facts:")
"""Of five tokens with what stands before them, on average."""
CASES: dict[str, tuple[str, Any]] = {
    "none": ("none", None),
    "icl": ("icl", InContextSettings()),
    "window": ("window", WindowSettings(n_sink=2, recent=10)),
    "snapkv": ("snapkv", SnapKVSettings(budget=12, window=4)),
    "snapkv in chunks": ("snapkv", SnapKVSettings(budget=12, window=4, chunk=20, positions="auto")),
    "h2o": ("h2o", H2OSettings()),
    "random_slots": ("random_slots", RandomSlotsSettings()),
    "keydiff in chunks": ("keydiff", BudgetSettings(chunk=20)),
    "expected_attention": ("expected_attention", ExpectedAttentionSettings()),
    "kvzip": ("kvzip", KVzipSettings(shares="uniform")),
    "attention_matching": ("attention_matching", KVzipSettings(shares="uniform")),
    "kvzap": ("kvzap", KVzapSettings(shares="uniform")),
    "kvzap mlp": ("kvzap", KVzapSettings(shares="uniform", scorer="mlp", hidden=24)),
    "kvzap gate": ("kvzap", KVzapSettings(shares="uniform", scorer="gate", budget=1.0)),
    "mac": ("mac", TINY_SETTINGS["mac"]),
    "ccm": ("ccm", CcmSettings(comp_tokens=2, rank=2)),
    "gisting": ("gisting", GistingSettings(comp_tokens=2, rank=2)),
    "gisting_online": ("gisting_online", GistingSettings(comp_tokens=2, rank=2)),
    "lora": ("lora", LoraSettings(rank=4)),
    "templora": ("templora", TempLoraSettings(rank=4, prefix=8)),
    "qttt": ("qttt", QueryTrainingSettings(rank=4, span=16)),
    "cartridge": (
        "cartridge",
        CartridgeSettings(slots=16, length=24, steps=8, batch=2, seeds=SEEDS),
    ),
    "cartridge again": (
        "cartridge",
        CartridgeSettings(slots=16, length=24, steps=8, batch=2, seeds=()),
    ),
    "cartridge deltas": (
        "cartridge",
        CartridgeSettings(target="deltas", rank=4, length=24, steps=8, batch=2, seeds=SEEDS),
    ),
    "cartridge deltas again": (
        "cartridge",
        CartridgeSettings(
            target="deltas", rank=4, length=24, steps=8, batch=2, seeds=(), targets=("v_proj",)
        ),
    ),
    "lora_per_document": (
        "lora_per_document",
        LoraPerDocumentSettings(rank=4, length=24, steps=8, batch=2, seeds=SEEDS, top=2),
    ),
    "doc_to_lora": (
        "doc_to_lora",
        DocToLoraSettings(rank=2, latent=32, latents=4, blocks=2, heads=2, kv_heads=1, head_dim=16),
    ),
    "in_place_ttt": ("in_place_ttt", InPlaceSettings(chunk=16, every=2, rate=1e-3)),
    "in_place_ttt alone": (
        "in_place_ttt",
        InPlaceSettings(chunk=16, every=3, rate=1e-3, cache=False),
    ),
    "still": ("still", StillSettings(slots=3, width=32)),
    "streamadapter": ("streamadapter", STREAMADAPTER),
    "generative_adapter": ("generative_adapter", GENERATOR),
    "random_text": ("random_text", None),
    "prompt_compression": ("prompt_compression", None),
    "prompt_compression in parts": ("prompt_compression", PromptCompressionSettings(chunk=50)),
    "summary": ("summary", SummarySettings(prompt="Facts:")),
    "summary of all": ("summary", SummarySettings(budget=1.0)),
}
MEASURED = [
    *(("nano", case) for case in CASES if case != "lora_per_document"),
    *(
        ("tinyllama", case)
        for case in ("icl", "snapkv", "mac", "ccm", "templora", "generative_adapter")
    ),
    *(("gpt2", case) for case in ("icl", "window", "h2o", "ccm", "streamadapter")),
    ("gpt2", "prompt_compression"),
]
QUANTISED = "icl window snapkv h2o random_slots kvzap ccm gisting qttt still in_place_ttt".split()
QUICK = 4
"""Tokens of an answer."""


def decomposed(matrix: torch.Size, *_: Any, **_named: Any) -> int:
    """Operations of singular value decompositions, which torch does not count by itself."""
    *rows, height, width = matrix
    return math.prod(rows) * svd_flops(height, width)


COUNTED_TOO = {torch.ops.aten._linalg_svd: decomposed}


@dataclass(frozen=True)
class Measured:
    """A method that has read `TEXTS`, and what was counted while it did and answered one question (on some bases)."""

    lm: LM
    method: Method[Any]
    state: State
    adapt_flops: int
    ask_flops: int

    def on_paper(
        self, *, dense: bool = False, chunks: int = len(TEXTS), bits: int | None = None
    ) -> Cost:
        """The analytic cost of the same work; `dense`: with everything that is computed and masked."""
        settings = {} if self.method.settings is None else asdict(self.method.settings)
        lengths = tuple(
            len(chunk_ids(self.lm, chunk, first=not i))
            for i, chunk in enumerate(make_chunks(*TEXTS[:chunks]))
        )
        state = self.method.begin(1)
        if chunks:
            state = self.method.adapt(state, [[chunk] for chunk in make_chunks(*TEXTS[:chunks])])
        is_continuation = continues_text(self.method.patch(state, QUESTION))
        asked = len(prompt_ids(self.lm, QUESTION[0], is_continuation=is_continuation))
        work = Workload(chunk_tokens=lengths, prompt_tokens=asked, new_tokens=QUICK, bits=bits)
        found = compute_cost(
            self.method.name, settings, replace(shape(self.lm), counts_masked_pairs=dense), work
        )
        assert found is not None
        return found


def shape(lm: LM) -> Shape:
    return shape_from(lm.config.to_dict(), lm.config.model_type)


@cache
def built(base: str) -> LM:
    if base in BASES:
        return BASES[base]()
    return LM(tiny_model(base), byte_tokenizer(), base, random_weights=True)


@cache
def measured(base: str, case: str, chunks: int = len(TEXTS)) -> Measured:
    lm = built(base)
    name, settings = CASES.get(case, (case, None))
    spec = find_method(name)
    method = spec.load()(lm, spec.Settings() if settings is None else settings)
    method.modules().requires_grad_(
        False
    )  # or torch's module tracker looks for a gradient function
    with sdpa_kernel(SDPBackend.MATH), torch.no_grad(), pytest.MonkeyPatch.context() as patched:
        patched.setattr(
            lm, "eos_ids", frozenset()
        )  # no token ends an answer, so that all of it is written
        with FlopCounterMode(display=False, custom_mapping=COUNTED_TOO) as adapting:
            state = method.begin(1)
            if chunks:
                state = method.adapt(state, [[chunk] for chunk in make_chunks(*TEXTS[:chunks])])
            shared = None if method.query_aware else encode_patch(lm, method.patch(state, QUESTION))
        with FlopCounterMode(display=False, custom_mapping=COUNTED_TOO) as asking:
            patch = method.patch(state, QUESTION) if shared is None else shared
            answer_queries(lm, patch, [replace(QUESTION[0], want=Generate(max_new_tokens=QUICK))])
    return Measured(lm, method, state, adapting.get_total_flops(), asking.get_total_flops())


@pytest.mark.parametrize(("base", "case"), MEASURED, ids=lambda value: value.replace(" ", "-"))
def test_cost_on_paper_is_as_measured(base: str, case: str) -> None:
    found = measured(base, case)
    paper, dense, method = (found.on_paper(), found.on_paper(dense=True), case.split()[0])
    assert paper.state_bytes == found.state.nbytes
    assert paper.state_floats == sum(
        t.numel() for t in found.state.tensors.values() if t.is_floating_point()
    )
    if find_method(method).trainable:
        assert paper.added_parameters == sum(p.numel() for p in found.method.modules().parameters())
    assert dense.adapt_flops == pytest.approx(found.adapt_flops, rel=0.05)
    assert dense.ask_flops == pytest.approx(found.ask_flops, rel=0.05)
    assert paper.adapt_flops <= dense.adapt_flops
    assert replace(paper, adapt_flops=0, ask_flops=0) == replace(dense, adapt_flops=0, ask_flops=0)


@pytest.mark.parametrize("bits", [8, 4, 2])
@pytest.mark.parametrize(
    ("base", "case"),
    [
        *(("nano", case) for case in QUANTISED),
        *(("gpt2", case) for case in ("icl", "window", "h2o", "ccm")),
    ],
)
def test_bytes_of_a_quantised_state_are_as_measured(base: str, case: str, bits: int) -> None:
    found = measured(base, case)
    packed = pack_state(found.state, bits, torch.bfloat16)
    assert packed.nbytes < found.state.nbytes
    assert found.on_paper(bits=bits).state_bytes == packed.nbytes


def test_cost_of_a_lora_per_document_is_as_measured() -> None:
    found = measured("nano", "lora_per_document")
    paper, dense = found.on_paper(), found.on_paper(dense=True)
    assert paper.state_floats == found.state.tensors["weights"].numel()
    assert paper.state_bytes == pytest.approx(found.state.nbytes, rel=0.05)
    assert dense.adapt_flops == pytest.approx(found.adapt_flops, rel=0.05)
    assert dense.ask_flops == pytest.approx(found.ask_flops, rel=0.05)


def test_nothing_read_is_a_closed_book() -> None:
    none = measured("nano", "none").on_paper(dense=True)
    for name in (name for name, spec in methods().items() if spec.cost):
        case = next((case for case, (method, _) in CASES.items() if method == name), name)
        found = measured("nano", case, 0)
        paper = found.on_paper(chunks=0, dense=True)
        assert (paper.state_bytes, paper.adapt_flops, found.adapt_flops) == (
            found.state.nbytes,
            0,
            0,
        ), name
        learned = (
            2 * paper.added_parameters * paper.positions if name == "lora" else 0
        )  # it knows unread what it knows
        assert paper.ask_flops == none.ask_flops + learned == found.ask_flops, name


@pytest.mark.parametrize("base", [*BASES, *COVERED_MODEL_TYPES])
def test_a_shape_knows_the_linear_maps_of_its_model(base: str) -> None:
    lm = built(base)
    found = [
        (linear.name, linear.inputs, linear.outputs) for linear in shape(lm).linears
    ] * lm.layers
    there = [(name.rpartition(".")[2], *lm.linear_shape(name)) for name in lm.linear_names()]
    assert sorted(found) == sorted(there)
    assert shape(lm).slot_floats == lm.slot_bytes / lm.dtype.itemsize


@pytest.mark.parametrize("base", BASES)
def test_a_shape_knows_the_start_and_the_positions_of_its_model(base: str) -> None:
    lm = built(base)
    assert shape(lm).bos_tokens == len(lm.bos_ids)
    assert shape(lm).positions == lm.max_positions


@pytest.mark.parametrize(
    ("tokens", "context", "band"), [(7, 0, None), (7, 5, None), (9, 2, 4), (3, 9, 4), (9, 0, 20)]
)
def test_pairs_are_counted_one_by_one(tokens: int, context: int, band: int | None) -> None:
    seen = [min(context + token + 1, band or 10**9) for token in range(tokens)]
    tiny = shape(built("tinyllama"))
    assert tiny.attended_pairs(tokens, context, band) == sum(seen)
    assert replace(tiny, sliding_window=6).attended_pairs(tokens, context, band) == sum(
        min(each, 6) for each in seen
    )
    assert replace(tiny, counts_masked_pairs=True).attended_pairs(
        tokens, context, band
    ) == tokens * (context + tokens)
