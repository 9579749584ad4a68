"""A 2-d convolution out of windows and matrix-vector products, one per input channel and filter.

The layer of the "loops that can be scripted" articles, put right: it equals `F.conv2d` for every batch, stride,
padding, dilation and dtype, and starts from the weights of `nn.Conv2d`. Weights are kept as (out, in, kh * kw).
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn
from torch.jit import script_method  # type: ignore[attr-defined]

from layers import Cost, Inputs, Layer

Size2 = int | tuple[int, int]


def convolve(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    kernel_size: tuple[int, int],
    stride: tuple[int, int],
    padding: tuple[int, int],
    dilation: tuple[int, int],
) -> Tensor:
    """(batch, in, height, width) -> (batch, out, height', width'), in the dtype of `x`. TorchScript compiles it too."""
    batch, out_channels, taps = x.size(0), weight.size(0), kernel_size[0] * kernel_size[1]
    height = (x.size(2) + 2 * padding[0] - dilation[0] * (kernel_size[0] - 1) - 1) // stride[0] + 1
    width = (x.size(3) + 2 * padding[1] - dilation[1] * (kernel_size[1] - 1) - 1) // stride[1] + 1
    windows = F.unfold(x, kernel_size, dilation, padding, stride)
    windows = windows.view(batch, weight.size(1), taps, height * width)
    out = x.new_zeros((batch, out_channels, height * width))
    # unbind, not range(weight.size(0)): a trace would warn of each size that becomes a Python number.
    for channel, window in enumerate(windows.unbind(1)):
        for filter_, vectors in enumerate(weight.unbind()):
            # bmm on the expanded vector: matmul copies every window as soon as the weight needs a gradient.
            product = torch.bmm(vectors[channel].expand(batch, 1, taps), window)
            out[:, filter_] += product.squeeze(1)
    if bias is not None:
        out += bias.view(-1, 1)
    return out.view(batch, out_channels, height, width)


class UnfoldConv2d(nn.Module):
    """`convolve` with its weights. Sizes are one int or (vertical, horizontal), as in `nn.Conv2d`."""

    bias: Tensor | None  # TorchScript cannot read it as text: no `from __future__ import annotations` here

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Size2,
        stride: Size2 = 1,
        padding: Size2 = 0,
        dilation: Size2 = 1,
        bias: bool = True,
    ) -> None:
        super().__init__()
        # nn.Conv2d decides how weights start and how an int becomes a pair.
        like = nn.Conv2d(in_channels, out_channels, kernel_size, stride, padding, dilation, bias=bias)
        self.kernel_size, self.stride, self.dilation = _pair(like.kernel_size), _pair(like.stride), _pair(like.dilation)
        self.padding = _pair(like.padding)
        self.weight = nn.Parameter(like.weight.detach().flatten(2))
        self.bias = like.bias

    def forward(self, x: Tensor) -> Tensor:
        """(batch, in, height, width) -> (batch, out, height', width')."""
        return convolve(x, self.weight, self.bias, self.kernel_size, self.stride, self.padding, self.dilation)


class OperatorConv2d(UnfoldConv2d):
    """The same on the native operator `layerbench::unfold_conv2d`."""

    def forward(self, x: Tensor) -> Tensor:
        """As `UnfoldConv2d`."""
        out: Tensor = torch.ops.layerbench.unfold_conv2d(
            x, self.weight, self.bias, self.kernel_size, self.stride, self.padding, self.dilation
        )
        return out


class PythonConv2d(UnfoldConv2d):
    """The same on `layerbench_py::unfold_conv2d`, whose gradients are registered in Python."""

    def forward(self, x: Tensor) -> Tensor:
        """As `UnfoldConv2d`."""
        out: Tensor = torch.ops.layerbench_py.unfold_conv2d(
            x, self.weight, self.bias, self.kernel_size, self.stride, self.padding, self.dilation
        )
        return out


class StableConv2d(UnfoldConv2d):
    """The same on `layerbench_stable::unfold_conv2d`, of the library on the stable ABI."""

    def forward(self, x: Tensor) -> Tensor:
        """As `UnfoldConv2d`."""
        out: Tensor = torch.ops.layerbench_stable.unfold_conv2d(
            x, self.weight, self.bias, self.kernel_size, self.stride, self.padding, self.dilation
        )
        return out


class NativeConv2d(UnfoldConv2d):
    """`F.conv2d` on the same weights: what a user would otherwise call."""

    def forward(self, x: Tensor) -> Tensor:
        """As `UnfoldConv2d`."""
        weight = self.weight.unflatten(2, self.kernel_size)
        return F.conv2d(x, weight, self.bias, self.stride, self.padding, self.dilation)


def scripted(**params: Any) -> nn.Module:
    """The layer as a `jit.ScriptModule`; defined when asked for, since defining one already warns (and may fail)."""

    class ScriptConv2d(torch.jit.ScriptModule):
        bias: Tensor | None

        def __init__(self, eager: UnfoldConv2d) -> None:
            super().__init__()
            self.kernel_size, self.stride = eager.kernel_size, eager.stride
            self.padding, self.dilation = eager.padding, eager.dilation
            self.weight = eager.weight
            self.bias = eager.bias

        @script_method  # type: ignore[untyped-decorator]
        def forward(self, x: Tensor) -> Tensor:
            return convolve(x, self.weight, self.bias, self.kernel_size, self.stride, self.padding, self.dilation)

    return ScriptConv2d(UnfoldConv2d(**params))


def inputs(generator: Generator, *, batch: int, in_channels: int, size: int, **_: Any) -> Inputs:
    """One (batch, in_channels, size, size)."""
    return (torch.randn(batch, in_channels, size, size, generator=generator),)


def other_batch(generator: Generator, *, batch: int, **params: Any) -> Inputs:
    """One image more: an error in how batch and filters are laid out shows only beyond one image."""
    return inputs(generator, batch=batch + 1, **params)


def reference(state: Mapping[str, Tensor], x: Tensor, *, kernel_size: Size2, **params: Any) -> Tensor:
    """`F.conv2d`."""
    weight = state["weight"].view(*state["weight"].shape[:2], *_pair(kernel_size))
    return F.conv2d(x, weight, state.get("bias"), params["stride"], params["padding"], params["dilation"])


def cost(itemsize: int, *, batch: int, in_channels: int, out_channels: int, size: int, **params: Any) -> Cost:
    """A multiplication and an addition per weight and output element."""
    kernel, stride, padding, dilation = (_pair(params[n]) for n in ("kernel_size", "stride", "padding", "dilation"))
    height, width = (
        (size + 2 * p - d * (k - 1) - 1) // s + 1 for k, s, p, d in zip(kernel, stride, padding, dilation, strict=True)
    )
    weights, outputs = out_channels * in_channels * kernel[0] * kernel[1], batch * out_channels * height * width
    biases = out_channels if params["bias"] else 0
    flops = 2 * batch * height * width * weights + (outputs if biases else 0)
    return Cost(flops, itemsize * (batch * in_channels * size * size + weights + biases + outputs))


def _pair(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (value[0], value[1])


def _version(module: Callable[..., nn.Module]) -> Callable[..., nn.Module]:
    return lambda batch, size, **params: module(**params)


LAYER = Layer(
    name="unfold_conv2d",
    versions={
        "eager": _version(UnfoldConv2d),
        "script": _version(scripted),
        "custom_op": _version(OperatorConv2d),
        "custom_op_py": _version(PythonConv2d),
        "stable_abi": _version(StableConv2d),
        "native": _version(NativeConv2d),
    },
    inputs=inputs,
    draws=(other_batch,),
    reference=reference,
    cost=cost,
    defaults={
        "batch": 1,
        "size": 64,
        "in_channels": 3,
        "out_channels": 16,
        "kernel_size": 3,
        "stride": 1,
        "padding": 0,
        "dilation": 1,
        "bias": True,
    },
    op="layerbench::unfold_conv2d",
)
