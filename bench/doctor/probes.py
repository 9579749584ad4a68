"""Known delays on host and GPU, measured by the harness's own timers, in a process of its own.

The self-test's measuring half; findings.py judges. Delays are spun, never slept: a sleep ends when the kernel likes.
"""

from __future__ import annotations

import itertools
import mmap
import random
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing.connection import Connection

import torch

from bench import measure, selftest_layers
from bench.clocks.host import HostTimer
from bench.clocks.timer import ClockUnavailable, Timer, no_gc
from bench.clocks.timers import device_timer
from bench.doctor import findings
from bench.doctor.findings import Finding, Reading
from bench.machine import memory
from bench.measure import Placeable, Plan
from bench.model import Direction
from bench.task import Task
from bench.units import show
from layers.variants import make

HOST_DELAYS = (10e-6, 100e-6, 2e-3)  # s
GPU_DELAYS = (5e-6, 20e-6, 100e-6, 1000e-6)  # s

# The first is the default, the others check it. A factory raises ClockUnavailable with the reason.
DEVICE_CLOCKS: dict[str, Callable[[torch.device], Timer]] = {
    name: partial(device_timer, clock=name) for name in ("events", "graph", "cupti")
}


def serve(connection: Connection, gpu: bool) -> None:
    """Send what is being done as text, findings as they are made, and None at the end."""
    torch.set_num_threads(1)
    probes = {"known delays on the host": host, **({"known delays on the GPU": on_gpu} if gpu else {})}
    for text, probe in probes.items():
        connection.send(text)
        try:
            for finding in probe():
                connection.send(finding)
        except Exception as error:
            connection.send(Finding(text, "fail", detail=f"{type(error).__name__}: {error}"))
    connection.send(None)


def host() -> Iterator[Finding]:
    """The host's clocks, delays, overhead and page faults."""
    start, raw_start = time.perf_counter_ns(), _raw()
    yield findings.clock_steps(*_steps())
    for seconds in HOST_DELAYS:
        name = f"host delay of {show(seconds, 's')}"
        yield findings.recovered(name, list(_spins(seconds)), relative=0.03, absolute=1e-6)
    yield findings.overhead(_overhead())
    yield findings.cpu_share(*_share(0.3))
    counted = memory.page_faults() > 0  # some kernels in user space count none
    yield findings.fault_cost(memory.page_fault_seconds() if counted else None, mmap.PAGESIZE)
    yield findings.clock_rates((time.perf_counter_ns() - start) / (_raw() - raw_start))


def _raw() -> int:
    """Nanoseconds of a clock that no time server adjusts, and that no timer of ours uses."""
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)


def _steps() -> tuple[float, int]:
    """The smallest step of the timers' clock in seconds, and how often it went backwards."""
    reads = [time.perf_counter_ns() for _ in range(100_000)]
    steps = [after - before for before, after in itertools.pairwise(reads)]
    return min((step for step in steps if step > 0), default=0) * 1e-9, sum(step < 0 for step in steps)


class Spin(Placeable):
    """Busy for a known time by the raw clock, which keeps account of what it really took: a process that is
    stopped inside spins for longer."""

    fresh = False

    def __init__(self, seconds: float) -> None:
        self._ns = round(seconds * 1e9)
        self.spent = 0  # ns since place()

    def prepare(self) -> None:
        """Nothing to make."""

    def place(self, rng: random.Random) -> None:
        """Start a new account."""
        self.spent = 0

    def touch(self) -> int:
        """There is no output."""
        self()
        return 0

    def __call__(self) -> None:
        start = now = _raw()
        end = start + self._ns
        while now < end:
            now = _raw()
        self.spent += now - start


def _spins(seconds: float) -> Iterator[Reading]:
    """Windows of 1, 10 and 100 calls, in one loop and each call alone; the median of a few windows of each."""
    spin = Spin(seconds)
    timers = {"in one loop": HostTimer(), "one by one": HostTimer(lambda: None)}
    for way, timer in timers.items():
        for calls in (1, 10, 100):
            pairs = []
            for _ in range(max(3, min(20, round(0.1 / (calls * seconds))))):
                (measured,) = measure.turn([Plan(timer, calls, 1)], spin, random.Random(0))["latency"]
                pairs.append((measured, spin.spent / calls * 1e-9))
            measured, truth = sorted(pairs, key=lambda pair: pair[0] - pair[1])[len(pairs) // 2]
            yield Reading(f"{calls} call{'s' * (calls > 1)} {way}", measured, truth)


def _overhead(calls: int = 1000, windows: int = 100) -> float:
    """Seconds a call that a window over a task takes beyond a bare loop around the module's own call."""
    made = make(selftest_layers.IDENTITY, "eager", {}, dtype=torch.float32, device="cpu", seed=0)
    task, timer = Task(made, Direction.INFERENCE), HostTimer()
    call, (x,) = made.call, task.inputs
    repeats = range(calls)

    def bare() -> float:
        start = time.perf_counter_ns()
        for _ in repeats:
            call(x)
        return (time.perf_counter_ns() - start) / calls * 1e-9

    with task.grad_mode(), no_gc():
        pairs = [(timer.window(task, calls), bare()) for _ in range(windows)]
    return min(window for window, _ in pairs) - min(loop for _, loop in pairs)


def _share(seconds: float) -> tuple[float, float]:
    """The part of `seconds` of spinning that was spent on a CPU, and the longest stop in seconds."""
    start = last = time.perf_counter_ns()
    cpu_start, end, longest = time.process_time_ns(), start + round(seconds * 1e9), 0
    while last < end:
        now = time.perf_counter_ns()
        longest, last = max(longest, now - last), now
    return (time.process_time_ns() - cpu_start) / (last - start), longest * 1e-9


def on_gpu() -> Iterator[Finding]:
    """Every device clock on spin kernels of known length, and the clocks against each other."""
    device = torch.device("cuda", 0)
    clocks: dict[str, Timer] = {}
    for name, factory in DEVICE_CLOCKS.items():
        try:
            clocks[name] = factory(device)
        except ClockUnavailable as reason:
            yield Finding(f"device clock {name}", "skip", detail=str(reason))
    if not clocks:
        return
    with torch.cuda.device(device):
        rate = cycles_per_second(_spin_kernels)
        rounds = []
        for seconds in GPU_DELAYS:
            values = {name: _device_time(timer, seconds, rate) for name, timer in clocks.items()}
            rounds.append(values)
            readings = [Reading(name, value, seconds) for name, value in values.items()]
            yield findings.recovered(f"GPU delay of {show(seconds, 's')}", readings, relative=0.03, absolute=0.5e-6)
        yield findings.agreement("GPU clocks, one another", rounds, relative=0.05, absolute=0.7e-6)
        yield Finding("empty event pair", "pass", show(_empty_pair(), "s"), detail="behind a busy stream")
    for name, timer in clocks.items():
        for doubt in timer.doubts:
            yield Finding(f"device clock {name}", "fail", detail=doubt)


class Kernel(Placeable):
    """Spins the GPU for a number of its clock's cycles."""

    fresh = False

    def __init__(self, cycles: int) -> None:
        self.cycles = cycles

    def prepare(self) -> None:
        """Nothing to make."""

    def place(self, rng: random.Random) -> None:
        """No inputs to move."""

    def touch(self) -> int:
        """There is no output."""
        self()
        return 0

    def __call__(self) -> None:
        torch.cuda._sleep(self.cycles)


def _device_time(timer: Timer, seconds: float, rate: float) -> float:
    kernel = Kernel(round(seconds * rate))
    calls = max(2, min(50, round(2e-3 / seconds)))
    return min(measure.turn([Plan(timer, calls, 10)], kernel, random.Random(0))[timer.metric])


def cycles_per_second(spin: Callable[[int], float], cycles: int = 20_000_000) -> float:
    """Speed of the GPU's cycle counter by the host's clock: `spin(cycles)` is the host's time for that many in seconds.

    From the difference of two lengths, so that what launching and waiting cost cancels; the median of a few.
    """
    spin(5 * cycles)  # clocks ramp up
    differences = [spin(2 * cycles) - spin(cycles) for _ in range(7)]
    return cycles / statistics.median(differences)


def _spin_kernels(cycles: int) -> float:
    torch.cuda.synchronize()
    start = time.perf_counter()
    torch.cuda._sleep(cycles)
    torch.cuda.synchronize()
    return time.perf_counter() - start


def _empty_pair() -> float:
    """Seconds between two events with nothing between them, on a stream held busy until both are enqueued."""
    pairs = []
    for _ in range(21):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda._sleep(2_000_000)
        start.record()
        end.record()
        end.synchronize()
        pairs.append(start.elapsed_time(end) * 1e-3)
    return float(statistics.median(pairs))
