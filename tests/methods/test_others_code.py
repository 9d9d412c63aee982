"""Methods and tasks of other people: a package that is installed, and a single file; nothing of ttabench is edited."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Command, one_line
from tests.places import ROOT
from ttabench.core.errors import UserError
from ttabench.profiling.job import Job, choose, identity

PLUGIN = Path(__file__).parent / "plugin"
ENTRIES = """[ttabench.methods]
notebook = notebook:NOTEBOOK
broken = notebook.missing:NOTHING
nowhere = notebook:NOWHERE
astray = notebook:ASTRAY
icl = notebook:NOTEBOOK

[ttabench.readers]
pairs = notebook.pairs:read

[ttabench.metrics]
opening = notebook.metrics:opening
adrift = notebook.metrics:opening_of
"""
FILE = '''
from dataclasses import replace
from itertools import chain

from ttabench.lm.forward.tokens import new_ids
from ttabench.methods.base import BaseMethod
from ttabench.methods.parts.newest import appended, window_of
from ttabench.methods.spec import MethodSpec


class Tail(BaseMethod):
    """The last 16 tokens."""

    spec = MethodSpec(name="tail", summary="keep the last 16 tokens", growth="constant")

    def adapt(self, state, pieces):
        rows = [list(chain(*row)) for row in new_ids(self.lm, state, pieces)]
        read = [before + len(new) for before, new in zip(state.meta["tokens_read"], rows)]
        return replace(state, tensors=appended(self.lm, state.tensors, rows, 16), meta={"tokens_read": read})

    def patch(self, state, asks):
        return window_of(state.tensors)
'''


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which pip has installed the package."""
    folder = tmp_path_factory.mktemp("plugin")
    wheel = folder / "notebook-1.2-py3-none-any.whl"
    info = "notebook-1.2.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path in sorted((PLUGIN / "notebook").glob("*.py")):
            archive.write(path, f"notebook/{path.name}")
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: notebook\nVersion: 1.2\n")
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/entry_points.txt", ENTRIES)
        archive.writestr(f"{info}/RECORD", "")
    words = ["pip", "install", "--quiet", "--no-index", "--no-deps", "--target", str(folder / "site"), str(wheel)]
    subprocess.run([sys.executable, "-m", *words], check=True, timeout=120, capture_output=True)
    rows = [{"fact": f"Ship {n} is called Tern {n}.", "question": f"What is ship {n} called?", "answer": f"Tern {n}"}
            for n in range(6)]  # fmt: skip
    (folder / "facts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return folder


@pytest.fixture
def typed(installed: Path, tiny_base: Path, tmp_path: Path) -> Any:
    """Runs a command where the package is installed; returns what it printed."""

    def run(*words: object) -> subprocess.CompletedProcess[str]:
        paths = os.pathsep.join([str(installed / "site"), os.environ.get("PYTHONPATH", "")])
        known = {"{base}": tiny_base, "{data}": installed / "facts.jsonl", "{card}": PLUGIN / "facts.yaml"}
        texts = [str(known.get(str(word), word)) for word in words]
        variables = {**os.environ, "PYTHONPATH": paths}
        command = [sys.executable, "-m", "ttabench", *texts]
        return subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=variables, timeout=300)

    return run


def good(done: subprocess.CompletedProcess[str]) -> Any:
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


FACTS = ("--task", "{card}", "--source", "{data}", "--model", "{base}")


def test_a_package_is_listed_evaluated_compared_profiled_and_trained(typed: Any, tmp_path: Path) -> None:
    listed = typed("list", "methods", "--json")
    methods = {row["method"]: row for row in good(listed)["methods"]}
    assert methods["notebook"]["trainable"] is True
    assert methods["icl"]["summary"].startswith("full context"), "nobody takes the name of ttabench's own"
    assert "'broken' of notebook==1.2 cannot be loaded (ModuleNotFoundError" in listed.stderr
    trained = good(typed("train", "--method", "notebook", *FACTS, "--steps", 2, "--out", tmp_path / "made", "--json"))
    assert trained["steps"] == 2
    words = ("--method", "notebook", *FACTS, "--checkpoint", tmp_path / "made", "--out", tmp_path / "runs", "--json")
    (run,) = good(typed("eval", *words))["runs"]
    assert (run["config"]["method"], run["config"]["task"]) == ("notebook", "facts")
    assert re.fullmatch(r"notebook==1\.2 \(code [0-9a-f]{12}\)", run["config"]["inputs"]["method"])
    assert re.fullmatch(r"notebook==1\.2 \(code [0-9a-f]{12}\)", run["config"]["inputs"]["reader"])
    assert re.fullmatch(r"notebook==1\.2 \(code [0-9a-f]{12}\)", run["config"]["inputs"]["metric opening"])
    assert "opening" in {row["metric"] for row in run["rows"]}, "the card names it"
    (again,) = good(typed("eval", *words))["runs"]
    assert again["id"] == run["id"]
    good(typed("eval", "--method", "none", *FACTS, "--out", tmp_path / "runs", "--json"))
    compared = good(typed("compare", "--out", tmp_path / "runs", "--json"))
    assert {row["method"] for row in compared["runs"]} == {"notebook", "none"}
    words = ("profile", "--methods", "notebook", "--model", "{base}", "--prefill", "32", "--generate", 2)
    assert good(typed(*words, "--repeat", 1, "--out", tmp_path / "profiles", "--json"))
    on_paper = good(typed("profile", "--analytic", "--methods", "notebook", "--prefill", "1k", "--json"))
    assert next(iter(on_paper.values()))[0]["implemented"] is True


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--method", "broken"), "Mend or uninstall notebook==1.2"),
        (("--method", "nowhere"), "has where='', which is no package.module:Class. Mend or uninstall notebook==1.2"),
        (
            ("--method", "astray"),
            "notebook.method:Missing, the class of method astray, cannot be loaded (AttributeError",
        ),
        (
            ("--metric", "adrift"),
            "ttabench.metrics 'adrift' of notebook==1.2 takes (prediction), not (prediction, ask)",
        ),
        (("--metric", "openning"), "Did you mean 'opening'?"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_what_cannot_be_used_is_said_in_a_line(typed: Any, words: tuple[str, ...], told: str) -> None:
    done = typed("eval", *words, *FACTS)
    assert (done.returncode, done.stdout) == (2, "")
    assert told in done.stderr
    assert "Traceback" not in done.stderr


def test_a_file_is_a_method(ttabench: Command, tiny_base: Path, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(FILE, encoding="utf-8")
    words = ("eval", "--method", file, "--task", "streamingqa", "--source", "mini", "--model", tiny_base,
             "--limit", "2", "--task-set", "documents=2", "--out", tmp_path / "runs", "--json")  # fmt: skip
    (run,) = ttabench(*words).json()["runs"]
    assert run["config"]["method"] == "tail"
    assert run["config"]["inputs"]["method"]
    (again,) = ttabench(*words).json()["runs"]
    assert again["id"] == run["id"]
    file.write_text(f"print('read')\n{FILE.replace('16)', '12)')}", encoding="utf-8")
    changed = subprocess.run([sys.executable, "-m", "ttabench", *map(str, words)], capture_output=True, text=True,
                             check=True, cwd=ROOT, timeout=120)  # fmt: skip
    (other,) = json.loads(changed.stdout)["runs"]
    assert other["id"] != run["id"], "another file is another method"
    shown = ttabench("list", "methods", file)
    assert "settings of" in shown.out


def test_a_state_of_a_file_is_asked_with_the_file_that_the_user_names(
    ttabench: Command, tiny_base: Path, tmp_path: Path
) -> None:
    file, copy, other = (tmp_path / name for name in ("mine.py", "copy.py", "other.py"))
    for path, text in ((file, FILE), (copy, FILE), (other, FILE.replace("16)", "12)"))):
        path.write_text(text, encoding="utf-8")
    (tmp_path / "notes.txt").write_text("Ada Voss lives in Port Ansel.")
    out = tmp_path / "state"
    made = ttabench("adapt", "--method", file, "--model", tiny_base, "--context", tmp_path / "notes.txt", "--out", out)
    assert made.out.rstrip().endswith(f"--state {out} --method {file}")
    asked = ("ask", "Who?", "--state", out, "--json", "--method")
    (told,) = ttabench(*asked, file).json()["methods"]
    assert told["method"] == "tail"
    (same,) = ttabench(*asked, copy).json()["methods"]
    assert same["answers"] == told["answers"], "wherever it lies"
    assert "another version of the method" in one_line(ttabench(*asked, other))


def test_an_edited_helper_of_a_file_is_another_run(tiny_base: Path, tmp_path: Path) -> None:
    """Also one that is imported only when the method works; the same command twice is one run."""
    (tmp_path / "mine.py").write_text(FILE.replace("        rows =", "        import widths\n        rows ="))
    (tmp_path / "widths.py").write_text("WIDTH = 16\n")
    words = ["eval", "--method", "./mine.py", "--task", "streamingqa", "--model", str(tiny_base), "--source", "mini",
             "--task-set", "documents=2", "--dry-run", "--json"]  # fmt: skip

    def run_id() -> str:
        command = [sys.executable, "-m", "ttabench", *words]
        variables = {**os.environ, "PYTHONPATH": str(tmp_path)}
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=variables, timeout=300)
        return str(good(done)["runs"][0]["id"])

    before = run_id()
    assert run_id() == before
    (tmp_path / "widths.py").write_text("WIDTH = 17\n")
    assert run_id() != before


def test_a_file_is_profiled_under_the_name_of_its_method(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(FILE, encoding="utf-8")
    chosen = choose(str(file))
    assert chosen["tail"]["method"] == str(file)
    before = Job(chosen=chosen, lengths=(32,)).config()
    assert list(before["methods"]) == ["tail"]
    copy = tmp_path / "copy.py"
    copy.write_text(FILE + "# changed", encoding="utf-8")
    after = Job(chosen=choose(str(copy)), lengths=(32,)).config()
    assert identity(before, {}) != identity(after, {}), "another file is another method"
    with pytest.raises(UserError, match="are both called tail"):
        choose(f"{file},{copy}")


@pytest.mark.parametrize(
    ("text", "name", "told"),
    [
        ("", "a.py", "a.py holds no method."),
        ("\nimport no_such_package\n", "c.py", "c.py, line 2: ModuleNotFoundError: No module named 'no_such_package'"),
        (FILE, "d.py:head", "Unknown method in "),
        (FILE + FILE.replace("Tail", "Head").replace('"tail"', '"head"'), "e.py", "several methods: tail, head."),
        (None, "f.py", "There is no file"),
        (FILE.replace('"tail"', '"icl"'), "g.py", "Tail has a name of ttabench's own, icl"),
        (FILE.replace('"tail"', '"../tail"'), "h.py", "may hold lower-case letters"),
        (FILE.replace('growth="constant"', "Settings=int"), "j.py", "Settings that are no dataclass"),
        (FILE.replace("def patch", "def other"), "k.py", "Tail has no adapt or no patch of its own"),
    ],
)
def test_a_file_without_a_method_is_refused(
    text: str | None, name: str, told: str, ttabench: Command, tmp_path: Path
) -> None:
    if text is not None:
        (tmp_path / name.partition(":")[0]).write_text(text, encoding="utf-8")
    assert told in one_line(ttabench("eval", "--method", tmp_path / name, "--task", "streamingqa"))


def test_a_file_that_was_named_without_its_ending_is_pointed_at(
    ttabench: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("raise SystemExit('executed')\n", encoding="utf-8")
    said = one_line(ttabench("check", "mine"))
    assert said == "Error: Unknown method 'mine'. Did you mean the file './mine.py'?"
    assert "Did you mean 'mac'?" in one_line(ttabench("check", "macc"))
    assert "Unknown method" in one_line(ttabench("check", "m" * 400)), "too long for a name of a file"
