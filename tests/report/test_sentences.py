"""What the first lines praise, what they must not praise, and what they set aside; by made-up records."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.records.test_records import sample, store_samples
from tests.report.test_compare import asked, stored
from tests.report.test_verdict import made, right
from ttabench.records.samples import read_samples
from ttabench.records.schema import load_record, save_record
from ttabench.report.compare import Comparison, compare, share
from ttabench.report.comparison_tables import comparison_tables
from ttabench.report.entries import ceiling_of, floor_of
from ttabench.report.page.build import page
from ttabench.report.phrases import problems
from ttabench.report.verdict import sentences, verdict


def changed(folder: Path, **cost: float) -> Path:
    """The run with these costs beside its own."""
    record = load_record(folder)
    save_record(record.model_copy(update={"cost": {**record.cost, **cost}}), folder)
    return folder


def noted(folder: Path, note: str) -> Path:
    """The run with a note."""
    save_record(load_record(folder).model_copy(update={"notes": (note,)}), folder)
    return folder


def labels(found: Comparison) -> list[str]:
    return [entry.label for entry in found.entries]


def first_workflow(folder: Path) -> list[Path]:
    """none, icl and mac, each with --limit 8 and in full."""
    shares = {"none": 0.0, "icl": 0.9, "mac": 0.6}
    few = [stored(folder, f"few-{method}", right(0.9, 8), method=method, task="t", limit=8) for method in shares]
    return [*few, *made(folder, "t", shares)]


def test_runs_with_a_limit_hide_neither_floor_nor_ceiling(tmp_path: Path) -> None:
    found = compare(first_workflow(tmp_path))
    assert labels(found) == ["none", "icl", "mac"]
    assert (found.blocks[0].entries[0], found.blocks[0].entries[1]) == (
        floor_of(found.entries), ceiling_of(found.entries)
    )  # fmt: skip
    told = sentences(found)
    assert told[0].startswith("mac (60.0) is 60.0 points [")
    assert "above none (0.0), p <0.001; 30.0 points [" in told[0]
    assert "Set aside (--limit 8): none, icl and mac." in told
    assert [each for each in problems(found) if "set aside" in each]


def test_a_cut_ceiling_is_none_and_never_leads(tmp_path: Path) -> None:
    none, icl, mac, h2o = made(tmp_path, "t", {"none": 0.0, "icl": 0.9, "mac": 0.7, "h2o": 0.6})
    whole = compare([none, icl, mac, h2o])
    assert "recovers" in verdict(whole)
    found = compare([none, changed(icl, truncated_tokens=6000, tokens_read=10000), mac, h2o])
    told = verdict(found)
    assert ceiling_of(found.entries) is None
    assert "recovers" not in told
    assert "icl (" not in told
    assert "Set aside: icl read 40 % of the context, so it is no ceiling." in told
    table = comparison_tables(found)[0]
    assert "icl (cut)" in [row[0] for row in table.rows]
    changed(mac, truncated_tokens=1, tokens_read=10000)
    told = verdict(compare([none, icl, mac, h2o]))
    assert told.startswith("h2o (60.0) is"), "what is cut does not lead"
    assert "mac read 99.9 % of the context." in told


@pytest.mark.parametrize(("note", "leads"), [
    ("snapkv evicted nothing: 300 tokens of context fit what it may keep, so this measures full context", False),
    ("snapkv evicted nothing from 7 of 8 contexts: 300 tokens of context fit what it may keep", False),
    ("snapkv evicted nothing from 1 of 8 contexts: 30 tokens of context fit what it may keep", True),
    ("every row is asked at several places in the stream, and n counts them all: 40 answers to 8 rows", True),
])  # fmt: skip
def test_what_evicted_nothing_never_leads(tmp_path: Path, note: str, leads: bool) -> None:
    none, icl, snapkv, mac = made(tmp_path, "t", {"none": 0.0, "icl": 1.0, "snapkv": 1.0, "mac": 0.6})
    found = compare([none, icl, noted(snapkv, note), mac])
    told = verdict(found)
    assert told.startswith("snapkv leads") == leads
    assert ("Set aside: snapkv evicted nothing; that is full context, whatever the name." in told) != leads
    assert bool(problems(found)) != leads
    assert ("snapkv (evicted nothing)" in [row[0] for row in comparison_tables(found)[0].rows]) != leads


def with_answers(folder: Path, nll: float, **cost: float) -> Path:
    """The run with these likelihoods of its right answers, and with a context that was read."""
    columns = read_samples(folder)
    columns["logprobs"] = [[-nll]] * len(columns["key"])
    store_samples(folder, [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)])
    return changed(folder, **{"tokens_read": 900.0, **cost})


def test_answers_of_full_context_to_the_bit_are_said_to_be_so(tmp_path: Path) -> None:
    shares = {"none": 0.0, "icl": 0.9, "snapkv": 0.9, "mac": 0.6}
    none, icl, snapkv, mac = made(tmp_path, "t", shares)
    runs = [changed(none, tokens_read=0), with_answers(icl, 1.0), with_answers(snapkv, 1.0), with_answers(mac, 2.0)]
    told = "The answers of snapkv are those of full context, to the last bit: was it applied?"
    assert [one for one in sentences(compare(runs)) if "to the last bit" in one] == [told]
    assert "t: snapkv has the answers of icl" in problems(compare(runs))
    assert f">{told}</p>" in page(compare(runs))
    with_answers(snapkv, 1.0 + 1e-6)
    assert "to the last bit" not in verdict(compare(runs)), "the same words, of another likelihood"
    with_answers(snapkv, 1.0)
    noted(snapkv, "snapkv evicted nothing: 300 tokens of context fit what it may keep, so this measures full context")
    assert "to the last bit" not in verdict(compare(runs)), "that is said already"


def test_a_ceiling_below_a_method_may_be_broken(tmp_path: Path) -> None:
    found = compare(made(tmp_path, "t", {"none": 0.0, "icl": 0.3, "h2o": 0.9, "window": 0.6, "mac": 0.2}))
    (told,) = [one for one in sentences(found) if "broken" in one]
    assert told.startswith("The ceiling may be broken: icl is 60.0 points [")
    assert "below h2o (90.0), Holm p <0.001. Check its prompt, what was cut of the context" in told
    near = compare(made(tmp_path, "near", {"none": 0.0, "icl": 0.85, "h2o": 0.9, "mac": 0.2}))
    assert "broken" not in verdict(near), "three questions are chance"
    runs = made(tmp_path, "cut", {"none": 0.0, "icl": 0.3, "h2o": 0.9})
    changed(runs[1], truncated_tokens=6000, tokens_read=10000)
    assert "broken" not in verdict(compare(runs)), "what was cut is no ceiling, and is said to be none"


def test_lines_are_ranked_on_blocks_that_they_share(tmp_path: Path) -> None:
    """The one line that stands in every block is best in none of them."""
    folders = []
    for count, shares in ((4, {"mac": 0.9, "h2o": 0.5, "window": 0.1}), (8, {"mac": 0.8, "h2o": 0.5, "window": 0.1}),
                          (32, {"window": 0.1, "templora": 0.05})):  # fmt: skip
        for method, part in shares.items():
            folders.append(stored(tmp_path, f"{count}-{method}", right(part), method=method,
                                  task_options={"documents": count}))  # fmt: skip
    told = sentences(compare(folders))
    assert told[0].startswith("On the 2 blocks that 3 of 4 lines share, mac leads with the best mean, 85.0, 35.0 ")
    assert "Not in this order (not run in all of these blocks): templora." in told
    assert "Not counted in this order: t documents=32." in told
    alike = sentences(compare(folders[:6]))
    assert alike[0].startswith("On the 2 blocks that 3 of 3 lines share, mac leads")
    assert not any("Not " in line for line in alike)


def test_many_pairs_of_methods_do_not_hide_floor_and_ceiling(tmp_path: Path) -> None:
    """Nine lines on two tasks: 72 pairs; p 0.001 against none is beyond chance in a family of its own."""
    shares = {"none": 0.0, "icl": 0.5, **{f"m{place}": 0.17 for place in range(7)}}
    found = compare([run for task in ("one", "two") for run in made(tmp_path, task, shares)])
    (one,) = [each for each in found.blocks[0].differences if each.family == "none" and each.left == "m0"]
    assert one.tests == 14
    assert one.beyond_chance
    assert one.p * 72 > 0.05, "among all pairs it would not be"
    rooms = [each for block in found.blocks for each in block.differences if each.family == "room"]
    assert [each.tests for each in rooms] == [2, 2]


def drawn(folder: Path, task: str, method: str, by_seed: list[float]) -> list[Path]:
    """A run a draw, each with this share of right answers to its own questions."""
    folders = []
    for seed, part in enumerate(by_seed):
        path = stored(folder, f"{task}-{method}-{seed}", right(part, 20), seed=seed, method=method, task=task)
        record = load_record(path)
        save_record(record.model_copy(update={"task": {**record.task, "unit": "draw"}}), path)
        answered = [asked(sample(key, value=value), prompt=f"{key}?") for key, value in right(part, 20).items()]
        store_samples(path, [each.flat() for each in answered])
        folders.append(path)
    return folders


def test_lost_blocks_count_in_the_share(tmp_path: Path) -> None:
    folders = made(tmp_path, "one", {"none": 0.0, "icl": 1.0, "mac": 0.9})
    folders += made(tmp_path, "two", {"none": 0.5, "icl": 1.0, "mac": 0.1})
    told = verdict(compare(folders))
    assert "It recovers 33 % of the way from none to icl" in told, "(0.9 - 0.4) / (1.0 + 0.5)"
    assert "Against none: better on 1 of 2 tasks (one); worse on 1 of 2 tasks (two)." in told


def swapped(folder: Path, own: float, other: float, none: float) -> Comparison:
    runs = [stored(folder, state, right(part), method="templora", state_of=state)
            for state, part in (("own", own), ("other", other), ("none", none))]  # fmt: skip
    return compare(runs)


@pytest.mark.parametrize(("own", "other", "none", "says"), [
    (0.78, 0.75, 1.0, "Its state does not help here: own is 21.7 points ["),
    (0.9, 0.3, 0.1, "Its state helps, and it holds this text: own is 80.0 points ["),
    (0.6, 0.6, 0.1, "Its state helps in part; that it holds this text is not shown: own is 50.0 points ["),
    (0.6, 0.1, 0.6, "Its state helps in part, against another text's only: own is equal to an empty one (60.0)"),
    (0.5, 0.5, 0.48, "Its state is not shown to help here: own is 1.7 points ["),
])  # fmt: skip
def test_whether_a_state_helps(tmp_path: Path, own: float, other: float, none: float, says: str) -> None:
    found = swapped(tmp_path, own, other, none)
    told = sentences(found)[0]
    assert told.startswith("templora: own state ")
    assert says in told
    assert "state of" not in " ".join(labels(found))
    assert labels(found) == ["templora", "templora, another text's state", "templora, empty state"]


def test_no_test_is_no_praise(tmp_path: Path) -> None:
    folders = made(tmp_path, "t", {"none": 0.0, "icl": 1.0, "mac": 0.5, "h2o": 0.9})
    for folder in folders:
        (folder / "samples.parquet").unlink()
    told = verdict(compare(folders))
    first = "h2o has the best f1, 90.0, 40.0 points above mac (50.0), untested (the answers are not kept)."
    assert told.startswith(first)
    assert "recovers" not in told
    assert "p <" not in told


def test_one_draw_promises_nothing_of_more_questions(tmp_path: Path) -> None:
    runs = [run for method, part in (("none", 0.3), ("mac", 0.4)) for run in drawn(tmp_path, "t", method, [part])]
    told = sentences(compare(runs))
    assert told[0].endswith("p 0.5: not settled with the questions of one draw.")
    assert told[1].startswith("There is one draw only, so errors are too small")
    more = [run for method, part in (("none", 0.3), ("mac", 0.4)) for run in drawn(tmp_path, "u", method, [part] * 2)]
    assert "one draw" not in verdict(compare(more))


def test_lines_that_are_equal_do_not_lead_one_another(tmp_path: Path) -> None:
    told = verdict(compare(made(tmp_path, "t", {"none": 0.1, "icl": 1.0, "mac": 0.9, "h2o": 0.9}, {"h2o": 4096})))
    assert told.startswith("mac has the best f1, 90.0, equal to h2o (90.0) on all 60 questions.")
    apart = {f"q{place:03}": float(place >= 6) for place in range(60)}
    runs = [*made(tmp_path, "u", {"mac": 0.9}), stored(tmp_path, "other", apart, method="h2o", task="u")]
    told = verdict(compare(runs))
    assert told.startswith(("mac has the best f1, 90.0, 0.0 points [", "h2o has the best f1, 90.0, 0.0 points ["))
    assert ("] from h2o (90.0), p 1: not settled" in told) or ("] from mac (90.0), p 1: not settled" in told)


def test_one_more_line_of_icl_leaves_a_ceiling(tmp_path: Path) -> None:
    """It is the one that was run as most other lines were, and it is said which."""
    shares = {"none": 0.0, "icl": 0.9, "mac": 0.6, "h2o": 0.5}
    folders = [
        stored(tmp_path, method, right(share), method=method, dtype="float32") for method, share in shares.items()
    ]
    alone = compare(folders)
    found = compare([*folders, stored(tmp_path, "half", right(0.95), method="icl", dtype="bfloat16")])
    ceiling = ceiling_of(found.entries)
    assert ceiling.label == "icl dtype=float32"
    gaps = [[share(block, line) for block in each.blocks if (line := block.named("mac"))] for each in (alone, found)]
    assert gaps[0] == gaps[1] != [None]
    told = "Of icl dtype=float32 and icl dtype=bfloat16, icl dtype=float32 is the ceiling, for more other lines were "
    assert f"{told}run as it was." in sentences(found)
    assert not [sentence for sentence in sentences(alone) if "is the ceiling" in sentence]


@pytest.mark.parametrize(("another", "leads"), [(0.0, True), (0.88, False)])
def test_whose_own_state_is_not_above_anothers_does_not_lead(tmp_path: Path, another: float, leads: bool) -> None:
    folders = made(tmp_path, "t", {"none": 0.0, "h2o": 0.3, "templora": 0.9})
    folders.append(stored(tmp_path, "other", right(another), method="templora", task="t", state_of="other"))
    told = sentences(compare(folders))[0]
    assert told.startswith("templora leads with the best f1, 90.0, 60.0 points [") == leads
    assert told.startswith("templora has the best f1, 90.0, 60.0 points [") != leads
