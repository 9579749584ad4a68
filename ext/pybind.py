"""The pybind11 binding as its users wrap it: the output made beforehand, gradients by autograd.Function.

Importing this loads the library, which raises BuildError where it cannot be built.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ext import build, ops

native = ops.load(build.PYTHON)


class Shift(torch.autograd.Function):
    """As torch.ops.layerbench.shift."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, k: int) -> Tensor:
        ctx.k = k
        out = torch.empty_like(x, memory_format=torch.contiguous_format)
        native.shift(x, k, out)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, None]:
        return shift(grad, min(-ctx.k, 2**63 - 1)), None


class VecAdd(torch.autograd.Function):
    """As torch.ops.layerbench.vecadd."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
        out = torch.empty_like(x, memory_format=torch.contiguous_format)
        native.vecadd(x, y, out)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        return grad, grad


shift: Callable[[Tensor, int], Tensor] = Shift.apply
vecadd: Callable[[Tensor, Tensor], Tensor] = VecAdd.apply
