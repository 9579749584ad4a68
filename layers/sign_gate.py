"""A layer that branches on its data: `W.mv(x)` when the sum of `x` is positive, `W + x` otherwise.

A trace records only the branch that its example took. This layer is here so that the check can be seen catching it.
"""

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn
from torch.jit import script_method  # type: ignore[attr-defined]

from layers import Cost, Inputs, Layer


def gate(weight: Tensor, x: Tensor) -> Tensor:
    """(n, m) and (m,) -> (n,) or (n, m). TorchScript compiles it too."""
    if x.sum() > 0:
        return weight.mv(x)
    return weight + x


class SignGate(nn.Module):
    """`gate` with its (n, m) weight."""

    def __init__(self, n: int, m: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(n, m) / m**0.5)

    def forward(self, x: Tensor) -> Tensor:
        """(m,) -> (n,) or (n, m)."""
        return gate(self.weight, x)


class OperatorSignGate(SignGate):
    """The same with its sum on the native operator `layerbench::vecadd`, which does not broadcast."""

    def forward(self, x: Tensor) -> Tensor:
        """As `SignGate`."""
        if x.sum() > 0:
            return self.weight.mv(x)
        out: Tensor = torch.ops.layerbench.vecadd(self.weight, x.expand_as(self.weight))
        return out


class NativeSignGate(SignGate):
    """`F.linear` or `torch.add`."""

    def forward(self, x: Tensor) -> Tensor:
        """As `SignGate`."""
        return F.linear(x, self.weight) if x.sum() > 0 else torch.add(self.weight, x)


def scripted(n: int, m: int) -> nn.Module:
    """The layer as a `jit.ScriptModule`; defined when asked for, since defining one already warns (and may fail)."""

    class ScriptSignGate(torch.jit.ScriptModule):
        def __init__(self, eager: SignGate) -> None:
            super().__init__()
            self.weight = eager.weight

        @script_method  # type: ignore[untyped-decorator]
        def forward(self, x: Tensor) -> Tensor:
            return gate(self.weight, x)

    return ScriptSignGate(SignGate(n, m))


def inputs(generator: Generator, *, n: int, m: int) -> Inputs:
    """One (m,) of mean 1/2, so that no rounding decides the branch and every seed takes the same one: `mv`."""
    x = torch.randn(m, generator=generator)
    return (x - x.mean() + 0.5,)


def negative(generator: Generator, *, n: int, m: int) -> Inputs:
    """One (m,) of mean -1/2: the other branch."""
    return (-inputs(generator, n=n, m=m)[0],)


def reference(state: Mapping[str, Tensor], x: Tensor, **_: Any) -> Tensor:
    """The definition."""
    return state["weight"] @ x if x.sum() > 0 else state["weight"] + x


def cost(itemsize: int, *, n: int, m: int) -> Cost:
    """The matrix-vector product, which `inputs` leads to."""
    return Cost(2 * n * m, itemsize * (n * m + m + n))


LAYER = Layer(
    name="sign_gate",
    versions={"eager": SignGate, "script": scripted, "custom_op": OperatorSignGate, "native": NativeSignGate},
    inputs=inputs,
    draws=(negative,),
    reference=reference,
    cost=cost,
    defaults={"n": 256, "m": 256},
    op="layerbench::vecadd",
)
