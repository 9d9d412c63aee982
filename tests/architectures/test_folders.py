"""Folders with right values beside this checkout: what `ttabench eval` stores of them, from the command line."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from tests.conftest import Command, error_line
from tests.places import SHARED

FOLDERS = SHARED / "fixtures" / "architectures"
pytestmark = pytest.mark.skipif(not FOLDERS.is_dir(), reason="../shared is not part of a checkout")
RIGHT = [
    ("head_granite", "granite", "icl", (), (-34.205, -110.981, -35.399)),
    ("head_gemma2", "gemma2_nosw", "icl", (), (-44.529, -153.699, -51.068)),
    ("sinks_gpt_oss", "gpt_oss", "icl", (), (-37.021, -139.986, -31.264)),
    ("sliding_padding", "mistral_sw", "icl", (), (-42.534, -153.506, -50.232)),
    (
        "sliding_padding",
        "mistral_sw",
        "h2o",
        ("heavy=400", "recent=400"),
        (-42.534, -153.506, -50.232),
    ),
    ("sliding_padding", "mistral_sw", "window", ("recent=1500",), (-42.534, -153.506, -50.232)),
    ("rope_interleaved", "one_layer/glm", "window", ("recent=40",), (-48.421, -149.226, -47.413)),
    (
        "rope_interleaved",
        "one_layer/ernie4_5",
        "window",
        ("recent=40",),
        (-107.369, -304.9, -101.923),
    ),
    (
        "rope_interleaved",
        "one_layer/helium",
        "window",
        ("recent=40",),
        (-48.423, -136.472, -49.998),
    ),
    ("rope_interleaved", "one_layer/llama", "window", ("recent=40",), (-39.939, -146.636, -46.346)),
]


@pytest.mark.parametrize(("folder", "model", "method", "settings", "right"), RIGHT)
def test_log_likelihoods_are_right(
    ttabench: Command,
    tmp_path: Path,
    folder: str,
    model: str,
    method: str,
    settings: tuple[str, ...],
    right: tuple[float, ...],
) -> None:
    where = FOLDERS / folder
    given = [word for setting in settings for word in ("--set", setting)]
    ran = ttabench(
        f"eval --method {method}",
        *given,
        "--task",
        where / "q.jsonl",
        "--model",
        where / model,
        "--out",
        tmp_path,
    )
    assert ran.code == 0, ran.err
    (file,) = tmp_path.glob("**/samples.parquet")
    values = sorted(float(row[0]) for row in pd.read_parquet(file)["logprobs"])
    assert values == pytest.approx(sorted(right), abs=2e-3)


def test_a_text_that_crosses_the_length_of_other_angles_is_refused(
    ttabench: Command, tmp_path: Path
) -> None:
    where = FOLDERS / "longrope"
    ran = ttabench(
        f"eval --method icl --task {where / 'lr.jsonl'} --model {where / 'phi3_longrope'} --out {tmp_path} --quiet"
    )
    assert "49 tokens" in error_line(ran)


@pytest.mark.parametrize("model", ["gpt_neo", "gptj"])
def test_check_reports_what_a_folder_can_do(ttabench: Command, model: str) -> None:
    said = ttabench("check --model", FOLDERS / model, "--json").json()
    rows = {"rows": "one by one"} if model == "gpt_neo" else {}
    assert said["ways"] == {"attention": "transformers", **rows}
    assert {name for name, outcome in said["methods"].items() if outcome == "right"} >= {
        "none",
        "icl",
        "templora",
    }
    assert said["methods"]["window"].startswith("refused: ")
