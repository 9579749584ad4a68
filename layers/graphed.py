"""A module replayed as CUDA graphs: what is left of a layer's time where the host need not launch its kernels."""

from __future__ import annotations

import copy
from collections.abc import Hashable
from typing import Any

import torch
from torch import Tensor, nn

from layers import Unavailable


class Replay:
    """What stands in for a module's forward: replays it by `torch.cuda.make_graphed_callables`, a backward pass too.

    Captured at the first call with inputs of a kind: shapes, dtypes, and what wants gradients. The output is a copy:
    the graph's own is overwritten by the next call. So are gradients, by the next backward pass, and these are no
    copies: set them to None between steps.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = copy.copy(module)  # shares the parameters, keeps its own forward
        self._graphs: dict[Hashable, Any] = {}

    def __call__(self, *inputs: Tensor) -> Tensor:
        kind = (torch.is_grad_enabled(), *((x.shape, x.dtype, x.requires_grad) for x in inputs))
        if kind not in self._graphs:
            self._graphs[kind] = self._capture(inputs)
        output: Tensor = self._graphs[kind](*inputs)
        return output.clone()

    def _capture(self, inputs: tuple[Tensor, ...]) -> Any:
        samples = tuple(x.detach().clone().requires_grad_(x.requires_grad) for x in inputs)
        return torch.cuda.make_graphed_callables(copy.copy(self._module), samples, allow_unused_input=True)


def graphed(module: nn.Module, device: torch.device) -> nn.Module:
    """`module`, replayed from now on. Raises Unavailable where there are no CUDA graphs."""
    if device.type != "cuda":
        raise Unavailable("CUDA graphs are for CUDA devices")
    module.forward = Replay(module)
    return module
