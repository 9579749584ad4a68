"""The layers that the experiments measure."""

from __future__ import annotations

import time
from typing import Any

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from bench.model import Case, Direction
from layers import Inputs, Layer


class Roll(nn.Module):
    """`torch.roll` by one."""

    def forward(self, x: Tensor) -> Tensor:
        """(length,) -> (length,)."""
        return torch.roll(x, 1, 0)


class Windows(nn.Module):
    """Unfold and one matmul: a 3 x 3 convolution, 3 -> 16."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(16, 27))

    def forward(self, x: Tensor) -> Tensor:
        """(1, 3, size, size) -> (1, 16, (size - 2) ** 2)."""
        return self.weight @ F.unfold(x, 3)


class Wait(nn.Module):
    """Keeps the CPU busy for a known time; the clock's own step, some 50 ns, comes on top."""

    def __init__(self, microseconds: float) -> None:
        super().__init__()
        self.ns = round(microseconds * 1000)

    def forward(self, x: Tensor) -> Tensor:
        """`x` as it is."""
        end = time.perf_counter_ns() + self.ns
        while time.perf_counter_ns() < end:
            pass
        return x


class Settles(Wait):
    """Waits three times as long at first: for `calls` calls and then no more (`step`), or less with each (`slope`)."""

    def __init__(self, microseconds: float, calls: int, shape: str) -> None:
        super().__init__(microseconds)
        self.settled, self.calls, self.shape, self.done = self.ns, calls, shape, 0

    def forward(self, x: Tensor) -> Tensor:
        """`x` as it is."""
        left = max(0.0, 1 - self.done / self.calls)
        self.ns = round(self.settled * (1 + 2 * (left if self.shape == "slope" else left > 0)))
        self.done += 1
        return super().forward(x)


class Spin(nn.Module):
    """Keeps the GPU busy for a number of its clock cycles."""

    def __init__(self, cycles: int) -> None:
        super().__init__()
        self.cycles = cycles

    def forward(self, x: Tensor) -> Tensor:
        """`x` as it is."""
        torch.cuda._sleep(self.cycles)
        return x


class Scripted(nn.Module):
    """Some pointwise operations, scripted: the profiling executor fuses them after its first calls of a shape."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.jit.script(_pointwise)

    def forward(self, x: Tensor) -> Tensor:
        """(length,) -> (length,)."""
        out: Tensor = self.inner(x)
        return out


def _pointwise(x: Tensor) -> Tensor:
    return torch.tanh(x * 2 + 1) * torch.sigmoid(x) - x


def vector(generator: Generator, *, length: int = 16, **_: Any) -> Inputs:
    """One (length,)."""
    return (torch.randn(length, generator=generator),)


def image(generator: Generator, *, size: int) -> Inputs:
    """One (1, 3, size, size)."""
    return (torch.randn(1, 3, size, size, generator=generator),)


def unchanged(state: object, x: Tensor, **_: Any) -> Tensor:
    """The right answer of a layer that only takes time."""
    return x


ROLL = Layer("roll", {"eager": lambda length: Roll()}, vector, defaults={"length": 1024})
SCRIPTED = Layer("scripted", {"eager": lambda length: Scripted()}, vector, lambda _, x, **__: _pointwise(x),
                 defaults={"length": 4096})  # fmt: skip
WINDOWS = Layer("windows", {"eager": lambda size: Windows()}, image, defaults={"size": 64})
CONV = Layer("conv", {"eager": lambda size: nn.Conv2d(3, 16, 3)}, image, defaults={"size": 512})
IDENTITY = Layer("identity", {"eager": lambda: nn.Identity()}, vector)
WAIT = Layer("wait", {"eager": Wait}, vector, unchanged, defaults={"microseconds": 20.0})
SETTLES = Layer("settles", {"eager": Settles}, vector, unchanged,
                defaults={"microseconds": 20.0, "calls": 200, "shape": "step"})  # fmt: skip
SPIN = Layer("spin", {"eager": Spin}, vector, unchanged, defaults={"cycles": 100_000})


def case(layer: str, *, threads: int = 1, device: str = "cpu", direction: str = "inference", **params: Any) -> Case:
    """The eager version of one of the layers above, by the name of its constant."""
    given = {**globals()[layer].defaults, **params}
    return Case(
        f"experiments.cases:{layer}", "eager", tuple(given.items()), "float32", device, threads, Direction(direction)
    )
