"""Speed on a CPU in float32, compared with transformers, kvpress and lm-eval on the same work.

    python results/bench_speed.py                                 nano, 1,024 tokens
    python results/bench_speed.py --model FOLDER --tokens 2048 --repeat 5

Both sides take turns in one process. Seconds are CPU seconds, medians of all turns. Other load
raises both, and affects their ratio less. The press with observed attention needs eager attention.
`ttabench profile` measures reading by length.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import torch
from grids import table
from transformers import AutoModelForCausalLM, DynamicCache

from ttabench.core.types import Chunk
from ttabench.lm.forward.patching import prefill
from ttabench.lm.inference.answering import generate
from ttabench.lm.loading.hub import NANO_FOLDER
from ttabench.lm.model import LM, load
from ttabench.lm.patch import Patch
from ttabench.methods import registry
from ttabench.mini.demonstrations import superglue

BUDGET, GENERATED, QUERIES, SHOTS = 0.2, 32, 32, 30
PRESSES = {
    "window mode=postprefill recent=0.2": "StreamingLLMPress",
    "window recent=512": "StreamingLLMPress",
    "snapkv budget=0.2": "SnapKVPress",
    "h2o heavy=0.1 recent=0.1": "ObservedAttentionPress",
    "kvzip budget=0.2": "KVzipPress",
}
"""Methods with their settings, and the press of kvpress with the same rule. The stream of `window`
reads 516 slots at a time and keeps as many, where the press reads with full attention."""
Line = tuple[str, ...]


def cpu_seconds(work: Callable[[], object]) -> float:
    """Return the CPU seconds of a call."""
    begin = time.process_time()
    work()
    return time.process_time() - begin


def alternate(
    name: str, repeat: int, ours: Callable[[], object], theirs: Callable[[], object]
) -> Line:
    """Run both sides in turn, after a warm-up of each, and return the row of the table."""
    pairs = [(cpu_seconds(ours), cpu_seconds(theirs)) for _ in range(repeat + 1)][1:]
    mine, other = (median(seconds) for seconds in zip(*pairs, strict=True))
    ratios = [one / two for one, two in pairs]
    spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
    return name, f"{mine:.3g}", f"{other:.3g}", f"{mine / other:.2f}", spread


def reader(lm: LM, words: str, ids: Sequence[int]) -> Callable[[], Any]:
    """Return a function that reads tokens with a method, given by its name and settings."""
    name, *settings = words.split()
    cls = registry.find_method(name).load()
    values = dict(text.split("=") for text in settings)
    typed = {key: text if text.isalpha() else json.loads(text) for key, text in values.items()}
    method = cls(lm, cls.spec.Settings(**typed))
    chunk = Chunk(text=".", joiner="", ids=tuple(ids))
    return lambda: method.adapt(method.begin(1), [[chunk]])


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


def compare_reading(folder: str, tokens: int, repeat: int) -> Iterator[Line]:
    """Compare reading with transformers, and evicting methods with presses."""
    import kvpress

    lm = load(folder, device="cpu", dtype="float32")
    ids = torch.randint(10, lm.vocab_size - 10, (1, tokens - len(lm.start_ids)))
    whole = torch.cat([torch.tensor([lm.start_ids]).long(), ids], 1)
    text = ids[0].tolist()
    plain: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    eager: Any = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    ).eval()

    def read_plain() -> object:
        return plain.model(whole, past_key_values=DynamicCache())

    def press(name: str) -> Callable[[], object]:
        made = getattr(kvpress, name)(compression_ratio=1 - BUDGET)
        model = eager if name == "ObservedAttentionPress" else plain

        def read() -> None:
            with cache_positions(model), made(model):
                model.model(input_ids=whole, past_key_values=DynamicCache())

        return read

    yield alternate(
        f"icl / transformers, {tokens:,} tokens", repeat, reader(lm, "icl", text), read_plain
    )
    for words, name in PRESSES.items():
        yield alternate(
            f"{words} / {name}, {tokens:,} tokens", repeat, reader(lm, words, text), press(name)
        )


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


def compare_lm_eval(folder: str, repeat: int) -> Iterator[Line]:
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


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default=str(NANO_FOLDER), help="folder of a model")
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeat", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    arguments = options.model, options.tokens, options.repeat
    with torch.no_grad():
        lines = [*compare_reading(*arguments), *compare_queries(*arguments)]
        lines += compare_lm_eval(options.model, options.repeat)
        print(table(("ours / other", "ours (s)", "other (s)", "ratio", "pairs"), lines, 1))


if __name__ == "__main__":
    main()
