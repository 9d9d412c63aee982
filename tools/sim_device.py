"""Simulated second device: importing this module adds the device "sim" to torch.

    x = torch.ones(2, device="sim"); x + torch.ones(2)        RuntimeError: sim: aten.add.Tensor mixes devices

Its tensors wrap CPU tensors, and the CPU computes every operation. It rejects what CUDA rejects
(tensors or generators of two devices) and what mps rejects (float64). Random numbers equal those of
the CPU. Use it in a separate process: it renames the PrivateUse1 backend until the process ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor
from torch.utils import backend_registration
from torch.utils._pytree import tree_leaves, tree_map

NAME = "sim"
DEVICE = torch.device("cpu")
"""The device, after its registration at the end of this module."""
COPIES = ("aten::copy_", "aten::_to_copy")
"""Operations that copy tensors between devices."""
INDEXED = (
    "aten::index",
    "aten::index_put",
    "aten::index_put_",
    "aten::_index_put_impl_",
    "aten::_unsafe_index",
    "aten::_unsafe_index_put",
)
"""Operations with indices as second argument, which may be on the CPU."""
JOINS = ("aten::cat", "aten::stack")
"""Operations that reject scalar tensors on the CPU."""


class Backend(backend_registration._DummyBackendModule):
    """The module `torch.sim`."""

    @staticmethod
    def get_amp_supported_dtype() -> list[torch.dtype]:
        """Return dtypes for activation checkpointing."""
        return [torch.bfloat16, torch.float16]

    def get_rng_state(self, device: object = NAME) -> Tensor:  # noqa: ARG002  # the interface of torch.cuda
        """Return the random state of the CPU."""
        return torch.get_rng_state()

    def set_rng_state(self, state: Tensor, device: object = NAME) -> None:  # noqa: ARG002
        """Set the random state of the CPU."""
        torch.set_rng_state(state)


_TorchGenerator: Any = torch._C.Generator  # its attribute `_cdata` is not declared


class Generator(_TorchGenerator):  # type: ignore[misc]
    """A generator of any device. On the simulated device, it draws the numbers of the CPU."""

    def __new__(cls, device: torch.device | str = "cpu") -> Generator:
        """Create a generator; the CPU draws for the simulated device."""
        is_simulated = torch.device(device).type == NAME
        generator: Generator = super().__new__(cls, "cpu" if is_simulated else device)
        if is_simulated:
            _GENERATORS[generator._cdata] = generator
        return generator

    @property
    def device(self) -> torch.device:
        """The device of the drawn numbers."""
        return DEVICE if self._cdata in _GENERATORS else torch._C.Generator.device.__get__(self)


_GENERATORS: WeakValueDictionary[int, Generator] = WeakValueDictionary()
"""Generators of the simulated device by the address that operations receive."""


class SimTensor(Tensor):
    """A tensor of the device: a wrapper without memory around the CPU tensor `raw`."""

    raw: Tensor

    @staticmethod
    def wrap(raw: Tensor) -> SimTensor:
        """Wrap a CPU tensor and share its memory."""
        if raw.dtype == torch.float64:
            raise TypeError("sim has no float64")
        wrapper: SimTensor = Tensor._make_wrapper_subclass(
            SimTensor,
            raw.size(),
            raw.stride(),
            raw.storage_offset(),
            dtype=raw.dtype,
            device=DEVICE,
        )
        wrapper.raw = raw
        return wrapper

    def tolist(self) -> Any:
        """Return the values."""
        return self.cpu().tolist()

    def __repr__(self, *, tensor_contents: object = None) -> str:  # type: ignore[override]
        return f"{self.raw!r} on {self.device}"

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls,
        op: Any,
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        return _execute(op, args, kwargs or {})


def _execute(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Execute an operation with a tensor of the device, or with a result on it."""
    leaves = tree_leaves((args, kwargs))
    simulated = [leaf for leaf in leaves if isinstance(leaf, SimTensor)]
    to = torch.device(kwargs["device"]) if kwargs.get("device") is not None else None
    stays = to.type == NAME if to is not None else bool(simulated)
    for leaf in leaves:
        if stays and isinstance(leaf, _TorchGenerator) and leaf._cdata not in _GENERATORS:
            raise RuntimeError(f"sim: {op} got a generator of another device")
    if simulated and op._schema.name not in COPIES:
        _check(op, args, leaves)
    if to is not None:
        kwargs = {**kwargs, "device": "cpu"}
    result = op(*tree_map(_raw, args), **tree_map(_raw, kwargs))
    own = {id(tensor.raw): tensor for tensor in simulated}
    for tensor in simulated:
        if tensor.raw.shape != tensor.shape:  # `t_()`
            with torch._C._DisableTorchDispatch():
                tensor.as_strided_(tensor.raw.size(), tensor.raw.stride())
    if op._schema.name == "aten::copy_":
        return args[0]

    def placed(value: object) -> object:
        if not isinstance(value, Tensor) or not stays:
            return value
        return own.get(id(value)) if id(value) in own else SimTensor.wrap(value)

    return tree_map(placed, result)


def _raw(value: object) -> object:
    return value.raw if isinstance(value, SimTensor) else value


def _check(op: Any, args: tuple[Any, ...], leaves: list[Any]) -> None:
    """Reject tensors that CUDA rejects together."""
    name = op._schema.name
    if name in INDEXED and isinstance(args[0], SimTensor):
        leaves = tree_leaves((args[0], args[2:]))
    off = [leaf for leaf in leaves if isinstance(leaf, Tensor) and not isinstance(leaf, SimTensor)]
    written = [
        arg
        for arg, declared in zip(args, op._schema.arguments, strict=False)
        if declared.alias_info is not None and declared.alias_info.is_write
    ]
    if any(
        tensor.dim() or name in JOINS or tensor is place
        for tensor in off
        for place in [*written, None]
    ):
        shapes = ", ".join(
            f"{tuple(leaf.shape)} on {leaf.device}" for leaf in leaves if isinstance(leaf, Tensor)
        )
        raise RuntimeError(f"sim: {op} mixes devices: {shapes}")


def _factories() -> Iterator[tuple[str, Any]]:
    """Yield operations that create tensors, with their names in torch.library."""
    for full in torch._C._dispatch_get_all_op_names():
        space, _, name = full.partition("::")
        packet, _, overload = name.partition(".")
        if space != "aten" or torch._C._dispatch_has_kernel_for_dispatch_key(
            full, "CompositeImplicitAutograd"
        ):
            continue
        op = getattr(getattr(torch.ops.aten, packet), overload or "default")
        arguments = op._schema.arguments
        if any(one.name == "device" for one in arguments) and not any(
            "Tensor" in str(one.type) for one in arguments
        ):
            yield name, op


def _copy_from(source: Tensor, to: Tensor, non_blocking: bool = False) -> Tensor:  # noqa: ARG001
    """Copy a tensor to the device: `torch.tensor([1], device="sim")`."""
    torch.ops.aten.copy_(_raw(to), _raw(source))
    return to


def _kernel(op: Any) -> Callable[..., Any]:
    return lambda *args, **kwargs: _execute(op, args, kwargs)


backend_registration._setup_privateuseone_for_python_backend(NAME, backend_module=Backend())
DEVICE = torch.device(NAME, 0)
torch.__future__.set_swap_module_params_on_conversion(
    True
)  # `module.to("sim")` keeps tied parameters tied
torch.Generator = Generator  # type: ignore[assignment,misc]
torch.accelerator.synchronize = lambda _: None  # type: ignore[assignment,misc]  # a backend in Python has no streams
_library = torch.library.Library("aten", "IMPL", "PrivateUse1")  # type: ignore[no-untyped-call]
_library.impl("_copy_from", _copy_from)  # type: ignore[no-untyped-call]
for _name, _op in _factories():
    _library.impl(_name, _kernel(_op))  # type: ignore[no-untyped-call]
