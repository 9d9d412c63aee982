"""Speed on a CPU in float32, compared with transformers, kvpress and lm-eval on the same work.

    python results/bench_speed.py reading queries lm-eval              nano, 1,024 tokens
    python results/bench_speed.py reading memory --model smollm2-135m --tokens 2048 --repeat 3
    python results/bench_speed.py growth                               1k to 32k tokens

reading, queries, lm-eval: both sides take turns in one process. Seconds are CPU seconds, medians of
all turns. Other load raises both, and affects their ratio less. The press with observed attention
needs eager attention. memory: peak size of tensors that reading creates. growth: every method reads
once per length. `--page FILE` also puts each table between the markers <!-- MODEL-PART --> of a page.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from math import log
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import torch
from grids import table
from make import put
from transformers import AutoModelForCausalLM, DynamicCache

from ttabench.core.architectures import NANO
from ttabench.core.types import Chunk
from ttabench.lm.forward.patching import prefill
from ttabench.lm.inference.answering import generate
from ttabench.lm.model import LM, load
from ttabench.lm.patch import Patch
from ttabench.methods import registry
from ttabench.methods.session import Session
from ttabench.methods.settings import build_settings, resolve_preset
from ttabench.mini.demonstrations import superglue
from ttabench.profiling.measure import TensorMemoryCounter, lift_positions, make_chunks

BUDGET, GENERATED, QUERIES, SHOTS = 0.2, 32, 32, 30
PAIRS = {
    "icl": "transformers",
    "window mode=postprefill recent=0.2": "StreamingLLMPress",
    "window recent=512": "StreamingLLMPress",
    "snapkv budget=0.2": "SnapKVPress",
    "h2o heavy=0.1 recent=0.1": "ObservedAttentionPress",
    "kvzip budget=0.2": "KVzipPress",
}
"""Methods with their settings, and the press of kvpress with the same rule. The stream of `window`
reads 516 slots at a time and keeps as many, where the press reads with full attention."""
LENGTHS = (1024, 4096, 16384, 32768)
"""Tokens of the texts that every method reads."""
CHUNK_TOKENS = 256
MAX_READING_SECONDS = 60.0
"""A method that took longer does not read the next length."""
Line = tuple[str, ...]
Reader = Callable[[Sequence[int]], object]


def cpu_seconds(work: Callable[[], object]) -> float:
    """Return the CPU seconds of a call."""
    begin = time.process_time()
    work()
    return time.process_time() - begin


@torch.no_grad()
def alternate(
    name: str, repeat: int, ours: Callable[[], object], theirs: Callable[[], object]
) -> Line:
    """Run both sides in turn, after a warm-up of each, and return the row of the table."""
    pairs = [(cpu_seconds(ours), cpu_seconds(theirs)) for _ in range(repeat + 1)][1:]
    mine, other = (median(seconds) for seconds in zip(*pairs, strict=True))
    ratios = [one / two for one, two in pairs]
    spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
    return name, f"{mine:.3g}", f"{other:.3g}", f"{mine / other:.2f}", spread


def reader(lm: LM, words: str) -> Reader:
    """Return a function that reads a text with a method, given by its name and settings."""
    name, *settings = words.split()
    cls = registry.find_method(name).load()
    values = dict(text.split("=") for text in settings)
    typed = {key: text if text.isalpha() else json.loads(text) for key, text in values.items()}
    method = cls(lm, cls.spec.Settings(**typed))

    def read(ids: Sequence[int]) -> object:
        return method.adapt(method.begin(1), [[Chunk(text=".", joiner="", ids=tuple(ids))]])

    return read


@contextmanager
def cache_positions(plain: Any) -> Iterator[None]:
    """Pass positions to attention as presses expect, which transformers does not since 5.4."""
    from ttabench.methods.kvpress.method import _add_cache_position

    hooks = [
        layer.self_attn.register_forward_pre_hook(_add_cache_position, with_kwargs=True)
        for layer in plain.model.layers
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def random_text(lm: LM, tokens: int) -> list[int]:
    """Return random token ids, to be read after the start of a text."""
    return torch.randint(10, lm.vocab_size - 10, (tokens - len(lm.start_ids),)).tolist()


def other_reader(lm: LM, folder: str, name: str) -> Reader:
    """Return a function that reads the same with transformers, or with a press of kvpress."""
    import kvpress

    attention = "eager" if name == "ObservedAttentionPress" else "sdpa"
    model: Any = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation=attention
    ).eval()
    press = None
    if name != "transformers":
        press = getattr(kvpress, name)(compression_ratio=1 - BUDGET)

    def read(ids: Sequence[int]) -> object:
        whole = torch.tensor([[*lm.start_ids, *ids]])
        with cache_positions(model), press(model) if press else nullcontext():
            return model.model(input_ids=whole, past_key_values=DynamicCache())

    return read


def compare_reading(folder: str, tokens: int, repeat: int) -> Iterator[Line]:
    """Compare reading with transformers, and evicting methods with presses."""
    lm = load(folder, device="cpu", dtype="float32")
    ids = random_text(lm, tokens)
    for words, name in PAIRS.items():
        ours, theirs = reader(lm, words), other_reader(lm, folder, name)
        yield alternate(
            f"{words} / {name}, {tokens:,} tokens", repeat, partial(ours, ids), partial(theirs, ids)
        )


@torch.no_grad()
def peak_of_reading(read: Reader, ids: Sequence[int]) -> float:
    """Return the peak size in MiB of tensors that reading creates."""
    with TensorMemoryCounter() as counter:
        state = read(ids)
    del state  # it lives until the end of the count
    return counter.peak_tensor_bytes / 2**20


def compare_memory(folder: str, tokens: int, _repeat: int) -> Iterator[Line]:
    """Compare the peak size of tensors that reading creates. Buffers inside kernels do not count."""
    lm = load(folder, device="cpu", dtype="float32")
    ids = random_text(lm, tokens)
    for words, name in PAIRS.items():
        sides = reader(lm, words), other_reader(lm, folder, name)
        mine, other = (peak_of_reading(side, ids) for side in sides)
        yield f"{words} / {name}", f"{mine:,.0f}", f"{other:,.0f}", f"{mine / other:.2f}"


def measure_growth(folder: str, _tokens: int, _repeat: int) -> Iterator[Line]:
    """Measure the CPU seconds in which every method with its preset `nano` reads each length.

    A method stops after a text that took longer than `MAX_READING_SECONDS`. The exponent is that of
    the last two lengths: 1 if twice the text takes twice the time, 2 if it takes four times.
    """
    lm = load(folder, device="cpu", dtype="float32")
    lift_positions(lm, 2 * LENGTHS[-1])
    for spec in registry.methods().values():
        if spec.growth == "none":
            continue  # it reads nothing
        method = spec.load()(lm, build_settings(spec, {}, resolve_preset(spec, "", NANO)))
        seconds: list[float] = []
        for length in LENGTHS:
            session = Session(lm, method)
            session.read(make_chunks(lm, length, CHUNK_TOKENS))
            seconds.append(cpu_seconds(session.flush))
            if seconds[-1] > MAX_READING_SECONDS:
                break
        exponent = "-"
        if read := len(seconds) - 1:
            longer = LENGTHS[read] / LENGTHS[read - 1]
            exponent = f"{log(seconds[read] / seconds[read - 1]) / log(longer):.1f}"
        cells = [f"{value:.3g}" for value in seconds]
        yield spec.name, *cells, *["-"] * (len(LENGTHS) - len(cells)), exponent


def compare_queries(folder: str, tokens: int, repeat: int) -> Iterator[Line]:
    """Compare answers on one context with `generate` of transformers. Both sides read it."""
    lm = load(folder, device="cpu", dtype="float32")
    lm.eos_ids = frozenset()  # no stop token: every answer has the maximum length
    plain: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    ids = torch.randint(10, lm.vocab_size - 10, (1, tokens))
    whole = torch.cat([torch.tensor([lm.start_ids]).long(), ids], 1)
    limits = {"max_new_tokens": GENERATED, "min_new_tokens": GENERATED, "do_sample": False}

    def ours(prompts: torch.Tensor) -> Callable[[], object]:
        def answer() -> object:
            patch = Patch(prefix=prefill(lm, Patch(), ids))
            return generate(
                lm, patch, prompts.tolist(), max_new_tokens=GENERATED, batch_size=len(prompts)
            )

        return answer

    def theirs(prompts: torch.Tensor) -> Callable[[], object]:
        rows = torch.cat([whole.expand(len(prompts), -1), prompts], 1)

        def answer() -> object:
            cache = plain.model(whole, past_key_values=DynamicCache()).past_key_values
            cache.batch_repeat_interleave(len(prompts))
            mask = torch.ones_like(rows)
            return plain.generate(
                rows, attention_mask=mask, past_key_values=cache, pad_token_id=0, **limits
            )

        return answer

    for count in (1, QUERIES):
        prompts = torch.randint(10, lm.vocab_size - 10, (count, 10))
        name = f"{tokens:,} tokens read, {count} x {GENERATED} written / generate, one batch"
        yield alternate(name, repeat, ours(prompts), theirs(prompts))


def compare_lm_eval(folder: str, _tokens: int, repeat: int) -> Iterator[Line]:
    """Compare few-shot evaluation within lm-eval: method `icl` with lm-eval's own `hf` model."""
    import lm_eval
    from lm_eval.evaluator import simple_evaluate
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager

    from ttabench.harness import AdaptedLM

    given = {"method": "icl", "model": folder, "dtype": "float32", "device": "cpu"}
    ours = AdaptedLM.create_from_arg_obj(given, {"batch_size": 32})
    hf = HFLM(folder, tokenizer=ours.lm.tokenizer, dtype="float32", device="cpu", batch_size=32)
    with TemporaryDirectory() as scratch:
        files = {}
        for split, rows in superglue("copa", "test", 0, SHOTS, 100).items():
            files[split] = f"{scratch}/{split}.json"
            lines = (json.dumps({**row, "idx": number}) for number, row in enumerate(rows))
            Path(files[split]).write_text("\n".join(lines), encoding="utf-8")
        task = {
            "include": f"{Path(lm_eval.__file__).parent}/tasks/super_glue/copa/default.yaml",
            "task": "bench_copa",
            "dataset_path": "json",
            "dataset_name": None,
            "dataset_kwargs": {"data_files": files, "cache_dir": scratch},
            "fewshot_split": "train",
            "fewshot_config": {"sampler": "first_n"},
        }
        Path(scratch, "bench_copa.yaml").write_text(json.dumps(task), encoding="utf-8")
        manager = TaskManager(include_defaults=False, include_path=scratch)
        loaded = manager.load(["bench_copa"])["tasks"]["bench_copa"]

        def evaluate(model: Any) -> Callable[[], object]:
            return lambda: simple_evaluate(
                model, tasks=[loaded], num_fewshot=SHOTS, task_manager=manager, bootstrap_iters=0
            )

        name = f"COPA, {SHOTS} demonstrations / lm-eval's hf"
        yield alternate(name, repeat, evaluate(ours), evaluate(hf))


PAIRED = ("ours / other", "ours (s)", "other (s)", "ratio", "smallest to largest")
PARTS = {
    "reading": (compare_reading, PAIRED),
    "queries": (compare_queries, PAIRED),
    "lm-eval": (compare_lm_eval, PAIRED),
    "memory": (compare_memory, ("ours / other", "ours (MiB)", "other (MiB)", "ratio")),
    "growth": (
        measure_growth,
        ("method", *(f"{length:,} tokens (s)" for length in LENGTHS), "exponent"),
    ),
}
"""Comparisons with the heads of their tables."""


def main() -> None:
    """Print the tables, or put them into a page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", default=["reading", "queries", "lm-eval"])
    parser.add_argument("--model", default=NANO)
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--page", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    with TemporaryDirectory() as folder:
        # every library reads the same float32 weights
        lm = load(options.model, device="cpu", dtype="float32")
        lm.model.save_pretrained(folder)
        lm.tokenizer.save_pretrained(folder)
        del lm
        for part in options.parts:
            measure, heads = PARTS[part]
            text = table(heads, list(measure(folder, options.tokens, options.repeat)), 1)
            print(text, flush=True)
            if options.page:
                put({(options.page, f"{options.model}-{part}"): partial(str, text)})


if __name__ == "__main__":
    main()
