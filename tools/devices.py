"""Compare every command on the simulated device `sim` with the same command on the CPU.

    python -m tools.devices                         every method on every dataset reader, as JSON
    python -m tools.devices --methods icl,mac --tasks lamp --commands train

Answers must be equal. Numbers may differ by `TOLERANCE`, because the package has its own code for
models on a CPU.
"""

from __future__ import annotations

import argparse
import io
import json
import math
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from torch.nn.attention import SDPBackend, sdpa_kernel

from tools import sim_device
from tools.small_tasks import SMALL_TASKS
from ttabench.cli import app
from ttabench.methods.registry import find_method, methods
from ttabench.records import run_fields
from ttabench.records.samples import read_samples

TASKS = {**SMALL_TASKS, "squad_seq": ["documents=3"], "archivalqa": ["documents=3"]}
TOLERANCE = 1e-3
"""Relative and absolute. Sums are computed in another order, also in steps of training."""
ROUNDING = "rounding: "
"""Prefix of a difference that two ways of computing on the CPU have, too."""
TIMES = ("ask_ms", "ask_cpu_ms")
TRAINING_TASKS = {
    "streamadapter": "superglue",
    "lora": "superglue",
    "ccm": "metaicl",
    "gisting": "lamp",
    "gisting_online": "lamp",
    "compressive": "lamp",
}
START_CHECKPOINTS = {
    "generative_adapter": ("--checkpoint", "shipped:generative_adapter-streamingqa")
}
"""Replaces a first stage that takes all steps."""
CONTEXT = (
    "The usual transport of Dadel Hurov is the taxi. The home of Sinio Dorard is in Redmoor.\n"
)
QUESTIONS = ("How does Dadel Hurov travel?", "Where does Sinio Dorard live?")
Compute = Callable[[str, Path], object]
"""Run a command on a device, with a folder for its files, and return what is compared."""


class CommandError(Exception):
    """A command failed with an exit code or an exception."""


def run_command(*words: object) -> dict[str, Any]:
    """Return the JSON that a command prints.

    Raises:
        CommandError: The command failed.
    """
    out, err = io.StringIO(), io.StringIO()
    try:
        with redirect_stdout(out), redirect_stderr(err):
            code = app.run([*map(str, words), "--json"])
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        frame = [frame for frame in frames if "/ttabench/" in frame.filename][-1]
        place = f"{frame.filename.rpartition('/ttabench/')[2]}:{frame.lineno}"
        raise CommandError(f"{type(error).__name__}: {str(error)[:200]} ({place})") from error
    if code:
        raise CommandError(err.getvalue().strip()[-300:])
    printed: dict[str, Any] = json.loads(out.getvalue())
    return printed


def find_difference(left: object, right: object, name: str = "") -> str:
    """Describe the first difference of two JSON values. Empty if they are equal."""
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        if left.keys() != right.keys():
            return f"{name}: {sorted(left)} and {sorted(right)}"
        parts = [(left[key], right[key], f"{name}.{key}") for key in left]
    elif isinstance(left, list) and isinstance(right, list):
        if len(left) != len(right):
            return f"{name}: {len(left)} and {len(right)}"
        pairs = enumerate(zip(left, right, strict=True))
        parts = [(*pair, f"{name}[{index}]") for index, pair in pairs]
    elif isinstance(left, float) and isinstance(right, float):
        close = math.isclose(left, right, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
        is_equal = close or (math.isnan(left) and math.isnan(right))
        return "" if is_equal else f"{name.strip('.')}: {left} and {right}"
    else:
        return "" if left == right else f"{name.strip('.')}: {left} and {right}"
    return next(filter(None, (find_difference(*part) for part in parts)), "")


def compare_devices(compute: Compute) -> str:
    """Describe the difference between the device and the CPU.

    If there is one, the CPU computes again without its own code. The difference is a matter of
    rounding if this result equals that of the device, or differs from the first of the CPU as well.
    Many steps of Adam make rounding large.
    """

    def on(device: str) -> object:
        with TemporaryDirectory() as folder:
            return compute(device, Path(folder))

    cpu, simulated = on("cpu"), on(sim_device.NAME)
    difference = find_difference(cpu, simulated)
    if not difference:
        return ""
    with sdpa_kernel(SDPBackend.MATH):  # neither fused attention nor the decoder for CPUs
        plain = on("cpu")
    is_rounding = find_difference(cpu, plain) or not find_difference(plain, simulated)
    return f"{ROUNDING}{difference}" if is_rounding else difference


def compare_eval(method: str, task: str) -> str:
    """Compare two evaluations: answers, log-probabilities and figures."""
    options = [word for option in TASKS[task] for word in ("--task-set", option)]
    words = ("eval", "--method", method, "--task", task, *options, "--limit", 4)

    def compute(device: str, folder: Path) -> object:
        (run,) = run_command(*words, "--device", device, "--out", folder)["runs"]
        assert run["model"]["device"].startswith(device), run["model"]
        counts_no_peak = run["cost"]["peak_memory_bytes"] is None
        assert counts_no_peak == (device == sim_device.NAME)
        samples = read_samples(Path(run["folder"]))
        return [{key: value for key, value in samples.items() if key not in TIMES}, run["rows"]]

    return compare_devices(compute)


def compare_ask(method: str) -> str:
    """Compare answers from a state, asked on the CPU and on the device."""

    def compute(device: str, folder: Path) -> object:
        context, state = folder / "notes.txt", folder / "state"
        context.write_text(CONTEXT)
        on = ("--device", device)
        run_command("adapt", "--context", context, "--method", method, *on, "--out", state)
        printed = [
            run_command("ask", *QUESTIONS, "--state", state, "--device", where)
            for where in ("cpu", sim_device.NAME)
        ]
        return [each["methods"][0]["answers"] for each in printed]

    return compare_devices(compute)


def compare_train(method: str) -> str:
    """Compare the losses of two trainings of two steps."""
    task = TRAINING_TASKS.get(method, "streamingqa")
    size = ("--documents", 2) if task == "streamingqa" else ()
    options = (*size, *START_CHECKPOINTS.get(method, ()), "--steps", 2, "--validate-every", 0)
    words = ("train", "--method", method, "--task", task, *options)

    def compute(device: str, folder: Path) -> object:
        trained = run_command(*words, "--device", device, "--out", folder)
        return {"steps": trained["steps"], "loss": trained["loss"]}

    return compare_devices(compute)


COMMANDS: dict[str, Callable[[str], str]] = {"ask": compare_ask, "train": compare_train}


def compare_all(
    chosen: Sequence[str], tasks: Sequence[str], commands: Sequence[str]
) -> Iterator[tuple[str, str, str]]:
    """Yield (method, task or command, difference)."""
    run_fields.DEVICES += (sim_device.NAME,)  # type: ignore[assignment]
    for method in chosen:
        for name in (*tasks, *commands):
            if name == "train" and not find_method(method).trainable:
                continue
            try:
                difference = (
                    COMMANDS[name](method) if name in COMMANDS else compare_eval(method, name)
                )
            except CommandError as error:
                difference = str(error)
            yield method, name, difference


def main() -> None:
    """Print differences as they are found, then everything as JSON."""
    parser = argparse.ArgumentParser(prog="python -m tools.devices", description=__doc__)
    parser.add_argument("--methods", default=",".join(methods()))
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--commands", default=",".join(COMMANDS))
    options = parser.parse_args()
    tasks, commands = (
        list(filter(None, text.split(","))) for text in (options.tasks, options.commands)
    )
    results: dict[str, dict[str, str]] = {}
    for method, name, difference in compare_all(options.methods.split(","), tasks, commands):
        results.setdefault(method, {})[name] = difference
        if difference:
            print(f"{method} {name}: {difference}", file=sys.stderr, flush=True)
    print(json.dumps(results))


if __name__ == "__main__":
    main()
