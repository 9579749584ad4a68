"""Every native CUDA kernel once, forward and backward, for compute-sanitizer to watch.

    compute-sanitizer --tool memcheck python -m experiments.sanitize
    compute-sanitizer --tool racecheck python -m experiments.sanitize
    PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --tool initcheck python -m experiments.sanitize

Small odd shapes that between them reach each kernel and its borders; the last line counts the calls. Without a GPU the
CPU's kernels run.
"""

from __future__ import annotations

import itertools

import torch

from ext import ops

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
CONVS = [  # batch, channels, filters, height, width, kernel, stride, padding, dilation
    *((2, channels, filters, 20, 66, 3, 1, 0, 1) for channels, filters in ((1, 3), (2, 17), (3, 16), (4, 32))),
    (1, 3, 16, 37, 131, 3, 1, 0, 1),  # rows of odd length
    (2, 3, 16, 20, 70, 3, 1, 1, 1),
    (1, 16, 5, 20, 70, 3, 1, 1, 1),
    (2, 64, 64, 14, 14, 3, 1, 1, 1),
    (1, 128, 96, 7, 9, 3, 1, 2, 2),
    (2, 64, 130, 9, 9, 1, 1, 0, 1),
    (1, 3, 64, 33, 35, 7, 2, 3, 1),
    (2, 5, 7, 11, 13, 2, 3, 4, 1),
    (1, 40, 33, 6, 7, 5, 1, 2, 1),
    (0, 3, 4, 9, 9, 3, 1, 0, 1),
    (2, 0, 4, 9, 70, 3, 1, 0, 1),
]
DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]


def convolve(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """Forward, and every gradient."""
    batch, channels, filters, height, width, kernel, *window = shape
    sizes = (batch, channels, height, width), (filters, channels, kernel * kernel), (filters,)
    tensors = [torch.randn(size, dtype=dtype, device=DEVICE, requires_grad=True) for size in sizes]
    out = torch.ops.layerbench.unfold_conv2d(*tensors, [kernel] * 2, *([size] * 2 for size in window))
    out.backward(torch.randn_like(out))
    out = torch.ops.layerbench.unfold_conv2d(*tensors, [kernel] * 2, *([size] * 2 for size in window))
    out.sum().backward()  # one value over and over


def main() -> None:
    """All of it."""
    ops.load()
    torch.manual_seed(0)
    calls = 0
    for shape, dtype in itertools.product(CONVS, DTYPES):
        convolve(shape, dtype)
        calls += 1
    for n, k, dtype in itertools.product((1, 31, 1000, 4097), (0, 1, -7, 5000), [*DTYPES, torch.int8]):
        for x in (torch.ones(n + 1, dtype=dtype, device=DEVICE)[1:], torch.ones(3, n, dtype=dtype, device=DEVICE)):
            torch.ops.layerbench.shift(x, k)
            torch.ops.layerbench.vecadd(x, x)
            calls += 2
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    print(f"{calls} calls on {DEVICE}")  # noqa: T201


if __name__ == "__main__":
    main()
