"""Which stream the GPU's time is taken on.

How closely the kernels of a stream follow one another is settled when the driver gives the stream a channel: on an H200
1.75 or 1.87 us from one small addition to the next, about half of the channels each. A process's default stream has
what it got, for life, so identical processes differ; the quickest of many streams is the same everywhere.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch

from bench.clocks.hold import Gpu, gpu_for
from bench.clocks.stopwatch import Stopwatch
from bench.clocks.timer import Call

POOL = 32  # streams that torch has to give; the next are the same again


@functools.cache
def quickest(device: torch.device) -> torch.cuda.Stream:
    """The stream of torch's pool whose kernels follow one another most closely; found once a process."""
    gpu = gpu_for(device)
    with gpu.current():
        watch = Stopwatch(gpu)

        def pace(stream: torch.cuda.Stream) -> float:
            with torch.cuda.stream(stream):
                return min(watch.total(gpu.nothing, 64) for _ in range(3))

        return min([torch.cuda.Stream(device) for _ in range(POOL)], key=pace)


def ignores(call: Call, elsewhere: Callable[[], AbstractContextManager[Any]], gpu: Gpu) -> bool:
    """Whether `call` puts work on the current stream of `gpu` although it is called where another is current,
    which `elsewhere` makes so: a kernel launched without a stream runs on the default one."""

    def work() -> None:
        with elsewhere():
            call()

    def prepare() -> None:
        with elsewhere():
            call.prepare()

    gpu.settle()  # where the inputs were put may be another stream
    prepare()
    work()  # what the first call loads is not the question
    watch = Stopwatch(gpu)
    taken = watch.total(work, 5, prepare=prepare, alone=True) / 5
    # A kernel is 1.4 us and more, nothing 0.2. Without a hold the time is the host's and does not tell.
    return watch.held and taken > 0.7e-6
