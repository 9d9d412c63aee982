"""Methods of other packages may use the names of earlier versions, with a DeprecationWarning."""

from __future__ import annotations

from typing import Any

import pytest

from ttabench.core import types
from ttabench.methods import base, registry
from ttabench.methods.base import RENAMED_ATTRIBUTES, Method
from ttabench.methods.parts import kept
from ttabench.methods.spec import RENAMED_FIELDS, MethodSpec
from ttabench.stats import estimate


@pytest.mark.parametrize("old", RENAMED_FIELDS)
def test_spec_accepts_renamed_field(old: str) -> None:
    given: dict[str, Any] = {"name": "mine", old: "value"}
    with pytest.warns(DeprecationWarning, match=f"{old} is now {RENAMED_FIELDS[old]}"):
        spec = MethodSpec(**given)
    assert getattr(spec, RENAMED_FIELDS[old]) == "value"


@pytest.mark.parametrize(
    ("old", "given", "expected"),
    [("reads", "run", "segment"), ("one_reader", True, False), ("needs", ("cache",), ("cache",))],
)
def test_method_accepts_renamed_attribute(old: str, given: object, expected: object) -> None:
    new = RENAMED_ATTRIBUTES[old]
    with pytest.warns(DeprecationWarning, match=old):
        in_class: Any = type("InClass", (Method,), {old: given})
    assert getattr(in_class, new) == expected
    plain: Any = type("InInit", (Method,), {})
    method = plain.__new__(plain)
    with pytest.warns(DeprecationWarning, match=old):
        setattr(method, old, given)
    assert getattr(method, new) == expected


RENAMED = {
    base: {"BaseMethod": "Method"},
    types: {"Ask": "Query", "Observe": "Chunk"},
    registry: {"find": "find_method", "cost_of": "compute_cost"},
    estimate: {"Apart": "PairedDifference"},
    kept: kept.RENAMED_FUNCTIONS,
}


@pytest.mark.parametrize(
    ("module", "names"), RENAMED.items(), ids=lambda one: getattr(one, "__name__", "")
)
def test_module_has_renamed_objects(module: Any, names: dict[str, str]) -> None:
    for old, new in names.items():
        with pytest.warns(DeprecationWarning, match=old):
            assert getattr(module, old) is getattr(module, new)
    with pytest.raises(AttributeError, match="nope"):
        _ = module.nope
