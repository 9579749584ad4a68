"""Does one process launch kernels like another?  python -m experiments.launches [PROCESSES]

Fresh processes (8), each timing chains of 100 kernels, and a layer of some hundred: by events on the default stream,
before and after the process has other streams, on the stream that layerbench takes, and by graph replay; and an empty
kernel on every stream of torch's pool. Needs a GPU.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from typing import Any

import torch

from bench.clocks.cuda import EventTimer, GraphTimer
from bench.clocks.hold import gpu_for
from bench.clocks.stopwatch import Stopwatch
from bench.clocks.stream import POOL
from bench.clocks.timer import Timer
from bench.measure import Placeable
from bench.model import Direction
from bench.task import Task
from experiments.common import Quiet, fresh, record, spread
from layers import load
from layers.variants import make

DEVICE = torch.device("cuda")


class Chain(Placeable):
    """So many launches in a row."""

    fresh = False

    def __init__(self, launch: Callable[[], Any], times: int = 100) -> None:
        self._launch, self._times = launch, times

    def prepare(self) -> None:
        """Nothing to make."""

    def place(self, rng: random.Random) -> None:
        """Nothing to move."""

    def __call__(self) -> None:
        for _ in range(self._times):
            self._launch()


def measure() -> dict[str, Any]:
    """us a chain or layer by each clock, on each kind of stream."""
    default, unstored = gpu_for(DEVICE), torch.empty(0, dtype=torch.int64, device=DEVICE)
    few, left, right = (torch.randn(*shape, device=DEVICE) for shape in ((1024,), (16, 27), (27, 4096)))
    calls = {
        "empty": Chain(lambda: torch.ops.layerbench.spin(unstored, 0)),
        "add_": Chain(lambda: few.add_(1)),
        "mm": Chain(lambda: torch.mm(left, right)),
        "layer": _layer(),
    }
    # In this order: the second makes the process's other streams.
    clocks: dict[str, Callable[[], Timer]] = {
        "default stream, alone": lambda: EventTimer(DEVICE, gpu=default),
        "quickest stream": lambda: EventTimer(DEVICE),
        "default stream": lambda: EventTimer(DEVICE, gpu=default),
        "graph": lambda: GraphTimer(DEVICE),
    }
    with torch.no_grad():
        found: dict[str, Any] = {where: _lows(clock(), calls) for where, clock in clocks.items()}
    return found | {"pool": _pool()}


def _layer() -> Task:
    layer = load("unfold_conv2d")
    made = make(layer, "eager", {"size": 64}, dtype=torch.float32, device=DEVICE, seed=0)
    return Task(made, Direction.INFERENCE)


def _lows(clock: Timer, calls: dict[str, Any]) -> dict[str, float]:
    rng, lows = random.Random(0), {}
    for name, call in calls.items():
        clock.window(call, 3)
        windows = []
        for _ in range(6):
            call.place(rng)
            windows.append(clock.window(call, 5))
        lows[name] = 1e6 * min(windows)
    return lows


def _pool() -> list[float]:
    """us of an empty kernel on each stream."""
    gpu, paces = gpu_for(DEVICE), []
    watch = Stopwatch(gpu)
    for _ in range(POOL):
        with torch.cuda.stream(torch.cuda.Stream(DEVICE)):
            paces.append(1e6 * min(watch.total(gpu.nothing, 64) for _ in range(3)) / 64)
    return sorted(paces)


def main(processes: str = "8") -> None:
    """So many processes, then how far apart they are."""
    quiet, runs = Quiet(), []
    for _ in range(int(processes)):
        with fresh("warm") as process:
            runs.append(quiet.take(lambda: process.submit(measure).result()))
    rows = []
    for where in (where for where in runs[0] if where != "pool"):
        for name in runs[0][where]:
            values = [run[where][name] for run in runs]
            row = {"where": where, "100 of": name, "lowest us": min(values), "highest us": max(values)}
            rows.append(row | {"max/min - 1": spread(values), "all us": values})
    record(
        "launches-h200",
        quiet,
        rows,
        hide=["all us"],
        **{"empty kernel on torch's streams, us": [run["pool"] for run in runs]},
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
