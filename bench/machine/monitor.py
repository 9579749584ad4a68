"""What disturbs a case while it is sampled: throttling, other work, a GPU's clock.

Everything is read between turns, never inside a timed window. What cannot be read is a named state, never an
exception: containers, kernels and drivers each hide other things.
"""

from __future__ import annotations

import itertools
import os
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.machine import facts as machine
from bench.machine import nvml
from bench.model import Metric

BUDGET = 200e-6  # s a round that reading clocks may take on average: slow drivers are asked in fewer rounds
FEWEST = 10  # but at least in every tenth
WAITED = 0.05  # share of the time, spent waiting for a CPU, from which on it is worth a warning
CLOCK_SPREAD = 0.05  # the same for the lowest clock seen below the highest
OVERLOAD = 1.25  # and for load per CPU: this process and its parent make some themselves

Now = Callable[[], float]  # seconds
Reader = Callable[[], tuple[float, ...]]


@dataclass(frozen=True)
class Watched:
    """What was seen during a case. `states` says by name why something could not be read."""

    metrics: tuple[Metric, ...]
    warnings: tuple[str, ...]
    states: dict[str, str]


@dataclass
class _Source:
    """Figures read together: `columns` are (metric, unit, about), `rounds` hold a row for each round read."""

    name: str
    clock: str
    columns: tuple[tuple[str, str, str], ...]
    read: Reader
    rounds: list[tuple[float, ...]] = field(default_factory=list)  # an empty one: not read in that round
    mark: tuple[float, ...] = ()  # of a counter, at the start of the stretch

    def column(self, metric: str) -> list[float]:
        index = [name for name, _, _ in self.columns].index(metric)
        return [row[index] for row in self.rounds if row]

    def metrics(self) -> list[Metric]:
        if not any(self.rounds):
            return []
        return [
            Metric(name, unit, tuple(row[index : index + 1] for row in self.rounds), self.clock, about, hidden=True)
            for index, (name, unit, about) in enumerate(self.columns)
        ]


class Monitor:
    """Watches one case: `begin()`, then `round_done()` after every turn, then `end()`.

    `begin()` may be called before each turn instead of once: then what happens while other processes have theirs is
    not counted. `device` is torch's name of it; `uuid` is `str(torch.cuda.get_device_properties(device).uuid)` of a
    CUDA device. `process` is the one that makes the calls, by its number. `library` stands in for pynvml in tests.
    """

    def __init__(
        self,
        device: str,
        uuid: str | None = None,
        *,
        process: int | str = "self",
        library: Any = None,
        now: Now = time.perf_counter,
    ) -> None:
        self._now = now
        self._states: dict[str, str] = {}
        self._counters = _counters(process)
        self._gauges = [_cpu_clock(process)]
        self._load: float | None = None
        self._started, self._watched, self._debt = 0.0, 0.0, 0.0  # s
        self._begun = False
        self._slowdowns: list[str] = []  # every one seen, by name
        if device.startswith("cuda"):
            try:
                library = library or nvml.find()
                self._gauges += _gpu_gauges(library, nvml.find_card(library, uuid), self._slowdowns)
            except nvml.Absent as reason:
                self._states["nvml"] = str(reason)

    def begin(self) -> None:
        """Start a stretch in which the case runs alone."""
        if not self._begun:
            self._begun = True
            self._load = machine.fact(lambda: os.getloadavg()[0])
            for gauge in self._gauges:  # a driver's first answer takes long, and shows what it does not know
                self._read(gauge)
            self._slowdowns.clear()
        for counter in self._counters:
            counter.mark = self._read(counter)
        self._started = self._now()

    def round_done(self) -> None:
        """End the stretch of one turn, and start the next."""
        start = self._now()
        self._watched += start - self._started
        spare = self._debt <= 0  # clocks are read first: they fall when the work ends
        for gauge in self._gauges:
            gauge.rounds.append(self._read(gauge) if spare else ())
        spent = self._now() - start if spare else 0.0
        self._debt = min(max(self._debt + spent - BUDGET, 0.0), (FEWEST - 1.5) * BUDGET)
        for counter in self._counters:
            row = self._read(counter)
            counter.rounds.append(tuple(after - before for after, before in zip(row, counter.mark, strict=False)))
            counter.mark = row
        self._started = self._now()

    def end(self) -> Watched:
        """What was seen. Call it once the last round is done; it reads nothing more."""
        sources = [*self._counters, *self._gauges]
        seen = {name: source.column(name) for source in sources for name, _, _ in source.columns}
        warnings = [*self._cpu_warnings(seen), *_gpu_warnings(seen, self._slowdowns)]
        metrics = [metric for source in sources for metric in source.metrics()]
        if self._watched > 0 and seen["cpu_wait"]:
            share, about = sum(seen["cpu_wait"]) / self._watched, "share of its sampling time in which it had no CPU"
            metrics.append(Metric("cpu_wait_share", "1", ((share,),), about=about, hidden=True))
        return Watched(tuple(metrics), tuple(warnings), dict(self._states))

    def _read(self, source: _Source) -> tuple[float, ...]:
        """What a source says now; nothing, once it has failed."""
        if source.name in self._states:
            return ()
        try:
            return source.read()
        except Exception as error:  # NVML's errors are no OSErrors, and a file may hold anything
            self._states[source.name] = nvml.reason(error)
            return ()

    def _cpu_warnings(self, seen: dict[str, list[float]]) -> list[str]:
        found = []
        if times := round(sum(seen["throttled"])):
            found.append(
                f"this process was throttled {times} times for {sum(seen['throttled_time']) * 1e3:.3g} ms while it was "
                "sampled: the CPU quota of the container is exhausted"
            )
        # Not those this process may use: load counts the whole machine, whatever limits a container has.
        cpus = os.cpu_count() or 1
        if self._load is not None and self._load > OVERLOAD * cpus:
            found.append(f"load {self._load:.0f} on {cpus} CPUs: other work is running")
        waited = sum(seen["cpu_wait"])
        if self._watched > 0 and waited > WAITED * self._watched:
            share = f"{100 * waited / self._watched:.0f} %"
            found.append(f"waited for a CPU {share} of the time it was sampled: other work is running")
        return found


def _gpu_warnings(seen: dict[str, list[float]], names: list[str]) -> list[str]:
    found = []
    slowed = seen.get("gpu_slowed", [])
    if count := round(sum(slowed)):
        reasons = ", ".join(dict.fromkeys(names))
        found.append(
            f"the GPU was slowed down in {count} of {len(slowed)} rounds ({100 * count / len(slowed):.0f} %): {reasons}"
        )
    # An idle card's clock is not the one that the work ran at.
    pairs = itertools.zip_longest(seen.get("sm_clock", ()), seen.get("gpu_idle", ()))
    busy = [clock for clock, idle in pairs if clock and not idle]
    if busy and min(busy) < (1 - CLOCK_SPREAD) * max(busy):
        low, high = min(busy) / 1e6, max(busy) / 1e6
        found.append(f"the GPU's clock moved between {low:.0f} and {high:.0f} MHz while it was sampled")
    return found


def _counters(process: int | str) -> list[_Source]:
    files = machine.fact(_throttle_files) or {}
    return [
        _Source(
            "cpu.stat",
            "kernel",
            (
                ("throttled", "1", "periods in which the container's CPU quota ran out, by round"),
                ("throttled_time", "s", "time stopped for want of CPU quota by round, summed over CPUs"),
            ),
            lambda: _throttled(files),
        ),
        _Source(
            "schedstat",
            "kernel",
            (("cpu_wait", "s", "time the main thread was ready to run and had no CPU, by round"),),
            lambda: (int(machine.read(f"proc/{process}/schedstat").split()[1]) * 1e-9,),
        ),
        _Source(
            "rusage",
            "kernel",
            (("involuntary_switches", "1", "times a thread was taken off its CPU, by round"),),
            lambda: (float(resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw),),
        ),
    ]


def _throttle_files() -> dict[Any, Path]:
    """The cpu.stat of each control group of this process that can throttle it; a group mounted twice once."""
    files = (folder / "cpu.stat" for folder in machine.cgroup_folders("cpu"))
    stats = {file: (machine.ROOT / file).stat() for file in files if "nr_throttled" in (machine.text(file) or "")}
    return {(stat.st_dev, stat.st_ino): file for file, stat in stats.items()}


def _throttled(files: dict[Any, Path]) -> tuple[float, float]:
    """Periods and seconds throttled so far. Version 1 counts in ns, version 2 in us."""
    if not files:
        raise OSError("no control group here counts throttling")
    times, seconds = 0, 0.0
    for file in files.values():
        lines = dict(line.split() for line in machine.read(file).splitlines())
        times += int(lines["nr_throttled"])
        version2 = lines.get("throttled_usec")
        seconds += int(version2) * 1e-6 if version2 is not None else int(lines["throttled_time"]) * 1e-9
    return float(times), seconds


def _cpu_clock(process: int | str) -> _Source:
    def read() -> tuple[float]:
        # The 39th field, counted behind the command's name, which may hold anything.
        cpu = machine.read(f"proc/{process}/stat").rpartition(")")[2].split()[36]
        return (int(machine.read(f"sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_cur_freq")) * 1e3,)

    return _Source("cpufreq", "kernel", (("cpu_clock", "Hz", "clock of the CPU last run on, after each round"),), read)


def _gpu_gauges(library: Any, card: Any, slowdowns: list[str]) -> list[_Source]:
    def reasons() -> tuple[float, float]:
        bits = nvml.throttle_bits(library, card)
        slow = nvml.slowdowns(bits)
        slowdowns.extend(slow)
        return float(bool(slow)), float("idle" in nvml.throttle_words(bits))

    return [
        _Source(
            "sm_clock",
            "nvml",
            (("sm_clock", "Hz", "clock of the GPU's multiprocessors, after each round"),),
            lambda: (library.nvmlDeviceGetClockInfo(card, library.NVML_CLOCK_SM) * 1e6,),
        ),
        _Source(
            "throttle_reasons",
            "nvml",
            (
                ("gpu_slowed", "1", "1 where heat or power held the GPU's clock down, after each round"),
                ("gpu_idle", "1", "1 where the GPU had gone idle before its clock was read, after each round"),
            ),
            reasons,
        ),
        _Source(
            "gpu_temperature",
            "nvml",
            (("gpu_temperature", "°C", "of the GPU, after each round"),),
            lambda: (float(library.nvmlDeviceGetTemperature(card, library.NVML_TEMPERATURE_GPU)),),
        ),
    ]
