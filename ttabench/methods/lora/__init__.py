"""LoRA: low-rank weight deltas, trained once on a task."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ttabench.cost import Cost, LowRankFactors, Shape, Workload, closed_book_cost, select_linears
from ttabench.methods.parts.settings import LoraShape
from ttabench.methods.spec import MethodSpec, Recipe


@dataclass(frozen=True, kw_only=True)
class LoraSettings(LoraShape):
    """Settings of `lora`; the defaults are those of StreamAdapter's comparison."""

    full_context: bool = False
    """True to train with all text read before a query in context. At test time nothing is read. To
    use full context after this training, run `icl` with the checkpoint as `--base-checkpoint`."""


_BASE_RECIPE = Recipe(schedule="cosine", beta2=0.98, clip=1.0)
_PAPER_RECIPE = Recipe(documents=(1,), schedule="cosine", beta2=0.95, decay=0.01)


def cost(settings: LoraSettings, shape: Shape, work: Workload) -> Cost:
    """Cost of LoRA (arXiv 2106.09685), which is trained beforehand and reads no context."""
    factors = LowRankFactors(shape, settings.rank, select_linears(settings.targets, shape))
    base = closed_book_cost(shape, work)
    ask_flops = base.ask_flops + factors.forward_flops(shape.bos_tokens + work.query_positions)
    return replace(base, added_parameters=factors.size, ask_flops=ask_flops)


LORA = MethodSpec(
    name="lora",
    summary="low-rank weight deltas, trained on the task",
    import_path="ttabench.methods.lora.method:Lora",
    Settings=LoraSettings,
    presets={
        # as many parameters as StreamAdapter's nano preset
        "nano": LoraSettings(rank=43, alpha=43.0),
        "smollm2-135m": LoraSettings(rank=16, alpha=32.0),
        "tinyllama-1.1b": LoraSettings(),
        "llama-3-8b": LoraSettings(),
        "phi-3-medium": LoraSettings(),
    },
    recipes={
        "nano": replace(
            _BASE_RECIPE,
            documents=(1,),
            questions=8,
            batch_documents=16,
            steps=600,
            lr=1e-3,
            warmup=50,
        ),
        "smollm2-135m": replace(
            _BASE_RECIPE,
            documents=(2, 4, 8),
            rounds=100,
            questions=4,
            steps=300,
            lr=5e-4,
            warmup=20,
        ),
        "tinyllama-1.1b": replace(_PAPER_RECIPE, batch_documents=16, lr=1e-4, warmup=100),
        "llama-3-8b": replace(_PAPER_RECIPE, batch_documents=8, lr=8e-5, warmup=300),
        "phi-3-medium": replace(_PAPER_RECIPE, batch_documents=4, lr=5e-5, warmup=500),
    },
    trainable=True,
    cost=cost,
    test_settings=LoraSettings(rank=2),
    paper="2106.09685",
)
METHODS = (LORA,)
