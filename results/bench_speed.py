"""Speed on a CPU in float32, compared with plain transformers and with lm-eval's `hf` model.

    python results/bench_speed.py                                 nano: print one line per comparison
    python results/bench_speed.py --model FOLDER --threads 1 --repeat 9

Both sides take turns, and seconds are the fastest of all turns. Other load raises both, and affects
their ratio less. Prefill is compared with the bare forward pass, decoding with a loop over the
plain model, batched queries with the same queries one by one, and few-shot evaluation (COPA rows of
the synthetic world, 30 demonstrations, the same prompts) with `hf` in lm-eval.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from ttabench.lm.forward.patching import prefill
from ttabench.lm.inference.answering import generate, greedy_tokens
from ttabench.lm.loading.hub import NANO_FOLDER
from ttabench.lm.model import load
from ttabench.lm.patch import Patch
from ttabench.mini.demonstrations import superglue

CONTEXT, GENERATED, QUERIES, SHOTS = 1024, 16, 16, 30


def alternate(
    name: str, repeat: int, ours: Callable[[], object], theirs: Callable[[], object]
) -> None:
    """Run both sides in turn, after one warm-up of each, and print the fastest seconds."""
    seconds: dict[Callable[[], object], list[float]] = {ours: [], theirs: []}
    for turn in range(repeat + 1):
        for side, fastest in seconds.items():
            begin = time.perf_counter()
            side()
            fastest += [time.perf_counter() - begin] if turn else []
    mine, other = min(seconds[ours]), min(seconds[theirs])
    print(f"{name}: {mine:.3g} s against {other:.3g} s, {other / mine:.2f} times", flush=True)


def compare_transformers(folder: str, repeat: int) -> None:
    """Compare prefill, decoding and batched queries with plain transformers."""
    lm = load(folder, device="cpu", dtype="float32")
    plain: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    ids = torch.randint(10, lm.vocab_size - 10, (1, CONTEXT))
    patch = Patch(prefix=prefill(lm, Patch(), ids))
    cache = plain.model(torch.cat([torch.tensor([lm.bos_ids]).long(), ids], 1)).past_key_values
    length = cache.get_seq_length()

    def decode() -> None:
        if cache.get_seq_length() > length:
            cache.crop(length - cache.get_seq_length())
        token = torch.tensor([[11]])
        for _ in range(GENERATED):
            token = plain(token, past_key_values=cache).logits[:, -1].argmax(-1, keepdim=True)

    def answer(batch_size: int) -> Callable[[], object]:
        prompts = [ids[0, : 10 + query].tolist() for query in range(QUERIES)]
        return lambda: generate(lm, patch, prompts, max_new_tokens=GENERATED, batch_size=batch_size)

    lm.eos_ids = frozenset()  # No stop token: every answer has the maximum length.
    after = f"after {CONTEXT} tokens"
    alternate(
        f"prefill of {CONTEXT} tokens",
        repeat,
        lambda: prefill(lm, Patch(), ids),
        lambda: plain.model(ids),
    )
    alternate(
        f"{GENERATED} tokens {after}",
        repeat,
        lambda: list(greedy_tokens(lm, patch, [[11]], GENERATED)),
        decode,
    )
    alternate(f"{QUERIES} queries {after}, batched", repeat, answer(QUERIES), answer(1))


def compare_lm_eval(folder: str, repeat: int) -> None:
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

        alternate(f"COPA, {SHOTS} demonstrations", repeat, evaluate(ours), evaluate(hf))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default=str(NANO_FOLDER), help="folder of a model")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    with torch.no_grad():
        compare_transformers(options.model, options.repeat)
    compare_lm_eval(options.model, options.repeat)
