"""What does layerbench add to a call inside its timed window?  python -m experiments.overhead

An identity, timed as a task by the harness's own timer, against a bare loop around the same module and input. Both in
turns; lowest of 200 windows each, since whatever disturbs a window only adds time.
"""

from __future__ import annotations

import time

import torch

from bench.clocks.host import HostTimer
from bench.clocks.timer import no_gc
from bench.model import Direction
from bench.task import Task
from experiments.cases import case
from experiments.common import Quiet, record
from layers import load
from layers.variants import make

WINDOWS, CALLS = 200, 5000


def bare(module: object, x: torch.Tensor) -> float:
    """Seconds a call of a loop that does nothing else."""
    repeats = range(CALLS)
    with no_gc():
        start = time.perf_counter_ns()
        for _ in repeats:
            module(x)  # type: ignore[operator]
        return (time.perf_counter_ns() - start) / CALLS * 1e-9


def main() -> None:
    """The identity as a module, and as the cheapest callable there is."""
    quiet, rows = Quiet(), []
    torch.set_num_threads(1)
    made = make(load(case("IDENTITY").layer), "eager", {}, dtype=torch.float32, device="cpu", seed=0)
    task, timer = Task(made, Direction.INFERENCE), HostTimer()
    x = task.inputs[0]

    def measure() -> list[tuple[float, float]]:
        with task.grad_mode():
            return [(timer.window(task, CALLS), bare(made.call, x)) for _ in range(WINDOWS)]

    pairs = quiet.take(measure)
    ours, loop = (min(side) for side in zip(*pairs, strict=True))
    rows.append({"call": "nn.Identity", "harness ns": ours * 1e9, "bare loop ns": loop * 1e9,
                 "overhead ns": (ours - loop) * 1e9})  # fmt: skip
    record("overhead", quiet, rows, windows=WINDOWS, calls=CALLS)


if __name__ == "__main__":
    main()
