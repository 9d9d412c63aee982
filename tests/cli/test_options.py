"""Options of commands: each command names the ones it takes."""

from __future__ import annotations

import subprocess
import sys

from tests.places import ROOT
from ttabench.cli.options import RUN_OPTIONS
from ttabench.core.declared import option_fields
from ttabench.run.request import RunRequest

COMMANDS_WITH_OPTION = """
from dataclasses import dataclass
from typing import Annotated

import typer.main

from ttabench.core.declared import QUERY_GROUP, OptionInfo
from ttabench.run import request


@dataclass(frozen=True, kw_only=True)
class Extended(request.RunRequest):
    added: Annotated[bool, OptionInfo("Added.", QUERY_GROUP)] = False


request.RunRequest = Extended
from ttabench.cli.app import app

commands = typer.main.get_command(app).commands
print(*(name for name, one in commands.items() if "added" in [param.name for param in one.loaded.params]))
"""


def test_new_field_of_a_request_is_an_option_of_eval_only() -> None:
    done = subprocess.run(
        [sys.executable, "-c", COMMANDS_WITH_OPTION], capture_output=True, text=True, cwd=ROOT
    )
    assert done.stdout.split() == ["eval"], done.stderr


def test_named_options_exist() -> None:
    fields = option_fields(RunRequest)
    assert all(name in fields for names in RUN_OPTIONS.values() for name in names)
