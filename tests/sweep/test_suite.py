"""What a suite of runs may say, which runs it names, and how its faults are told."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Command, error_line
from ttabench.core.errors import UserError
from ttabench.run.plan import make_plan
from ttabench.sweep.engines import Job
from ttabench.sweep.suite import Cell, expand_suite, plan_jobs, read_suite, select_shard

SUITE = """\
methods:
  - none
  - {method: mac, set: {hierarchy: [none, 16]}}
tasks:
  - {task: streamingqa, task_set: {documents: 4}}
  - superglue
seeds: [0, 1]
limit: 8
task_set: {shots: 4}
exclude:
  - {method: mac, task: superglue}
include:
  - {method: rag, task: streamingqa, set: {top: 3}, swap_state: true}
"""
Written = Callable[[str], Path]


@pytest.fixture
def written(tmp_path: Path) -> Written:
    def write(text: str) -> Path:
        (tmp_path / "suite.yaml").write_text(text, encoding="utf-8")
        return tmp_path / "suite.yaml"

    return write


def found(path: Path) -> list[Cell]:
    return expand_suite(read_suite(path))


def runs(path: Path) -> list[Job]:
    return plan_jobs(found(path))


def test_a_grid_is_methods_by_tasks_by_seeds_without_some_and_with_more(written: Written) -> None:
    told = [
        (
            cell.request.method,
            cell.request.task,
            cell.request.settings,
            cell.seed,
            cell.request.state_of,
        )
        for cell in found(written(SUITE))
    ]
    none, mac = (
        [("none", {}, "own")],
        [("mac", {"hierarchy": "none"}, "own"), ("mac", {"hierarchy": 16}, "own")],
    )
    rag = [("rag", {"top": 3}, state) for state in ("own", "other", "none")]
    wanted = [("streamingqa", each) for each in none + mac] + [("superglue", each) for each in none]
    wanted += [("streamingqa", each) for each in rag]
    assert told == [
        (name, task, set_, seed, state) for task, (name, set_, state) in wanted for seed in (0, 1)
    ]
    cells_ = found(written(SUITE))
    assert {
        (cell.request.task, *cell.request.task_options.items())
        for cell in cells_
        if cell.request.method != "rag"
    } == {("streamingqa", ("documents", 4)), ("superglue", ("shots", 4))}
    assert {cell.request.limit for cell in cells_} == {8}


def test_runs_are_those_planned_alone_and_parts_are_all_of_them(written: Written) -> None:
    path = written(SUITE)
    whole = runs(path)
    assert [run.id for run in whole] == [
        make_plan(cell.request, cell.seed).config.identity() for cell in found(path)
    ]
    parts = [select_shard(whole, f"{number}/3") for number in (1, 2, 3)]
    assert sorted(run.id for part in parts for run in part) == sorted(run.id for run in whole)
    assert sum(map(len, parts)) == len(whole)
    for wrong in ("0/3", "4/3", "1", "a/b", "1/3/5"):
        with pytest.raises(UserError, match="--shard"):
            select_shard(whole, wrong)


FAULTS = {
    "limit: 8": ("limmit: 8", "Unknown field 'limmit'. Did you mean 'limit'?"),
    "hierarchy:": ("hierarchi:", "Unknown setting of mac 'hierarchi'. Did you mean 'hierarchy'?"),
    "- superglue": ("- superglu", "Unknown task 'superglu'. Did you mean 'superglue'?"),
    "[0, 1]": ("[0, one]", "1: Input should be a valid integer, received 'one'."),
    "shots:": ("shotz:", "Unknown setting of these tasks 'shotz'. Did you mean 'shots'?"),
    "swap_state: true": ("swap_state: 3", "swap_state: Input should be a valid boolean"),
    "task_set: {shots": ("limit: 9\ntask_set: {shots", "line 9 cannot be read: not valid YAML"),
    "{method: mac, set": ("{set", "methods.1.method: Field required"),
}


@pytest.mark.parametrize("right", FAULTS)
def test_a_fault_is_reported_with_its_file_and_what_was_meant(
    right: str, written: Written, ttabench: Command, tmp_path: Path
) -> None:
    wrong, told = FAULTS[right]
    assert right in SUITE
    path = written(SUITE.replace(right, wrong, 1))
    said = error_line(ttabench("sweep", path, "--out", tmp_path / "runs"))
    assert str(path) in said
    assert told in said
    assert not (tmp_path / "runs").exists()


def test_every_option_of_eval_is_one_of_sweep(ttabench: Command) -> None:
    plain = {
        name: re.findall(r"--[a-z-]+", ttabench(name, "--help").out) for name in ("eval", "sweep")
    }
    renamed = {"--method", "--task", "--model", "--seed", "--memory-limit", "--log"}
    assert set(plain["eval"]) - set(plain["sweep"]) == renamed


BUDGETS = "methods: [none, {method: snapkv, preset: stream}, h2o]\ntasks: [streamingqa]\nkeep: [0.1, 0.5]\n"


def test_a_budget_goes_to_the_methods_that_have_one_and_the_others_run_once(
    written: Written,
) -> None:
    path = written(BUDGETS)
    asked = [(cell.request.method, cell.request.keep) for cell in found(path)]
    assert asked == [
        ("none", None),
        *((name, share) for name in ("snapkv", "h2o") for share in (0.1, 0.5)),
    ]
    few = written(BUDGETS + "exclude: [{keep: 0.5}]\n")
    assert [cell.request.keep for cell in found(few)] == [None, 0.1, 0.1]


def test_budgets_are_typed_as_a_list_and_take_the_place_of_a_suites(
    written: Written, ttabench: Command, tmp_path: Path
) -> None:
    words = (
        "--methods",
        "none,h2o",
        "--tasks",
        "streamingqa",
        "--dry-run",
        "--out",
        tmp_path / "runs",
    )
    assert len(ttabench("sweep", *words, "--keep", "0.1,0.5,0.1", "--json").json()["runs"]) == 3
    told = ttabench(
        "sweep", written(BUDGETS), "--keep-tokens", "64", "--dry-run", "--json", "--out", tmp_path
    ).json()
    assert [run["method"] for run in told["runs"]][2] == "h2o keep_tokens=64"
    for wrong in (
        ("--keep", "0.1,few"),
        ("--keep", "0.1,0"),
        ("--keep-tokens", "1.5"),
        ("--keep-tokens", "0"),
    ):
        error_line(ttabench("sweep", *words, *wrong))


@pytest.mark.parametrize("key", ["", " ", "a=b", "\\n"])
@pytest.mark.parametrize(
    "where", ["set: {KEY: 1}", "task_set: {KEY: 1}", "include: [{method: rag, set: {KEY: 1}}]"]
)
def test_a_setting_without_a_name_is_refused(written: Written, key: str, where: str) -> None:
    with pytest.raises(UserError):
        found(written("methods: [rag]\ntasks: [streamingqa]\n" + where.replace("KEY", f'"{key}"')))


def test_what_is_listed_twice_is_one_run(written: Written) -> None:
    many = ", ".join(["nano"] * 5000)
    suite = f"methods: [none, none]\ntasks: [streamingqa]\nmodels: [{many}]\nboost: [1.0, 1.0]\nseeds: [0, 0]"
    assert len(found(written(suite))) == 1
