"""Imports follow the order of packages, and fast commands import nothing heavy."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.places import ROOT

PACKAGE = ROOT / "ttabench"

PACKAGES = tuple(
    "cli extend sweep profiling harness report training run contract methods readers mini records lm stats cost"
    " terminal core".split()
)
"""From top to bottom: a package imports from itself and from those after it."""
FOLDERS = ("inference", "forward", "", "loading", "texts", "attention")
"""Subpackages of `lm` in the same order; "" for its own modules."""
HEAVY = ("torch", "transformers", "pandas", "datasets", "numpy", "pyarrow")


def modules() -> dict[str, Path]:
    """Return all modules by name, without `ttabench.`; a package has its own name."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        inside = path.relative_to(PACKAGE).with_suffix("").parts
        if inside[0] == "assets":
            continue
        found[".".join(inside[:-1] if inside[-1] == "__init__" else inside)] = path
    return found


MODULES = modules()


def imported(path: Path) -> Iterator[str]:
    """Yield the modules of ttabench that a module imports anywhere, including for types."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module:
            inside = (f"{node.module}.{alias.name}" for alias in node.names)
            names = [
                name if name.removeprefix("ttabench.") in MODULES else node.module
                for name in inside
            ]
        yield from (
            name.removeprefix("ttabench.") for name in names if name.startswith("ttabench.")
        )


IMPORTED = {name: list(imported(path)) for name, path in MODULES.items()}


def package(module: str) -> str:
    return module.split(".")[0]


def test_every_package_is_listed() -> None:
    assert {package(name) for name in MODULES} - {"", "__main__"} == set(PACKAGES)


def test_packages_import_downwards() -> None:
    for name in (name for name in MODULES if package(name) in PACKAGES):
        for other in IMPORTED[name]:
            assert PACKAGES.index(package(other)) >= PACKAGES.index(package(name)), (
                f"{name} imports {other}, which is above it"
            )


def folder(module: str) -> str:
    """Return the folder of a module of `lm`; "" for one outside of folders."""
    inside = module.split(".")[1:]
    return inside[0] if inside and (len(inside) > 1 or inside[0] in FOLDERS) else ""


def test_folders_of_lm_import_downwards() -> None:
    for name in (name for name in MODULES if package(name) == "lm"):
        for other in IMPORTED[name]:
            if package(other) == "lm":
                assert FOLDERS.index(folder(other)) >= FOLDERS.index(folder(name)), (
                    f"{name} imports {other}"
                )


def test_there_are_no_import_cycles() -> None:
    arrows = {name: set(others) - {name} for name, others in IMPORTED.items()}
    while bare := [name for name, others in arrows.items() if not others]:
        arrows = {name: others - set(bare) for name, others in arrows.items() if others}
    assert not arrows, f"cycles among {sorted(arrows)}"


LIGHT = (
    "--help",
    "eval --help",
    "report --help",
    "sweep --help",
    "--version",
    "list models",
    "list methods mac",
    "profile --analytic --prefill 1k",
)
REFUSED = (
    "ask Who? --state nowhere",
    "ask Who? --context README.md --method nope",
    "adapt --context README.md --device bogus",
    "profile --methods mac --set hierarchy=wide",
    "train --method mac --task streamingqa --set hierarchy=wide",
    "train --method mac --task streamingqa --documents 0",
    "adapt --method mac --context README.md --set hierarchy=wide",
)


def test_fast_commands_import_nothing_heavy() -> None:
    """Run all commands in one process; an import by one would be seen after the next."""
    done = run_light(*LIGHT, *REFUSED)
    assert [int(code) for code in done.stdout.splitlines()[-1].split()] == [0] * len(LIGHT) + [
        2
    ] * len(REFUSED)
    assert done.returncode == 0, done.stderr


def test_rejected_setting_and_stored_run_import_nothing_heavy(tmp_path: Path) -> None:
    words = f"eval --method none --task streamingqa --limit 2 --out {tmp_path} --quiet"
    refused = run_light(f"{words} --set nope=1")
    assert refused.returncode == 2, refused.stderr
    assert "nope" in refused.stderr
    first = subprocess.run(
        [sys.executable, "-m", "ttabench", *words.split()],
        capture_output=True,
        text=True,
        cwd=PACKAGE.parent,
        check=True,
        timeout=300,
    )
    again = run_light(words)
    assert again.returncode == 0, again.stderr
    assert again.stdout == first.stdout
    sweep = f"sweep --methods none --tasks streamingqa --limit 2 --out {tmp_path} --quiet"
    assert run_light(sweep).stdout == first.stdout
    assert "nope" in run_light(f"{sweep} --set nope=1").stderr


def test_the_help_imports_no_command() -> None:
    code = (
        "import sys\nfrom ttabench.cli.app import COMMANDS, run\nrun(['--help'])\n"
        "print(*(name for name in COMMANDS if f'ttabench.cli.{name}' in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "", done.stderr


def run_light(*commands: str) -> subprocess.CompletedProcess[str]:
    """Run commands in one process that fails on a heavy import. Several print their exit codes."""
    code = (
        "import sys\nfrom ttabench.cli.app import run\ncodes = []\n"
        f"for words in {[words.split() for words in commands]!r}:\n"
        "    codes.append(run(words))\n"
        f"    heavy = [name for name in {HEAVY!r} if name in sys.modules]\n"
        "    assert not heavy, (words, heavy)\n"
        "if len(codes) > 1:\n    print(*codes)\n"
        "sys.exit(codes[0] if len(codes) == 1 else 0)"
    )
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=PACKAGE.parent,
        timeout=300,
    )
