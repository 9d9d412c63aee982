"""Files are written in `core/files.py` alone, and tensors and small files of others opened where they are checked."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tests.test_imports import MODULES

WRITES = re.compile(
    r"\.(?:write_text|write_bytes|touch|rename|unlink|chmod|truncate|symlink_to|hardlink_to|removedirs)\("
    r"|\b(?:rmtree|fdopen|mkstemp|mkdtemp|NamedTemporaryFile|TemporaryFile|TemporaryDirectory|copyfile|copytree|copy2"
    r"|save_file)\(|\bos\.(?:open|replace|remove|rename)\(|open\((?:[\w.]+, )?(?:mode=)?[\"'][wax]"
)
ALLOWED = {
    "core.files": WRITES.pattern,
    "records.folder": "unlink",  # what is left of a run that is whole
    "core.meter": "write_text",  # /proc/self/clear_refs, which is no file
    "core.child": "TemporaryDirectory|open",  # what a process says
    "contract.promises": "TemporaryDirectory",  # a state that is written to be read back
    "lm.loading.safetensors_io": "save_file",
    "cli.errors": "open",  # on nothing, where standard output is closed
}
"""Calls that no other module may make, and why these may."""
INTO_SCRATCH = {"save_pretrained", "savefig", "write_table", "to_parquet", "to_csv"}
"""Calls of libraries that write; they are given a file or folder of `replace_atomically`."""
IN_MEMORY = {"report.comparison_tables": {"write_table"}, "terminal.render": {"to_csv"}}
DANGERS = re.compile(
    r"^\s*(?:import|from) (?:pickle|cPickle|dill|joblib|shelve|marshal|cloudpickle)\b"
    r"|\b(?:torch|yaml)\.load\(|yaml\.unsafe_load\(|\bos\.(?:system|popen)\(|shell=True"
    r"|(?<![\w.])(?:eval|exec|compile)\(|(?:trust_remote_code|allow_pickle)=(?!False)|\bload_file\(",
    re.MULTILINE,
)
"""Pickles, shells, code from a text or a model, and safetensors read where they are not checked."""
BARE = {
    "core.files": "open read_text",  # with a limit
    "core.digests": "open",  # within `reading` of its caller
    "core.child": "open read_text",  # what a process said
    "core.plugins": "read_bytes",  # a module that is executed
    "core.environment": "read_text",
    "core.lazy": "read_bytes",  # a module of the package
    "core.meter": "read_text",
    "readers.lm_eval": "read_bytes",  # inside `lm_eval_errors`, which wraps `reading_file`
}
"""Modules that read a file without asking whether it is a plain one, and why these may."""
SOURCES = {name: path.read_text(encoding="utf-8") for name, path in MODULES.items()}


def called(node: ast.Call) -> str:
    function = node.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def outside(source: str, block: str, calls: set[str]) -> Iterator[str]:
    """Calls of methods that stand in no block of `with BLOCK...(...)`."""
    tree = ast.parse(source)
    inside: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.With):
            heads = [
                item.context_expr for item in node.items if isinstance(item.context_expr, ast.Call)
            ]
            if any(called(head).startswith(block) for head in heads):
                inside |= {id(each) for each in ast.walk(node)}
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and called(node) in calls
        ):
            owner = getattr(node.func.value, "id", "")
            if id(node) not in inside and owner not in ("os", "gzip", "webbrowser"):
                yield f"line {node.lineno}: {called(node)}"


def test_no_other_module_writes() -> None:
    found = {
        name: [
            *(
                match[0]
                for match in WRITES.finditer(source)
                if not re.search(ALLOWED.get(name, "$^"), match[0])
            ),
            *outside(source, "replace_atomically", INTO_SCRATCH - IN_MEMORY.get(name, set())),
        ]
        for name, source in SOURCES.items()
        if name != "core.files"
    }
    assert {name: lines for name, lines in found.items() if lines} == {}


def test_no_module_reads_what_may_be_a_pipe() -> None:
    calls = {"read_text", "read_bytes", "open"}
    found = {
        name: list(outside(source, "reading", calls - {*BARE.get(name, "").split()}))
        for name, source in SOURCES.items()
    }
    assert {name: lines for name, lines in found.items() if lines} == {}


def test_nothing_is_unpickled_or_run() -> None:
    found = {name: DANGERS.findall(source) for name, source in SOURCES.items()}
    known = {"methods.released": ["torch.load("]}  # of others' weights, by a command of its own
    assert {name: calls for name, calls in found.items() if calls} == known
    assert re.findall(r"torch\.load\(.*", SOURCES["methods.released"])[0].endswith(
        "weights_only=True)"
    )
