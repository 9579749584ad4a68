"""What the experiments share: a quiet machine, fresh processes, one measurement, a record."""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from math import log
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console
from rich.table import Table

from bench import stats
from bench.machine import environment
from bench.machine.memory import fix_allocator
from bench.model import Case, Metric, Policy
from bench.session import Session

RESULTS = Path(__file__).resolve().parent.parent / "results" / "experiments"
OTHERS = 0.5  # busy CPUs beside our own above which a measurement is taken again
PATIENCE = 60.0  # s in all to wait for quiet; a large host may never be
T = TypeVar("T")


class Quiet:
    """Takes measurements while nobody else keeps this machine's CPUs busy, and records how well that went."""

    def __init__(self, own: int = 1) -> None:
        self.most = own + OTHERS  # busy CPUs, our `own` included
        self.patience = PATIENCE
        self.load, self.repeated, self.busy = os.getloadavg()[0], 0, list[float]()

    def take(self, measure: Callable[[], T], tries: int = 3) -> T:
        """What `measure` returns; it is called again where others were busy meanwhile, `tries` times at most."""
        for attempt in range(tries):
            self._wait()
            jiffies, start = busy_jiffies(), time.monotonic()
            result = measure()
            busy = (busy_jiffies() - jiffies) / os.sysconf("SC_CLK_TCK") / (time.monotonic() - start)
            if busy <= self.most or self.patience <= 0:
                break
            self.repeated += attempt + 1 < tries
        self.busy.append(busy)
        return result

    def facts(self) -> dict[str, float]:
        """For the record."""
        return {
            "load average before": self.load,
            "load average after": os.getloadavg()[0],
            "measurements": len(self.busy),
            "taken again": self.repeated,
            "disturbed all the same": sum(busy > self.most for busy in self.busy),
            "busy CPUs, median": statistics.median(self.busy),
        }

    def _wait(self, longest: float = 15) -> None:
        deadline = time.monotonic() + min(longest, self.patience)
        while time.monotonic() < deadline:
            before = busy_jiffies()
            time.sleep(0.2)
            if (busy_jiffies() - before) / os.sysconf("SC_CLK_TCK") < 0.2 * 0.3:
                return
            self.patience -= 0.2


def busy_jiffies() -> int:
    """CPU time used on this machine by everyone, what a hypervisor took away included, but for niced processes, which
    yield; 0 where there is no /proc."""
    try:
        words = Path("/proc/stat").read_text(encoding="ascii").split()[1:9]
    except OSError:
        return 0
    user, _, system, _, _, irq, softirq, steal = map(int, words)
    return user + system + irq + softirq + steal


def fresh(allocator: str) -> ProcessPoolExecutor:
    """A process of its own, not a fork: its memory is laid out anew. It lives until shut down; use with `with`."""
    return ProcessPoolExecutor(1, get_context("spawn"), fix_allocator, (allocator,))


class Sampler:
    """One case in this process as a worker holds it, from warm-up to its number."""

    def __init__(self, case: Case, policy: Policy, metrics: tuple[str, ...] = ()) -> None:
        self.policy, self.turns = policy, 0
        self.session = Session(case, policy, metrics)
        self.session.warm_up()

    def turn(self) -> dict[str, tuple[float, ...]]:
        """One more round."""
        self.turns += 1
        return self.session.sample(self.turns).values

    def until_settled(self, metric: str = "latency") -> Metric:
        """Rounds until the stop rule holds for the metric, or for `policy.seconds`."""
        deadline = time.perf_counter() + self.policy.seconds
        rounds = [self.turn()[metric]]
        while not stats.settled(Metric(metric, "s", tuple(rounds)), None, self.policy):
            if time.perf_counter() > deadline:
                break
            rounds.append(self.turn()[metric])
        return Metric(metric, "s", tuple(rounds))

    def faults(self) -> float:
        """Page faults a call, median of the rounds."""
        faults = self.session.finish().metric("page_faults")
        assert faults is not None
        return statistics.median(faults.lows)


def spread(values: Sequence[float]) -> float:
    """Largest over smallest, less one."""
    return max(values) / min(values) - 1


def log_sd(values: Sequence[float]) -> float:
    """Standard deviation of the logarithms: a relative spread."""
    return statistics.stdev(map(log, values))


def record(name: str, quiet: Quiet, rows: list[dict[str, Any]], hide: Sequence[str] = (), **facts: Any) -> None:
    """Print the rows as a table, without the columns in `hide`, and write all to results/experiments/NAME.json."""
    shown = [key for key in rows[0] if key not in hide]
    table = Table(*shown, title=name)
    for row in rows:
        table.add_row(*(show(row[key]) for key in shown))
    Console(width=140).print(table)
    machine = environment.describe()["fingerprint"]
    content = {"machine": machine, **quiet.facts(), **facts, "rows": rows}
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def show(value: Any) -> str:
    """Four figures of a number, anything else as text."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
