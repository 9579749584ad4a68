"""Move every row along: element i of the output is element i - k of the input, and zeros move in.

`k` may be negative, zero or longer than the row; the tensor any shape, any strides, empty.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.jit import script_method  # type: ignore[attr-defined]

from layers import Cost, Inputs, Layer


def shift(x: Tensor, k: int) -> Tensor:
    """Zeros, then a slice assigned: the way it is written by hand. Any (..., length); TorchScript compiles it too."""
    out = torch.zeros_like(x)
    if k > 0:
        out[..., k:] = x[..., :-k]
    elif k < 0:
        out[..., :k] = x[..., -k:]
    else:
        out.copy_(x)
    return out


class Shift(nn.Module):
    """`shift` by a fixed `k`."""

    def __init__(self, k: int) -> None:
        super().__init__()
        self.k = k

    def forward(self, x: Tensor) -> Tensor:
        """(..., length) -> the same shape."""
        return shift(x, self.k)


class OperatorShift(Shift):
    """The same on the native operator `layerbench::shift`."""

    def forward(self, x: Tensor) -> Tensor:
        """As `Shift`."""
        out: Tensor = torch.ops.layerbench.shift(x, self.k)
        return out


class PythonShift(Shift):
    """The same on `layerbench_py::shift`, whose gradient is registered in Python."""

    def forward(self, x: Tensor) -> Tensor:
        """As `Shift`."""
        out: Tensor = torch.ops.layerbench_py.shift(x, self.k)
        return out


class StableShift(Shift):
    """The same on `layerbench_stable::shift`, of the library on the stable ABI."""

    def forward(self, x: Tensor) -> Tensor:
        """As `Shift`."""
        out: Tensor = torch.ops.layerbench_stable.shift(x, self.k)
        return out


class PybindShift(Shift):
    """The same on a function bound by pybind11."""

    def __init__(self, k: int) -> None:
        from ext import pybind  # loads its library

        super().__init__(k)
        self.operator = pybind.shift

    def forward(self, x: Tensor) -> Tensor:
        """As `Shift`."""
        return self.operator(x, self.k)


class NativeShift(Shift):
    """`torch.roll`, then zeros over what wrapped round."""

    def forward(self, x: Tensor) -> Tensor:
        """As `Shift`."""
        out = torch.roll(x, self.k, -1)
        if self.k >= 0:
            out[..., : self.k] = 0
        else:
            out[..., self.k :] = 0
        return out


def scripted(k: int) -> nn.Module:
    """The layer as a `jit.ScriptModule`; defined when asked for, since defining one already warns (and may fail)."""

    class ScriptShift(torch.jit.ScriptModule):
        def __init__(self, k: int) -> None:
            super().__init__()
            self.k = k

        @script_method  # type: ignore[untyped-decorator]
        def forward(self, x: Tensor) -> Tensor:
            return shift(x, self.k)

    return ScriptShift(k)


def inputs(generator: Generator, *, rows: int, length: int, k: int) -> Inputs:
    """One (rows, length)."""
    return (torch.randn(rows, length, generator=generator),)


def short(generator: Generator, *, rows: int, length: int, k: int) -> Inputs:
    """Another number of rows, each shorter than the shift: everything moves out."""
    return inputs(generator, rows=rows + 1, length=abs(k) // 2 + 1, k=k)


def transposed(generator: Generator, *, rows: int, length: int, k: int) -> Inputs:
    """Rows whose elements are not neighbours in memory."""
    return (torch.randn(abs(k) + 5, rows + 1, generator=generator).t(),)


def reference(state: Mapping[str, Tensor], x: Tensor, *, k: int, **_: Any) -> Tensor:
    """Element by element, from the definition."""
    source = torch.arange(x.size(-1), device=x.device) - k
    inside = (source >= 0) & (source < x.size(-1))
    return torch.where(inside, x.index_select(-1, source.clamp(0, max(x.size(-1) - 1, 0))), 0)


def cost(itemsize: int, *, rows: int, length: int, k: int) -> Cost:
    """No arithmetic; what moves out is never read."""
    return Cost(0, itemsize * rows * (max(length - abs(k), 0) + length))


def _version(module: Callable[..., nn.Module]) -> Callable[..., nn.Module]:
    return lambda rows, length, k: module(k)


LAYER = Layer(
    name="shift",
    versions={
        "eager": _version(Shift),
        "script": _version(scripted),
        "custom_op": _version(OperatorShift),
        "custom_op_py": _version(PythonShift),
        "stable_abi": _version(StableShift),
        "pybind": _version(PybindShift),
        "native": _version(NativeShift),
    },
    inputs=inputs,
    draws=(short, transposed),
    reference=reference,
    cost=cost,
    defaults={"rows": 1, "length": 65536, "k": 3},
    op="layerbench::shift",
    dtypes=("float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8"),
)
