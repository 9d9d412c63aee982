"""A second device without a chip: importing this module gives torch the device "sim" for the rest of the process.

    x = torch.ones(2, device="sim"); x + torch.ones(2)        RuntimeError: sim: aten.add.Tensor mixes devices

A tensor there holds one of the CPU, on which every operation is done, so results are those of a CPU. An operation is
refused where CUDA would refuse it (tensors of two devices, a generator of another) or Apple's mps (float64). Random
numbers are drawn as on the CPU. Only for a process of its own: it renames torch's PrivateUse1 for good.
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
"""The device, once it is registered at the end of this module."""
TAKES_CPU = ("aten::copy_", "aten::_to_copy")
"""Operations that bring tensors from one device to another."""
INDEXED = (
    "aten::index",
    "aten::index_put",
    "aten::index_put_",
    "aten::_index_put_impl_",
    "aten::_unsafe_index",
    "aten::_unsafe_index_put",
)
"""Operations whose second argument, the places, may lie on the CPU."""
JOINS = ("aten::cat", "aten::stack")
"""Operations that take no number of the CPU (a tensor without dimensions) in place of a tensor of the device."""


class Backend(backend_registration._DummyBackendModule):
    """What stands as `torch.sim`."""

    @staticmethod
    def get_amp_supported_dtype() -> list[torch.dtype]:
        """Asked for where layers are computed again on the way back."""
        return [torch.bfloat16, torch.float16]

    def get_rng_state(self, device: object = NAME) -> Tensor:  # noqa: ARG002  # the interface of torch.cuda
        return torch.get_rng_state()

    def set_rng_state(self, state: Tensor, device: object = NAME) -> None:  # noqa: ARG002
        torch.set_rng_state(state)


class Generator(torch._C.Generator):
    """A generator of any device; that of the simulated one draws the numbers of a CPU's."""

    def __new__(cls, device: torch.device | str = "cpu") -> Generator:
        here = torch.device(device).type == NAME
        made: Generator = super().__new__(cls, "cpu" if here else device)
        if here:
            _GENERATORS[made._cdata] = made
        return made

    @property
    def device(self) -> torch.device:
        return DEVICE if self._cdata in _GENERATORS else torch._C.Generator.device.__get__(self)


_GENERATORS: WeakValueDictionary[int, Generator] = WeakValueDictionary()
"""Those of the simulated device, by the address under which operations get them."""


class SimTensor(Tensor):
    """A tensor of the device: a shape without memory, and the tensor `raw` of the CPU."""

    raw: Tensor

    @staticmethod
    def of(raw: Tensor) -> SimTensor:
        """The device's own of a tensor of the CPU, whose memory it shares."""
        if raw.dtype == torch.float64:
            raise TypeError("sim has no float64")
        made: SimTensor = Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            SimTensor,
            raw.size(),
            raw.stride(),
            raw.storage_offset(),
            dtype=raw.dtype,
            device=DEVICE,
        )
        made.raw = raw
        return made

    def tolist(self) -> Any:
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
        return _done(op, args, kwargs or {})


def _done(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The result of an operation that some tensor, or the place of its result, brings to the device."""
    leaves = tree_leaves((args, kwargs))
    here = [leaf for leaf in leaves if isinstance(leaf, SimTensor)]
    to = torch.device(kwargs["device"]) if kwargs.get("device") is not None else None
    stays = to.type == NAME if to is not None else bool(here)
    for drawn in leaves:
        if stays and isinstance(drawn, torch._C.Generator) and drawn._cdata not in _GENERATORS:
            raise RuntimeError(f"sim: {op} got a generator of another device")
    if here and op._schema.name not in TAKES_CPU:
        _check(op, args, leaves)
    if to is not None:
        kwargs = {**kwargs, "device": "cpu"}
    result = op(*tree_map(_raw, args), **tree_map(_raw, kwargs))
    own = {id(tensor.raw): tensor for tensor in here}
    for tensor in here:
        if tensor.raw.shape != tensor.shape:  # `t_()`
            with torch._C._DisableTorchDispatch():
                tensor.as_strided_(tensor.raw.size(), tensor.raw.stride())
    if op._schema.name == "aten::copy_":
        return args[0]

    def placed(value: object) -> object:
        if not isinstance(value, Tensor) or not stays:
            return value
        return own.get(id(value)) if id(value) in own else SimTensor.of(value)

    return tree_map(placed, result)


def _raw(value: object) -> object:
    return value.raw if isinstance(value, SimTensor) else value


def _check(op: Any, args: tuple[Any, ...], leaves: list[Any]) -> None:
    """Refuse tensors that CUDA would not take together."""
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


def _makers() -> Iterator[tuple[str, Any]]:
    """The operations that make tensors of nothing, by the name under which torch.library knows them."""
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


def _copied(source: Tensor, to: Tensor, non_blocking: bool = False) -> Tensor:  # as torch calls it
    """Where torch looks no further than the device: `torch.tensor([1], device="sim")`."""
    torch.ops.aten.copy_(_raw(to), _raw(source))
    return to


def _kernel(op: Any) -> Callable[..., Any]:
    return lambda *args, **kwargs: _done(op, args, kwargs)


backend_registration._setup_privateuseone_for_python_backend(NAME, backend_module=Backend())
DEVICE = torch.device(NAME, 0)
torch.__future__.set_swap_module_params_on_conversion(
    True
)  # `module.to("sim")` keeps tied parameters tied
torch.Generator = Generator  # type: ignore[misc]
torch.accelerator.synchronize = lambda _: None  # type: ignore[assignment]  # a backend in Python has no streams
_library = torch.library.Library("aten", "IMPL", "PrivateUse1")
_library.impl("_copy_from", _copied)
for _name, _op in _makers():
    _library.impl(_name, _kernel(_op))
