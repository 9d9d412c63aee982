"""Benchmark of CCM's savings on nano: training in one forward pass, queries under a memory limit,
an endless stream.

    python results/bench_ccm.py     bench_ccm.md; CPU seconds of one thread

arXiv 2312.03414: training in one forward is 7 times as fast as step by step (table 18); queries at
step 16 under one memory limit, full context : concat : merge, 1 : 4.6 : 13.2 (table 1); a stream
with a window of 160 (figure 8). CCM is untrained, because time does not depend on its weights.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from statistics import median

import torch
from torch import Tensor

from ttabench.core.types import Episode
from ttabench.cost import Workload, shape_from
from ttabench.lm.forward.patching import forward
from ttabench.lm.inference.scoring import answer_nll
from ttabench.lm.model import LM, load
from ttabench.lm.patch import Patch, Prefix
from ttabench.methods.ccm import CCM, CcmSettings
from ttabench.methods.ccm.method import Ccm
from ttabench.methods.trainable import training_item
from ttabench.readers import load as load_task

HERE = Path(__file__).resolve().parent
STEPS, CHUNK, QUERY_TOKENS, COMP, LIMIT = 16, 50, 50, 8, 64 * 2**20
PAPER = {"full": 1.0, "concat": 4.6, "merge": 13.2}
STREAM, BLOCK = 100_000, 64
UPDATES = ("concat", "merge")


def spent(work: Callable[[], object], tries: int) -> list[float]:
    """Return the CPU seconds of each of `tries` runs, after one warm-up."""
    work()
    rows = []
    for _ in range(tries):
        started = time.process_time()
        work()
        rows.append(time.process_time() - started)
    return rows


def spread(seconds: list[float], unit: float = 1e3) -> str:
    """Format the median with the smallest and the largest value."""
    return (
        f"{median(seconds) * unit:,.0f} ({min(seconds) * unit:,.0f} to {max(seconds) * unit:,.0f})"
    )


def ccm(lm: LM, **settings: object) -> Ccm:
    """Create an untrained CCM."""
    return Ccm(lm, CcmSettings(comp_tokens=COMP, **settings))  # type: ignore[arg-type]


def step_by_step(method: Ccm, episode: Episode) -> Tensor:
    """Return the loss of one query after all chunks, with gradients through every step."""
    state, (ask, *_) = method.begin(1), episode.queries()
    for chunk in episode.chunks():
        state = Ccm.adapt.__wrapped__(method, state, [[chunk]])  # type: ignore[attr-defined]  # with gradients
    summed, tokens = answer_nll(
        method.lm, method.patch(state, [ask]), [training_item(method.lm, ask, is_continuation=True)]
    )
    return summed / tokens


def training(lm: LM, tries: int) -> str:
    """Measure training; returns a table per sample."""
    task = load_task("metaicl", source="mini", split="train")
    episodes = [
        one
        for one in islice(task.training_episodes(0, STEPS, 1, lm), 4)
        if len(one.chunks()) == STEPS
    ]
    lines = [
        "| | one forward (ms) | step by step (ms) | speed-up | difference of losses |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for update in UPDATES:
        method = ccm(lm, update=update)
        both = [
            spent(lambda each=episode, loss=loss: loss(each).backward(), tries)
            for episode in episodes
            for loss in (
                lambda one, method=method: method.loss_parts([one])["answer"],
                lambda one, method=method: step_by_step(method, one),
            )
        ]
        one, other = sum(both[::2], []), sum(both[1::2], [])  # noqa: RUF017  # a few numbers
        times = [b / a for a, b in zip(one, other, strict=True)]
        largest = max(
            float(abs(method.loss_parts([e])["answer"] - step_by_step(method, e)).detach())
            for e in episodes
        )
        lines.append(
            f"| {update} | {spread(one)} | {spread(other)} | {median(times):.1f} | {largest:.0e} |"
        )
    return "\n".join(lines)


def peaks(lm: LM) -> dict[str, int]:
    """Count the most live slots at step 16, without the start of the text for full context."""
    shape = shape_from(lm.config.to_dict(), lm.config.model_type)
    work = Workload(chunk_tokens=(CHUNK,) * STEPS, prompt_tokens=QUERY_TOKENS, new_tokens=1)
    assert CCM.cost is not None
    slots = {"full": STEPS * CHUNK + QUERY_TOKENS}
    for update in UPDATES:
        cost = CCM.cost(CcmSettings(comp_tokens=COMP, update=update), shape, work)
        assert cost is not None
        slots[update] = max(cost.adapt_slots, cost.ask_slots)
    return slots


def asking(lm: LM, tries: int) -> str:
    """Measure queries per second in batches as large as the limit allows; returns a table."""
    slots = {"full": STEPS * CHUNK, "concat": STEPS * COMP, "merge": COMP}
    lines = [
        "| | peak slots | batch size | calculated (times) | queries per second | measured (times) | paper (times) |"
    ]
    lines.append("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    rows, rates = {}, {}
    a_slot = 2 * lm.layers * lm.kv_heads * lm.head_dim * 4
    for name, peak in peaks(lm).items():
        rows[name] = LIMIT // (peak * a_slot)
        shape = (rows[name], lm.kv_heads, slots[name], lm.head_dim)
        keys = tuple(torch.randn(shape) for _ in range(lm.layers))
        patch = Patch(
            prefix=Prefix(keys, keys, torch.full((rows[name],), STEPS * CHUNK), holds_bos=True)
        )
        ids_BT = torch.randint(10, 90, (rows[name], QUERY_TOKENS))
        with torch.no_grad():
            seconds = spent(lambda patch=patch, ids_BT=ids_BT: forward(lm, patch, ids_BT), tries)
        rates[name] = rows[name] / median(seconds)
        paper, measured = rows[name] / rows["full"], rates[name] / rates["full"]
        line = f"{peak} | {rows[name]} | {paper:.1f} | {rates[name]:,.0f} | {measured:.1f} | {PAPER[name]}"
        lines.append(f"| {name} | {line} |")
    return "\n".join(lines)


@torch.no_grad()
def streaming(lm: LM, tokens: int) -> str:
    """Measure the state while a stream of random tokens is read; returns a table."""
    lines = [
        "| | tokens read | slots before a token | state (bytes) | time per token (us) |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    draws, lengths = torch.Generator().manual_seed(0), {}
    ids = torch.randint(10, 90, (tokens,), generator=draws).tolist()
    for name, compress in (("ccm", True), ("StreamingLLM, same length", False)):
        method = Ccm(lm, CcmSettings(comp_tokens=2, window=160, compress=compress))
        assert method.stream is not None
        kept, done, sizes, lengths[name] = None, 0, set(), []
        started = time.process_time()
        while len(lengths[name]) < tokens:
            memory_slots = 0 if kept is None else kept.index.shape[-1]
            begin, size = len(lengths[name]), min(BLOCK, method.stream.window + 1 - memory_slots)
            part = ids[begin : begin + size]
            lengths[name] += range(memory_slots, memory_slots + len(part))
            kept, done = method.stream.read(kept, part, done)
            sizes.add(sum(each.nbytes for each in kept.tensors().values()))
        took, late = time.process_time() - started, lengths[name][1000:]
        bounds = f"{min(late)} to {max(late)}"
        lines.append(
            f"| {name} | {tokens:,} | {bounds} | {sorted(sizes)} | {took / tokens * 1e6:,.0f} |"
        )
    equal = len({tuple(each) for each in lengths.values()}) == 1
    return "\n".join(lines) + f"\n\nEqual slots before every token: {'yes' if equal else 'no'}."


def main(tries: int, tokens: int) -> None:
    """Run all measurements and write the page."""
    torch.set_num_threads(1)
    lm = load("nano", device="cpu")
    page = f"""# CCM on nano

`python results/bench_ccm.py`. CPU seconds of one thread on a shared machine: medians of {tries} runs (smallest to
largest). CCM is untrained.

## Training at {STEPS} steps, one query at the end

Milliseconds per sample, forward and backward, `comp_tokens={COMP}`. The paper reports 7 times (Llama-7B, a GPU).

{training(lm, tries)}

## Queries at step {STEPS} under a memory limit

{LIMIT // 2**20} MiB of keys and values in float32; chunks of {CHUNK} tokens,
{QUERY_TOKENS} tokens of a query and its answer, `comp_tokens={COMP}`.

{asking(lm, tries)}

The batch sizes match the calculation. On a CPU the speed-up is smaller; the reason was not measured.

## An endless stream

Window of 160 slots, 64 tokens compressed to 2 COMP slots, a memory of 8 slots; random tokens.

{streaming(lm, tokens)}
"""
    (HERE / "bench_ccm.md").write_text(page, encoding="utf-8")
    print(page)


if __name__ == "__main__":
    main(
        int(sys.argv[1]) if len(sys.argv) > 1 else 5,
        int(sys.argv[2]) if len(sys.argv) > 2 else STREAM,
    )
