"""How far apart do two identical processes come out?  python -m experiments.placement [threads]

Pairs of fresh processes measure the same case in turns, 20 ms at a time, so that what disturbs the machine disturbs
both; what is left is what differs between them. Three ways: `naive`, inputs fixed, the median of all turns, glibc as it
is; `layerbench`: inputs placed anew for each 4 ms slot, lowest of a turn, median of the turns, allocator warm; and
that with small pages instead of huge ones.
"""

from __future__ import annotations

import ctypes
import math
import statistics
import sys
from concurrent.futures import ProcessPoolExecutor
from functools import partial

import torch

from bench.clocks.host import HostTimer
from bench.measure import calls_per_window
from bench.model import Case, Policy
from bench.task import Task
from experiments.cases import case
from experiments.common import Quiet, Sampler, fresh, record
from layers import load
from layers.variants import make

PAIRS, TURNS = 20, 10
PR_SET_THP_DISABLE = 41
NAIVE_TURN = 0.02  # s, as long as one of the harness's


class Naive:
    """The same case on inputs that stay where they are; a turn is one window."""

    def __init__(self, case: Case) -> None:
        torch.set_num_threads(case.threads)
        params = dict(case.params)
        made = make(load(case.layer), case.variant, params, dtype=torch.float32, device="cpu", seed=0)
        self.task, self.timer = Task(made, case.direction), HostTimer()
        self.calls = calls_per_window(self.timer, self.task, NAIVE_TURN)

    def turn(self) -> float:
        with self.task.grad_mode():
            return self.timer.window(self.task, self.calls)


held: dict[str, Naive | Sampler] = {}  # in the processes that measure: the case in hand


def begin(way: str, case: Case) -> None:
    """In a measuring process: take up a case."""
    if way == "small pages":
        ctypes.CDLL(None).prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0)
    held["it"] = Naive(case) if way == "naive" else Sampler(case, Policy())


def turn() -> float:
    """In a measuring process: one turn's value, in seconds a call."""
    it = held["it"]
    return it.turn() if isinstance(it, Naive) else min(it.turn()["latency"])


def pair(processes: tuple[ProcessPoolExecutor, ProcessPoolExecutor], way: str, case: Case) -> float:
    """Log ratio of the two centres, the turns in the order ABBA."""
    for process in processes:
        process.submit(begin, way, case).result()
    values: tuple[list[float], list[float]] = ([], [])
    for number in range(TURNS):
        for side in (0, 1) if number % 2 else (1, 0):
            values[side].append(processes[side].submit(turn).result())
    return math.log(statistics.median(values[0]) / statistics.median(values[1]))


def main() -> None:
    """Every case in every way."""
    threads = int(sys.argv[1]) if len(sys.argv) > 1 else 1
    quiet = Quiet()
    cases = {
        "roll 1,024": case("ROLL", threads=threads, length=1024),
        "roll 2^20": case("ROLL", threads=threads, length=2**20),
        "unfold+matmul 64x64": case("WINDOWS", threads=threads, size=64),
    }
    ways = {"naive": "default", "small pages": "warm", "layerbench": "warm"}
    logs: dict[tuple[str, str], list[float]] = {(what, way): [] for what in cases for way in ways}
    for _ in range(PAIRS):
        for way, allocator in ways.items():
            with fresh(allocator) as a, fresh(allocator) as b:
                a.submit(abs, 0), b.submit(abs, 0)  # both import torch at once
                for what, one in cases.items():
                    logs[what, way].append(quiet.take(partial(pair, (a, b), way, one)))
    rows = [
        {
            "case": what,
            "way": way,
            "sd of log ratio": math.sqrt(statistics.fmean(log**2 for log in found)),  # its mean is 0
            "median |log|": statistics.median(map(abs, found)),
            "largest": max(map(abs, found)),
            "log ratios": found,
        }
        for (what, way), found in logs.items()
    ]
    name = "placement" if threads == 1 else f"placement-{threads}-threads"
    record(name, quiet, rows, hide=["log ratios"], threads=threads, pairs=PAIRS, turns=TURNS)


if __name__ == "__main__":
    main()
