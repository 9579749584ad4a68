"""Layers that the self-test runs: each version of one is the same module, so every difference is noise."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from layers import Inputs, Layer


class Identity(nn.Module):
    """Returns its input: what remains is the cost of calling."""

    def forward(self, x: Tensor) -> Tensor:
        """Any shape -> the same tensor."""
        return x


class Roll(nn.Module):
    """A small operator: mostly the cost of a call."""

    def forward(self, x: Tensor) -> Tensor:
        """Any shape -> the same shape."""
        return torch.roll(x, 1, -1)


class Copy(nn.Module):
    """Memory-bound, with an output that the default allocator may put on fresh pages."""

    def forward(self, x: Tensor) -> Tensor:
        """Any shape -> the same shape."""
        return x.clone()


class Conv(nn.Module):
    """A 3x3 convolution, 3 -> 16 channels, as windows and one matrix product."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(16, 27) / 27**0.5)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, 3, height, width) -> (batch, 16, (height - 2) * (width - 2))."""
        return self.weight @ F.unfold(x, 3)


TWINS = ("eager", "twin_1", "twin_2", "twin_3")  # the first is the baseline


def _layer(module: type[nn.Module], *shape: int) -> Layer:
    def inputs(generator: torch.Generator) -> Inputs:
        return (torch.randn(shape, generator=generator),)

    return Layer(module.__name__.lower(), dict.fromkeys(TWINS, module), inputs)


IDENTITY = _layer(Identity, 1)
ROLL = _layer(Roll, 1024)
COPY = _layer(Copy, 2**20)
CONV = _layer(Conv, 1, 3, 64, 64)
