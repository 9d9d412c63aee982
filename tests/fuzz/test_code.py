"""No record, checkpoint, state or profile of somebody else's makes a file of Python run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Command, error_line
from tests.records.test_records import record
from ttabench.methods.states import header_digest
from ttabench.records.schema import save_record


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """A file that leaves a mark where it is run."""
    path = tmp_path / "mine.py"
    path.write_text(f"from pathlib import Path\nPath({str(tmp_path / 'RUN')!r}).touch()\n")
    return path


def test_a_record_names_no_file_to_run(ttabench: Command, mine: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        folder = tmp_path / "runs" / name
        folder.mkdir(parents=True)
        config: dict[str, Any] = {
            "method": str(mine),
            "task": "streamingqa",
            "model": "nano",
            "seed": 0,
        }
        save_record(record(name, config=config), folder)
    ttabench(f"compare {tmp_path / 'runs'}")
    ttabench(f"list runs --out {tmp_path / 'runs'}")
    ttabench(f"eval --method none --limit 1 --task-set max_new_tokens=1 --out {tmp_path / 'runs'}")
    assert not (tmp_path / "RUN").exists()


def test_a_checkpoint_names_no_file_to_run(
    ttabench: Command, common: str, trained: Path, mine: Path, tmp_path: Path
) -> None:
    said = json.loads((trained / "adapter.json").read_text())
    (trained / "adapter.json").write_text(json.dumps({**said, "method": str(mine)}))
    for flag, method in (("--base-checkpoint", "none"), ("--checkpoint", "mac")):
        assert ttabench(f"eval --method {method} {common}", flag, trained).code == 2
    assert not (tmp_path / "RUN").exists()


@pytest.mark.parametrize("compare", [(), ("--compare",)], ids=["ask", "ask and compare"])
def test_a_state_names_no_file_to_run(
    ttabench: Command, tiny_base: Path, mine: Path, tmp_path: Path, compare: tuple[str, ...]
) -> None:
    (tmp_path / "notes.txt").write_text("Ada Voss lives in Port Ansel.")
    out = tmp_path / "state"
    assert (
        ttabench(f"adapt --model {tiny_base} --context {tmp_path / 'notes.txt'} --out {out}").code
        == 0
    )
    said = json.loads((out / "state.json").read_text())
    made = {**said, "made_with": {**said["made_with"], "method": str(mine)}}
    (out / "state.json").write_text(json.dumps({**made, "digest": header_digest(made)}))
    line = error_line(ttabench(f"ask Who? --state {out}", *compare))
    assert f"--method {mine}" in line
    assert not (tmp_path / "RUN").exists()
    assert str(mine) in error_line(ttabench(f"ask Who? --state {out} --method", mine))
    assert (tmp_path / "RUN").exists(), "what the user names is run"
