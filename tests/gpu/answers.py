"""Whether nano answers on a device as it does on the CPU in float32: every method, three twins, three number formats.

Dropout is off: its zeros are drawn on the device. Log-likelihoods are compared a token, and only told.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeAlias

from tests.gpu.report import STATUS, Report, Table
from ttabench.core.types import Json
from ttabench.methods import registry
from ttabench.methods.settings import describe_settings
from ttabench.records.samples import read_samples
from ttabench.run.evaluation import ModelCache, execute
from ttabench.run.plan import make_plan
from ttabench.run.request import RunRequest

TWINS: dict[str, dict[str, str]] = {
    "streamingqa": {"documents": "4"},
    "superglue": {"task": "cb", "shots": "4"},
    "dailydialog": {},
}
"""Tasks whose answers are written, chosen and scored, with their options."""
SETTINGS = {"dropout": "0", "steps": "2"}
"""Of methods that have them."""
LEAST = {"float32": 1.0, "bfloat16": 0.75, "float16": 0.75}
"""Share of the answers that are the CPU's at least; rounding decides between answers that are almost as likely."""
ROW_SECONDS = 30.0
Answer: TypeAlias = tuple[str, list[float], list[int]]
"""What was written or chosen, and the log-likelihoods and tokens of what was scored."""
SAMPLE_COLUMNS = (
    "method",
    "dtype",
    "answers",
    "same_share",
    "largest_difference_a_token",
    "verdict",
    STATUS,
)


def compare(report: Report, device: str, methods: Sequence[str], dtypes: Sequence[str]) -> bool:
    """Fill the table; whether no answer is other than it should be."""
    models, ours = ModelCache(), dict[str, list[Answer]]()
    table = Table(
        report, "answers", f"Answers on {device} beside the CPU's in float32", SAMPLE_COLUMNS
    )

    def work(method: str, dtype: str) -> dict[str, Json]:
        if method not in ours:
            ours[method] = _answers(models, method, "cpu", "float32")
        return _compared(ours[method], _answers(models, method, device, dtype), LEAST[dtype])

    for key in [{"method": method, "dtype": dtype} for dtype in dtypes for method in methods]:
        table.row(key, ROW_SECONDS, partial(work, **key))
    return all(row.get("verdict") != "differs" for row in table.rows)


def _answers(models: ModelCache, method: str, device: str, dtype: str) -> list[Answer]:
    """The answers to eight queries of each twin."""
    answers: list[Answer] = []
    known = {key for key, _, _ in describe_settings(registry.find_method(method))}
    settings = {key: value for key, value in SETTINGS.items() if key in known}
    for task, options in TWINS.items():
        request = RunRequest(
            method=method,
            settings=settings,
            task=task,
            task_options=options,
            limit=8,
            device=device,
            dtype=dtype,
        )
        with TemporaryDirectory() as scratch:
            run = execute(make_plan(request, seed=0), models, Path(scratch))
            samples = read_samples(run.folder)
            answers += zip(
                samples["prediction"], samples["logprobs"], samples["tokens"], strict=True
            )
    return answers


def _compared(expected: Sequence[Answer], found: Sequence[Answer], least: float) -> dict[str, Json]:
    same = [(one, other) for one, other in zip(expected, found, strict=True) if one[0] == other[0]]
    differences = [
        abs(ours - theirs) / max(1, tokens)
        for (_, expected_logprobs, counts), (_, logprobs, _) in same
        for ours, theirs, tokens in zip(expected_logprobs, logprobs, counts, strict=True)
    ]
    verdict = "as it should be" if len(same) >= least * len(found) else "differs"
    figures = {"answers": len(found), "same_share": len(same) / len(found), "verdict": verdict}
    return {**figures, "largest_difference_a_token": max(differences, default=None)}
