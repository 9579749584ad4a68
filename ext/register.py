"""What Python tells torch of the operators: shapes, batches, and gradients for those that have none in C++."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

FLOATING = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
NUMBERS = (*FLOATING, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
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
    _check_same("vecadd", "y", y, "x", x)
    _check_shape("vecadd", "y", y, x.shape)
    _check(x.dtype in NUMBERS, "vecadd", lambda: f"x is {_name(x)}; floating dtypes, uint8 and signed integers are")
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
    op = "unfold_conv2d"
    shape = _check_weight(op, input, weight, kernel_size, stride, padding, dilation)
    if bias is not None:
        _check_same(op, "bias", bias, "input", input)
        _check_shape(op, "bias", bias, weight.shape[:1])
    return input.new_empty(shape)


def _grad_input(grad: Tensor, input: Tensor, weight: Tensor, *window: Sequence[int]) -> Tensor:  # noqa: A002
    op = "unfold_conv2d_grad_input"
    shape = _check_weight(op, input, weight, *window)
    _check_same(op, "grad", grad, "input", input)
    _check_shape(op, "grad", grad, shape)
    return input.new_empty(input.shape)


def _grad_weight(grad: Tensor, input: Tensor, *window: Sequence[int]) -> Tensor:  # noqa: A002
    op = "unfold_conv2d_grad_weight"
    _check_dims(op, "grad", grad, 4, "(batch, filters, height, width)")
    shape = _check_conv(op, input, grad.shape[1], *window)
    _check_same(op, "grad", grad, "input", input)
    _check_shape(op, "grad", grad, shape)
    return input.new_empty((grad.shape[1], input.shape[1], math.prod(window[0])))


# What the kernels refuse is refused without them too, in the words of bindings/checks.h. Sizes may be symbols.


def _check(right: Any, op: str, wrong: Callable[[], str]) -> None:
    torch._check(right, lambda: f"layerbench::{op}: {wrong()} accepted")


def _check_same(op: str, name: str, t: Tensor, other: str, o: Tensor) -> None:
    _check(t.dtype == o.dtype, op, lambda: f"{name} is {_name(t)}, {other} is {_name(o)}; one dtype for both is")
    _check(
        t.device == o.device, op, lambda: f"{name} is on {t.device}, {other} is on {o.device}; one device for both is"
    )


def _check_dims(op: str, name: str, t: Tensor, dims: int, accepted: str) -> None:
    _check(t.dim() == dims, op, lambda: f"{name} has shape {list(t.shape)}; {accepted} is")


def _check_shape(op: str, name: str, t: Tensor, accepted: Sequence[Any]) -> None:
    _check_dims(op, name, t, len(accepted), f"{list(accepted)}")
    for size, wanted in zip(t.shape, accepted, strict=True):
        _check(size == wanted, op, lambda: f"{name} has shape {list(t.shape)}; {list(accepted)} is")


def _check_weight(op: str, input: Tensor, weight: Tensor, *window: Sequence[int]) -> tuple[Any, ...]:  # noqa: A002
    _check_dims(op, "weight", weight, 3, "(filters, channels, kernel height * kernel width)")
    shape = _check_conv(op, input, weight.shape[0], *window)
    _check_same(op, "weight", weight, "input", input)
    _check_shape(op, "weight", weight, (weight.shape[0], input.shape[1], math.prod(window[0])))
    return shape


def _check_conv(op: str, input: Tensor, filters: Any, *window: Sequence[int]) -> tuple[Any, ...]:  # noqa: A002
    """The shape of the output."""
    _check_dims(op, "input", input, 4, "(batch, channels, height, width)")
    floating = "float32, float64, float16 and bfloat16 are"
    _check(input.dtype in FLOATING, op, lambda: f"input is {_name(input)}; {floating}")
    for name, pair, least in zip(("kernel_size", "stride", "padding", "dilation"), window, (1, 1, 0, 1), strict=True):
        fits = len(pair) == 2 and all(least <= value < 2**31 for value in pair)
        accepted = f"two integers of at least {least} (and below 2^31) are"
        _check(fits, op, lambda: f"{name} is {list(pair)}; {accepted}")  # noqa: B023  (called at once)
    sides = zip(("height", "width"), input.shape[2:], *window, strict=True)
    return input.shape[0], filters, *(_side(op, *side) for side in sides)


def _side(op: str, name: str, size: Any, kernel: int, stride: int, padding: int, dilation: int) -> Any:
    padded, reach = size + 2 * padding, dilation * (kernel - 1) + 1
    wrong = f"at least the dilated kernel's {reach} (and below 2^31) is"
    for right in (padded >= reach, padded < 2**31):
        _check(right, op, lambda: f"the input's {name} is {padded} with padding; {wrong}")
    return (padded - reach) // stride + 1


def _name(t: Tensor) -> str:
    """Of its dtype, as C++ writes it."""
    return t.type().rpartition(".")[2].removesuffix("Tensor")
