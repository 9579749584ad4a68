"""Loads the native library, and tells torch.compile and friends what its operators return.

`torch.ops.layerbench` then has `shift`, `vecadd`, `unfold_conv2d`, `unfold_conv2d_grad_input` and
`unfold_conv2d_grad_weight`; ext/bindings/schema.cpp says what they take.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import torch
from torch import Tensor

from ext import build

_lock = threading.Lock()
_loaded = False


def load() -> None:
    """Make torch.ops.layerbench usable, building the library first if need be. Free when done before.

    Raises BuildError.
    """
    global _loaded
    with _lock:
        if not _loaded:
            torch.ops.load_library(str(build.library() or build.build()))
            _register_fakes()
            _loaded = True


def _register_fakes() -> None:
    torch.library.register_fake("layerbench::shift", lambda x, k: x.new_empty(x.shape))
    torch.library.register_fake("layerbench::vecadd", lambda x, y: x.new_empty(x.shape))
    torch.library.register_fake("layerbench::unfold_conv2d", _conv)
    torch.library.register_fake("layerbench::unfold_conv2d_grad_input", _grad_input)
    torch.library.register_fake("layerbench::unfold_conv2d_grad_weight", _grad_weight)


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
