"""Claims about costs at a length of context: rows of stored profiles, and the factor of two."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.places import ROOT
from ttabench.papers.claims import ours
from ttabench.papers.judging import Judged, judged
from ttabench.papers.matching import stored
from ttabench.profiling.record import RECORD_FILE, Figure, ProfileRecord, Row, load_profile

FIRST = Figure(value=0.0, low=0.0, high=0.0, n=5)
SHORT = 512


def times(value: float, low: float, high: float, n: int = 5) -> dict[str, Figure]:
    """A row whose every time is this, all of an answer behind its first token."""
    own = Figure(value=value, low=low, high=high, n=n)
    return {"adapt_seconds": own, "first_seconds": FIRST, "decode_seconds": own, "total_seconds": own}


def profile(rows: Mapping[tuple[str, int], dict[str, Figure]], **changes: object) -> ProfileRecord:
    """A profile of these rows; otherwise the one that is committed."""
    (folder,) = (ROOT / "results/profile-adapters").iterdir()
    record = load_profile(folder)
    own = tuple(Row(method=method, prefill=prefill, figures=figures) for (method, prefill), figures in rows.items())
    return record.model_copy(update={"rows": own, **changes})


def keep(record: ProfileRecord, suite: Path) -> None:
    """Store it."""
    (suite / record.id).mkdir(parents=True, exist_ok=True)
    (suite / record.id / RECORD_FILE).write_text(record.model_dump_json(), encoding="utf-8")


def claims(folder: Path, *records: ProfileRecord) -> dict[tuple[str, str], Judged]:
    """Those of Generative Adapter's Figure 3 by words and place."""
    for record in records:
        keep(record, folder / "suite")
    found = judged("generative_adapter", "figure3", stored([folder]))
    return {(row.claim.text, row.place.name): row for row in found}


READS = "generative-adapter reads in less time than cpt"


@pytest.mark.parametrize(
    ("left", "right", "verdict"),
    [
        (times(1.0, 0.9, 1.1), times(3.0, 2.3, 3.5), "reproduced"),
        (times(1.0, 0.9, 1.1), times(3.0, 2.1, 3.5), "undecided"),
        (times(1.0, 0.9, 1.1), times(1.0, 0.9, 1.1), "undecided"),
        (times(3.0, 2.3, 3.5), times(1.0, 0.9, 1.1), "contradicted"),
        (times(3.0, 2.1, 3.5), times(1.0, 0.9, 1.1), "undecided"),
        (times(1.0, 1.0, 1.0), times(9.0, 9.0, 9.0, n=1), "cannot tell"),
    ],
    ids=["twice in all repeats", "one repeat is too close", "alike", "more", "more, but one is close", "once"],
)
def test_times_decide_where_all_repeats_are_apart(
    tmp_path: Path, left: dict[str, Figure], right: dict[str, Figure], verdict: str
) -> None:
    record = profile({("generative_adapter", SHORT): left, ("cpt", SHORT): right})
    row = claims(tmp_path, record)[READS, "512 tokens"]
    assert (row.verdict, row.scale) == (verdict, "nano")
    assert row.block.startswith("nano, 512 tokens read, ")
    assert row.block.endswith("2 threads")
    assert row.reason == "cpt measured once" * (right["adapt_seconds"].n == 1)


def rates(value: float, low: float, high: float) -> dict[str, Figure]:
    """A row of `profile --throughput`: samples a second."""
    return {"samples_per_second": Figure(value=value, low=low, high=high, n=5)}


@pytest.mark.parametrize(
    ("full", "concat", "verdict"),
    [
        (rates(10.0, 9.0, 11.0), rates(30.0, 23.0, 35.0), "reproduced"),
        (rates(30.0, 23.0, 35.0), rates(10.0, 9.0, 11.0), "contradicted"),
    ],
)
def test_rates_in_batches_are_seconds_a_sample(
    tmp_path: Path, full: dict[str, Figure], concat: dict[str, Figure], verdict: str
) -> None:
    base = profile({("icl", 1024): full, ("ccm", 1024): concat})
    icl = base.config["methods"]["icl"]
    config = {**base.config, "mode": "throughput", "memory_limit": 2**30,
              "methods": {"icl": icl, "ccm": {**icl, "settings": {"update": "concat"}}}}  # fmt: skip
    keep(base.model_copy(update={"methods": {}, "machine": {}, "config": config}), tmp_path / "suite")
    row, merged = [row for row in judged("ccm", "table1", stored([tmp_path])) if row.claim.cost != "state_bytes"]
    assert row.verdict == verdict, row
    assert row.claim.text == "ccm-concat answers, in batches that fit the memory, in less time than full-context"
    assert row.costs is not None
    rates_of_costs = [1 / cost.value for cost in row.costs]
    assert rates_of_costs == pytest.approx([own["samples_per_second"].value for own in (concat, full)])
    assert merged.verdict == "no runs"


def test_memory_is_counted(tmp_path: Path) -> None:
    rows = {(method, 256): {"peak_tensor_bytes": Figure(value=value, low=value, high=value)}
            for method, value in (("mac", 2.0**20), ("camels", 2.0**22))}  # fmt: skip
    (folder,) = (ROOT / "results/profile").iterdir()
    mac = load_profile(folder).config["methods"]["mac"]
    base = profile(rows)
    methods = {"mac": mac, "camels": {**mac, "settings": {}}}
    record = profile(rows, methods={}, config={**base.config, "methods": methods})
    keep(record, tmp_path / "suite")
    found = stored([tmp_path])
    assert found.damaged == ()
    (row,) = [row for row in judged("mac", "figure2", found) if row.claim.cost == "tensor_bytes"]
    assert (row.verdict, ours(row)) == ("reproduced", "1.0 MiB against 4.0 MiB")
    assert row.claim.text == "mac needs less memory than camels"


def test_profiles_are_found_as_runs_are_and_damaged_ones_named(tmp_path: Path) -> None:
    record = profile({})
    for place in ("deep/suite", "scratch/suite"):
        keep(record, tmp_path / place)
    assert len(stored([tmp_path]).profiles) == 1
    assert len(stored([tmp_path / "deep", tmp_path / "deep/suite"]).profiles) == 1, "once"
    (tmp_path / "deep/suite" / record.id / "profile.json").write_text("{")
    found = stored([tmp_path])
    assert found.profiles == ()
    assert "cannot be read" in found.damaged[0]
