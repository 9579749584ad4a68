"""The same cases by layerbench and by others' tools, side by side.  python -m experiments.against_others [PROCESSES]

The others are `torch.utils.benchmark` and, on a GPU, `triton.testing.do_bench`. Each tool measures every case in
PROCESSES (5) fresh processes, until the 95 % interval of its median, by the same formula for all, is within 2 % (or
for 5 s). Shown: what it reports (median of the processes), how far the processes are apart, how long it took, against
the truth where the case has one and otherwise against the lowest of a long series of short windows on inputs placed
anew. CUDA cases run where there is a GPU.
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.utils.benchmark import Timer

from bench import stats
from bench.clocks.host import HostTimer
from bench.measure import calls_per_window
from bench.model import Case, Policy
from bench.task import Task
from experiments.cases import case
from experiments.common import Quiet, Sampler, fresh, record, spread
from layers import load
from layers.variants import make

TARGET, LONGEST = 0.02, 5.0
Found = tuple[float, float]  # seconds a call, seconds it took

CPU = {
    "wait 20 us": case("WAIT", microseconds=20.0),
    "wait 2 ms": case("WAIT", microseconds=2000.0),
    "roll 1,024": case("ROLL", length=1024),
    "roll 2^20": case("ROLL", length=2**20),
    "conv2d 512": case("CONV", size=512),
}
SPINS = {"spin 34,000 cycles": 34_000, "spin 340,000 cycles": 340_000, "spin 3,400,000 cycles": 3_400_000}
CUDA = {name: case("SPIN", device="cuda", cycles=cycles) for name, cycles in SPINS.items()} | {
    f"roll {name} cuda": case("ROLL", device="cuda", length=length)
    for name, length in {"1,024": 1024, "2^20": 2**20, "2^26": 2**26}.items()
}


def layerbench(what: Case) -> Found:
    """Default policy but for the target; on a GPU the device time, and as the others it alone."""
    return _by_policy(what, Policy(target=TARGET, seconds=LONGEST))


def layerbench_quick(what: Case) -> Found:
    """The same with `min_rounds: 6, slots: 2`: 12 windows of 4 ms at least where the default takes 40."""
    return _by_policy(what, Policy(target=TARGET, seconds=LONGEST, min_rounds=6, slots=2))


def _by_policy(what: Case, policy: Policy) -> Found:
    start, name = time.perf_counter(), "device" if what.device == "cuda" else "latency"
    metric = Sampler(what, policy, (name,)).until_settled(name)
    return stats.summarise(metric.lows).centre, time.perf_counter() - start


def blocked_autorange(what: Case) -> Found:
    """Its `times` are its samples; run again for twice as long until they suffice."""
    start, timer, seconds = time.perf_counter(), _timer(what), 0.2  # 0.2 s is its default
    with torch.no_grad():
        while True:
            times = timer.blocked_autorange(min_run_time=seconds).times
            seconds *= 2
            if _precise(times) or time.perf_counter() - start > LONGEST:
                return statistics.median(times), time.perf_counter() - start


def timeit(what: Case) -> Found:
    """`timeit(100)`, a sample each time, until they suffice."""
    start, timer, times = time.perf_counter(), _timer(what), list[float]()
    with torch.no_grad():
        while not _precise(times) and time.perf_counter() - start < LONGEST:
            times.append(timer.timeit(100).mean)
    return statistics.median(times), time.perf_counter() - start


def do_bench(what: Case) -> Found:
    """All its samples; run again for twice as long until they suffice."""
    from triton.testing import do_bench as bench  # type: ignore[import-not-found, unused-ignore]

    start, made, milliseconds = time.perf_counter(), _made(what), 100  # ms, its default
    with torch.no_grad():
        while True:
            times = [ms * 1e-3 for ms in bench(lambda: made.call(*made.inputs), rep=milliseconds, return_mode="all")]
            milliseconds *= 2
            if _precise(times) or time.perf_counter() - start > LONGEST:
                return statistics.median(times), time.perf_counter() - start


def truth(what: Case) -> float:
    """Seconds: known, or the lowest of 500 windows of 4 ms placed anew."""
    params: dict[str, Any] = dict(what.params)
    if "microseconds" in params:
        return float(params["microseconds"]) * 1e-6
    if "cycles" in params:
        return float(params["cycles"]) / cycles_per_second()
    if what.device == "cuda":
        return float("nan")  # the other clocks are in docs/measuring.md
    torch.set_num_threads(what.threads)
    task, timer, rng = Task(_made(what), what.direction), HostTimer(), random.Random(0)
    with task.grad_mode():
        calls, lowest = calls_per_window(timer, task, 0.004), float("inf")
        for _ in range(500):
            task.place(rng)
            task()
            lowest = min(lowest, timer.window(task, calls))
    return lowest


def cycles_per_second() -> float:
    """Slope of event time over cycles between two long spins: what an event pair costs by itself cancels."""
    times = []
    for cycles in (20_000_000, 120_000_000):
        torch.cuda._sleep(cycles)
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        torch.cuda._sleep(cycles)
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e-3)
    return 100_000_000 / float(times[1] - times[0])


def _made(what: Case) -> Any:
    layer = load(what.layer)
    return make(layer, what.variant, dict(what.params), dtype=torch.float32, device=what.device, seed=0)


def _timer(what: Case) -> Timer:
    made = _made(what)
    return Timer("layer(x)", globals={"layer": made.call, "x": made.inputs[0]}, num_threads=what.threads)


def _precise(times: list[float]) -> bool:
    half_width = stats.summarise(times).half_width if times else None
    return half_width is not None and half_width <= TARGET


def alone(tool: Callable[[Case], Any], cases: dict[str, Case]) -> dict[str, Any]:
    """Every case by one tool in a fresh process; the others' get the allocator as a user gets it."""
    with fresh("warm" if tool in (layerbench, layerbench_quick, truth) else "default") as process:
        return process.submit(all_of, tool, cases).result()


def all_of(tool: Callable[[Case], Any], cases: dict[str, Case]) -> dict[str, Any]:
    """Every case by one tool, in this process."""
    return {name: tool(what) for name, what in cases.items()}


def main(processes: str = "5") -> None:
    """Every tool where it applies; each with its own allocator state, as a user gets it."""
    quiet, rows = Quiet(), []
    cuda = torch.cuda.is_available()
    tools = [layerbench, layerbench_quick, blocked_autorange, timeit, *([do_bench] if cuda else [])]
    cases = CUDA if cuda else CPU

    right = quiet.take(partial(alone, truth, cases))
    found = {tool: [quiet.take(partial(alone, tool, cases)) for _ in range(int(processes))] for tool in tools}
    for name in cases:
        for tool, runs in found.items():
            centres, walls = zip(*(run[name] for run in runs), strict=True)
            centre = statistics.median(centres)
            rows.append({
                "case": name, "tool": tool.__name__, "truth us": right[name] * 1e6, "reported us": centre * 1e6,
                "off by": f"{100 * (centre / right[name] - 1):+.1f} %", "max/min - 1": spread(centres),
                "took s": statistics.median(walls), "all us": [1e6 * c for c in centres], "all s": walls,
            })  # fmt: skip
    record("against_others_cuda" if cuda else "against_others", quiet, rows, hide=["all us", "all s"])


if __name__ == "__main__":
    main(*sys.argv[1:])
