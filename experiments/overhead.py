"""What does layerbench add to a call inside its timed window?  python -m experiments.overhead

Each call is timed as a task by the harness's own timer, in a bare loop around the same module and input, and by
torch.utils.benchmark. All in turns; lowest of 200 windows each, since whatever disturbs a window only adds time. An
identity shows the loop alone; the others what letting go of a real output does to it; a training step, which is timed
call by call, what clearing gradients in between does. The loops clear them too: a loop of that alone is subtracted.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.benchmark import Timer

from bench.clocks.host import HostTimer
from bench.clocks.timer import no_gc
from bench.measure import calls_per_window
from bench.model import Case
from bench.task import Task
from experiments.cases import case
from experiments.common import Quiet, record
from layers import load
from layers.variants import make

WINDOWS = 200
CASES = {
    "nn.Identity": case("IDENTITY"),
    "roll 1,024": case("ROLL", length=1024),
    "wait 20 us": case("WAIT", microseconds=20.0),
    "roll 1,024, training step": case("ROLL", direction="forward_backward", length=1024),
}


def calls_only(module: Any, x: Tensor, repeats: range) -> None:
    """What a bare loop does for inference."""
    for _ in repeats:
        module(x)


def steps(module: Any, x: Tensor, repeats: range) -> None:
    """And for training."""
    for _ in repeats:
        x.grad = None
        module(x).mean().backward()


def clearing(module: Any, x: Tensor, repeats: range) -> None:
    """The part of it that is not timed by the harness."""
    for _ in repeats:
        x.grad = None


def seconds(loop: Callable[[Any, Tensor, range], None], module: Any, x: Tensor, calls: int) -> float:
    """Of a loop, a call."""
    repeats = range(calls)
    start = time.perf_counter_ns()
    loop(module, x, repeats)
    return (time.perf_counter_ns() - start) / calls * 1e-9


def windows(what: Case) -> list[tuple[float, ...]]:
    """Seconds a call by the harness, by the loop, by torch.utils.benchmark, and of what both do besides."""
    torch.set_num_threads(1)
    made = make(load(what.layer), "eager", dict(what.params), dtype=torch.float32, device="cpu", seed=0)
    task, timer = Task(made, what.direction), HostTimer()
    module, x, train = made.call, task.inputs[0], what.direction.needs_gradient
    code = "x.grad = None; module(x).mean().backward()" if train else "module(x)"
    theirs = Timer(code, globals={"module": module, "x": x}, num_threads=1)
    with task.grad_mode(), no_gc():
        calls = calls_per_window(timer, task, 0.01)
        return [
            (
                timer.window(task, calls),
                seconds(steps if train else calls_only, module, x, calls),
                theirs.timeit(calls).mean,
                seconds(clearing, module, x, calls) if train else 0.0,
            )
            for _ in range(WINDOWS)
        ]


def main() -> None:
    """Each case by itself."""
    quiet, rows = Quiet(), []
    for name, what in CASES.items():
        taken = quiet.take(partial(windows, what))
        ours, loop, theirs, less = (1e9 * min(side) for side in zip(*taken, strict=True))
        rows.append({"call": name, "harness ns": ours, "bare loop ns": loop - less,
                     "torch.utils.benchmark ns": theirs - less, "overhead ns": ours - (loop - less)})  # fmt: skip
    record("overhead", quiet, rows, windows=WINDOWS)


if __name__ == "__main__":
    main()
