"""What does layerbench add to a call inside its timed window?  python -m experiments.overhead

Three calls, each timed as a task by the harness's own timer, in a bare loop around the same module and input, and by
torch.utils.benchmark. All in turns; lowest of 200 windows each, since whatever disturbs a window only adds time. An
identity shows the loop alone; the others what letting go of a real output does to it.
"""

from __future__ import annotations

import time

import torch
from torch.utils.benchmark import Timer

from bench.clocks.host import HostTimer
from bench.clocks.timer import no_gc
from bench.model import Case, Direction
from bench.task import Task
from experiments.cases import case
from experiments.common import Quiet, record
from layers import load
from layers.variants import make

WINDOWS, CALLS = 200, 3000
CASES = {
    "nn.Identity": case("IDENTITY"),
    "roll 1,024": case("ROLL", length=1024),
    "wait 20 us": case("WAIT", microseconds=20.0),
}


def bare(module: object, x: torch.Tensor, calls: int) -> float:
    """Seconds a call of a loop that does nothing else."""
    repeats = range(calls)
    start = time.perf_counter_ns()
    for _ in repeats:
        module(x)  # type: ignore[operator]
    return (time.perf_counter_ns() - start) / calls * 1e-9


def windows(what: Case, calls: int) -> list[tuple[float, ...]]:
    """Seconds a call by the harness, by the loop, and by torch.utils.benchmark."""
    made = make(load(what.layer), "eager", dict(what.params), dtype=torch.float32, device="cpu", seed=0)
    task, timer = Task(made, Direction.INFERENCE), HostTimer()
    x = task.inputs[0]
    theirs = Timer("module(x)", globals={"module": made.call, "x": x}, num_threads=1)
    with task.grad_mode(), no_gc():
        return [
            (timer.window(task, calls), bare(made.call, x, calls), theirs.timeit(calls).mean) for _ in range(WINDOWS)
        ]


def main() -> None:
    """Each case in turn."""
    quiet, rows = Quiet(), []
    torch.set_num_threads(1)
    for name, what in CASES.items():
        calls = CALLS if name != "wait 20 us" else CALLS // 10
        taken = quiet.take(lambda what=what, calls=calls: windows(what, calls))  # type: ignore[misc]
        ours, loop, theirs = (1e9 * min(side) for side in zip(*taken, strict=True))
        rows.append({"call": name, "harness ns": ours, "bare loop ns": loop, "torch.utils.benchmark ns": theirs,
                     "overhead ns": ours - loop})  # fmt: skip
    record("overhead", quiet, rows, windows=WINDOWS, calls=CALLS)


if __name__ == "__main__":
    main()
