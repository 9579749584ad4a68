"""Does a number depend on what the process did before?  python -m experiments.allocator

`F.conv2d` (1,3,512,512) 3->16 in ten fresh processes, each with another history of allocations, by layerbench and by
`torch.utils.benchmark`, with glibc's allocator as it is (`default`) and as layerbench fixes it (`warm`).
"""

from __future__ import annotations

import resource
from collections.abc import Callable
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


def ours(number: int) -> tuple[float, float]:
    """Centre in seconds and page faults a call."""
    held = history(number)
    sampler = Sampler(case("CONV"), Policy())
    centre = stats.summarise(sampler.until_settled().lows).centre
    faults = sampler.faults()
    del held
    return centre, faults


def theirs(number: int) -> tuple[float, float]:
    """Median in seconds and page faults a call."""
    held = history(number)
    what = case("CONV")
    made = make(load(what.layer), "eager", {}, dtype=torch.float32, device="cpu", seed=0)
    timer = Timer("layer(x)", globals={"layer": made.call, "x": made.inputs[0]}, num_threads=1)
    with torch.no_grad():
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        found = timer.blocked_autorange()
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    del held
    return found.median, faults / (found.number_per_run * len(found.raw_times))


def alone(tool: Callable[[int], tuple[float, float]], allocator: str, number: int) -> tuple[float, float]:
    """One tool after one history in a fresh process."""
    with fresh(allocator) as process:
        return process.submit(tool, number).result()


def main() -> None:
    """Ten histories by two tools with two allocators."""
    quiet, rows = Quiet(), []
    for tool in (ours, theirs):
        for allocator in ("warm", "default"):
            found = []
            for number in range(10):
                found.append(quiet.take(partial(alone, tool, allocator, number)))
            centres = [centre for centre, _ in found]
            rows.append({
                "tool": "layerbench" if tool is ours else "torch.utils.benchmark",
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
