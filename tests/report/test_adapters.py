"""The list of adapters agrees with their headers."""

from __future__ import annotations

import pytest

from tests.conftest import Command
from ttabench.methods.checkpoints import read_header
from ttabench.report.listing import adapters_table
from ttabench.run import adapters
from ttabench.run.adapters import find_adapters


def test_without_a_checkout_the_large_ones_are_named_and_not_there(
    ttabench: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adapters, "ADAPTER_FOLDERS", (adapters.ADAPTERS_FOLDER,))
    assert "not installed: nano/camels-streamingqa" in adapters_table().caption
    for words in (("--checkpoint", "shipped:mac-squad_seq"), ()):
        refused = ttabench("eval --method mac --task squad_seq", *words)
        assert refused.code == 2
        assert "results/adapters/nano/mac-squad_seq" in refused.err


def test_figures_are_those_of_the_header() -> None:
    rows = {str(row["adapter"]): row for row in adapters_table().data}
    assert rows.keys() == find_adapters().keys()
    for name, folder in find_adapters().items():
        found, row = read_header(folder), rows[name]
        config = found.training["config"]
        assert isinstance(config, dict)
        assert row["steps"] == found.training["steps"]
        assert found.step in (None, row["steps"])
        assert row["seed"] == config["seed"]
        assert str(row["trained_on"]).startswith(config["data"]["task"])
        assert all(
            each["task"] in str(row["trained_on"]) for each in config["data"].get("also", ())
        )
        assert f" {config['data']['split']}" in str(row["trained_on"])
    shown = next(row for row in adapters_table().rows if row[0] == "nano/mac-streamingqa")
    assert shown[6:12] == ("1,200", "76,800", "153,600", "gold documents", "3.93 M", "44")
    assert rows["nano/ccm-metaicl"]["labels"] == "none"
    assert rows["nano/streamadapter-superglue"]["trained_on"] == "superglue rules=mixed, mini train"
