"""Files are written in `core/files.py` alone, and tensors and small files of others opened where they are checked."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests.test_imports import MODULES

WRITER = "core.files"
ALLOWED = {
    "records.folder": "unlink",  # what is left of a run that is whole
    "core.meter": "write_text",  # /proc/self/clear_refs, which is no file
    "core.child": "TemporaryDirectory open",  # what a process says
    "methods.states": "mkdtemp",  # beside what it becomes
    "contract.promises": "TemporaryDirectory",  # a state that is written to be read back
    "lm.loading.safetensors_io": "save_file",
    "cli.ending": "open",  # on nothing, where standard output is closed
}
"""Calls that no other module may make, and why these may."""
WRITES = set(
    "write_text write_bytes touch rename unlink rmtree chmod truncate symlink_to hardlink_to fdopen mkstemp mkdtemp"
    " NamedTemporaryFile TemporaryFile TemporaryDirectory copyfile copytree copy2 removedirs save_file".split()
)
INTO_SCRATCH = {"save_pretrained", "savefig", "write_table", "to_parquet", "to_csv", "to_json", "save"}
"""Calls of libraries that write; they are given a file or folder of `replacing`, `replacing_folder` or
`replacing_folder`."""
READERS = {"safe_open": "lm.loading.safetensors_io", "load_file": None}
"""Calls that read tensors, and the module that may make them."""
FORBIDDEN = {("torch", "load"), ("os", "system"), ("os", "popen"), ("yaml", "load"), ("yaml", "unsafe_load")}
CODE = {"eval", "exec", "compile"}
PICKLES = {"pickle", "cPickle", "dill", "joblib", "shelve", "marshal", "cloudpickle"}


def called(node: ast.Call) -> str:
    function = node.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def mode_of(node: ast.Call) -> str:
    """The mode of a call of `open`; "r" where none is given."""
    first = 0 if isinstance(node.func, ast.Attribute) and getattr(node.func.value, "id", "") != "gzip" else 1
    given = [word.value for word in node.keywords if word.arg == "mode"] or node.args[first : first + 1]
    return str(given[0].value) if given and isinstance(given[0], ast.Constant) else "r" if not given else "w"


def writes(name: str, tree: ast.AST) -> Iterator[str]:
    """What a module calls that writes, outside `core.files`."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        what = called(node)
        if what in WRITES and what not in ALLOWED.get(name, "").split():
            yield f"line {node.lineno}: {what}"
        elif what == "open" and "open" in ALLOWED.get(name, "").split():
            continue
        elif what == "open" and set(mode_of(node)) & set("wax+"):
            yield f"line {node.lineno}: open to write"
        elif what == "open" and isinstance(node.func, ast.Attribute) and getattr(node.func.value, "id", "") == "os":
            yield f"line {node.lineno}: os.open"
        elif what in ("replace", "remove", "rename") and getattr(getattr(node.func, "value", None), "id", "") == "os":
            yield f"line {node.lineno}: os.{what}"
        elif what == "replace" and isinstance(node.func, ast.Attribute) and len(node.args) == 1 and not node.keywords:
            if getattr(node.func.value, "id", "") == "journal":  # ours, which uses `files`
                continue
            yield f"line {node.lineno}: replace, which renames a file"


def within(tree: ast.AST, name: str) -> set[int]:
    """All that stands in a block of `with NAME...(...)`, by its id."""
    inside: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.With):
            calls = [item.context_expr for item in node.items if isinstance(item.context_expr, ast.Call)]
            if any(called(call).startswith(name) for call in calls):
                inside |= {id(each) for each in ast.walk(node)}
    return inside


def outside_scratch(tree: ast.AST) -> Iterator[str]:
    """Calls of libraries that write, and stand in no block of `replacing`."""
    inside = within(tree, "replacing")
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and called(node) in INTO_SCRATCH and id(node) not in inside and node.args:
            whose = getattr(getattr(node.func, "value", None), "id", "")
            memory = node.args[1:] and getattr(node.args[1], "id", "") == "file"  # a buffer of pyarrow
            if whose not in ("checkpoints", "kind") and not memory:  # ours, which use `files`
                yield f"line {node.lineno}: {called(node)}"


BARE = {
    "core.digests": "open",  # within `reading` of its caller
    "core.checked_file": "read_text",  # with a limit
    "core.child": "open read_text",  # what a process said
    "core.plugins": "read_bytes",  # a module that is executed
    "core.meter": "read_text",  # of /proc
    "core.environment": "read_text",
    "core.memory": "read_text",
}
"""Modules that read a file without asking whether it is a plain one, and why these may."""


def bare_reads(name: str, tree: ast.AST) -> Iterator[str]:
    """Files that are read outside `reading`: a pipe would be waited for, a device read without end."""
    inside = within(tree, "reading")
    for node in ast.walk(tree):
        what = called(node) if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else ""
        if what in ("read_text", "read_bytes", "open") and what not in BARE.get(name, "").split():
            owner = node.func.value  # type: ignore[attr-defined]  # an attribute, by the line above
            if id(node) not in inside and getattr(owner, "id", "") not in ("os", "gzip", "webbrowser"):
                yield f"line {node.lineno}: {what}"  # type: ignore[attr-defined]


TREES = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in MODULES.items()}


def test_no_other_module_writes() -> None:
    found = {name: [*writes(name, tree), *outside_scratch(tree)] for name, tree in TREES.items() if name != WRITER}
    assert {name: lines for name, lines in found.items() if lines} == {}


def test_no_module_reads_what_may_be_a_pipe() -> None:
    found = {name: list(bare_reads(name, tree)) for name, tree in TREES.items() if name != WRITER}
    assert {name: lines for name, lines in found.items() if lines} == {}


def dangers(name: str, tree: ast.AST) -> Iterator[str]:
    """Pickles, shells, code from a text or a model, and safetensors read where they are not checked."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names] + [getattr(node, "module", "") or ""]
            yield from (each for each in names if each.split(".")[0] in PICKLES)
        if not isinstance(node, ast.Call):
            continue
        what, whose = called(node), getattr(getattr(node.func, "value", None), "id", "")
        told = {word.arg: getattr(word.value, "value", None) for word in node.keywords}
        if (whose, what) in FORBIDDEN or told.get("shell") or (isinstance(node.func, ast.Name) and what in CODE):
            yield f"line {node.lineno}: {whose}.{what}"
        if what in READERS and READERS[what] != name:
            yield f"line {node.lineno}: {what}"
        if any(word in told and told[word] is not False for word in ("trust_remote_code", "allow_pickle")):
            yield f"line {node.lineno}: {what} may run code"


def test_nothing_is_unpickled_or_run() -> None:
    found = {name: list(dangers(name, tree)) for name, tree in TREES.items()}
    assert {name: lines for name, lines in found.items() if lines} == {}


@pytest.mark.parametrize(
    "line",
    ["import pickle", "from joblib import load", "torch.load(p)", "eval(text)", "run(words, shell=True)",
     "np.load(p, allow_pickle=True)", "os.system(a)", "load_file(p)", "f(trust_remote_code=asked)"],
)  # fmt: skip
def test_what_is_dangerous_is_seen(line: str) -> None:
    assert list(dangers("anywhere", ast.parse(line)))


@pytest.mark.parametrize(
    "line",
    [
        "path.open('w')", "open(path, 'ab')", "path.open(mode='x')", "os.open(path, 1)", "path.write_text('a')",
        "path.replace(other)", "os.replace(a, b)", "shutil.rmtree(path)", "save_file(tensors, path)",
        "gzip.open(path, 'wb')", "path.open(mode=given)",
    ],
)  # fmt: skip
def test_what_writes_is_seen(line: str) -> None:
    assert list(writes("anywhere", ast.parse(line)))
