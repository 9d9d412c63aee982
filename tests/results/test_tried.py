"""The page of trainings that do not ship is made from what is stored of them."""

from __future__ import annotations

import importlib
import json
import sys
from types import ModuleType

import pytest

from tests.places import ROOT


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setattr(sys, "path", [str(ROOT / "results"), *sys.path])
    return importlib.import_module("tried")


def test_the_page_says_what_is_stored(tried: ModuleType) -> None:
    stored = json.loads(tried.STORED.read_text(encoding="utf-8"))
    assert tried.PAGE.read_text(encoding="utf-8") == tried.page(stored)
    assert f"## {next(iter(stored))}" in tried.PAGE.read_text(encoding="utf-8")
