"""How fast are the native CPU operators beside torch's own?  python -m experiments.kernels_cpu

With two threads, in one process with the warm allocator: ours and torch's call in turns, and of each the lowest of its
windows. `ratio` is torch's time over ours. Convolutions: the article's, its gradients, and ResNet's shapes.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bench.machine.memory import fix_allocator
from experiments.common import Quiet, record
from ext import ops

THREADS, TURNS = 2, 300
Call = Callable[[], object]
SHAPES = {  # channels, filters, size, kernel, stride, padding, dilation
    "article": (3, 16, 512, 3, 1, 0, 1),
    "stem": (3, 64, 224, 7, 2, 3, 1),
    "3x3 at 56": (64, 64, 56, 3, 1, 1, 1),
    "1x1 at 56": (64, 256, 56, 1, 1, 0, 1),
    "1x1/2 at 56": (256, 512, 56, 1, 2, 0, 1),
    "3x3/2 at 56": (128, 128, 56, 3, 2, 1, 1),
    "3x3 at 28": (128, 128, 28, 3, 1, 1, 1),
    "1x1 at 28": (128, 512, 28, 1, 1, 0, 1),
    "3x3 at 28, dilated": (256, 256, 28, 3, 1, 2, 2),
    "3x3 at 14": (256, 256, 14, 3, 1, 1, 1),
    "1x1 at 14": (1024, 256, 14, 1, 1, 0, 1),
    "3x3 at 7": (512, 512, 7, 3, 1, 1, 1),
    "1x1 at 7": (512, 2048, 7, 1, 1, 0, 1),
}


def lowest(ours: Call, theirs: Call, most: float = 3.0) -> tuple[float, float]:
    """Seconds a call of each, called in turns, TURNS times or for `most` seconds.

    In an order that changes: in one that stays, a heap that hands out two blocks gives each call a block of its own.
    """
    best, deadline = [float("inf")] * 2, time.perf_counter() + most
    for turn in range(TURNS):
        for i, call in ((0, ours), (1, theirs)) if turn % 4 in (0, 3) else ((1, theirs), (0, ours)):
            start = time.perf_counter()
            call()
            if turn > 2:
                best[i] = min(best[i], time.perf_counter() - start)
        if time.perf_counter() > deadline and turn > 10:
            break
    return best[0], best[1]


def step(call: Callable[..., Tensor], tensors: list[Tensor]) -> None:
    """One training step."""
    for tensor in tensors:
        tensor.grad = None
    call(*tensors).mean().backward()


def copied(x: Tensor) -> Tensor:
    """A copy in a new tensor."""
    return torch.empty_like(x).copy_(x)


def convolution(shape: tuple[int, ...], image_grad: bool | None) -> tuple[Call, Call]:
    """Ours and torch's: without gradients (None), or forward and backward, with the image's gradient or without."""
    channels, filters, size, kernel, stride, padding, dilation = shape
    window = [kernel] * 2, [stride] * 2, [padding] * 2, [dilation] * 2
    x, weight = torch.randn(1, channels, size, size), torch.randn(filters, channels, kernel, kernel)
    bias = torch.randn(filters)

    def ours(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        out: Tensor = torch.ops.layerbench.unfold_conv2d(x, weight, bias, *window)
        return out

    def theirs(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return F.conv2d(x, weight, bias, stride, padding, dilation)

    if image_grad is None:
        return partial(ours, x, weight.flatten(2), bias), partial(theirs, x, weight, bias)
    wanted = (image_grad, True, True)
    inputs = [
        [tensor.clone().requires_grad_(grad) for tensor, grad in zip(tensors, wanted, strict=True)]
        for tensors in ((x, weight.flatten(2), bias), (x, weight, bias))
    ]
    return partial(step, ours, inputs[0]), partial(step, theirs, inputs[1])


def pairs() -> dict[str, tuple[Call, Call]]:
    """Every comparison by its name: ours, torch's."""
    found = {f"conv {name}": convolution(shape, None) for name, shape in SHAPES.items()}
    found["conv article, forward+backward"] = convolution(SHAPES["article"], image_grad=False)
    found["conv article, forward+backward, image too"] = convolution(SHAPES["article"], image_grad=True)
    native: Any = torch.ops.layerbench
    for mib in (1, 4, 16, 64, 256):
        # Operators make new tensors: so must what they are compared with, for where an output lies changes its time.
        x, y = torch.randn(mib << 18), torch.randn(mib << 18)
        found[f"shift {mib} MiB / copy_"] = partial(native.shift, x, 3), partial(copied, x)
        found[f"vecadd {mib} MiB / add"] = partial(native.vecadd, x, y), partial(torch.add, x, y)
    for dtype in (torch.float16, torch.bfloat16):
        x, y = (torch.randn(2 << 20).to(dtype) for _ in range(2))
        found[f"vecadd 4 MiB of {dtype} / add"] = partial(native.vecadd, x, y), partial(torch.add, x, y)
    return found


def main() -> None:
    """Each pair while the machine is quiet."""
    allocator = fix_allocator("warm")
    torch.set_num_threads(THREADS)
    ops.load()
    quiet, rows = Quiet(THREADS), list[dict[str, Any]]()
    for name, (ours, theirs) in pairs().items():
        with torch.set_grad_enabled("backward" in name):
            mine, other = quiet.take(partial(lowest, ours, theirs))
        rows.append({"what": name, "ours ms": mine * 1e3, "torch ms": other * 1e3, "ratio": other / mine})
    record("kernels-cpu", quiet, rows, allocator=allocator, threads=THREADS)


if __name__ == "__main__":
    main()
