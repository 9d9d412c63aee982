"""Claims about costs at a length of context: rows of stored profiles, and the factor of two."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.places import ROOT
from ttabench.papers.claims import claimed, ours
from ttabench.papers.judging import Judged, judged
from ttabench.papers.matching import stored
from ttabench.profiling.record import RECORD_FILE, Figure, ProfileRecord, Row, load_profile

FIRST = Figure(value=0.0, low=0.0, high=0.0, n=5)
SHORT, LONG = 512, 8192
PLACES = {"512 tokens": SHORT, "8K tokens": LONG}


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
    return {(claimed(row.claim), row.place.name): row for row in found}


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
    assert (row.verdict, row.scale, row.suites) == (verdict, "nano", ("suite",))
    assert row.block == "nano, 512 tokens read, 32 of prompt and 128 written"
    assert row.machine.endswith("2 threads")
    assert row.reason == "cpt measured once" * (right["adapt_seconds"].n == 1)


def grown(tmp_path: Path, adapter: dict[str, Figure], icl: dict[str, Figure]) -> tuple[Judged, Judged]:
    """Growth of the adapter beside itself, and beside full context, from one second each."""
    short = times(1.0, 1.0, 1.0)
    rows = {("generative_adapter", SHORT): short, ("generative_adapter", LONG): adapter,
            ("icl", SHORT): short, ("icl", LONG): icl}  # fmt: skip
    found = claims(tmp_path, profile(rows))
    words = "generative-adapter's time to answer"
    return (found[f"{words} does not grow with the context", "512 to 8K tokens"],
            found[f"{words} grows less than full-context's", "512 to 8K tokens"])  # fmt: skip


def test_growth_is_constant_below_two_and_less_by_a_factor_of_two(tmp_path: Path) -> None:
    for name, (adapter, icl, verdicts) in {
        "both": (times(1.0, 0.9, 1.2), times(3.0, 2.9, 3.1), ["reproduced", "reproduced"]),
        "close": (times(1.5, 1.4, 1.7), times(3.0, 2.9, 3.1), ["reproduced", "undecided"]),
        "unsure": (times(1.9, 1.8, 2.1), times(9.0, 8.9, 9.1), ["undecided", "reproduced"]),
        "grows": (times(3.0, 2.9, 3.1), times(1.0, 1.0, 1.1), ["contradicted", "contradicted"]),
    }.items():
        assert [row.verdict for row in grown(tmp_path / name, adapter, icl)] == verdicts, name
    constant, less = grown(tmp_path / "told", times(1.0, 0.9, 1.2), times(3.0, 2.9, 3.1))
    assert (ours(constant), ours(less)) == ("× 1.00", "× 1.00 against × 3.00")


def test_rows_of_other_machines_and_loads_are_not_compared(tmp_path: Path) -> None:
    left = profile({("generative_adapter", SHORT): times(1.0, 1.0, 1.0)})
    rows = {("cpt", SHORT): times(9.0, 9.0, 9.0)}
    other = {"machine": {**left.machine, "threads": 16}}
    written = {"config": {**left.config, "load": {**left.config["load"], "generate": 64}}}
    for name, changes, verdict in (
        ("same", {}, "reproduced"), ("machine", other, "no runs"), ("load", written, "no runs"),
    ):  # fmt: skip
        row = claims(tmp_path / name, left, profile(rows, id="b" * 12, **changes))[READS, "512 tokens"]
        assert row.verdict == verdict, name
        assert row.reason == ("" if verdict == "reproduced" else "measured on different machines or loads")


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
    for name, changes in (("batches", {}), ("latency", {"mode": "latency"})):
        rated = {"methods": {}, "machine": {}, "config": {**config, **changes}}  # whose limits are not measured
        keep(base.model_copy(update=rated), tmp_path / name / "suite")
    row, merged = [
        row for row in judged("ccm", "table1", stored([tmp_path / "batches"])) if row.claim.cost != "state_bytes"
    ]
    assert row.verdict == verdict, row
    assert claimed(row.claim) == "ccm-concat answers, in batches that fit the memory, in less time than full-context"
    assert row.block.endswith("in batches within 1.0 GiB")
    assert row.costs is not None
    rates_of_costs = [1 / cost.value for cost in row.costs]
    assert rates_of_costs == pytest.approx([own["samples_per_second"].value for own in (concat, full)])
    assert merged.reason == "not measured for ccm-merge"
    row, _ = [row for row in judged("ccm", "table1", stored([tmp_path / "latency"])) if row.claim.cost != "state_bytes"]
    assert row.reason == "not measured for ccm-concat and full-context", "a plain profile has no rates"


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
    assert claimed(row.claim) == "mac needs at most 32 % of the memory of camels"


def test_profiles_are_found_as_runs_are_and_damaged_ones_named(tmp_path: Path) -> None:
    record = profile({})
    for place in ("deep/suite", "scratch/suite"):
        keep(record, tmp_path / place)
    assert [name for name, _ in stored([tmp_path]).profiles] == ["suite"]
    assert [name for name, _ in stored([tmp_path / "deep", tmp_path / "deep/suite"]).profiles] == ["suite"], "once"
    (tmp_path / "deep/suite" / record.id / "profile.json").write_text("{")
    found = stored([tmp_path])
    assert found.profiles == ()
    assert "cannot be read" in found.damaged[0]
