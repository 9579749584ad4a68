"""The pybind11 binding as its users wrap it: the output made beforehand, gradients by autograd.Function.

Importing this loads the library, which raises BuildError where it cannot be built.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ext import build, ops

native = ops.load(build.PYTHON)


class Shift(torch.autograd.Function):
    """`apply(x, k)` as torch.ops.layerbench.shift."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, k: int) -> Tensor:  # type: ignore[override]
        ctx.k = k
        out = torch.empty_like(x, memory_format=torch.contiguous_format)
        native.shift(x, k, out)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, None]:  # type: ignore[override]
        return Shift.apply(grad, min(-ctx.k, 2**63 - 1)), None


class VecAdd(torch.autograd.Function):
    """`apply(x, y)` as torch.ops.layerbench.vecadd."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:  # type: ignore[override]
        out = torch.empty_like(x, memory_format=torch.contiguous_format)
        native.vecadd(x, y, out)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        return grad, grad
