"""What CCM's memory saves on nano: training in one forward, questions under a memory limit, and an endless stream.

    python results/bench_ccm.py     bench_ccm.md; processor seconds of one thread, so that a busy machine tells the same

arXiv 2312.03414: training in one forward is 7 times as fast as step by step (table 18); questions at step 16 under one
limit of memory, full context : concat : merge, 1 : 4.6 : 13.2 (table 1); a stream of a window of 160 (figure 8).
Weights of CCM are untrained: time does not depend on them.
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
STEPS, PIECE, ASKED, COMP, LIMIT = 16, 50, 50, 8, 64 * 2**20
PAPER = {"full": 1.0, "concat": 4.6, "merge": 13.2}
STREAM, BLOCK = 100_000, 64
UPDATES = ("concat", "merge")


def spent(work: Callable[[], object], tries: int) -> list[float]:
    """Processor seconds of each of so many runs, after one that is not counted."""
    work()
    rows = []
    for _ in range(tries):
        started = time.process_time()
        work()
        rows.append(time.process_time() - started)
    return rows


def spread(seconds: list[float], unit: float = 1e3) -> str:
    """Median, and the smallest and the largest."""
    return (
        f"{median(seconds) * unit:,.0f} ({min(seconds) * unit:,.0f} to {max(seconds) * unit:,.0f})"
    )


def ccm(lm: LM, **settings: object) -> Ccm:
    """Untrained."""
    return Ccm(lm, CcmSettings(comp_tokens=COMP, **settings))  # type: ignore[arg-type]


def step_by_step(method: Ccm, episode: Episode) -> Tensor:
    """The loss of one question behind all pieces, with gradients through every step."""
    state, (ask, *_) = method.begin(1), episode.queries()
    for piece in episode.chunks():
        state = Ccm.adapt.__wrapped__(method, state, [[piece]])  # type: ignore[attr-defined]  # with gradients
    summed, tokens = answer_nll(
        method.lm, method.patch(state, [ask]), [training_item(method.lm, ask, is_continuation=True)]
    )
    return summed / tokens


def training(lm: LM, tries: int) -> str:
    """Table of what a sample takes in training."""
    task = load_task("metaicl", source="mini", split="train")
    episodes = [
        one
        for one in islice(task.training_episodes(0, STEPS, 1, lm), 4)
        if len(one.chunks()) == STEPS
    ]
    lines = [
        "| | one forward, ms | step by step, ms | times | difference of losses |",
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
        apart = max(
            float(abs(method.loss_parts([e])["answer"] - step_by_step(method, e)).detach())
            for e in episodes
        )
        lines.append(
            f"| {update} | {spread(one)} | {spread(other)} | {median(times):.1f} | {apart:.0e} |"
        )
    return "\n".join(lines)


def peaks(lm: LM) -> dict[str, int]:
    """Most slots alive at step 16, on paper; full context without what begins the text."""
    shape = shape_from(lm.config.to_dict(), lm.config.model_type)
    work = Workload(chunk_tokens=(PIECE,) * STEPS, prompt_tokens=ASKED, new_tokens=1)
    assert CCM.cost is not None
    slots = {"full": STEPS * PIECE + ASKED}
    for update in UPDATES:
        cost = CCM.cost(CcmSettings(comp_tokens=COMP, update=update), shape, work)
        assert cost is not None
        slots[update] = max(cost.adapt_slots, cost.ask_slots)
    return slots


def asking(lm: LM, tries: int) -> str:
    """Table of questions a second, in batches as large as the limit allows."""
    slots = {"full": STEPS * PIECE, "concat": STEPS * COMP, "merge": COMP}
    lines = [
        "| | peak slots | questions at once | on paper | questions a second | measured | paper |"
    ]
    lines.append("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    rows, rates = {}, {}
    a_slot = 2 * lm.layers * lm.kv_heads * lm.head_dim * 4
    for name, peak in peaks(lm).items():
        rows[name] = LIMIT // (peak * a_slot)
        shape = (rows[name], lm.kv_heads, slots[name], lm.head_dim)
        held = tuple(torch.randn(shape) for _ in range(lm.layers))
        patch = Patch(
            prefix=Prefix(held, held, torch.full((rows[name],), STEPS * PIECE), holds_bos=True)
        )
        ids_BT = torch.randint(10, 90, (rows[name], ASKED))
        with torch.no_grad():
            seconds = spent(lambda patch=patch, ids_BT=ids_BT: forward(lm, patch, ids_BT), tries)
        rates[name] = rows[name] / median(seconds)
        paper, measured = rows[name] / rows["full"], rates[name] / rates["full"]
        line = f"{peak} | {rows[name]} | {paper:.1f} | {rates[name]:,.0f} | {measured:.1f} | {PAPER[name]}"
        lines.append(f"| {name} | {line} |")
    return "\n".join(lines)


@torch.no_grad()
def streaming(lm: LM, tokens: int) -> str:
    """Table of what is held while a stream of random tokens is read."""
    lines = [
        "| | tokens read | slots before a token | bytes held | us a token |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    draws, lengths = torch.Generator().manual_seed(0), {}
    ids = torch.randint(10, 90, (tokens,), generator=draws).tolist()
    for name, compress in (("ccm", True), ("StreamingLLM, as long", False)):
        method = Ccm(lm, CcmSettings(comp_tokens=2, window=160, compress=compress))
        assert method.stream is not None
        kept, done, sizes, lengths[name] = None, 0, set(), []
        started = time.process_time()
        while len(lengths[name]) < tokens:
            held = 0 if kept is None else kept.index.shape[-1]
            begin, size = len(lengths[name]), min(BLOCK, method.stream.window + 1 - held)
            part = ids[begin : begin + size]
            lengths[name] += range(held, held + len(part))
            kept, done = method.stream.read(kept, part, done)
            sizes.add(sum(each.nbytes for each in method.stream.tensors([kept]).values()))
        took, late = time.process_time() - started, lengths[name][1000:]
        bounds = f"{min(late)} to {max(late)}"
        lines.append(
            f"| {name} | {tokens:,} | {bounds} | {sorted(sizes)} | {took / tokens * 1e6:,.0f} |"
        )
    equal = len({tuple(each) for each in lengths.values()}) == 1
    return "\n".join(lines) + f"\n\nEqual before every token: {'yes' if equal else 'no'}."


def main(tries: int, tokens: int) -> None:
    """Measure all and write the page."""
    torch.set_num_threads(1)
    lm = load("nano", device="cpu")
    page = f"""# CCM on nano

`python results/bench_ccm.py`. Processor seconds of one thread on a machine that others used at the same time: medians
of {tries} runs (smallest to largest). Weights of CCM are untrained.

## Training at {STEPS} steps, one question at the end

Milliseconds a sample, forward and backward, `comp_tokens={COMP}`. The paper has 7 times (Llama-7B, a GPU).

{training(lm, tries)}

## Questions at step {STEPS} under one limit of memory

{LIMIT // 2**20} MiB of keys and values in float32; pieces of {PIECE} tokens, {ASKED} of a question and its answer,
`comp_tokens={COMP}`.

{asking(lm, tries)}

As many questions fit as on paper; on a CPU they are not answered as much faster. Why was not measured.

## An endless stream

Window 160, 64 tokens to 2 COMP slots, a memory of 8; random tokens.

{streaming(lm, tokens)}
"""
    (HERE / "bench_ccm.md").write_text(page, encoding="utf-8")
    print(page)


if __name__ == "__main__":
    main(
        int(sys.argv[1]) if len(sys.argv) > 1 else 5,
        int(sys.argv[2]) if len(sys.argv) > 2 else STREAM,
    )
