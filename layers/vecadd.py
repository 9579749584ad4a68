"""The sum of two tensors of exactly the same shape: the smallest layer, for what a call costs at all."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.jit import script_method  # type: ignore[attr-defined]

from layers import Cost, Inputs, Layer


def add(x: Tensor, y: Tensor) -> Tensor:
    """`x + y`; ValueError unless the shapes agree (no broadcasting). TorchScript compiles it too."""
    if x.shape != y.shape:
        raise ValueError(f"vecadd needs two tensors of one shape, got {x.shape} and {y.shape}")
    return x + y


class VecAdd(nn.Module):
    """`add` as a module."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Two of one shape -> the same shape."""
        return add(x, y)


class OperatorVecAdd(nn.Module):
    """The same on the native operator `layerbench::vecadd`."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """As `VecAdd`."""
        out: Tensor = torch.ops.layerbench.vecadd(x, y)
        return out


class PythonVecAdd(nn.Module):
    """The same on `layerbench_py::vecadd`, whose gradient is registered in Python."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """As `VecAdd`."""
        out: Tensor = torch.ops.layerbench_py.vecadd(x, y)
        return out


class StableVecAdd(nn.Module):
    """The same on `layerbench_stable::vecadd`, of the library on the stable ABI."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """As `VecAdd`."""
        out: Tensor = torch.ops.layerbench_stable.vecadd(x, y)
        return out


class PybindVecAdd(nn.Module):
    """The same on a function bound by pybind11."""

    def __init__(self) -> None:
        from ext import pybind  # loads its library

        super().__init__()
        self.operator = pybind.vecadd

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """As `VecAdd`."""
        return self.operator(x, y)


class NativeVecAdd(nn.Module):
    """`torch.add`, which checks no shapes."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """As `VecAdd`."""
        return torch.add(x, y)


def scripted() -> nn.Module:
    """The layer as a `jit.ScriptModule`; defined when asked for, since defining one already warns (and may fail)."""

    class ScriptVecAdd(torch.jit.ScriptModule):
        @script_method  # type: ignore[untyped-decorator]
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return add(x, y)

    return ScriptVecAdd()


def inputs(generator: Generator, *, length: int) -> Inputs:
    """Two (length,)."""
    return torch.randn(length, generator=generator), torch.randn(length, generator=generator)


def matrices(generator: Generator, *, length: int) -> Inputs:
    """Two matrices, one of them transposed."""
    return torch.randn(3, 5, generator=generator), torch.randn(5, 3, generator=generator).t()


def reference(state: Mapping[str, Tensor], x: Tensor, y: Tensor, **_: Any) -> Tensor:
    """`x + y`."""
    return x + y


def cost(itemsize: int, *, length: int) -> Cost:
    """Two reads, an addition and a write per element."""
    return Cost(length, 3 * itemsize * length)


def _version(module: Callable[[], nn.Module]) -> Callable[..., nn.Module]:
    return lambda length: module()


LAYER = Layer(
    name="vecadd",
    versions={
        "eager": _version(VecAdd),
        "script": _version(scripted),
        "custom_op": _version(OperatorVecAdd),
        "custom_op_py": _version(PythonVecAdd),
        "stable_abi": _version(StableVecAdd),
        "pybind": _version(PybindVecAdd),
        "native": _version(NativeVecAdd),
    },
    inputs=inputs,
    draws=(matrices,),
    reference=reference,
    cost=cost,
    defaults={"length": 65536},
    op="layerbench::vecadd",
)
