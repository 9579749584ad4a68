"""Layers with a slow-down planted in them: EXTRA more of the same work. gate_replay commits it with several values."""

from __future__ import annotations

import torch
from torch import Generator, Tensor, nn

from layers import Inputs, Layer

EXTRA = 0.0
MOST = 1.2  # the inputs are this much longer than what is wanted of them, whatever EXTRA is


class Scale(nn.Module):
    """`2 x` of the first n elements, by way of (1 + EXTRA) n."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.n, self.more = n, round(n * (1 + EXTRA))

    def forward(self, x: Tensor) -> Tensor:
        return (x[: self.more] * 2)[: self.n]


class Product(nn.Module):
    """`x w` of the first n rows, by way of (1 + EXTRA) n."""

    def __init__(self, n: int, k: int) -> None:
        super().__init__()
        self.n, self.more = n, round(n * (1 + EXTRA))
        self.weight = nn.Parameter(torch.randn(k, k) / k**0.5)

    def forward(self, x: Tensor) -> Tensor:
        return (x[: self.more] @ self.weight)[: self.n]


class Steps(nn.Module):
    """A chain of small operators, which the host's time a call limits: (1 + EXTRA) of 40."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.n, self.steps = n, round(40 * (1 + EXTRA))

    def forward(self, x: Tensor) -> Tensor:
        y = x[: self.n]
        for _ in range(self.steps):
            y = y.abs()
        return y


def vector(generator: Generator, *, n: int) -> Inputs:
    """One (1.2 n,)."""
    return (torch.randn(round(n * MOST), generator=generator),)


def matrix(generator: Generator, *, n: int, k: int) -> Inputs:
    """One (1.2 n, k)."""
    return (torch.randn(round(n * MOST), k, generator=generator),)


SCALE = Layer("scale", {"eager": Scale}, inputs=vector, defaults={"n": 1 << 18})
PRODUCT = Layer("product", {"eager": Product}, inputs=matrix, defaults={"n": 320, "k": 256})
STEPS = Layer("steps", {"eager": Steps}, inputs=vector, defaults={"n": 64})
