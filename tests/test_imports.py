"""Imports point down only, and what must answer at once imports nothing heavy."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "ttabench"

LEVELS = (
    ("types", "errors", "environment", "architectures"),
    (
        "records",
        "metrics",
        "aggregation",
        "bootstrap",
        "config",
        "cost",
        "store",
        "locks",
        "startup",
        "finding",
        "printable",
        "partial",
        "samples",
        "meter",
        "registry",
        "render",
        "bars",
        "progress",
        "mini",
        "finite",
        "gguf_header",
        "batching",
    ),
    (
        "lm",
        "chat",
        "texts",
        "hub",
        "loading",
        "gguf_files",
        "gguf_copies",
        "patching",
        "stream",
        "deltas",
        "window",
        "attention",
        "fused",
        "lean",
        "packed",
        "slots",
        "head",
        "recompute",
    ),
    ("scoring", "forcing", "generation", "layers", "answering"),
    ("methods", "readers"),
    (
        "runner",
        "training",
        "training_config",
        "saves",
        "swapping",
        "profiling",
        "analytic",
        "states",
        "recording",
        "peft_export",
        "standing",
        "state_folder",
    ),
    ("resolving", "asking", "evaluation", "reading", "compare", "pairing", "harness"),
    ("cli", "options", "commands", "train_command", "listing", "tables", "duration", "plots", "__main__"),
)
UPPER = {
    "profiling.job": "resolving",
    "profiling.worker": "resolving",
    "profiling.driver": "resolving",
    "profiling.picture": "plots",
    "profiling.command": "cli",
}
"""Modules of a folder that stand above its other modules, and with whom."""
RECIPES = ("mini.nano", "mini.figures", "mini.card", "mini.lessons", "mini.teaching")
"""Modules of the miniature world that make and measure the nano model; they stand above what they use."""
LEVEL = {name: level for level, names in enumerate(LEVELS) for name in names}
LEVEL |= {name: LEVEL[beside] for name, beside in UPPER.items()}
LEVEL |= dict.fromkeys(RECIPES, len(LEVELS) - 2)
HEAVY = ("torch", "transformers", "pandas", "datasets", "numpy", "pyarrow")


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def part(path: Path) -> str:
    """The part of the package a module belongs to: itself where it has its own level, its folder, or its name."""
    inside = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(inside) if ".".join(inside) in LEVEL else inside[0]


def imported(tree: ast.AST) -> Iterator[str]:
    """Parts of the package that a module imports at run time, inside functions too."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module:
            inside = node.module == "ttabench"
            names = [f"ttabench.{alias.name}" for alias in node.names] if inside else [node.module]
        found = [name.removeprefix("ttabench.") for name in names if name.startswith("ttabench.")]
        yield from (name if name in LEVEL else name.split(".")[0] for name in found)
        yield from imported(node)


def test_every_level_names_modules_that_exist() -> None:
    for name in LEVEL:
        place = PACKAGE.joinpath(*name.split("."))
        assert place.with_suffix(".py").is_file() or place.is_dir(), f"there is no module {name}"


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_down(path: Path) -> None:
    if path == PACKAGE / "__init__.py":
        return
    assert part(path) in LEVEL, f"{path} stands on no level; add it to LEVELS"
    own = LEVEL[part(path)]
    for name in imported(ast.parse(path.read_text(encoding="utf-8"))):
        if name in LEVEL:
            assert LEVEL[name] <= own, f"{part(path)} (level {own}) imports {name} (level {LEVEL[name]})"


@pytest.mark.parametrize(
    "arguments", [["--help"], ["eval", "--help"], ["train", "--help"], ["list", "models"], ["--version"]], ids=" ".join
)
def test_help_imports_nothing_heavy(arguments: list[str]) -> None:
    code = (
        "import sys\nfrom ttabench.cli import run\n"
        f"code = run({arguments!r})\n"
        f"heavy = [name for name in {HEAVY!r} if name in sys.modules]\n"
        "assert not heavy, heavy\nsys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=PACKAGE.parent, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
