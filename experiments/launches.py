"""Does one process launch kernels like another?  python -m experiments.launches [PROCESSES]

Fresh processes (3), each timing chains of 100 kernels, and a layer of some hundred, by events behind a hold and by
graph replay; with the driver's switches that might matter, and on a stream of the process's own. Needs a GPU.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import torch

from bench.clocks.cuda import EventTimer, GraphTimer
from bench.model import Case, Direction, Policy
from experiments.common import Quiet, Sampler, fresh, record

SWITCHES = {
    "as it comes": {},
    "kernels loaded at once": {"CUDA_MODULE_LOADING": "EAGER"},
    "one connection": {"CUDA_DEVICE_MAX_CONNECTIONS": "1"},
    "32 connections": {"CUDA_DEVICE_MAX_CONNECTIONS": "32"},
    "a stream of its own": {"LAYERBENCH_STREAM": "1"},
}
LAYER = Case("unfold_conv2d", "eager", (("size", 64),), "float32", "cuda", 1, Direction.INFERENCE)


class Chain:
    """So many launches in a row."""

    fresh = False

    def __init__(self, launch: Callable[[], Any], times: int = 100) -> None:
        self._launch, self._times = launch, times

    def prepare(self) -> None:
        """Nothing to make."""

    def __call__(self) -> None:
        for _ in range(self._times):
            self._launch()


def measure() -> dict[str, float]:
    """us a chain by each clock, the layer's by events, and what the event clock subtracts as an empty kernel's."""
    if os.environ.get("LAYERBENCH_STREAM"):
        torch.cuda.set_stream(torch.cuda.Stream())
    device = torch.device("cuda")
    events = EventTimer(device)
    few, left, right = (torch.randn(*shape, device=device) for shape in ((1024,), (16, 27), (27, 4096)))
    unstored = torch.empty(0, dtype=torch.int64, device=device)
    chains = {
        "empty": Chain(lambda: torch.ops.layerbench.spin(unstored, 0)),
        "add_": Chain(lambda: few.add_(1)),
        "mm": Chain(lambda: torch.mm(left, right)),
    }
    found = {}
    for clock, windows in ((events, 6), (GraphTimer(device), 3)):
        for name, chain in chains.items():
            clock.window(chain, 3)
            found[f"{clock.clock}: {name}"] = 1e6 * min(clock.window(chain, 5) for _ in range(windows))
    layer = Sampler(LAYER, Policy(warmup_seconds=0.05)).turn()["device"]
    return found | {"events: layer": 1e6 * min(layer), "empty kernel": 1e6 * events.zero}


def main(processes: str = "3") -> None:
    """Every switch in turn, so many times."""
    quiet, rows = Quiet(), []
    for _ in range(int(processes)):
        for name, switches in SWITCHES.items():
            os.environ.update(switches)
            with fresh("warm") as process:
                rows.append({"switch": name} | quiet.take(lambda: process.submit(measure).result()))
            for switch in switches:
                del os.environ[switch]
    record("launches-h200", quiet, rows)


if __name__ == "__main__":
    main(*sys.argv[1:])
