"""The committed page of a suite ends with the output of `ttabench compare` for its committed runs."""

from __future__ import annotations

import pytest

from tests.conftest import Command
from tests.places import ROOT


@pytest.mark.parametrize("suite", ["retention", "streamingqa-64", "pg19", "superglue-fixed"])
def test_verdict_and_tables_are_those_of_the_committed_page(ttabench: Command, suite: str) -> None:
    ran = ttabench("compare --out", ROOT / "results" / suite, "--format", "markdown")
    assert (ROOT / "results" / f"{suite}.md").read_text(encoding="utf-8").endswith(ran.out)
