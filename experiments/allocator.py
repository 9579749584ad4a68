"""Does a number depend on what the process did before?  python -m experiments.allocator

`F.conv2d` (1,3,512,512) 3->16 in ten fresh processes, each with another history of allocations, by layerbench and by
`torch.utils.benchmark`, with glibc's allocator as it is (`default`) and as layerbench fixes it (`warm`). layerbench
takes turns among the processes, as in a run (`in turns`), and measures one after another, too: what the machine itself
drifts in between is then in the spread.
"""

from __future__ import annotations

import random
import resource
import statistics
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch.utils.benchmark import Timer

from bench import stats
from bench.model import Policy
from experiments.cases import case
from experiments.common import Quiet, Sampler, fresh, log_sd, record, spread
from layers import load
from layers.variants import make

MB = 2**18  # floats
HISTORIES, ROUNDS = 10, 15
Found = tuple[float, float]  # seconds and page faults a call


def history(number: int) -> list[Any]:
    """Do what a process may have done before; returns what it still holds."""
    torch.set_num_threads(1)
    sizes: dict[int, list[int]] = {
        1: [16 * MB],
        2: [31 * MB] * 3,
        3: [256 * MB],
        4: [1000] * 20_000,
        5: [8 * MB, 1000] * 20,
        6: [2 * MB * n for n in range(1, 30)],
    }
    made = [torch.ones(size) for size in sizes.get(number, [])]
    if number in (5, 6):
        return made[::2]  # holes
    if number == 7:
        torch.randn(1, 3, 256, 256).unfold(2, 3, 1).contiguous().sort()
    if number == 8:
        torch.nn.functional.conv2d(torch.randn(4, 3, 700, 700), torch.randn(16, 3, 3, 3))
    if number == 9:
        return [{n: bytes(n % 5000) for n in range(100_000)}]
    return []


held: dict[str, Any] = {}  # in the processes that measure: the case in hand, and what the history left


def begin(number: int) -> None:
    """In a measuring process: live through a history, warm up."""
    held["history"] = history(number)
    held["sampler"] = Sampler(case("CONV"), Policy())


def turn() -> float:
    """In a measuring process: one turn's value."""
    return float(min(held["sampler"].turn()["latency"]))


def faults() -> float:
    """In a measuring process: page faults a call."""
    found: float = held["sampler"].faults()
    return found


def in_turns(allocator: str) -> list[Found]:
    """All histories at once, round by round in random order."""
    with ExitStack() as stack:
        processes = [stack.enter_context(fresh(allocator)) for _ in range(HISTORIES)]
        for number, process in enumerate(processes):
            process.submit(begin, number).result()  # one at a time: warm-up, too, wants the machine for itself
        values: dict[int, list[float]] = {number: [] for number in range(HISTORIES)}
        for _ in range(ROUNDS):
            for number in random.sample(range(HISTORIES), HISTORIES):
                values[number].append(processes[number].submit(turn).result())
        return [
            (statistics.median(values[number]), process.submit(faults).result())
            for number, process in enumerate(processes)
        ]


def ours(number: int) -> Found:
    """Centre in seconds and page faults a call, until the stop rule holds."""
    begin(number)
    centre = stats.summarise(held["sampler"].until_settled().lows).centre
    return centre, faults()


def theirs(number: int) -> Found:
    """Median in seconds and page faults a call."""
    left = history(number)
    what = case("CONV")
    made = make(load(what.layer), "eager", {}, dtype=torch.float32, device="cpu", seed=0)
    timer = Timer("layer(x)", globals={"layer": made.call, "x": made.inputs[0]}, num_threads=1)
    with torch.no_grad():
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        found = timer.blocked_autorange()
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    del left
    return found.median, faults / (found.number_per_run * len(found.raw_times))


def one_by_one(tool: Callable[[int], Found], allocator: str, quiet: Quiet) -> list[Found]:
    """Every history in a fresh process, one after another."""

    def alone(number: int) -> Found:
        with fresh(allocator) as process:
            return process.submit(tool, number).result()

    return [quiet.take(partial(alone, number)) for number in range(HISTORIES)]


def main() -> None:
    """Ten histories by two tools with two allocators."""
    quiet, rows = Quiet(), []
    ways: dict[str, Callable[[str], list[Found]]] = {
        "layerbench, in turns": lambda allocator: quiet.take(partial(in_turns, allocator)),
        "layerbench": lambda allocator: one_by_one(ours, allocator, quiet),
        "torch.utils.benchmark": lambda allocator: one_by_one(theirs, allocator, quiet),
    }
    for way, measure in ways.items():
        for allocator in ("warm", "default"):
            found = measure(allocator)
            centres = [centre for centre, _ in found]
            rows.append({
                "tool": way,
                "allocator": allocator,
                "least ms": min(centres) * 1e3,
                "most ms": max(centres) * 1e3,
                "max/min - 1": spread(centres),
                "sd of log": log_sd(centres),
                "faults a call, least": min(faults for _, faults in found),
                "faults a call, most": max(faults for _, faults in found),
                "seconds": centres,
            })  # fmt: skip
    record("allocator", quiet, rows, hide=["seconds"])


if __name__ == "__main__":
    main()
