"""Methods and tasks of other people: a package that is installed, and a single file; nothing of ttabench is edited."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Command, error_line
from tests.packages import install
from ttabench.cli.app import run

FILE = '''
from dataclasses import replace
from itertools import chain

from ttabench.extend import Method, MethodSpec, append_ids, new_chunk_ids, window_patch


class Tail(Method):
    """The last 16 tokens."""

    spec = MethodSpec(name="tail", summary="keep the last 16 tokens", growth="constant")

    def adapt(self, state, pieces):
        rows = [list(chain(*row)) for row in new_chunk_ids(self.lm, state, pieces)]
        read = [before + len(new) for before, new in zip(state.meta["tokens_read"], rows)]
        return replace(state, tensors=append_ids(self.lm, state.tensors, rows, 16), meta={"tokens_read": read})

    def patch(self, state, asks):
        return window_patch(state.tensors)
'''


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A package of `ttabench new package`, with two entry points that cannot be used."""
    folder = tmp_path_factory.mktemp("packages")
    assert run(["new", "package", "notebook", "--out", str(folder)]) == 0
    install(folder / "notebook", {"broken": "notebook.missing:NOTHING", "icl": "notebook:NOTEBOOK"})
    return folder / "notebook"


TYPED = """
import io, json, sys
from contextlib import redirect_stdout
from ttabench.cli.app import run

for words in json.loads(sys.argv[1]):
    out = io.StringIO()
    with redirect_stdout(out):
        code = run(words)
    print(json.dumps([code, out.getvalue()]))
"""


def typed(
    package: Path, base: Path, at: Path, *commands: tuple[object, ...]
) -> tuple[list[Any], str]:
    """What commands print as JSON, in one process where the package is installed; and its standard error."""
    known = {
        "{base}": base,
        "{data}": package / "notebook.jsonl",
        "{card}": package / "notebook.yaml",
    }
    words = [
        [str(known.get(str(word), word)) for word in (*command, "--json")] for command in commands
    ]
    paths = os.pathsep.join([str(package), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", TYPED, json.dumps(words)],
        capture_output=True,
        text=True,
        cwd=at,
        env={**os.environ, "PYTHONPATH": paths},
        timeout=900,
    )
    ends = [json.loads(line) for line in done.stdout.splitlines()]
    assert [code for code, _ in ends] == [0] * len(commands), done.stderr
    return [json.loads(out) for _, out in ends], done.stderr


FACTS = ("--task", "{card}", "--source", "{data}", "--model", "{base}")


def test_a_package_is_listed_evaluated_compared_profiled_and_trained(
    package: Path, tiny_base: Path, tmp_path: Path
) -> None:
    runs = ("--out", tmp_path / "runs")
    evaluated = ("eval", "--method", "notebook", *FACTS, "--checkpoint", tmp_path / "made", *runs)
    (listed, checked, trained, first, again, _, compared, profiled, on_paper), said = typed(
        package,
        tiny_base,
        tmp_path,
        ("list", "methods"),
        ("check", "notebook"),
        ("train", "--method", "notebook", *FACTS, "--steps", 2, "--out", tmp_path / "made"),
        evaluated,
        evaluated,
        ("eval", "--method", "none", *FACTS, *runs),
        ("compare", *runs),
        (
            "profile",
            "--methods",
            "notebook",
            "--model",
            "{base}",
            "--prefill",
            "32",
            "--generate",
            2,
            "--repeat",
            1,
            "--out",
            tmp_path / "profiles",
        ),
        ("profile", "--analytic", "--methods", "notebook", "--prefill", "1k"),
    )
    methods = {row["method"]: row for row in listed["methods"]}
    assert methods["notebook"]["trainable"] is True
    assert methods["icl"]["summary"].startswith("full context"), (
        "nobody takes the name of ttabench's own"
    )
    assert "ModuleNotFoundError" in said
    assert "'broken' of notebook==0.1" in said
    assert all(promise["kept"] for promise in checked["promises"])
    assert trained["steps"] == 2
    (run,) = first["runs"]
    assert (run["config"]["method"], run["config"]["task"]) == ("notebook", "notebook")
    for what in ("method", "reader", "metric notebook"):
        assert re.fullmatch(r"notebook==0\.1 \(code [0-9a-f]{12}\)", run["config"]["inputs"][what])
    assert "notebook" in {row["metric"] for row in run["rows"]}, "the card names it"
    assert again["runs"][0]["id"] == run["id"]
    assert {row["method"] for row in compared["runs"]} == {"notebook", "none"}
    assert profiled
    assert next(iter(on_paper.values()))[0]["method"] == "notebook"


def test_a_file_is_a_method(ttabench: Command, tiny_base: Path, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(FILE, encoding="utf-8")
    words = (
        "eval",
        "--method",
        file,
        "--task",
        "streamingqa",
        "--source",
        "mini",
        "--model",
        tiny_base,
        "--limit",
        "2",
        "--task-set",
        "documents=2",
        "--out",
        tmp_path / "runs",
        "--json",
    )
    (run,) = ttabench(*words).json()["runs"]
    assert run["config"]["method"] == "tail"
    assert run["config"]["inputs"]["method"]
    (again,) = ttabench(*words).json()["runs"]
    assert again["id"] == run["id"]
    changed = tmp_path / "changed.py"
    changed.write_text(FILE.replace("16)", "12)"), encoding="utf-8")
    (other,) = ttabench(*("eval", "--method", changed, *words[3:])).json()["runs"]
    assert other["id"] != run["id"], "another file is another method"
    shown = ttabench(f"list methods {file}")
    assert "settings of" in shown.out


def test_a_state_of_a_file_is_asked_with_the_file_that_the_user_names(
    ttabench: Command, tiny_base: Path, tmp_path: Path
) -> None:
    file, copy, other = (tmp_path / name for name in ("mine.py", "copy.py", "other.py"))
    for path, text in ((file, FILE), (copy, FILE), (other, FILE.replace("16)", "12)"))):
        path.write_text(text, encoding="utf-8")
    (tmp_path / "notes.txt").write_text("Ada Voss lives in Port Ansel.")
    out = tmp_path / "state"
    made = ttabench(
        f"adapt --method {file} --model {tiny_base} --context {tmp_path / 'notes.txt'} --out {out}"
    )
    assert made.out.rstrip().endswith(f"--state {out} --method {file}")
    asked = f"ask Who? --state {out} --json --method".split()
    (told,) = ttabench(*asked, file).json()["methods"]
    assert told["method"] == "tail"
    (same,) = ttabench(*asked, copy).json()["methods"]
    assert same["answers"] == told["answers"], "wherever it lies"
    assert "another version of the method" in error_line(ttabench(*asked, other))


SETTINGS = "\n@dataclass(frozen=True)\nclass Own:\n    value: {kind} = {value}\n"
SPEC = 'name="tail", summary="keep the last 16 tokens"'


def refused(ttabench: Command, base: Path, folder: Path, text: str, *words: object) -> str:
    """The line that refuses a file with this text as a method."""
    file = folder / "mine.py"
    file.write_text(text, encoding="utf-8")
    line = error_line(
        ttabench(
            f"eval --method {file} --task streamingqa --source mini --model {base} --limit 1 --task-set documents=1 --out {folder / 'runs'}",
            *words,
        )
    )
    assert "mine.py" in line
    return line


@pytest.mark.parametrize(
    "more",
    [
        "presets=5",
        "presets={'small': 5}",
        "recipes=5",
        "keep=5",
        "summary=None",
        "trainable='no'",
        "growth='fast'",
        *(
            f"Settings=own({kind!r}, {value!r})"
            for kind, value in (
                ("object", "object()"),
                ("Missing", "None"),
                ("float", "float('nan')"),
                ("int", "'x'"),
                ("int", "field()"),
            )
        ),
    ],
)
def test_a_field_of_a_wrong_kind_is_refused(
    ttabench: Command, tiny_base: Path, tmp_path: Path, more: str
) -> None:
    own = (
        "from __future__ import annotations\nfrom dataclasses import dataclass, field\n"
        "def own(kind, value):\n"
        "    made = {'dataclass': dataclass, 'field': field, '__name__': __name__}\n"
        f"    exec({SETTINGS!r}.format(kind=repr(kind), value=value), made)\n    return made['Own']\n"
    )
    refused(
        ttabench,
        tiny_base,
        tmp_path,
        own + FILE.replace("growth=", f"{more}, growth=", 1)
        if not more.startswith("growth")
        else own + FILE.replace('growth="constant"', more),
    )


def test_a_name_that_is_no_text_is_refused(
    ttabench: Command, tiny_base: Path, tmp_path: Path
) -> None:
    refused(ttabench, tiny_base, tmp_path, FILE.replace('name="tail"', "name=5"))


@pytest.mark.parametrize(
    ("keep", "fault"),
    [
        ("lambda amount: None", "None"),
        ("lambda amount: [1]", "[1]"),
        ("lambda amount: {}['a']", "KeyError"),
        ("lambda amount: len(amount)", "TypeError"),
        ("lambda amount: exit(0)", "SystemExit"),
        ("lambda amount: int('few')", "--keep"),
    ],
)
def test_a_budget_that_fails_is_one_line(
    ttabench: Command, tiny_base: Path, tmp_path: Path, keep: str, fault: str
) -> None:
    text = FILE.replace("growth=", f"keep={keep}, growth=", 1)
    file = tmp_path / "mine.py"
    file.write_text(text, encoding="utf-8")
    words = f"eval --method {file} --task streamingqa --keep 0.5 --model {tiny_base}".split()
    assert fault in error_line(ttabench(*words))


@pytest.mark.parametrize(
    ("place", "code"),
    [
        ("        rows = [", "        1 / 0"),
        ("        rows = [", "        raise SystemExit(0)"),
        ("        rows = [", "        return None"),
        ("        return window_patch", "        raise GeneratorExit"),
        ("        return window_patch", "        return state"),
        ("    def adapt(", "    def __init__(self, *given):\n        [][0]\n"),
        ("    def adapt(", "    def begin(self, rows):\n        return {}\n"),
    ],
)
def test_a_call_that_fails_names_the_file(
    ttabench: Command, tiny_base: Path, tmp_path: Path, place: str, code: str
) -> None:
    refused(ttabench, tiny_base, tmp_path, FILE.replace(place, f"{code}\n{place}", 1))
