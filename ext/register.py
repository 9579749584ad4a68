"""What Python tells torch of the operators: shapes, batches, and gradients for those that have none in C++."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

NAMES = ("shift", "vecadd", "unfold_conv2d", "unfold_conv2d_grad_input", "unfold_conv2d_grad_weight")


def schemas(namespace: str) -> torch.library.Library:
    """Define the operators of torch.ops.layerbench once more. They go when the library does that is returned."""
    library = torch.library.Library(namespace, "DEF")
    for name in NAMES:
        library.define(str(getattr(torch.ops.layerbench, name).default._schema).removeprefix("layerbench::"))
    return library


def fakes(namespace: str) -> None:
    """For torch.compile and friends."""
    functions: tuple[Callable[..., Tensor], ...] = (_shift, _vecadd, _conv, _grad_input, _grad_weight)
    for name, function in zip(NAMES, functions, strict=True):
        torch.library.register_fake(f"{namespace}::{name}", function)


def batches(namespace: str) -> None:
    """For torch.vmap, where it is cheap; of the convolution, vmap calls one after the other."""
    ops = getattr(torch.ops, namespace)

    def shift(info: Any, dims: tuple[int, None], x: Tensor, k: int) -> tuple[Tensor, int]:
        x = x.movedim(dims[0], 0)
        rows = x.unsqueeze(-1) if x.dim() == 1 else x  # each a scalar, which is a row of its own
        return ops.shift(rows, k).view(x.shape), 0

    def vecadd(info: Any, dims: tuple[int | None, int | None], *both: Tensor) -> tuple[Tensor, int]:
        pairs = zip(both, dims, strict=True)
        return ops.vecadd(*(t.expand(info.batch_size, *t.shape) if d is None else t.movedim(d, 0) for t, d in pairs)), 0

    torch.library.register_vmap(f"{namespace}::shift", shift)
    torch.library.register_vmap(f"{namespace}::vecadd", vecadd)


def gradients(namespace: str) -> None:
    """By torch.library.register_autograd; of the operators themselves, as in bindings/autograd.cpp."""
    ops = getattr(torch.ops, namespace)

    def shift(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return ops.shift(grad, min(-ctx.k, 2**63 - 1)), None

    def vecadd(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        return grad, grad

    def conv(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (x, weight), wanted = ctx.saved_tensors, ctx.needs_input_grad
        return (
            ops.unfold_conv2d_grad_input(grad, x, weight, *ctx.window) if wanted[0] else None,
            ops.unfold_conv2d_grad_weight(grad, x, *ctx.window) if wanted[1] else None,
            grad.sum((0, 2, 3)) if wanted[2] else None,
            *(None,) * 4,
        )

    def grad_input(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (of, weight), wanted = ctx.saved_tensors, ctx.needs_input_grad
        return (
            ops.unfold_conv2d(grad, weight, None, *ctx.window) if wanted[0] else None,
            None,
            ops.unfold_conv2d_grad_weight(of, grad, *ctx.window) if wanted[2] else None,
            *(None,) * 4,
        )

    def grad_weight(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (of, x), wanted = ctx.saved_tensors, ctx.needs_input_grad
        return (
            ops.unfold_conv2d(x, grad, None, *ctx.window) if wanted[0] else None,
            ops.unfold_conv2d_grad_input(of, x, grad, *ctx.window) if wanted[1] else None,
            *(None,) * 4,
        )

    saves = (_save_k, None, _save_window(0, 1), _save_window(0, 2), _save_window(0, 1))
    backwards = (shift, vecadd, conv, grad_input, grad_weight)
    for name, backward, save in zip(NAMES, backwards, saves, strict=True):
        torch.library.register_autograd(f"{namespace}::{name}", backward, setup_context=save)


def _save_k(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.k = inputs[1]


def _save_window(*tensors: int) -> Any:
    def save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*(inputs[i] for i in tensors))
        ctx.window = inputs[-4:]

    return save


def _shift(x: Tensor, k: int) -> Tensor:
    return x.new_empty(x.shape)


def _vecadd(x: Tensor, y: Tensor) -> Tensor:
    return x.new_empty(x.shape)


def _conv(
    input: Tensor,  # noqa: A002  (the operator's own word)
    weight: Tensor,
    bias: Tensor | None,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (1, 1),
    padding: Sequence[int] = (0, 0),
    dilation: Sequence[int] = (1, 1),
) -> Tensor:
    height, width = (
        (size + 2 * pad - step * (kernel - 1) - 1) // jump + 1
        for size, kernel, jump, pad, step in zip(input.shape[2:], kernel_size, stride, padding, dilation, strict=True)
    )
    return input.new_empty((input.shape[0], weight.shape[0], height, width))


def _grad_input(grad: Tensor, input: Tensor, weight: Tensor, *window: Sequence[int]) -> Tensor:  # noqa: A002
    return input.new_empty(input.shape)


def _grad_weight(grad: Tensor, input: Tensor, kernel_size: Sequence[int], *window: Sequence[int]) -> Tensor:  # noqa: A002
    return input.new_empty((grad.shape[1], input.shape[1], kernel_size[0] * kernel_size[1]))
