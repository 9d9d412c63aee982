"""The page of trainings that do not ship is made from what is stored of them."""

from __future__ import annotations

import json

import tried


def test_the_page_reports_what_is_stored() -> None:
    stored = json.loads(tried.STORED.read_text(encoding="utf-8"))
    assert tried.PAGE.read_text(encoding="utf-8") == tried.page(stored)
    assert f"## {next(iter(stored))}" in tried.PAGE.read_text(encoding="utf-8")
