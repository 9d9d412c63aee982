"""Blocks: what is compared with what, how lines are called there, and which runs are never paired."""

from __future__ import annotations

from pathlib import Path

from tests.records.test_records import sample, store_samples
from tests.report.test_compare import asked, stored
from ttabench.records.schema import SAMPLES_FILE, load_record, save_record
from ttabench.report.compare import compare
from ttabench.report.comparison_tables import comparison_tables, differing
from ttabench.report.phrases import problems

VALUES = {"a": 1.0, "b": 0.0, "c": 1.0}


def test_lengths_of_one_task_are_never_paired_though_they_ask_the_same(tmp_path: Path) -> None:
    folders = [
        stored(tmp_path, f"{method}{count}", VALUES, method=method, task_options={"documents": count})
        for count in (32, 16)
        for method in ("icl", "none")
    ]
    found = compare(folders, all_pairs=True)
    assert [block.place.brief for block in found.blocks] == ["t documents=16", "t documents=32"], "ascending"
    assert [[entry.label for entry in block.entries] for block in found.blocks] == [["none", "icl"]] * 2
    assert [(each.left, each.right, each.n) for each in found.differences] == [("icl", "none", 3)] * 2
    assert found.unpaired == ()


def test_what_leaves_queries_as_they_are_stays_in_the_block(tmp_path: Path) -> None:
    folders = [stored(tmp_path, f"r{ratio}", VALUES, task_options={"ratio": ratio}) for ratio in (0.0, 1.0)]
    assert len(compare(folders).blocks) == 2, "an option of that name of another reader"
    for folder in folders:
        record = load_record(folder)
        save_record(record.model_copy(update={"task": {**record.task, "reader": "demonstrations"}}), folder)
    (block,) = compare(folders).blocks
    assert [entry.label for entry in block.entries] == ["icl ratio=0.0", "icl ratio=1.0"]
    assert len(block.differences) == 1


def test_labels_name_what_differs_in_the_block_alone(tmp_path: Path) -> None:
    folders = [
        stored(tmp_path, "one", VALUES, task="first", settings={"keep": 0.2, "other": "x"}),
        stored(tmp_path, "two", VALUES, task="second", settings={"keep": 0.5, "other": "x"}),
        stored(tmp_path, "three", VALUES, task="second", settings={"keep": 0.5, "other": "y"}),
    ]
    found = compare(folders)
    assert [entry.label for entry in found.entries] == ["icl", "icl other=x", "icl other=y"]
    assert [block.place.name for block in found.blocks] == ["first (mini), base nano", "second (mini), base nano"]


def test_why_a_pair_is_not_paired_is_said(tmp_path: Path) -> None:
    first = stored(tmp_path, "first", VALUES)
    second = stored(tmp_path, "second", VALUES, seed=1, method="none")
    (each,) = compare([first, second]).unpaired
    assert each.reason == "other seeds (1 and 0)"
    third = stored(tmp_path, "third", VALUES, method="mac", inputs={"rows": "another version"})
    store_samples(third, [asked(sample(key, value=1.0), prompt="Other?").flat() for key in VALUES])
    (each,) = compare([first, third]).unpaired
    assert "another version" in each.reason
    (third / SAMPLES_FILE).unlink()
    (each,) = compare([first, third]).unpaired
    assert each.reason == "the answers are not kept"
    table, *_ = comparison_tables(compare([first, third]))
    assert table.caption.startswith("Not tested (the answers are not kept): icl − mac.")


def test_what_strict_does_not_accept(tmp_path: Path) -> None:
    fine = [stored(tmp_path, f"{name}{seed}", VALUES, seed=seed, method=name)
            for name in ("icl", "none") for seed in (0, 1)]  # fmt: skip
    assert problems(compare(fine)) == []
    (lacking,) = problems(compare(fine[:3]))
    assert lacking == "t: none lacks seed 1"
    other = stored(tmp_path, "other", VALUES, method="mac", inputs={"rows": "of another version"})
    (rows,) = problems(compare([fine[0], other]))
    assert "other rows, or another version of them: icl with seed 0, mac with seed 0" in rows
    unpaired, _ = problems(compare([fine[0], fine[3]]))[0], None
    assert "are not paired: other seeds" in unpaired


def test_only_what_differs_is_listed(tmp_path: Path) -> None:
    folders = [
        stored(tmp_path, "one", VALUES, settings={"keep": 0.2, "same": 1}, batch_size=32),
        stored(tmp_path, "two", VALUES, settings={"keep": 0.5, "same": 1}, batch_size=16),
        stored(tmp_path, "three", VALUES, method="mac", settings={"heads": 2}, batch_size=16),
    ]
    table = differing(compare(folders))
    assert [row["setting"] for row in table.data] == ["batch_size"] * 2 + ["settings.keep"] * 2
    assert table.rows[0] == ("batch_size", "16", "icl batch_size=16 keep=0.5, mac")
    assert table.rows[1][1:] == ("32", "icl batch_size=32 keep=0.2")
    assert differing(compare(folders[:1])).rows == ()


def test_a_run_that_lies_in_two_folders_counts_once(tmp_path: Path) -> None:
    places = [tmp_path / "one", tmp_path / "two"]
    for place in places:
        place.mkdir()
        stored(place, "r1", VALUES)
        stored(place, "r2", VALUES, seed=1)
    (entry,) = compare([place / run for place in places for run in ("r1", "r2")]).entries
    assert (entry.n, entry.ids) == (6, ("r1", "r2"))


def test_runs_of_an_earlier_version_that_names_no_card_stay_in_their_lines(tmp_path: Path) -> None:
    """A run names the digests of its card and its base; those of earlier versions name none, or others."""
    earlier = [stored(tmp_path, f"old-{name}", VALUES, method=name, inputs={"model": "aa"}) for name in ("none", "icl")]
    later = [stored(tmp_path, name, VALUES, seed=1, method=name, inputs={"model": "bb", "card": "c1" * 8})
             for name in ("none", "icl", "mac")]  # fmt: skip
    found = compare([*earlier, *later])
    assert [(entry.label, entry.seeds) for entry in found.entries] == [
        ("none", (0, 1)),
        ("icl", (0, 1)),
        ("mac", (1,)),
    ]
    other = stored(tmp_path, "other", VALUES, seed=2, inputs={"card": "c2" * 8})
    blocks = compare([*later, other]).blocks
    assert [block.place.brief for block in blocks] == ["t card=c1c1c1", "t card=c2c2c2"], (
        "an edited card asks otherwise"
    )
