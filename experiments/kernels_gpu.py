"""How fast are the native CUDA operators beside torch's own?  python -m experiments.kernels_gpu

Device time by events behind a hold, ours and torch in turns, and of each the lowest of its windows; the host's, the
median of single calls until the device is done, in random order. `ratio` is torch's time over ours; errors are
relative to float64. Convolutions: the article's, and ResNet's shapes in three dtypes, TF32
off, against cuDNN. shift and vecadd: against a copy on the device, and within a CUDA graph, where no launch can hide.
"""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bench.clocks.cuda import EventTimer, GraphTimer
from bench.clocks.timer import Call, Timer
from experiments.common import Quiet, record
from experiments.kernels_cpu import step
from ext import ops

DEVICE = torch.device("cuda", 0)
WINDOWS, WINDOW = 7, 4e-3  # of each, and how long each is in seconds
TURNS = 400  # of each by the host's clock
Step = Callable[[], object]
ARTICLE = (1, 3, 16, 512, 3, 1, 0, 1)
SHAPES = {  # channels, filters, size, kernel, stride, padding, dilation
    "stem 7x7/2": (3, 64, 224, 7, 2, 3, 1),
    "3x3 at 56": (64, 64, 56, 3, 1, 1, 1),
    "3x3 at 28": (128, 128, 28, 3, 1, 1, 1),
    "3x3 at 14": (256, 256, 14, 3, 1, 1, 1),
    "3x3 at 7": (512, 512, 7, 3, 1, 1, 1),
    "3x3 at 28, dilated": (128, 128, 28, 3, 1, 2, 2),
    "1x1 at 56": (64, 256, 56, 1, 1, 0, 1),
    "1x1 at 28": (128, 512, 28, 1, 1, 0, 1),
    "1x1 at 14": (256, 1024, 14, 1, 1, 0, 1),
    "1x1 at 7": (512, 2048, 7, 1, 1, 0, 1),
}
Row = dict[str, Any]


class Work(Call):
    """A function as a clock calls it."""

    fresh = False

    def __init__(self, call: Step) -> None:
        self.call = call

    def prepare(self) -> None:
        """Nothing to make."""

    def __call__(self) -> None:
        self.call()


def lowest(clock: Timer, ours: Step, theirs: Step) -> tuple[float, float]:
    """Seconds a call of each."""
    works = Work(ours), Work(theirs)
    calls = [max(2, min(200, int(WINDOW / max(clock.window(work, 3), 1e-7)))) for work in works]
    lows = [[clock.window(work, n) for work, n in zip(works, calls, strict=True)] for _ in range(WINDOWS)]
    return min(low[0] for low in lows), min(low[1] for low in lows)


def compare(clock: Timer, what: str, ours: Step, theirs: Step, **more: Any) -> Row:
    """A row of the record."""
    return entry(what, clock.clock, *lowest(clock, ours, theirs)) | more


def entry(what: str, clock: str, ours: float, theirs: float) -> Row:
    """Both times are in seconds."""
    return {"what": what, "clock": clock, "ours us": ours * 1e6, "torch us": theirs * 1e6, "ratio": theirs / ours}


def in_turns(calls: list[Step]) -> list[float]:
    """Seconds of each by the host's clock, device included: the median, for some hosts have a bad minute."""
    took: list[list[float]] = [[] for _ in calls]
    for _ in range(TURNS):
        for which in random.sample(range(len(calls)), len(calls)):
            calls[which]()  # after another's, caches and the allocator are not this one's
            torch.cuda.synchronize(DEVICE)
            start = time.perf_counter()
            calls[which]()
            torch.cuda.synchronize(DEVICE)
            took[which].append(time.perf_counter() - start)
    return [statistics.median(times) for times in took]


def error(found: Tensor, right: Tensor) -> float:
    """Relative, by the Frobenius norm."""
    return float((found.double() - right).norm() / right.norm())


def convolution(shape: tuple[int, ...], dtype: torch.dtype) -> tuple[Step, Step, Row, list[Tensor]]:
    """Ours, cuDNN's, their errors and the three inputs."""
    batch, channels, filters, size, kernel, stride, padding, dilation = shape
    x = torch.randn(batch, channels, size, size, device=DEVICE).to(dtype)
    weight = (torch.randn(filters, channels, kernel, kernel, device=DEVICE) / math.sqrt(channels * kernel**2)).to(dtype)
    bias = torch.randn(filters, device=DEVICE).to(dtype)
    window = [kernel] * 2, [stride] * 2, [padding] * 2, [dilation] * 2
    ours = partial(torch.ops.layerbench.unfold_conv2d, x, weight.flatten(2), bias, *window)
    theirs = partial(F.conv2d, x, weight, bias, stride, padding, dilation)
    right = F.conv2d(x.double(), weight.double(), bias.double(), stride, padding, dilation)
    errors = {"our error": error(ours(), right), "torch's error": error(theirs(), right)}
    return ours, theirs, errors, [x, weight, bias]


def article(events: Timer) -> list[Row]:
    """Forward, and forward and backward by the device's and by the host's clock."""
    ours, theirs, errors, (x, weight, bias) = convolution(ARTICLE, torch.float32)
    with torch.no_grad():
        rows = [compare(events, "article, forward", ours, theirs, **errors)]
        last = x.to(memory_format=torch.channels_last), weight.to(memory_format=torch.channels_last)
        rows.append(compare(events, "article, forward; cuDNN channels_last", ours, lambda: F.conv2d(*last, bias)))
    window = (3, 3), (1, 1), (0, 0), (1, 1)
    made: Any = ours()
    floor = partial(step, lambda x: x, [made.detach().requires_grad_()])
    for image in (False, True):
        steps: list[Step] = []
        for call, tensors in (
            (lambda x, w, b: torch.ops.layerbench.unfold_conv2d(x, w, b, *window), (x, weight.flatten(2), bias)),
            (F.conv2d, (x, weight, bias)),
        ):
            wanted = zip(tensors, (image, True, True), strict=True)
            steps.append(partial(step, call, [t.detach().clone().requires_grad_(grad) for t, grad in wanted]))
        name = "article, forward+backward" + (", image too" if image else "")
        mine, other, alone = in_turns([*steps, floor])
        rows += [compare(events, name, *steps), entry(name, "host", mine, other)]
    # What no convolution can change of the last two: the mean, its gradient, autograd's engine.
    name = "the same of the mean alone"
    return [*rows, compare(events, name, floor, floor), entry(name, "host", alone, alone)]


def resnet(events: Timer) -> list[Row]:
    """Every shape, batch and dtype, and a row for each dtype's geometric mean."""
    rows = []
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        found = []
        for batch in (1, 32):
            for name, shape in SHAPES.items():
                ours, theirs, errors, _ = convolution((batch, *shape), dtype)
                found.append(compare(events, f"{name}, batch {batch}, {str(dtype)[6:]}", ours, theirs, **errors))
        ratios = [row["ratio"] for row in found]
        mean, worst = statistics.geometric_mean(ratios), min(ratios)
        rows += [*found, {"what": f"all of {str(dtype)[6:]}: geometric mean; lowest {worst:.2f}", "ratio": mean}]
    return rows


def streams(clocks: list[Timer]) -> list[Row]:
    """shift against a copy, vecadd against one and a half, for it has three streams instead of two, and torch.add."""
    rows = []
    native: Any = torch.ops.layerbench
    for clock, sizes in zip(clocks, ((64, 1024), (4,)), strict=True):
        for mib in sizes:
            x, y, out = (torch.randn(mib << 18, device=DEVICE) for _ in range(3))
            copy = partial(out.copy_, x)
            for k in (3, -7, 1024):
                rows.append(compare(clock, f"shift {mib} MiB by {k} / copy", partial(native.shift, x, k), copy))
            row = compare(clock, f"vecadd {mib} MiB / 1.5 copies", partial(native.vecadd, x, y), copy)
            rows.append(row | {"ratio": 1.5 * row["ratio"]})
            add = partial(torch.add, x, y, out=out)
            rows.append(compare(clock, f"vecadd {mib} MiB / add out=", partial(native.vecadd, x, y), add))
    return rows


def main() -> None:
    """All of it."""
    ops.load()
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    torch.manual_seed(0)
    quiet, events = Quiet(), EventTimer(DEVICE)
    # Once, however busy the host: it does not touch device time.
    rows = quiet.take(partial(article, events), tries=1)
    with torch.no_grad():
        rows += resnet(events) + streams([events, GraphTimer(DEVICE)])
    columns = ("what", "clock", "ours us", "torch us", "ratio", "our error", "torch's error")
    record("kernels-gpu", quiet, [{column: row.get(column, "") for column in columns} for row in rows])


if __name__ == "__main__":
    main()
