"""Whether a second device gives the CPU's figures: every command on `sim`, held against the same one on the CPU.

    python -m tests.devices.table                         every method on every family of tasks, as JSON
    python -m tests.devices.table --methods icl,mac --tasks lamp --verbs train

Answers have to be the same, numbers but for rounding: on a CPU the model is run through code of its own.
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

from tests.devices import sim
from tests.run.test_tasks import SMALL
from ttabench.cli import app
from ttabench.methods.registry import find_method, methods
from ttabench.records import run_fields
from ttabench.records.samples import read_samples

TASKS = {**SMALL, "squad_seq": ["documents=3"], "archivalqa": ["documents=3"]}
ABOUT = 1e-3
"""Numbers are the same within this share, or this much of small ones: sums in another order, and steps along them."""
ROUNDING = "rounding: "
"""Before a difference that a CPU's two ways of computing have, too."""
TIMES = ("ask_ms", "ask_cpu_ms")
TRAINED_ON = {
    "streamadapter": "superglue",
    "lora": "superglue",
    "ccm": "metaicl",
    "gisting": "lamp",
    "gisting_online": "lamp",
    "compressive": "lamp",
}
GOES_ON = {"generative_adapter": ("--checkpoint", "shipped:generative_adapter-streamingqa")}
"""Instead of a first stage, which takes all its steps."""
TEXT = "The usual transport of Dadel Hurov is the taxi. The home of Sinio Dorard is in Redmoor.\n"
ASKED = ("How does Dadel Hurov travel?", "Where does Sinio Dorard live?")


class Refused(Exception):
    """A command ended with a code, or with a traceback."""


def command(*words: object) -> dict[str, Any]:
    """What a command prints as JSON.

    Raises:
        Refused: it did not end well.
    """
    out, err = io.StringIO(), io.StringIO()
    try:
        with redirect_stdout(out), redirect_stderr(err):
            code = app.run([str(word) for word in (*words, "--json")])
    except Exception as error:
        ours = [
            frame
            for frame in traceback.extract_tb(error.__traceback__)
            if "/ttabench/" in frame.filename
        ][-1]
        place = ours.filename.rpartition("/ttabench/")[2]
        raise Refused(
            f"{type(error).__name__}: {str(error)[:200]} ({place}:{ours.lineno})"
        ) from error
    if code:
        raise Refused(err.getvalue().strip()[-300:])
    found: dict[str, Any] = json.loads(out.getvalue())
    return found


def difference(left: object, right: object, name: str = "") -> str:
    """The first of two values of JSON that is not the same, empty where none is."""
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        if left.keys() != right.keys():
            return f"{name}: {sorted(left)} and {sorted(right)}"
        return next(
            (told for key in left if (told := difference(left[key], right[key], f"{name}.{key}"))),
            "",
        )
    if isinstance(left, list) and isinstance(right, list):
        if len(left) != len(right):
            return f"{name}: {len(left)} and {len(right)}"
        pairs = enumerate(zip(left, right, strict=True))
        return next(
            (told for at, pair in pairs if (told := difference(*pair, f"{name}[{at}]"))), ""
        )
    if isinstance(left, float) and isinstance(right, float):
        alike = math.isclose(left, right, rel_tol=ABOUT, abs_tol=ABOUT) or (
            math.isnan(left) and math.isnan(right)
        )
    else:
        alike = left == right
    return "" if alike else f"{name.strip('.')}: {left} and {right}"


def both(run: Callable[[str, Path], object]) -> str:
    """The difference of what a command gives on the device and on the CPU.

    Where there is one, the CPU goes the way of other devices, too: if that is the same, or differs from the CPU's own
    way as well, it was a matter of rounding (which many steps of Adam make large).
    """

    def done(device: str) -> object:
        with TemporaryDirectory() as out:
            return run(device, Path(out))

    here, there = done("cpu"), done(sim.NAME)
    if not (told := difference(here, there)):
        return ""
    with sdpa_kernel(
        SDPBackend.MATH
    ):  # neither torch's fused attention nor the decoder written out for a CPU
        other = done("cpu")
    return f"{ROUNDING}{told}" if difference(here, other) or not difference(other, there) else told


def eval_(method: str, task: str) -> str:
    """The difference of two runs: of any query's answer, figures and log-probabilities, or of the run's figures."""
    options = [word for option in TASKS[task] for word in ("--task-set", option)]

    def run(device: str, out: Path) -> object:
        words = (
            "eval",
            "--method",
            method,
            "--task",
            task,
            *options,
            "--limit",
            4,
            "--device",
            device,
            "--out",
            out,
        )
        (made,) = command(*words)["runs"]
        assert made["model"]["device"].startswith(device), made["model"]
        assert (made["cost"]["peak_memory_bytes"] is None) == (device == sim.NAME), (
            "the device counts no peak"
        )
        samples = read_samples(Path(made["folder"]))
        return [{key: value for key, value in samples.items() if key not in TIMES}, made["rows"]]

    return both(run)


def ask(method: str) -> str:
    """The difference of answers about a text: read on the device, and asked there and on the CPU."""

    def run(device: str, out: Path) -> object:
        texts, state = out / "notes.txt", out / "state"
        texts.write_text(TEXT)
        command("adapt", "--context", texts, "--method", method, "--device", device, "--out", state)
        asked = [
            command("ask", *ASKED, "--state", state, "--device", where)
            for where in ("cpu", sim.NAME)
        ]
        return [told["methods"][0]["answers"] for told in asked]

    return both(run)


def train(method: str) -> str:
    """The difference of two trainings of two steps: their losses."""
    task = TRAINED_ON.get(method, "streamingqa")
    size = ("--documents", 2) if task == "streamingqa" else ()
    more = (*size, *GOES_ON.get(method, ()))

    def run(device: str, out: Path) -> object:
        words = (
            "train",
            "--method",
            method,
            "--task",
            task,
            *more,
            "--steps",
            2,
            "--validate-every",
            0,
        )
        made = command(*words, "--device", device, "--out", out)
        return {"steps": made["steps"], "loss": made["loss"]}

    return both(run)


VERBS: dict[str, Callable[[str], str]] = {"ask": ask, "train": train}


def cells(
    chosen: Sequence[str], tasks: Sequence[str], verbs: Sequence[str]
) -> Iterator[tuple[str, str, str]]:
    """(method, task or verb, difference) of everything that is chosen."""
    run_fields.DEVICES += (sim.NAME,)
    for method in chosen:
        for what in (*tasks, *verbs):
            if what == "train" and not find_method(method).trainable:
                continue
            try:
                told = VERBS[what](method) if what in VERBS else eval_(method, what)
            except Refused as error:
                told = str(error)
            yield method, what, told


def main() -> None:
    """Print differences as they come, and all cells as JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--methods", default=",".join(methods()))
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--verbs", default=",".join(VERBS))
    options = parser.parse_args()
    tasks, verbs = (list(filter(None, text.split(","))) for text in (options.tasks, options.verbs))
    found: dict[str, dict[str, str]] = {}
    for method, what, told in cells(options.methods.split(","), tasks, verbs):
        found.setdefault(method, {})[what] = told
        if told:
            print(f"{method} {what}: {told}", file=sys.stderr, flush=True)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
