"""What is said of the adapters that ship is what their headers say."""

from __future__ import annotations

import json

from tests.conftest import Command
from ttabench.core.checked_file import json_of
from ttabench.methods.checkpoint_header import header
from ttabench.report.adapters import ADAPTERS, CHOSEN, adapters_table, shipped


def test_every_adapter_says_what_it_was_chosen_on_and_no_other() -> None:
    chosen = json_of(ADAPTERS / CHOSEN)
    assert isinstance(chosen, dict)
    assert sorted(chosen) == sorted(shipped())
    assert all(isinstance(words, str) and words for words in chosen.values())


def test_figures_are_those_of_the_header() -> None:
    rows = {str(row["adapter"]): row for row in adapters_table().data}
    assert rows.keys() == shipped().keys()
    for name, folder in shipped().items():
        found, row = header(folder), rows[name]
        config = found.training["config"]
        assert isinstance(config, dict)
        assert row["steps"] == found.training["steps"]
        assert found.step in (None, row["steps"])
        assert row["seed"] == config["seed"]
        assert str(row["trained_on"]).startswith(config["data"]["task"])
        assert all(each["task"] in str(row["trained_on"]) for each in config["data"].get("also", ()))
        assert f" {config['data']['split']}" in str(row["trained_on"])
    shown = next(row for row in adapters_table().rows if row[0] == "nano/mac-streamingqa")
    assert shown[6:11] == ("1,200", "76,800", "153,600", "3.93 M", "44")
    assert rows["nano/streamadapter-superglue"]["trained_on"] == "superglue rules=mixed, mini train"


def test_the_list_names_them(ttabench: Command) -> None:
    told = json.loads(ttabench("list", "adapters", "--json").out)
    rows = told["adapters"] if isinstance(told, dict) else told
    assert [row["adapter"] for row in rows] == list(shipped())
    shown = ttabench("list", "adapters").out
    assert all(name in shown for name in shipped())
